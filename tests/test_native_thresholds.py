"""The native engine where its ways change: one below, at and one above every size that it decides by.

The other way of computing the same is the portable engine, which has none of these sizes; for ties and positions both
are exact, for sums they agree within the type's tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import ndpool
from ndpool.engines import native, portable, reference
from ndpool.spec import SUM, Axis, Law, Window, adaptive, each, lp, maximum, mean, minimum, sliding, smooth_max, whole

from . import cases
from .cases import assert_close, assert_exact, assert_same_zeros
from .fuzz import guarded

if not native.available():
    pytest.skip(f"the native engine is not in use: {native.reason()}", allow_module_level=True)

from .test_native import LAYOUT_AXES, LAYOUTS, assert_same_bits, everything, plane, running

MAX, MEAN, SMOOTH, NORM = maximum(), mean(), smooth_max(1.5), lp(2)
LAWS = {"max": MAX, "mean": MEAN, "smooth max": SMOOTH, "lp": NORM}


def slide(n: int, kernel: int, stride: int = 1, padding: tuple[int, int] = (0, 0), dilation: int = 1) -> Axis:
    return sliding(n, kernel, stride, padding, dilation, count_padding=False)


def agree(window: Window, law: Law, dtype: str = "float32", values: Any = None, note: Any = "") -> None:
    """Value, place, jvp and vjp; values with many ties for a max, without any for other laws."""
    rng = np.random.default_rng(len(window.axes))
    x = rng.normal(size=window.shape).astype(dtype) if values is None else values
    x = np.round(x * 2) if law.name in ("max", "min") and values is None else x
    dx, dy = (rng.integers(-3, 4, shape).astype(dtype) for shape in (window.shape, window.out_shape))
    with np.errstate(all="ignore"):
        got, want = native.linearize(window, law, x), portable.linearize(window, law, x)
        assert_close(native.forward(window, law, x), want.y, (note, "forward"))
        assert_close(got.y, want.y, (note, "y"))
        assert_close(got.jvp(dx), want.jvp(dx), (note, "jvp"))
        assert_close(got.vjp(dy), want.vjp(dy), (note, "vjp"))
        if law.name in ("max", "min"):
            axes = cases.pooled(window)
            got, want = native.winners(window, law, x, axes), portable.winners(window, law, x, axes)
            assert_exact(got[0], want[0], (note, "winner"))
            assert_same_zeros(got[0], want[0], note)
            assert_exact(got[1], want[1], (note, "place"))


def around(*sizes: int) -> list[int]:
    """One below, at and one above each."""
    return sorted({n + d for n in sizes for d in (-1, 0, 1)})


# -- windows: tap by tap, in blocks, side by side ---------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_windows_around_those_that_are_cut_into_blocks(law: str, stride: int) -> None:
    """Blocks are for more than 8 taps, and more than 2 strides and 5."""
    for taps in around(8, 2 * stride + 5):
        for dilation in (1, 2):
            axis = slide(3 * taps * dilation, taps, stride, (taps // 2, 1), dilation)
            note = (taps, dilation)
            agree(Window((each(3), axis)), LAWS[law], note=note)  # along rows
            agree(Window((each(20), axis)), LAWS[law], note=note)  # rows turned into columns
            agree(Window((axis, each(5))), LAWS[law], note=note)  # down columns


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_windows_around_those_whose_taps_lie_side_by_side(law: str, dtype: str) -> None:
    """From 16 taps on, in 8 or 16 lanes, from 128 or 256 taps on in four times as many."""
    for taps in around(8, 16, 128, 256):
        for tiles in (1, 3, 40):  # as many lines as a vector has lanes go together
            agree(Window((each(tiles), slide(2 * taps, taps, taps))), LAWS[law], dtype, note=(taps, tiles))
        agree(Window((slide(2 * taps, taps, taps), each(5))), LAWS[law], dtype, note=(taps, "lanes"))
        agree(Window((each(2), slide(3 * taps, taps, taps - 1, (1, 2)))), LAWS[law], dtype, note=(taps, "clipped"))


@pytest.mark.parametrize("law", LAWS)
def test_windows_around_those_that_move_on_by_little(law: str) -> None:
    """Taps lie side by side where windows move on by more than 2."""
    for taps, stride in ((16, 2), (16, 3), (16, 6), (17, 6), (15, 6), (16, 5)):
        agree(Window((each(3), slide(5 * taps, taps, stride, (2, 3)))), LAWS[law], note=(taps, stride))


@pytest.mark.parametrize("law", LAWS)
def test_lines_around_those_that_are_halved(law: str) -> None:
    for taps in around(4096, 8192):
        for dtype in ("float32", "float64"):
            agree(Window((each(2), whole(taps))), LAWS[law], dtype, note=taps)
            agree(Window((whole(taps), each(3))), LAWS[law], dtype, note=(taps, "lanes"))


@pytest.mark.parametrize("law", ["mean", "smooth max", "max"])
def test_blocks_around_those_that_are_summed_in_double(law: str) -> None:
    for taps in around(512):
        agree(Window((each(2), slide(taps + 40, taps))), LAWS[law], note=taps)
        agree(Window((slide(taps + 40, taps), each(3))), LAWS[law], note=(taps, "lanes"))


# -- rows and tiles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_rows_around_those_whose_phases_are_dealt_out(law: str, stride: int) -> None:
    """The vjp of a stride: from 48 inputs on each phase is a row of its own."""
    for n in around(48, 96):
        agree(Window((each(2), slide(n, 3, stride, (1, 1)))), LAWS[law], note=n)
        agree(Window((each(2), slide(5, 2, 1), slide(n, stride, stride))), LAWS[law], note=(n, "plane"))


@pytest.mark.parametrize("law", LAWS)
def test_tiles_around_those_that_are_lanes(law: str) -> None:
    """Up to 1024 elements, with rows of less than 32 outputs, as many tiles as a vector has lanes."""
    shapes = [(31, 33), (32, 32), (25, 41), (33, 31), (30, 34), (4, 31), (4, 32), (4, 33), (4, 34), (1, 31), (1, 32)]
    for rows, columns in shapes:
        for tiles in (3, 4, 7, 8, 9, 16, 17):
            window = Window((each(tiles), slide(rows, 1, 1), slide(columns, 3, 1, (1, 1))))
            agree(window, LAWS[law], note=(rows, columns, tiles))


@pytest.mark.parametrize("law", LAWS)
def test_rows_around_those_that_are_turned(law: str) -> None:
    """Of which more than one output in 8 is at an end, or that repeat by more than two phases."""
    for n in (14, 15, 16, 17, 18, 23, 24, 25, 31, 32, 33):
        for padding in ((1, 1), (2, 1), (2, 2), (0, 1)):
            agree(Window((each(18), slide(n, 5, 1, padding))), LAWS[law], note=(n, padding))
        agree(Window((each(18), adaptive(n, 7))), LAWS[law], note=(n, "bins"))


@pytest.mark.parametrize("law", ["max", "mean", "smooth max"])
def test_arrays_around_a_unit_of_work(law: str) -> None:
    """32768 elements a unit; from 16384 on other threads may run meanwhile."""
    for n in around(16384, 32768):
        agree(Window((each(1), slide(n, 3, 2, (1, 1)))), LAWS[law], note=n)
        agree(Window((each(n // 8), slide(8, 2, 2))), LAWS[law], note=(n, "tiles"))
    for rows in (180, 181, 182):
        agree(Window((each(1), slide(rows, 3, 1, (1, 1)), slide(181, 3, 1, (1, 1)))), LAWS[law], note=(rows, "plane"))


@pytest.mark.parametrize(
    ("law", "dtype"), [*product(("max", "sum"), ("float32", "float64", "int32")), ("max", "uint8")]
)
def test_lines_that_are_merged_together_have_the_bits_of_each_alone(law: str, dtype: str) -> None:
    """As many lines as a vector has lanes, of 16 elements and more; some are zeros with both signs."""
    rng = np.random.default_rng(3)
    which = MAX if law == "max" else SUM
    for n, lines in product((*around(16, 64, 256), 49, 1000, 4097), (*around(16, 32), 100)):
        x = rng.normal(size=(lines, n)) if dtype.startswith("float") else rng.integers(0, 100, (lines, n))
        x = x.astype(dtype)
        if dtype.startswith("float"):
            x[::5] = np.where(rng.random((len(x[::5]), n)) < 0.5, 0.0, -0.0)
        y = native.forward(Window((each(lines), whole(n))), which, x)
        for i in range(lines):
            assert_same_bits(y[i : i + 1], native.forward(Window((each(1), whole(n))), which, x[i : i + 1]))


@pytest.mark.parametrize("tiles", [1, 2, 9, 40])
def test_means_divide_by_what_each_output_counts_in_every_tile(tiles: int) -> None:
    """Counts of small tiles are laid out for several of them at once; those of one tile go row by row."""
    small = [(slide(7, 3, 1, (1, 1)),) * 2, (adaptive(14, 4),) * 2, (slide(28, 3, 1, (1, 1)), slide(5, 3, 2, (1, 1)))]
    for axes in small:
        window = Window((each(tiles), *axes))
        agree(window, MEAN, note=axes)
        x = np.random.default_rng(tiles).normal(size=tuple(axis.size for axis in window.axes)).astype(np.float32)
        alone = Window((each(1), *axes))
        for i in range(tiles):
            assert_same_bits(native.forward(window, MEAN, x)[i : i + 1], native.forward(alone, MEAN, x[i : i + 1]))


def test_arrays_whose_rows_lie_on_each_other() -> None:
    """Rows, or tiles, of stride 0 have no distance to ask for memory ahead by."""
    x = np.random.default_rng(0).normal(size=(1, 1, 14)).astype(np.float32)
    for axes in ((adaptive(14, 4), adaptive(14, 4)), (slide(14, 7, 7), each(14))):
        window, shape = Window((each(20), *axes)), (20, 14, 14)
        laid = np.broadcast_to(x, shape)
        for law in (MEAN, MAX):
            assert_same_bits(native.forward(window, law, laid), native.forward(window, law, laid.copy()))


def test_lines_around_those_that_are_converted_in_parts() -> None:
    for n in around(1 << 20):
        x = np.zeros((1, n), np.float16)
        x[0, [0, n // 2, n - 2, n - 1]] = 1, 2, 4, 8
        window = Window((each(1), whole(n)))
        assert native.forward(window, SUM, x).item() == 15
        assert native.forward(window, MAX, x).item() == 8
        assert native.winners(window, MAX, x, (1,))[1].item() == n - 1


# -- which tap won -----------------------------------------------------------------------------------------------------

TAPS: dict[int, list[tuple[int, ...]]] = {
    255: [(255,), (15, 17)],
    256: [(256,), (16, 16), (1, 256), (256, 1)],
    257: [(257,), (257, 1), (1, 257)],
    65536: [(65536,), (256, 256)],
    65537: [(65537,)],
    65792: [(256, 257), (257, 256)],
}


@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("ties", ["first", "last"])
def test_winners_where_their_number_takes_more_bytes(taps: int, ties: str) -> None:
    """The first and the last tap, by value, by place and by derivative."""
    for kernel in TAPS[taps]:
        window = Window((each(2), *(slide(k + 1, k) for k in kernel)))
        for corner in (0, 1, -2, -1):
            x = np.zeros(window.shape, np.float32)
            x[(slice(None), *(corner if k > 1 else 0 for k in kernel))] = 1
            agree(window, maximum(ties), values=x, note=(kernel, corner))
        if taps < 300:
            agree(Window((*window.axes[1:], each(3))), maximum(ties), note=(kernel, "lanes"))


@pytest.mark.parametrize("law", [maximum(), minimum("last")], ids=["max first", "min last"])
def test_windows_around_those_whose_taps_are_compared_one_by_one(law: Law) -> None:
    """Up to 9 taps with strides up to 2; or up to 4 readers, 9 of lanes."""
    kernels = [(1, 8), (2, 4), (3, 3), (1, 9), (9, 1), (2, 5), (1, 10), (4, 3), (2, 2), (5, 1), (1, 5), (1, 4), (3, 2)]
    for kernel in kernels:
        for strides in ((1, 1), (2, 2), (1, 2), (2, 3), kernel):
            axes = tuple(slide(n, k, s, (k // 2, 0)) for n, k, s in zip((11, 21), kernel, strides, strict=True))
            agree(Window((each(2), *axes)), law, note=(kernel, strides))
            agree(Window((*axes, each(5))), law, note=(kernel, strides, "lanes"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(("kernel", "stride"), [(5, 1), (7, 3), (4, 4)])
def test_inputs_add_up_their_readers_in_the_outputs_order(kernel: int, stride: int, tiles: int, dtype: str) -> None:
    """Four tiles go side by side, else four rows, so far apart that they never meet."""
    rng = np.random.default_rng(tiles)
    lag = -(-kernel // stride)
    for outputs in around(6 * lag):
        rows, row = slide(9 * stride, kernel, stride, (2, 1)), slide(outputs * stride + kernel - stride, kernel, stride)
        tall = slide(60_000 // row.size, kernel, stride, (1, 1))  # cut into bands
        for axes in ((each(tiles), rows, row), (each(tiles), row, rows), (tall, row), (rows, row, each(tiles))):
            window = Window(axes)
            x, dy = rng.integers(0, 3, window.shape).astype(dtype), rng.normal(size=window.out_shape).astype(dtype)
            places = native.winners(window, MAX, x, tuple(range(len(axes))))[1]
            want = np.zeros(x.size, dtype)
            np.add.at(want, places.ravel(), dy.ravel())  # one after another
            assert_same_bits(native.linearize(window, MAX, x).vjp(dy).ravel(), want, (outputs, window.shape))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("outputs", around(7, 16, 32))
def test_windows_that_move_on_by_two(outputs: int, kernel: int, dtype: str) -> None:
    """Along rows and across them: rows that begin and end in the padding or before an end, bands, further axes."""
    rng = np.random.default_rng(outputs)
    for (lo, hi), over in product(((0, 0), (1, 1), (1, 0), (0, 1)), (0, 1)):
        row = slide((outputs - 1) * 2 + kernel - lo - hi + over, kernel, 2, (lo, hi))
        column, tall = slide(9, 5 - kernel, 2, (1, 0)), slide(70_000 // row.size, kernel, 2, (hi, lo))
        deep = slide(5, 2, 3)
        for axes in ((each(3), column, row), (tall, row), (each(2), deep, column, row), (deep, tall, row)):
            window = Window(axes)
            x, dy = rng.integers(0, 3, window.shape).astype(dtype), rng.normal(size=window.out_shape).astype(dtype)
            pooled = cases.pooled(window)
            places, tiles = native.winners(window, MAX, x, pooled)[1], 1 if 0 in pooled else axes[0].size
            want = np.zeros((tiles, x.size // tiles), dtype)
            for tile, place, given in zip(want, places.reshape(len(want), -1), dy.reshape(len(want), -1), strict=True):
                np.add.at(tile, place, given)  # one after another
            got = native.linearize(window, MAX, x).vjp(dy)
            assert_same_bits(got.reshape(want.shape), want, (outputs, window.shape))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (4, 2)])
def test_outputs_of_few_lanes_that_share_vectors(law: str, lanes: int, kernel: int, stride: int) -> None:
    for outputs, padding in product((1, 2, *around(4, 5, 8, 33)), ((0, 0), (1, 1))):
        row = slide(max(1, (outputs - 1) * stride + kernel - sum(padding)), kernel, stride, padding)
        window = Window((slide(5, kernel, stride, (1, 0)), row, each(lanes)))
        agree(window, LAWS[law], note=outputs)
        values = at_the_end(window.shape, "float32")
        values[:] = np.random.default_rng(outputs).integers(-9, 9, window.shape)
        agree(window, LAWS[law], values=values, note=(outputs, "at the end of its memory"))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 3), (3, 5), (50, 25), (40, 33), (33, 33), (9, 64), (130, 128)])
def test_long_lines_whose_readers_are_alike_for_long(law: str, kernel: int, stride: int) -> None:
    for size in (5 * stride, 100_003):  # in one unit, and in several
        for padding in ((0, 0), (kernel // 2, 1)):
            agree(Window((slide(size, kernel, stride, padding),)), LAWS[law], note=(size, padding))
            if size < 1000:
                agree(Window((slide(size, kernel, stride, padding), each(5))), LAWS[law], note=(size, padding, "lanes"))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("size", "bins"), [(100_003, 7), (70_000, 1), (70_000, 999), (300, 7), (7, 300)])
def test_long_lines_in_bins(law: str, size: int, bins: int) -> None:
    agree(Window((adaptive(size, bins),)), LAWS[law])


def test_rows_of_few_outputs() -> None:
    """Beyond whose ends nobody won: from 4 outputs on."""
    for outputs in (1, 2, 3, 4, 5):
        for stride in (1, 2):
            agree(Window((each(2), slide(5, 2, 1), slide(stride * (outputs - 1) + 2, 2, stride))), MAX, note=outputs)


@pytest.mark.parametrize("kernel", [14, 15, 16, 17, 20, 33])
@pytest.mark.parametrize("rank", [2, 3])
def test_more_kinds_of_rows_than_are_told_apart(kernel: int, rank: int) -> None:
    """Each row of a tall window has winners of its own kind; 15 kinds are remembered, the others looked at anew."""
    outer = (slide(4, 2, 1),) if rank == 3 else ()
    for strides, padding in (
        (kernel, (0, 0)),
        (kernel, (kernel // 2, 3)),
        (kernel // 2 + 1, (0, 0)),
        (kernel + 3, (1, 0)),
    ):
        for inner in (slide(12, 2, 2), slide(9, 1, 1)):
            tall = slide(3 * kernel + 2, kernel, strides, padding)
            agree(Window((each(2), *outer, tall, inner)), MAX, note=(strides, padding))
            agree(Window((*outer, tall, inner, each(3))), MAX, note=(strides, padding, "lanes"))


# -- axes --------------------------------------------------------------------------------------------------------------


NEARLY_WHOLE: dict[str, Axis] = {
    "whole": whole(4),
    "one window": slide(4, 4),
    "zeros around": sliding(4, 6, 1, (1, 1)),
    "zeros after": sliding(4, 5, 1, (0, 1)),
    "nothing around": slide(4, 6, 1, (1, 1)),
    "the ends alone": slide(4, 2, 1, (0, 0), 3),
    "all but the last": slide(5, 4, 2),
    "two windows": slide(4, 3),
    "a window of one": slide(1, 1, 2),
    "each": each(3),
}


@pytest.mark.parametrize(
    ("first", "second"), [pair for pair in product(NEARLY_WHOLE, repeat=2) if set(pair) != {"each"}]
)
def test_axes_pooled_whole_or_nearly_are_not_taken_for_one_another(first: str, second: str) -> None:
    """Neighbours that are pooled whole are walked as one; those that only look like it are not."""
    window = Window((each(2), NEARLY_WHOLE[first], NEARLY_WHOLE[second]))
    x = np.random.default_rng(3).integers(-3, 4, window.shape).astype(np.float32)
    for law in (MEAN, SUM, SMOOTH, NORM, MAX, maximum("last")):
        if law.name == "max" and any(any(axis.margin) for axis in window.axes):
            continue
        got, want = native.forward(window, law, x), reference.forward(window, law, x)
        assert_close(got, want, law.name)
        dy = np.arange(1, want.size + 1, dtype=np.float32).reshape(want.shape)
        assert_close(native.linearize(window, law, x).vjp(dy), reference.linearize(window, law, x).vjp(dy), law.name)
        if law.name == "max":
            for axes in ((1, 2), (0, 1, 2), (0, 2), (2,)):
                got, want = (run.winners(window, law, x, axes)[1] for run in (native, reference))
                assert_exact(got, want, axes)


TORN = [(0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (0, 1, 2, 4, 3), (1, 0, 2, 4, 3), (2, 0, 1, 3, 4), (0, 3, 1, 2, 4)]


@pytest.mark.parametrize("order", TORN, ids=str)
@pytest.mark.parametrize("groups", ["pooled and pooled", "pooled and lanes"])
def test_each_group_that_is_walked_as_one_lies_so(groups: str, order: tuple[int, ...]) -> None:
    """Two groups of axes, of which an array's layout tears one, the other, both or none."""
    one = {
        "pooled and pooled": (whole(3), whole(4), slide(5, 2), whole(2), whole(6)),
        "pooled and lanes": (whole(3), whole(4), slide(5, 2), each(2), each(6)),
    }[groups]
    window = Window(one)
    rng = np.random.default_rng(0)

    def torn(shape: tuple[int, ...]) -> Any:
        plain = rng.normal(size=shape).astype(np.float32)
        return plain, np.ascontiguousarray(plain.transpose(order)).transpose(np.argsort(order))

    (x, x_torn), (dx, dx_torn), (dy, dy_torn) = torn(window.shape), torn(window.shape), torn(window.out_shape)
    for law in (MEAN, SMOOTH, MAX):
        want, at = portable.linearize(window, law, x), native.linearize(window, law, x)
        assert_close(native.forward(window, law, x_torn), want.y, law.name)
        assert_close(native.linearize(window, law, x_torn).jvp(dx), want.jvp(dx), law.name)
        assert_close(at.jvp(dx_torn), want.jvp(dx), law.name)
        assert_close(at.vjp(dy_torn), want.vjp(dy), law.name)


