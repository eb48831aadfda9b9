"""Long axes on the native engine: threads share one window, plans stay small, and Ctrl-C does not wait for the end."""

from __future__ import annotations

import gc
import math
import re
import sys
import tracemalloc

import numpy as np
import pytest

import ndpool

from .test_native import assert_same_bits, run_python, running  # skips where there is no extension

LONG = (1 << 20) + 12345  # taps of a window that is cut into pieces
OPS = [
    ndpool.GlobalMaxPool(axes=(-1,)),
    ndpool.GlobalMinPool(axes=(-1,), ties="last"),
    ndpool.GlobalMaxPool(axes=(-1,), nan="ignore", ties="split"),
    ndpool.GlobalSumPool(axes=(-1,)),
    ndpool.GlobalAvgPool(axes=(-1,)),
    ndpool.GlobalSmoothMaxPool(axes=(-1,), beta=0.5),
    ndpool.GlobalLpPool(3.0, axes=(-1,)),
    ndpool.AvgPool((1 << 19,), 1 << 19, 1000),  # the ends are clipped
    ndpool.MaxPool((LONG - 5,), LONG // 2, LONG // 3, ceil_mode=True),
]


def values(rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=n).astype(dtype)
    return (rng.random(n) < 1e-5).astype(dtype)


@pytest.mark.parametrize("op", OPS, ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "int64"])
def test_threads_that_share_a_window_change_no_bit(op: ndpool.Op, dtype: str) -> None:
    rng = np.random.default_rng(0)
    if isinstance(op, (ndpool.GlobalSmoothMaxPool, ndpool.GlobalLpPool)) and np.dtype(dtype).kind != "f":
        pytest.skip("a law of real numbers")
    x, dx = values(rng, LONG, dtype), values(rng, LONG, dtype)
    dy = values(rng, op.out_shape(x.shape)[0], dtype)

    def results() -> list[np.ndarray]:
        return [op(x), *((*op.value_and_jvp(x, dx), op.vjp(x, dy)) if x.dtype.kind == "f" else ())]

    with running(1):
        want = results()
    for n in (2, 5):
        with running(n):
            got = results()
        for one, other in zip(got, want, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("op", OPS[3:7], ids=repr)
def test_a_window_in_pieces_has_the_bits_of_one_that_is_whole(op: ndpool.Op) -> None:
    """Of many long windows each goes in one piece, of a few each is cut: a batch must not change what it holds."""
    x = np.random.default_rng(1).normal(size=(1, 300_000)).astype(np.float32)
    batch = np.broadcast_to(x, (300, 300_000))  # laid out like this, rows are the same memory again and again
    with running(2):
        assert_same_bits(op(batch)[::299], np.repeat(op(x), 2, axis=0))


def test_the_first_of_equals_wins_across_pieces() -> None:
    x = np.zeros(LONG, np.float32)
    x[[7, 700_000, LONG - 1]] = 5
    for ties, at in (("first", 7), ("last", LONG - 1)):
        y, index = ndpool.global_max_pool(x, axes=(0,), ties=ties, return_indices=True)
        assert (float(y[0]), int(index[0])) == (5, at)
        dx = ndpool.GlobalMaxPool(axes=(0,), ties=ties).vjp(x, np.ones(1, np.float32))
        assert np.flatnonzero(dx).tolist() == [at]


def test_of_zeros_with_both_signs_the_first_stands_across_pieces() -> None:
    for first in (0.0, -0.0):
        x = np.full(LONG, -1, np.float32)
        x[900_000], x[900_001:] = first, -first
        assert np.signbit(ndpool.global_max_pool(x, axes=(0,)))[0] == np.signbit(first)


def test_long_sums_are_near_the_exact_sum() -> None:
    x = np.random.default_rng(2).normal(size=LONG).astype(np.float32)
    exact, size = math.fsum(x), math.fsum(abs(x))
    assert abs(float(ndpool.global_sum_pool(x, axes=(0,))[0]) - exact) <= size * 2**-22


def test_a_sum_that_does_not_fit_raises_across_pieces() -> None:
    x = np.full(LONG, 2**62 // LONG * 2 + 4, np.int64)
    with pytest.raises(ndpool.PoolError, match="does not fit int64"):
        ndpool.global_sum_pool(x, axes=(0,))
    assert int(ndpool.global_avg_pool(x, axes=(0,))[0]) == int(x[0])


def test_what_records_remember_is_bounded() -> None:
    """Plans take the same few bytes for any size, and records together remember only so many arrays."""
    base = np.zeros(50_000, np.float32)

    def many_shapes(offset: int) -> int:
        for k in range(40):
            op = ndpool.AvgPool((k % 5 + 2,), k % 3 + 1)
            for n in range(70):
                op(base[: 1000 + offset + n * 7 + k])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = many_shapes(0)
        later = [many_shapes(offset) for offset in (10_000, 20_000)]
    finally:
        tracemalloc.stop()
    assert max(later) < first + 2**21
    assert max(later) < 2**25


# The cotangent of one large window is one unit of work, a sixth of a second or more in which nothing returns to the
# interpreter.
INTERRUPT = """
import os, signal, threading
import numpy as np, ndpool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have had it ignored
op = ndpool.LpPool(2.5, (1 << 12, 4000))
x = np.random.default_rng(0).normal(size=(1 << 12, 4001))
dy, at = np.ones((1, 1)), op.linearize(x)
small = ndpool.LpPool(2.5, 3).vjp(x[:3, :3], dy)
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    at.vjp(dy)
    print("finished")
except KeyboardInterrupt:
    assert np.array_equal(ndpool.LpPool(2.5, 3).vjp(x[:3, :3], dy), small)
    assert np.array_equal(op(x), at.y)
    print("interrupted")
"""


@pytest.mark.parametrize("n", ["1", "2"])
def test_an_interrupt_does_not_wait_for_a_long_unit(n: str) -> None:
    assert run_python(INTERRUPT, NDPOOL_THREADS=n) == "interrupted"


NO_MEMORY = """
import resource
import numpy as np, ndpool
from ndpool.engines import native
native.set_threads(1)
op = ndpool.LpPool(2.5, (1 << 12, 4000))
x = np.ones((1 << 12, 4096))
at, x = op.linearize(x[:, :4001]), x.ravel()
with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 28), resource.RLIM_INFINITY))
many = np.broadcast_to(x, (64, 1 << 24))
for run in (lambda: at.vjp(np.ones((1, 1))), lambda: ndpool.max_pool(many, (2,), 1, axes=(1,))):
    try:
        run()
    except MemoryError as error:
        print(error)
"""


LITTLE_SCRATCH = """
import resource
import numpy as np, ndpool
x = np.arange(1 << 22, dtype=np.float32)
ndpool.max_pool(x[:99], (3,), 1)
with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (100 << 20), resource.RLIM_INFINITY))
print(*ndpool.max_pool(x, ((1 << 22) - 1,), 1).tolist())
"""


# Folding what the window's taps are takes arrays as long as it, several of them in double.
LITTLE_FOR_A_VJP = """
import resource
import numpy as np, ndpool
x = np.linspace(-1, 1, 1 << 24, dtype=np.float32)
ops = ndpool.GlobalSmoothMaxPool(axes=0), ndpool.GlobalLpPool(2.5, axes=0), ndpool.GlobalMaxPool(axes=0, ties="split")
ats = [op.linearize(x) for op in ops]
ndpool.set_kept_memory(0)
with open("/proc/self/statm") as f:
    now = int(f.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (100 << 20), resource.RLIM_INFINITY))
for at in ats:
    dx = at.vjp(np.ones(1, np.float32))  # 64 MiB
    print(bool(dx[-1] == dx.max() > 0))
    del dx
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited as on Linux")
def test_the_cotangent_of_one_long_window_needs_scratch_for_parts_of_it() -> None:
    assert run_python(LITTLE_FOR_A_VJP).split() == ["True"] * 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited as on Linux")
def test_one_long_window_that_slides_needs_scratch_for_one() -> None:
    assert run_python(LITTLE_SCRATCH) == "4194302.0 4194303.0"


ENDED_THREADS = """
import threading
import numpy as np, ndpool
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
op, x = ndpool.GlobalLpPool(2, axes=0), np.ones((16, 1 << 17), np.float16)
op(x)
ndpool.set_kept_memory(0)
before = resident()
for _ in range(4):
    callers = [threading.Thread(target=op, args=(x,)) for _ in range(8)]
    for caller in callers: caller.start()
    for caller in callers: caller.join()
print((resident() - before) >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is counted as on Linux")
def test_threads_that_ended_keep_no_scratch() -> None:
    assert int(run_python(ENDED_THREADS)) < 32


def test_a_memory_error_says_how_much_was_asked_for() -> None:
    scratch, result = run_python(NO_MEMORY).splitlines()
    assert re.fullmatch(r"no memory for \d{9,10} bytes of scratch, which a part of this window needs", scratch)
    assert result == f"no memory for a result of {64 * ((1 << 24) - 1) * 8} bytes"
