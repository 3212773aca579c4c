"""torch.compile with CUDA graph trees: checkpoints of private pools."""

import unittest

import support


def setUpModule():
    support.gpu_or_skip()
    try:
        import triton  # noqa: F401
    except ImportError:
        raise unittest.SkipTest("Triton is not installed here") from None
    from torch._inductor import config

    # Checks the live blocks of the private pool after each step against PyTorch's own list.
    config.triton.slow_path_cudagraph_asserts = True


class ReduceOverhead(support.GpuTest):
    def test_paths_that_branch(self):
        torch = self.torch

        @torch.compile(mode="reduce-overhead")
        def first(x):
            return torch.relu(x @ x).sin(), x * 2

        @torch.compile(mode="reduce-overhead")
        def left(a, b):
            return (a + b).cos()

        @torch.compile(mode="reduce-overhead")
        def right(a, b):
            return (a - b).softmax(-1) @ b

        x = torch.randn(256, 256, device="cuda")
        for step in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            a, b = first(x)
            branch, expected = (
                (left, lambda a, b: (a + b).cos())
                if step % 3
                else (right, lambda a, b: (a - b).softmax(-1) @ b)
            )
            y = branch(a, b)
            wanted = expected(torch.relu(x @ x).sin(), x * 2)
            self.assertTrue(torch.allclose(y, wanted, atol=1e-3, rtol=1e-3), step)
            del a, b, y

    def test_training(self):
        torch = self.torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)
        ).cuda()
        compiled = torch.compile(model, mode="reduce-overhead")
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        x = torch.randn(64, 128, device="cuda")
        losses = []
        for _ in range(15):
            torch.compiler.cudagraph_mark_step_begin()
            loss = compiled(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss))
        self.assertLess(losses[-1], losses[0] * 0.9)


if __name__ == "__main__":
    unittest.main()