def test_windows_that_the_kernels_have_no_formula_for_are_left_alone() -> None:
    """On whichever axis: bins that overlap, and ties with zeros that count."""
    odd = Axis(12, 4, stride=5, extent=9, per=2)
    counted = sliding(12, 3, 2, (1, 1))
    for law, axis in ((MEAN, odd), (MAX, sliding(12, 3, 2, (0, 1))), (MAX, sliding(12, 3, 2, (1, 0))), (MAX, counted)):
        for axes in ((axis, slide(12, 3)), (slide(12, 3), axis), (axis, axis)):
            x = np.zeros((12, 12), np.float32)
            assert not native.supports(Window(axes), law, x), (law.name, axis)
    for law, axis in ((SUM, counted), (MAX, slide(12, 3, 2, (1, 1)))):
        assert native.supports(Window((axis, axis)), law, np.zeros((12, 12), np.float32))


@pytest.mark.parametrize("rank", [native.MOST_AXES - 1, native.MOST_AXES, native.MOST_AXES + 1, native.MOST_AXES + 3])
def test_as_many_axes_as_a_plan_holds_and_more(rank: int) -> None:
    x = np.arange(8.0).reshape((2,) + (1,) * (rank - 3) + (2, 2))
    op = ndpool.MaxPool((2, 1), axes=(0, -1))
    assert native.supports(op.window(x.shape), op.law, x) == (rank <= native.MOST_AXES)
    assert op(x).reshape(-1).tolist() == [4, 5, 6, 7]
    assert op.vjp(x, op(x)).reshape(-1).tolist() == [0, 0, 0, 0, 4, 5, 6, 7]


