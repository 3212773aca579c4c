"""CUDA graphs and the private pools that hold their memory."""

import copy
import gc
import threading
import unittest

import support
from support import MIB

import vmm_torch


def setUpModule():
    support.gpu_or_skip()


class Graphs(support.GpuTest):
    def capture(self, body, pool=None):
        """Runs `body` once, then captures it; the graph and what it returned."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            body()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = body()
        return graph, result

    def test_replays_are_right_whatever_runs_in_between(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")

        def body():
            a = x * 2
            b = a + 1
            del a
            c = torch.cat([b, b])
            return c.cumsum(0)

        graph, y = self.capture(body)
        for step in range(20):
            # Sums stay below what a float holds exactly, for their order is not always the same.
            n = step % 4
            x.fill_(n)
            garbage = [torch.full((k * MIB // 2,), -7.0, device="cuda") for k in range(1, 9)]
            graph.replay()
            expected = torch.full((2 * MIB,), 2.0 * n + 1, device="cuda").cumsum(0)
            self.assertTrue(torch.equal(y, expected))
            del garbage, expected

    def test_eager_memory_is_never_a_graphs(self):
        torch = self.torch
        graph, y = self.capture(lambda: torch.ones(8 * MIB, device="cuda") * 3)
        pool = tuple(graph.pool())
        own = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == pool]
        self.assertTrue(own)
        ranges = [(s["address"], s["address"] + s["total_size"]) for s in own]
        self.assertTrue(any(low <= y.data_ptr() < high for low, high in ranges))
        eager = [torch.empty(8 * MIB, device="cuda") for _ in range(20)]
        for tensor in eager:
            self.assertFalse(any(low <= tensor.data_ptr() < high for low, high in ranges))

    def test_memory_comes_back_when_a_graph_is_gone(self):
        torch = self.torch
        vmm_torch.set_limit(torch.cuda.memory_reserved() + (1 << 30))
        self.addCleanup(vmm_torch.set_limit, 0)
        for _ in range(4):
            graph, y = self.capture(lambda: torch.ones(140 * MIB, device="cuda"))
            graph.replay()
            self.assertTrue(bool((y == 1).all()))
            del graph, y
            gc.collect()
        # Without empty_cache: the request itself finds it.
        graph, y = self.capture(lambda: torch.ones(140 * MIB, device="cuda"))
        graph.replay()
        del graph, y
        gc.collect()
        self.assertTrue(bool((torch.full((180 * MIB,), 4.0, device="cuda") == 4).all()))

    def test_an_output_may_outlive_its_graph(self):
        torch = self.torch
        graph, y = self.capture(lambda: torch.full((4 * MIB,), 9.0, device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        others = [torch.zeros(4 * MIB, device="cuda") for _ in range(10)]
        self.assertTrue(bool((y == 9).all()))
        del others

    def test_graphs_share_a_pool(self):
        torch = self.torch
        x = torch.ones(2 * MIB, device="cuda")
        first, y = self.capture(lambda: x + 1)
        second, z = self.capture(lambda: y * 2, pool=first.pool())
        for n in range(5):
            x.fill_(n)
            first.replay()
            second.replay()
            self.assertTrue(bool((z == 2 * (n + 1)).all()))
        del first
        gc.collect()
        second.replay()
        self.assertTrue(bool((z == 10).all()))

    def test_graphs_with_pools_of_their_own(self):
        torch = self.torch
        graphs = []
        for n in range(1, 6):
            graphs.append(
                (n, *self.capture(lambda n=n: torch.full((n * MIB,), float(n), device="cuda")))
            )
        for _ in range(3):
            for _, graph, y in graphs:
                y.fill_(0)
                graph.replay()
            for n, _, y in graphs:
                self.assertTrue(bool((y == n).all()))

    def test_a_capture_that_failed_keeps_no_memory(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")
        before = torch.cuda.memory_reserved()
        for _ in range(3):
            graph = torch.cuda.CUDAGraph()
            support.failed_capture(self, graph)
            graph = None
            gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.check_reserved(before, 128 * MIB)
        graph, z = self.capture(lambda: x + 1)
        graph.replay()
        self.assertTrue(bool((z == 2).all()))

    def test_pools_go_while_another_thread_captures(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")
        # So that no kernel is loaded during a capture.
        y = x + 1
        torch.cuda.synchronize()
        outcome = []

        def capture():
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for n in range(200):
                        # torch.cuda.graph would wait for the device, and so slow this down.
                        graph = torch.cuda.CUDAGraph()
                        graph.capture_begin(capture_error_mode="thread_local")
                        y = x + n
                        graph.capture_end()
                        y = graph = None
                outcome.append("captured all")
            except RuntimeError as error:
                outcome.append(str(error))

        thread = threading.Thread(target=capture)
        thread.start()
        while thread.is_alive():
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                y = torch.empty(MIB, device="cuda")
            del y, pool
        thread.join()
        self.assertEqual(outcome, ["captured all"])

    def test_out_of_memory_in_a_capture_is_an_error_and_no_more(self):
        torch = self.torch
        vmm_torch.set_limit(torch.cuda.memory_reserved() + 256 * MIB)
        self.addCleanup(vmm_torch.set_limit, 0)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaises(torch.OutOfMemoryError):
            with torch.cuda.graph(graph):
                torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        del graph
        gc.collect()
        graph, y = self.capture(lambda: torch.ones(MIB, device="cuda"))
        graph.replay()
        self.assertTrue(bool((y == 1).all()))

    def test_eager_tensors_may_end_during_a_capture(self):
        torch = self.torch
        held = [torch.ones(MIB, device="cuda") for _ in range(4)]
        side = torch.cuda.Stream()
        held[0].record_stream(side)
        # What a graph reads has to live as long as that, so these two stay.
        x, one = torch.ones(MIB, device="cuda"), torch.ones(MIB, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + one
            held.pop()
            y.record_stream(torch.cuda.current_stream())
            held.clear()
            z = y * 2
        graph.replay()
        self.assertTrue(bool((z == 4).all()))

    def test_side_streams_inside_a_capture(self):
        torch = self.torch
        x = torch.ones(MIB, device="cuda")
        side = torch.cuda.Stream()

        def body():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                a = x * 3
            b = x + 1
            torch.cuda.current_stream().wait_stream(side)
            a.record_stream(torch.cuda.current_stream())
            return a + b

        graph, y = self.capture(body)
        for n in range(4):
            x.fill_(n)
            graph.replay()
            self.assertTrue(bool((y == 4 * n + 1).all()))

    def test_training_with_graphed_callables(self):
        torch = self.torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)
        ).cuda()
        sample = torch.randn(16, 64, device="cuda")

        def train(model, forward):
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            losses = []
            for _ in range(20):
                loss = forward(sample).square().mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
            return torch.tensor(losses)

        eager = copy.deepcopy(model)
        expected = train(eager, eager)
        pools = vmm_torch.stats(0)["private_pools"]
        graphed = torch.cuda.make_graphed_callables(model, (sample,))
        self.assertGreater(vmm_torch.stats(0)["private_pools"], pools)
        losses = train(model, graphed)
        self.assertLess(float(expected[-1]), float(expected[0]))
        self.assertTrue(torch.allclose(losses, expected, rtol=1e-3), (losses, expected))

    def test_many_graphs_come_and_go(self):
        torch = self.torch
        before = torch.cuda.memory_reserved()
        for n in range(30):
            graph, y = self.capture(lambda n=n: torch.full((MIB,), float(n), device="cuda"))
            graph.replay()
            self.assertTrue(bool((y == n).all()))
        del graph, y
        gc.collect()
        torch.cuda.empty_cache()
        self.check_reserved(before, 64 * MIB)


if __name__ == "__main__":
    unittest.main()
