"""The same program in several processes that take turns, a step at a time.

A machine that others share changes its pace by half within seconds. Processes that make the same steps
one after the other see the same pace, so that the times of their steps compare. A step is an iteration of a
loop of the program's main thread, or several where a loop is long; it ends when the device has done its
work. The set-up, from `begin` to the first loop, takes a turn of its own; what comes before has none and is
not timed.

Each process has a pipe on which a byte says that it is its turn, and one on which a byte says that the
turn is over. Whoever closes that, or dies, takes no more turns.
"""

import builtins
import os
import threading
import time

# A loop is cut into about as many steps at most.
STEPS = 150


class Turns:
    """One process's side: file descriptors where a turn is given and given back. `finish` waits until the
    device has done its work; what `note` tells at the end of each step is kept beside its time."""

    def __init__(self, finish, given, back, note=lambda: None):
        self._finish, self._given, self._back, self._note = finish, given, back, note
        self.seconds = []
        self.notes = []
        # In seconds; None without a `begin` before the first loop.
        self.setup = None
        self._begin = None
        self._looped = False

    def begin(self):
        """Begins the set-up, at the first call."""
        if self._begin is None and threading.current_thread() is threading.main_thread():
            self._wait()

    def range(self, *bounds):
        """As the function of that name, with steps that end between iterations."""
        whole = builtins.range(*bounds)
        if threading.current_thread() is not threading.main_thread():
            yield from whole
            return
        if self._begin is None:
            self._wait()
        elif not self._looped:
            self._end_step()
            self.setup = self.seconds.pop()
            self.notes.clear()
            self._pass_on()
        self._looped = True
        length = max(1, len(whole) // STEPS)
        for index, value in enumerate(whole):
            yield value
            if (index + 1) % length == 0:
                self._end_step()
                self._pass_on()

    def end(self):
        """Ends the last step, if there was one, and takes no more turns. Without a loop the set-up and
        what followed is that step."""
        if self._begin is not None:
            self._end_step()
        self.leave()

    def leave(self):
        """Takes no more turns; what was begun is no step."""
        os.close(self._back)

    def _end_step(self):
        self._finish()
        self.seconds.append(time.perf_counter() - self._begin)
        self.notes.append(self._note())

    def _pass_on(self):
        os.write(self._back, b"t")
        self._wait()

    def _wait(self):
        os.read(self._given, 1)
        self._begin = time.perf_counter()


def parsed(text):
    """The last two arguments of `Turns`, from a command line."""
    given, back = map(int, text.split(","))
    return given, back


class Conductor:
    """Gives turns to `count` processes. `ends[n]` are what `Turns` takes in the n-th; they must be closed
    here once it has them."""

    def __init__(self, count):
        given = [os.pipe() for _ in builtins.range(count)]
        back = [os.pipe() for _ in builtins.range(count)]
        self.ends = [(g[0], b[1]) for g, b in zip(given, back, strict=True)]
        self._own = [(g[1], b[0]) for g, b in zip(given, back, strict=True)]

    def conduct(self):
        """Gives turns in order until nobody takes any."""
        taking = list(self._own)
        while taking:
            for give, back in list(taking):
                try:
                    os.write(give, b"t")
                    taken = os.read(back, 1)
                except BrokenPipeError:
                    taken = b""
                if not taken:
                    taking.remove((give, back))
        for end in sum(self._own, ()):
            os.close(end)