def test_results_from_a_size_on_lie_in_memory_that_is_kept() -> None:
    ndpool.set_kept_memory(0)
    ndpool.set_kept_memory(256 << 20)
    for n, kept in ((native.LARGE // 8 - 1, False), (native.LARGE // 8, True)):
        y = ndpool.max_pool(np.zeros(2 * n), (2,))
        assert y.size == n
        del y
        assert (ndpool.kept_memory() > 0) == kept
        ndpool.set_kept_memory(0)
        ndpool.set_kept_memory(256 << 20)


# -- order and signs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_ties_are_broken_in_the_callers_order_however_axes_lie(ties: str, order: tuple[int, ...]) -> None:
    """Two equal winners, of which memory has the other one first."""
    back = tuple(np.argsort(order))
    for sizes, axes in (((3, 4, 5), (whole, whole, whole)), ((4, 5, 6), (lambda n: slide(n, 3, 2, (1, 1)),) * 3)):
        window = Window((each(2), *(axis(n) for axis, n in zip(axes, sizes, strict=True))))
        x = np.zeros(window.shape, np.float32)
        x[:, 0, 0, -1] = x[:, -1, 0, 0] = x[:, 0, -1, 0] = 1
        laid = np.ascontiguousarray(x.transpose(0, *(i + 1 for i in order))).transpose(0, *(i + 1 for i in back))
        assert laid.shape == x.shape
        for law in (maximum(ties), minimum(ties), maximum("split"), maximum("all")):
            agree(window, law, values=laid, note=(sizes, law.params))


ZEROS: dict[str, tuple[Law, float]] = {
    "max": (maximum(), -1.0),
    "min": (minimum(), 1.0),
    "max last": (maximum("last"), -1.0),
    "max split": (maximum("split"), -1.0),
    "sum": (SUM, -0.0),
    "mean": (MEAN, 0.0),
    "smooth max": (SMOOTH, 0.0),
    "lp": (NORM, -0.0),
}


def zeros(law: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros of both signs, most of them negative, and what loses to them."""
    rng = np.random.default_rng(4)
    return rng.choice(np.array([-0.0, -0.0, 0.0, ZEROS[law][1]], dtype), shape)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("unaligned", "read-only")])
@pytest.mark.parametrize("law", ZEROS)
def test_signs_of_zeros_do_not_depend_on_the_layout(law: str, layout: str) -> None:
    for dtype in ("float32", "float64", "float16"):
        x = LAYOUTS[layout](zeros(law, (3, 4, 26, 23), dtype))
        plain = np.array(x, dtype, order="C")
        for name, axis in LAYOUT_AXES.items():
            window = plane(axis, *x.shape)
            if law.startswith(("max", "min")):
                window = Window(tuple(Axis(**{**vars(a), "margin": (0, 0)}) for a in window.axes))
            got, want = (native.forward(window, ZEROS[law][0], a) for a in (x, plain))
            assert_same_bits(got, want, (dtype, name))
            if law.startswith(("max", "min")):
                exact = portable.forward(window, ZEROS[law][0], plain)
                assert_exact(want, exact, (dtype, name))
                assert_same_zeros(want, exact, (dtype, name))


@pytest.mark.parametrize("law", ZEROS)
def test_signs_of_zeros_do_not_depend_on_threads_and_instruction_sets(law: str) -> None:
    def window_of(axis: Callable[[int], Axis], *sizes: int) -> Window:
        return plane(axis, *sizes)

    windows = [
        window_of(lambda n: slide(n, 3, 2, (1, 1)), 3, 200, 190),
        window_of(lambda n: slide(n, 17, 1, (8, 8)), 1, 120, 110),
        window_of(whole, 20, 60, 61),
        Window((each(40), slide(512, 64, 64))),
        Window((slide(60, 3, 2, (1, 1)), slide(50, 5, 1), each(48))),
    ]
    for window in windows:
        for dtype in ("float32", "float64"):
            x = zeros(law, window.shape, dtype)
            moved = zeros(law, window.shape, dtype), zeros(law, window.out_shape, dtype)
            with running(1, native.isas()[-1]):
                want = everything(window, ZEROS[law][0], x, *moved)
            for isa in native.isas():
                for threads in (1, 3):
                    with running(threads, isa):
                        got = everything(window, ZEROS[law][0], x, *moved)
                    for part in want:
                        assert_same_bits(got[part], want[part], (dtype, isa, threads, part))


@pytest.mark.parametrize("outputs", [1, 5, 47, 48, 49])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (2, 1)])
def test_cotangents_of_short_rows_and_of_long_ones(outputs: int, kernel: int, stride: int) -> None:
    """Short rows add each output to its winner, long ones compare; in tiles that share a unit, and in bands of one."""
    rng = np.random.default_rng(outputs)
    row = sliding((outputs - 1) * stride + kernel, kernel, stride)
    for lead, column in ((7, sliding(6, kernel, stride)), (1, sliding(3000, kernel, stride))):
        window = Window((each(lead), column, row))
        x, dy = rng.integers(0, 4, window.shape).astype(np.float32), rng.normal(size=window.out_shape)
        for ties in ("first", "last"):
            for cotangent in (dy.astype(np.float32), np.asfortranarray(dy.astype(np.float32)), dy.astype(np.float16)):
                law, x = maximum(ties), x.astype(cotangent.dtype)
                got, want = (engine.linearize(window, law, x).vjp(cotangent) for engine in (native, portable))
                np.testing.assert_allclose(got, want, 1e-2 if x.itemsize == 2 else 1e-5, 1e-3)


# -- short rows are vectors that run over their ends, where rows follow ------------------------------------------------


def at_the_end(shape: tuple[int, ...], dtype: str) -> Any:
    """An array behind which lies memory that nobody may touch."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return guarded(size, at_end=True)[-size:].view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("k", "s", "p"), [(2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2)])
@pytest.mark.parametrize("law", [MAX, MEAN], ids=["max", "mean"])
def test_short_rows_stay_in_their_arrays(law: Law, k: int, s: int, p: int, dtype: str) -> None:
    for n, planes in product((*range(k, 20), 33), (1, 3)):
        shape = (planes, max(k, 7), n)
        window = Window((each(planes), *(sliding(size, k, s, (p, p)) for size in shape[1:])))
        x, out = at_the_end(shape, dtype), at_the_end(window.out_shape, dtype)
        x[...] = np.random.default_rng(n).integers(0, 99, shape)
        for seen in (x, x[:, ::-1], x[::-1], np.broadcast_to(x[:1], shape)):
            native.bind(window, law, seen).write(seen, out)
            assert_close(out, portable.forward(window, law, seen), (shape, seen.strides))


# -- outputs far apart are made as vectors of neighbouring taps, turned ------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("law", [MAX, SUM, MEAN, lp(2)], ids=["max", "sum", "mean", "lp"])
def test_windows_far_apart_stay_in_their_arrays(law: Law, dtype: str) -> None:
    """Up to 8 taps, and up to 16 of floats; rows that are short, that end at their array's end, that lie apart."""
    rng = np.random.default_rng(8)
    for taps, stride in [(2, 5), (4, 4), (3, 6), (7, 7), (8, 8), (8, 5), (9, 9), (12, 6), (15, 15), (16, 16)]:
        for rows, outputs in [(1, 1), (1, 15), (1, 16), (1, 17), (1, 40), (5, 3), (4, 4), (33, 1), (9, 7)]:
            row = slide((outputs - 1) * stride + taps, taps, stride)
            for axes in ((each(rows), row), (slide(2 * rows, 2, 2), row), (each(rows), row, slide(6, 5, 5))):
                window = Window(axes)
                for at_end in (False, True):
                    size = math.prod(window.shape) * np.dtype(dtype).itemsize
                    x = np.ndarray(window.shape, dtype, guarded(size, at_end).data)
                    x[...] = np.round(rng.normal(size=window.shape) * 2)
                    got, want = (engine.linearize(window, law, x) for engine in (native, portable))
                    assert_close(native.forward(window, law, x), want.y, (taps, stride, rows, outputs))
                    assert_close(got.y, want.y, (taps, stride, rows, outputs))


# -- whole powers up to 3, of floats that are shorter than double, are summed as they are ------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("p", [1, 2, 3, 3.5, 4])
def test_norms_from_the_least_number_to_the_largest(p: float, dtype: str) -> None:
    info, taps = np.finfo(dtype), 4
    window = Window((each(9), slide(taps, taps)))
    for v in (float(info.smallest_subnormal), float(info.tiny), 1.0, float(info.max) / taps, float(info.max)):
        x = np.full(window.shape, v, dtype)
        linear = native.linearize(window, lp(p), x)
        with np.errstate(over="ignore"):
            want = np.longdouble(v) * taps ** (1 / p)
            np.testing.assert_allclose(linear.y, np.full((9, 1), want).astype(dtype), 4 * float(info.eps))
        if v >= info.tiny:
            np.testing.assert_allclose(linear.vjp(np.ones((9, 1), dtype)), taps ** (1 / p - 1), 32 * float(info.eps))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [1, 2, 3, 3.5])
def test_infinite_taps_share_the_derivative_of_a_norm(p: float, dtype: str) -> None:
    x = np.array([np.inf, 1, -np.inf, np.finfo(dtype).max, 0], dtype)
    window, shares = Window((slide(5, 5),)), np.array([1, p == 1, -1, p == 1, 0]) * 2.0 ** (0 if p == 1 else 1 / p - 1)
    linear = native.linearize(window, lp(p), x)
    assert linear.y == np.inf
    np.testing.assert_allclose(linear.vjp(np.ones(1, dtype)), shares, 1e-6)
    for tap in range(5):
        np.testing.assert_allclose(linear.jvp(np.eye(5, dtype=dtype)[tap]), shares[tap], 1e-6)
