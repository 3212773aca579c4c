"""What other libraries use of an allocator, and what is not there."""

import unittest

import support
from support import MIB


def setUpModule():
    support.gpu_or_skip()


class Raw(support.GpuTest):
    def test_caching_allocator_alloc_and_delete(self):
        cuda = self.torch.cuda
        address = cuda.caching_allocator_alloc(5 * MIB)
        self.assertEqual(self.live(), 5 * MIB)
        cuda.caching_allocator_delete(address)
        self.assertEqual(self.live(), 0)
        with self.assertRaisesRegex(RuntimeError, "no live allocation"):
            cuda.caching_allocator_delete(address)
        side = cuda.Stream()
        address = cuda.caching_allocator_alloc(MIB, stream=side)
        cuda.caching_allocator_delete(address)
        self.assertEqual(self.live(), 0)

    def test_cudnn_benchmark(self):
        torch = self.torch
        before = torch.backends.cudnn.benchmark
        self.addCleanup(setattr, torch.backends.cudnn, "benchmark", before)
        torch.backends.cudnn.benchmark = True
        convolution = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
        x = torch.randn(8, 16, 64, 64, device="cuda")
        y = convolution(x)
        expected = torch.nn.functional.conv2d(
            x.cpu(), convolution.weight.cpu(), convolution.bias.cpu(), padding=1
        )
        self.assertTrue(torch.allclose(y.cpu(), expected, atol=1e-2))
        y.sum().backward()

    def test_without_caching(self):
        torch = self.torch
        cached = torch.ones(MIB, device="cuda")
        torch.cuda.memory.caching_allocator_enable(False)
        try:
            plain = torch.full((MIB,), 2.0, device="cuda")
        finally:
            torch.cuda.memory.caching_allocator_enable(True)
        self.assertTrue(bool((cached + plain == 3).all()))
        del plain
        self.assertEqual(self.live(), 4 * MIB)

    def test_dlpack(self):
        torch = self.torch
        x = torch.arange(1000, device="cuda")
        y = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
        address = y.data_ptr()
        del x
        self.assertEqual(int(y.sum()), 499500)
        self.assertEqual(y.data_ptr(), address)

    def test_resizing_and_saving(self):
        import io

        torch = self.torch
        x = torch.arange(100.0, device="cuda")
        x.resize_(2 * MIB)
        self.assertEqual(float(x[99]), 99)
        buffer = io.BytesIO()
        torch.save(x[:100].clone(), buffer)
        buffer.seek(0)
        self.assertTrue(torch.equal(torch.load(buffer), x[:100]))

    def test_tensors_cannot_be_sent_to_other_processes_yet(self):
        x = self.torch.ones(10, device="cuda")
        with self.assertRaisesRegex(NotImplementedError, "by way of the CPU"):
            x.untyped_storage()._share_cuda_()

    def test_a_training_step_gives_what_it_gives_elsewhere(self):
        torch = self.torch
        torch.manual_seed(1)
        model = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0, batch_first=True)
        x = torch.randn(4, 10, 64)
        model(x).sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model.cuda()
        model(x.cuda()).sum().backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            self.assertTrue(torch.allclose(parameter.grad.cpu(), gradient, atol=2e-2, rtol=1e-2))


if __name__ == "__main__":
    unittest.main()
