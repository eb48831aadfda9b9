"""The native engine's modes: where its ways change (few taps are compared, many are counted), and every layout."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from ndpool.engines import native, portable
from ndpool.spec import Axis, Law, Window, adaptive, each, mode, sliding, whole

from .cases import INTEGERS, MODES, assert_exact
from .fuzz import guarded

if not native.available():
    pytest.skip(f"the native engine is not in use: {native.reason()}", allow_module_level=True)

from .test_native import LAYOUT_AXES, LAYOUTS, running

each_law = pytest.mark.parametrize("law", MODES.values(), ids=MODES)
DTYPES = [np.dtype(t) for t in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
VALUES = (5, 1 << 62)  # so many different labels


def labels(shape: tuple[int, ...], dtype: Any, different: int, seed: int = 0) -> np.ndarray:
    """So many labels at most, spread over the type's whole range."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    some = rng.integers(info.min, info.max, min(different, 4096), dtype, endpoint=True)
    return rng.choice(some, shape)


def slide(n: int, kernel: int, stride: int | None = None, padding: tuple[int, int] = (0, 0), dilation: int = 1) -> Axis:
    return sliding(n, kernel, stride, padding, dilation, count_padding=False)


def agree(window: Window, law: Law, x: np.ndarray, note: Any = "") -> None:
    assert native.supports(window, law, x), note
    assert_exact(native.forward(window, law, x), portable.forward(window, law, np.array(x, order="C")), note)


def around(*sizes: int) -> list[int]:
    """One below, at and one above each."""
    return sorted({n + d for n in sizes for d in (-1, 0, 1)})


# -- sizes that ways depend on ---------------------------------------------------------------------------------------


@each_law
@each_dtype
def test_numbers_of_taps(law: Law, dtype: np.dtype) -> None:
    for taps in (2, *around(4, 8, 16, 32, 64, 127)):
        for different in VALUES:
            x = labels((2, 3 * taps + 5), dtype, different)
            agree(Window((each(2), slide(x.shape[1], taps))), law, x, (taps, "apart"))
            agree(Window((each(2), slide(x.shape[1], taps, 2, (1, taps)))), law, x, (taps, "overlapping"))
            agree(Window((slide(x.shape[1], taps), each(2))), law, x.T, (taps, "lanes"))


@each_law
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64"])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_numbers_of_outputs(law: Law, dtype: str, stride: int) -> None:
    for outputs in sorted({*range(1, 19), *around(32, 64, 128, 256)}):
        for kernel in (2, 3):
            n = (outputs - 1) * stride + kernel
            x = labels((2, 4, n), dtype, 3)
            agree(Window((each(2), slide(4, 2, 2), slide(n, kernel, stride))), law, x, (outputs, kernel))
            agree(Window((slide(2, 2), slide(4, 2), slide(n, kernel, stride))), law, x, (outputs, kernel, "space"))
        x = labels((4, outputs), dtype, 3)
        agree(Window((slide(4, 2, stride), each(outputs))), law, x, (outputs, "lanes"))


