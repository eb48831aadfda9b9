"""Some seconds of every scenario of `tests/stress.py`, and the crashes and hangs that were there once, one by one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ndpool.engines import native

from . import stress
from .test_native import run_python

pytestmark = [
    pytest.mark.skipif(not native.available(), reason="the native engine is not built"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted as on Linux")


@pytest.mark.parametrize("name", stress.SCENARIOS)
def test_scenario(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if why := stress.missing(name):
        pytest.skip(why)
    assert stress.main(["--only", name, "--seconds", "1.3", "--seed", "12"]) == 0, capsys.readouterr().out


def test_a_run_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(stress, "perform", lambda name, seed, seconds: ("a crash", 0) if name == "forks" else ("", 7))
    assert stress.main(["--only", "forks", "--only", "plans", "--seconds", "0", "--seed", "5"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a crash",
        "again: python -m tests.stress --seconds 10 --only forks --seed 5",
        "forks: failed, seed 5",
        "plans: 7 calls, seed 5",
        "1 passed, 1 failed, 7 calls",
    ]


# A worker that woke late read the job of a caller that had gone on: a crash in one call of some ten thousand.
CALLERS = """
import sys, threading, time
import numpy as np, ndpool
op, x = ndpool.MaxPool(2), np.zeros((16, 128, 128), "f4")
ndpool.set_threads(16)
end = time.monotonic() + 5
def work():
    for _ in range(40_000 // {callers}):
        op(x)
        if time.monotonic() > end:
            break
callers = [threading.Thread(target=work) for _ in range({callers})]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
print("ended")
"""


@pytest.mark.parametrize("callers", [1, 8])
def test_a_late_worker_leaves_the_next_job_alone(callers: int) -> None:
    assert run_python(CALLERS.replace("{callers}", str(callers))) == "ended"


# Thousands of units of a microsecond each, so that some thread holds every lock of the engine at times.
FORKS = """
import os, signal, threading, time
import numpy as np, ndpool
ndpool.set_threads({threads})
op, x = ndpool.GlobalMaxPool(), np.broadcast_to(np.zeros((128, 128), np.uint8), (4000, 128, 128))
ended = False
def work():
    while not ended:
        op(x)
callers = [threading.Thread(target=work) for _ in range(4)]
for caller in callers:
    caller.start()
outcomes = set()
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        os._exit(0 if op(x[:8]).shape == (8, 1, 1) else 1)
    outcomes.add(os.waitpid(child, 0)[1])
    if outcomes != {0}:
        break
ended = True
print(*outcomes)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_forked_in_the_middle_of_calls_pools(threads: int) -> None:
    assert run_python(FORKS.replace("{threads}", str(threads))) == "0"


# The child's workers are gone, and with them the parts of the line that they had begun.
HANDLER = """
import os, signal
import numpy as np, ndpool
ndpool.set_threads(2)
op, x = ndpool.GlobalSmoothMaxPool(axes=0), np.broadcast_to(np.float32(0.5), 400_000_000)
want, parent = op(x), os.getpid()
outcomes = set()
def fork(*_):
    if child := os.fork():
        outcomes.add(os.waitpid(child, 0)[1])
signal.signal(signal.SIGALRM, fork)
for delay in (0.01, 0.05, 0.1):
    signal.setitimer(signal.ITIMER_REAL, delay)
    same = np.array_equal(op(x), want)
    if os.getpid() != parent:
        os._exit(0 if same else 1)
    assert same
signal.setitimer(signal.ITIMER_REAL, 0)
print(*outcomes)
"""


def test_a_call_goes_on_in_a_child_that_its_signal_handler_forks() -> None:
    assert run_python(HANDLER) == "0"


# `sleep` keeps the process for as many seconds as its exit status says, after the interpreter has ended.
LEFT = """
import ctypes, signal, sys, time
import numpy as np, ndpool
op, x = ndpool.SmoothMaxPool((100_000, 1000), 1), np.broadcast_to(np.float32(1), (100_001, 1001))
start = time.monotonic()
op(x)
took = time.monotonic() - start
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.01)
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)
try:
    op(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(2 + int(2 * took))
"""


@linux
def test_workers_that_finish_an_interrupted_call_outlive_the_interpreter() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "interrupted\n", done.stderr
    assert done.returncode >= 2, done.returncode


# One thread is always in the middle of making the vectors of new axes.
FIRST_OF_ITS_KIND = """
import os, signal, threading, time
import numpy as np
from ndpool.engines import portable
from ndpool.spec import SUM, Window, adaptive
def vjp(size, outputs):
    window = Window((adaptive(size, outputs),))
    portable.linearize(window, SUM, np.zeros(size)).vjp(np.zeros(outputs))
ended, sizes = False, iter(range(100_000, 200_000))
def work():
    while not ended:
        vjp(next(sizes), 60_000)
caller = threading.Thread(target=work)
caller.start()
outcomes = set()
for _ in range(20):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        vjp(7, 5)
        os._exit(0)
    outcomes.add(os.waitpid(child, 0)[1])
    if outcomes != {0}:
        break
ended = True
caller.join()
print(*outcomes)
"""


def test_a_child_forked_while_an_attribute_is_computed_has_its_own() -> None:
    assert run_python(FIRST_OF_ITS_KIND) == "0"


# NumPy's own modules that come in when first asked for are imports, too. Importing holds a lock.
FIRST = """
import sys
import numpy as np, ndpool
before = set(sys.modules)
x = np.arange(64.0).reshape(8, 8)
y, indices = ndpool.max_pool(x, 2, return_indices=True)
ndpool.max_unpool(y, indices, 2)
ndpool.AvgPool(3, 2, 1).vjp(x, np.ones((4, 4)))
ndpool.smooth_max_pool(x.astype(np.float16), 2)
ndpool.avg_pool([[1, 2], [3, 4]], 2)
ndpool.avg_pool(x.astype(complex), 2)
print(*sorted(set(sys.modules) - before))
"""


def test_a_first_call_imports_nothing() -> None:
    """A child forked while another thread imports a module waits for ever when it needs that module."""
    assert run_python(FIRST) == ""


TASKS = """
import os, time
import numpy as np, ndpool
op = ndpool.MaxPool(2)
def tasks():
    return len(os.listdir("/proc/self/task"))
few, many = np.zeros((8, 128, 128), "f4"), np.zeros((64, 256, 256), "f4")
before = tasks()
"""

FEW = """
ndpool.set_threads(64)
op(few[:1])
one = tasks() - before
op(few)
print(one, 0 < tasks() - before <= 8)
"""


@linux
def test_no_more_threads_are_started_than_there_is_work_for() -> None:
    assert run_python(TASKS + FEW) == "0 True"


SHRINK = """
ndpool.set_threads(64)
op(many)
ndpool.set_threads(2)
patience = time.monotonic() + 60
while tasks() > before + 2 and time.monotonic() < patience:
    op(many)
    time.sleep(0.02)
print(tasks() - before <= 2)
"""


@linux
def test_workers_end_that_are_not_wanted_any_more() -> None:
    assert run_python(TASKS + SHRINK) == "True"
