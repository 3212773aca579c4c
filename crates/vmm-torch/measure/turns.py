"""The same program in several processes that take turns, a step at a time.

A machine that others share changes its pace by half within seconds. Processes that make the same steps
one after the other see the same pace, so that the times of their steps compare. A step is an iteration of a
loop of the program's main thread, or several where a loop is long; it ends when the device has done its
work. What comes before the first loop has no turns and is not timed.

A token goes round in pipes: one byte, the number of processes that have left, by their end or by a failure.
They go on passing it until all have.
"""

import builtins
import os
import threading
import time

# A loop is cut into about as many steps at most.
STEPS = 150


class Turns:
    """One process's side. `own` is where the token comes in and `following` where it goes, file
    descriptors; `finish` waits until the device has done its work; `count` processes take part."""

    def __init__(self, finish, own, following, count):
        self._finish, self._own, self._following, self._count = finish, own, following, count
        self.seconds = []
        self._left = 0
        self._begin = None

    def range(self, *bounds):
        """As the function of that name, with steps that end between iterations."""
        whole = builtins.range(*bounds)
        if threading.current_thread() is not threading.main_thread():
            yield from whole
            return
        if self._begin is None:
            self._wait()
        length = max(1, len(whole) // STEPS)
        for index, value in enumerate(whole):
            yield value
            if (index + 1) % length == 0:
                self._end_step()
                self._give()
                self._wait()

    def end(self):
        """Ends the last step, and leaves."""
        if self._begin is None:
            self._wait()
        self._end_step()
        self.leave()

    def leave(self):
        """Leaves amid a step."""
        if self._begin is None:
            self._wait()
        self._left += 1
        self._give()
        while self._left < self._count:
            self._wait()
            self._give()

    def _end_step(self):
        self._finish()
        self.seconds.append(time.perf_counter() - self._begin)

    def _give(self):
        os.write(self._following, bytes([self._left]))

    def _wait(self):
        self._left = os.read(self._own, 1)[0]
        self._begin = time.perf_counter()


def parsed(text):
    """The last three arguments of `Turns`, from a command line."""
    own, following, count = map(int, text.split(","))
    return own, following, count


def ring(count):
    """For each of `count` processes the two ends of pipes that it needs; the token is in the first."""
    pipes = [os.pipe() for _ in builtins.range(count)]
    os.write(pipes[0][1], b"\0")
    return [(pipes[index][0], pipes[(index + 1) % count][1]) for index in builtins.range(count)]