@each_law
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_tables_grow(law: Law, dtype: str) -> None:
    """Windows of which all labels differ, but for a few at the very end."""
    for n in (*around(256, 512), 1400):
        line = np.arange(n).astype(dtype)
        line[-3:] = line[n // 2]
        x = np.stack([line, line[::-1], np.full(n, 7, dtype)])
        agree(Window((each(3), whole(n))), law, x, n)
        agree(Window((each(3), adaptive(n, 3))), law, x, (n, "bins"))
        agree(Window((each(3), slide(n, n // 2, 3))), law, x, (n, "overlapping"))


@each_law
def test_long_runs_are_counted_whole(law: Law) -> None:
    x = np.repeat(labels((1, 60), "uint32", 4), 100, axis=1)
    for axis in (whole(6000), slide(6000, 700, 350), slide(6000, 128, 128, (30, 0)), adaptive(6000, 7)):
        agree(Window((each(1), axis)), law, x, axis)


@each_law
def test_equal_windows_and_one_that_is_not(law: Law) -> None:
    """A vector of outputs is done where all windows are uniform: each place of one that is not is seen."""
    for dtype in ("uint8", "uint64"):
        x = np.full((2, 4, 300), 9, dtype)
        window = Window((slide(2, 2), slide(4, 2), slide(300, 2)))
        assert_exact(native.forward(window, law, x), np.full((1, 2, 150), 9, dtype))
        for at in range(0, 300, 7):
            y = x.copy()
            y[:, :, at] = 5
            agree(window, law, y, at)


# -- order, layout, memory ---------------------------------------------------------------------------------------------


@each_law
def test_order_is_the_callers_whatever_memorys_is(law: Law) -> None:
    x = labels((6, 8, 10), "int32", 6)
    windows = (
        Window((slide(6, 2), slide(8, 2), slide(10, 2))),
        Window((slide(6, 3, 1, (1, 1)), slide(8, 2, 1, (1, 0)), slide(10, 4, 3, (0, 2)))),
        Window((slide(6, 6), slide(8, 5, 3), slide(10, 7, 1))),
        Window((whole(6), adaptive(8, 3), whole(10))),
        Window((adaptive(6, 4), whole(8), whole(10))),
    )
    for window in windows:
        for order in permutations(range(3)):
            y = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
            agree(window, law, y, (window, order))


@pytest.mark.parametrize("layout", LAYOUTS)
@each_law
def test_every_layout(law: Law, layout: str) -> None:
    for dtype in map(np.dtype, ("uint8", "uint64")):
        x = LAYOUTS[layout](labels((3, 4, 26, 23), dtype, 3))
        for name, axis in LAYOUT_AXES.items():
            axes = [replace(a, margin=(0, 0)) for a in map(axis, x.shape[2:])]
            window = Window((each(x.shape[0]), each(x.shape[1]), *axes))
            got = native.forward(window, law, x)
            assert got.dtype == x.dtype
            want = native.forward(window, law, np.array(x, dtype, order="C"))
            assert np.array_equal(got, want), (dtype, name)


@each_law
def test_nothing_beside_an_array_is_read(law: Law) -> None:
    """Memory that begins or ends at pages that nobody may touch."""
    for dtype in ("uint8", "int32", "uint64"):
        for n in (1, 2, 7, 16, 33, 63, 64, 65, 127, 130):
            for at_end in (False, True):
                held = labels((2, n), dtype, 3)
                x = np.ndarray(held.shape, dtype, guarded(held.nbytes, at_end).data)
                x[...] = held
                for kernel in (1, 2, 3, 5):
                    for stride in (1, 2, 3):
                        axis = slide(n, kernel, stride, (kernel // 2, kernel))
                        agree(Window((each(2), axis)), law, x, (dtype, n, kernel, stride))
                        agree(Window((slide(2, 2, 1, (1, 0)), axis)), law, x, (dtype, n, kernel, stride, "plane"))


@each_law
def test_threads_and_instruction_sets_change_nothing(law: Law) -> None:
    for dtype in (np.dtype("uint8"), np.dtype("uint32")):
        x = labels((33, 65, 130), dtype, 4)
        for axis in (lambda n: slide(n, 2), lambda n: slide(n, 3, 1, (1, 1)), lambda n: adaptive(n, 5), whole):
            window = Window((axis(33), axis(65), axis(130)))
            with running(1):
                want = native.forward(window, law, x)
            for isa in native.isas():
                for threads in (1, 3):
                    with running(threads, isa):
                        assert_exact(native.forward(window, law, x), want, (isa, threads))


@each_law
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_many_small_windows_of_any_geometry(law: Law, dtype: np.dtype) -> None:
    for kernel, stride, dilation, padding in ((2, 2, 1, 0), (3, 2, 2, 1), (2, 3, 3, 2), (5, 4, 1, 2), (1, 2, 1, 0)):
        axes = [slide(n, kernel, stride, (padding, padding + 1), dilation) for n in (7, 9, 20)]
        for rank in (1, 2, 3):
            window = Window((*map(each, (7, 9, 20)[: 3 - rank]), *axes[3 - rank :]))
            agree(window, law, labels((7, 9, 20), dtype, 3), (kernel, stride, dilation, padding, rank))
            first = Window((*axes[:rank], *map(each, (7, 9, 20)[rank:])))
            agree(first, law, labels((7, 9, 20), dtype, 3), (kernel, stride, dilation, padding, rank, "lanes"))


def test_a_window_of_everything_in_a_large_array() -> None:
    x = np.arange(300_000, dtype=np.uint32).reshape(1000, 300)
    x[500:503, 7] = 299_999
    assert native.forward(Window((whole(1000), whole(300))), mode(), x).tolist() == [[299_999]]
    assert math.prod(native.forward(Window((adaptive(1000, 2), whole(300))), mode(), x).shape) == 2
