"""Running a process that may hang, and telling a hang from a machine that has no time for it.

A process that hangs waits for no processor. So the limit is one of time that it could have used: what its threads, and
those of its children, waited for a processor does not count, where the system tells it (Linux, /proc/*/schedstat).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LOOKS = 0.2  # seconds between two looks; what a thread waited since the last look before its end is not seen


class Clock:
    """Seconds that a process could have used since the clock was made."""

    def __init__(self, pid: int):
        self.pid, self.usable = pid, 0.0
        self.looked, self.times = time.monotonic(), _times(pid)

    def look(self) -> float:
        now, times = time.monotonic(), _times(self.pid)
        new = [(t[0] - s[0], t[1] - s[1]) for thread, t in times.items() for s in [self.times.get(thread, (0.0, 0.0))]]
        self.usable += usable(now - self.looked, sum(ran for ran, _ in new), sum(waited for _, waited in new))
        self.looked, self.times = now, times
        return self.usable


def usable(seconds: float, ran: float, waited: float) -> float:
    """How many of these a process could use whose threads ran and waited so long: those in which none of them waited,
    and if they are so many that one always waits, those in which they ran.
    """
    return min(seconds, max(ran, seconds - waited))


def _times(pid: int) -> dict[tuple[int, str], tuple[float, float]]:
    """Seconds that each thread of a process and of its children ran, and waited for a processor."""
    times = {}
    with suppress(OSError):  # a thread or a process that has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                ran, waited, _ = (task / "schedstat").read_text().split()
                times[pid, task.name] = (int(ran) / 1e9, int(waited) / 1e9)
                for child in (task / "children").read_text().split():
                    times |= _times(int(child))
    return times


def watched(command: Sequence[str], limit: float) -> tuple[int | None, str]:
    """The exit status of a command, None if it did not end in `limit` seconds that it could have used; and its words.

    When it hangs, it and all its children get a SIGABRT: a faulthandler says where they are.
    """
    child = subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    clock = Clock(child.pid)
    while True:
        try:
            said, _ = child.communicate(timeout=LOOKS)
            return child.returncode, said
        except subprocess.TimeoutExpired:
            if clock.look() > limit:
                break
    for number, seconds in ((signal.SIGABRT, 1.0), (signal.SIGKILL, 0.0)):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        time.sleep(seconds)
    return None, child.communicate()[0]
