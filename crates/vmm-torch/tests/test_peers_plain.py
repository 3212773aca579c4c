"""Two cards by the plain door."""

import unittest

import support
import test_peers


def setUpModule():
    if support.gpus() < 2:
        raise unittest.SkipTest("there is one GPU or none here")
    support.gpu_or_skip(door="plain")


class Copies(test_peers.Copying, unittest.TestCase):
    def setUp(self):
        import torch

        self.torch = torch


if __name__ == "__main__":
    unittest.main()
