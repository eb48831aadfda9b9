"""How far a long run is: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

EVERY = 10.0  # seconds between lines in a log


class Progress(Protocol):
    """What a run tells of itself; `total` and steps are bytes of source that have been worked through."""

    def begin(self, total: int, done: int) -> None: ...
    def step(self, size: int) -> None: ...
    def end(self) -> None: ...


class Silent:
    def begin(self, total: int, done: int) -> None:
        pass

    def step(self, size: int) -> None:
        pass

    def end(self) -> None:
        pass


class Calls(Silent):
    """A function of the user's: it is told how many bytes of how many are done."""

    def __init__(self, function: Callable[[int, int], Any]):
        self.function, self.total, self.done = function, 0, 0

    def begin(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self.function(done, total)

    def step(self, size: int) -> None:
        self.done += size
        self.function(self.done, self.total)


class Lines(Silent):
    """Plain lines: at first, every ten seconds, and at the end."""

    def __init__(self, write: Callable[[str], Any], clock: Callable[[], float] = time.monotonic):
        self.write, self.clock = write, clock
        self.total = self.done = self.before = 0
        self.began = self.told = 0.0

    def begin(self, total: int, done: int) -> None:
        self.total, self.done, self.before = total, done, done
        self.began = self.told = self.clock()
        if done:
            self.write(f"{size(done)} of {size(total)} were done before\n")

    def step(self, size: int) -> None:
        self.done += size
        if self.clock() - self.told >= EVERY:
            self._tell()

    def end(self) -> None:
        if self.done > self.before:
            self._tell()

    def _tell(self) -> None:
        self.told = self.clock()
        rate = (self.done - self.before) / max(self.told - self.began, 1e-9)
        left = f", {duration((self.total - self.done) / rate)} left" if rate and self.done < self.total else ""
        percent = 100 * self.done // max(1, self.total)
        self.write(f"{percent} %: {size(self.done)} of {size(self.total)}, {size(rate)}/s{left}\n")


class Bar(Silent):
    """tqdm's bar, with rate and time left."""

    def __init__(self, make: Any):
        self.make, self.bar = make, None

    def begin(self, total: int, done: int) -> None:
        self.bar = self.make(total=total, initial=done, unit="B", unit_scale=True, unit_divisor=1024, file=sys.stderr)

    def step(self, size: int) -> None:
        if self.bar is not None:
            self.bar.update(size)

    def end(self) -> None:
        if self.bar is not None:
            self.bar.close()


def shown(wanted: Any) -> Progress:
    """True: a bar where stderr is a terminal and tqdm is installed, else lines. False: nothing. Or a function that is
    called with the bytes that are done and those that there are."""
    if callable(wanted):
        return Calls(wanted)
    if not wanted:
        return Silent()
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm

            return Bar(tqdm)
        except ImportError:
            pass
    return Lines(lambda line: print(line, end="", file=sys.stderr, flush=True))


def size(n: float) -> str:
    """
    >>> size(512), size(3 * 2**20), size(2.5 * 2**40)
    ('512 B', '3.0 MiB', '2.5 TiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    i = min(len(units) - 1, max(0, (int(n).bit_length() - 1) // 10))
    return f"{n / 1024**i:.1f} {units[i]}" if i else f"{int(n)} B"


def duration(seconds: float) -> str:
    """
    >>> duration(7.2), duration(75), duration(7500)
    ('7 s', '1:15 min', '2:05 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    big, small = divmod(whole, 60) if whole < 3600 else divmod(whole // 60, 60)
    return f"{big}:{small:02} {'min' if whole < 3600 else 'h'}"
