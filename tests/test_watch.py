"""A hang is told from a machine without time: `tests/watch.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .watch import Clock, _times, usable, watched

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell who waits")


@pytest.mark.parametrize(
    ("seconds", "ran", "waited", "want"),
    [
        (1.0, 0.0, 0.0, 1.0),  # asleep, or in a deadlock
        (1.0, 0.0, 1.0, 0.0),  # ready all the time, and never let
        (1.0, 0.2, 0.5, 0.5),  # 0.3 of it asleep
        (1.0, 0.5, 6.5, 0.5),  # seven that run in turns
        (1.0, 2.0, 0.0, 1.0),  # two at once
    ],
)
def test_what_a_process_could_use(seconds: float, ran: float, waited: float, want: float) -> None:
    assert usable(seconds, ran, waited) == want


@contextmanager
def children(*works: str) -> Iterator[list[int]]:
    pids = []
    for work in works:
        if (pid := os.fork()) == 0:
            while work == "spins":
                os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            while True:
                signal.pause()
        pids.append(pid)
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@linux
def test_waiting_for_a_processor_does_not_count() -> None:
    with children("spins", "spins", "spins", "sleeps") as pids:
        start = time.monotonic()
        clocks = [Clock(pid) for pid in pids]
        time.sleep(1)
        *spinning, asleep = (clock.look() for clock in clocks)
        took = time.monotonic() - start
    assert min(spinning) < 0.6 * took  # three share a processor
    assert asleep > 0.9


@linux
def test_a_child_that_waits_is_seen() -> None:
    code = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nos.fork()\nos.fork()\nwhile 1: pass"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        patience = time.monotonic() + 60
        while len(_times(child.pid)) < 4 and time.monotonic() < patience:
            time.sleep(0.01)
        assert len({pid for pid, _ in _times(child.pid)}) == 4
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_a_hang_ends_with_the_stacks_of_all_its_processes() -> None:
    code = "import faulthandler as f, os, signal; f.enable(); os.fork(); print('here', flush=True); signal.pause()"
    status, said = watched([sys.executable, "-c", code], 1)
    assert status is None
    assert said.count("here") == 2
    assert [said.count(words) for words in ("Fatal Python error", "Aborted")] == [2, 2]  # both may write at once


def test_an_end_is_told_with_its_status() -> None:
    assert watched([sys.executable, "-c", "print('words'); raise SystemExit(3)"], 60) == (3, "words\n")
