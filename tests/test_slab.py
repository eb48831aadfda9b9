"""A part of an array, pooled alone, has the bits of the whole: values, winners, tangents and cotangents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError
from ndpool.arrays.converted import PART
from ndpool.engines import native, portable
from ndpool.slab import Slab, cotangent, readers
from ndpool.spec import Axis, Window, adaptive, each, sliding, whole

from .cases import LAWS, RECORDS, SHAPE, assert_exact, tangents, values


@st.composite
def long_axes(draw: st.DrawFn, counted: bool, largest: int = 120) -> Axis:
    """Axes on which every way of folding occurs: short, long and dilated windows, hardly overlapping ones, bins."""
    n, form = draw(st.integers(1, largest)), draw(st.sampled_from(["slide", "slide", "slide", "bins", "whole", "each"]))
    if form == "slide":
        k, s, d = draw(st.integers(1, max(1, largest // 2))), draw(st.integers(1, 7)), draw(st.integers(1, 3))
        lo, hi = draw(st.integers(0, k)), draw(st.integers(0, k))
        hi += max(0, d * (k - 1) + 1 - n - lo - hi)
        return sliding(n, k, s, (lo, hi), d, draw(st.booleans()), counted)
    return adaptive(n, draw(st.integers(1, 2 * n))) if form == "bins" else whole(n) if form == "whole" else each(n)


@st.composite
def parts(draw: st.DrawFn, counted: bool) -> tuple[Window, tuple[slice, ...], tuple[slice, ...], Window]:
    """A window, some of its outputs, what they lie over, and the window of these alone."""
    rank = draw(st.integers(1, 3))
    axes = [draw(long_axes(counted, (120, 24, 9)[rank - 1])) for _ in range(rank)]
    outputs, where, alone = [], [], []
    for axis in axes:
        wanted = draw(stretch(axis.outputs))
        read, part = axis.part(wanted.start, wanted.stop)
        outputs.append(wanted), where.append(slice(read.start, read.stop)), alone.append(part)
    return Window(tuple(axes)), tuple(outputs), tuple(where), Window(tuple(alone))


def stretch(n: int) -> st.SearchStrategy[slice]:
    """Some of n in a row, at least one."""
    return st.integers(0, n - 1).flatmap(lambda begin: st.builds(slice, st.just(begin), st.integers(begin + 1, n)))


def bits(a: Any) -> Any:
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") if a.dtype.kind == "f" else a


def same(got: Any, want: Any, note: Any) -> None:
    assert got.dtype == want.dtype
    assert np.array_equal(bits(got), bits(want)), (note, got, want)


@given(st.data(), st.booleans())
def test_a_part_of_an_axis_reads_and_counts_as_the_whole(data: Any, counted: bool) -> None:
    axis = data.draw(long_axes(counted))
    wanted = data.draw(stretch(axis.outputs))
    begin, end = wanted.start, wanted.stop
    where, part = axis.part(begin, end)
    for o in range(end - begin):
        assert [where[p] for p in part.reads(o)] == list(axis.reads(begin + o))
        assert part.count(o) == axis.count(begin + o)
    for p in range(part.size):
        theirs = [begin + o for o in part.readers(p)]
        assert theirs == [o for o in axis.readers(where[p]) if begin <= o < end]
    assert part.first_empty() == next((o for o in range(part.outputs) if not part.reads(o)), None)
    if data.draw(st.booleans()):  # a part of a part is one of the whole
        middle = data.draw(st.integers(0, part.outputs - 1))
        inner, again = part.part(middle, part.outputs)
        straight, once = axis.part(begin + middle, end)
        assert ([where[p] for p in inner], again) == (list(straight), once)


@pytest.mark.parametrize("engine", [native, portable], ids=lambda engine: engine.NAME)
@pytest.mark.parametrize("name", LAWS)
@given(st.data(), st.sampled_from(["float32", "float64", "float16"]), st.integers(0, 99))
def test_the_bits_of_a_part(engine: Any, name: str, data: Any, dtype: str, seed: int) -> None:
    law = LAWS[name]
    window, outputs, where, alone = data.draw(parts(counted=not law.winners and data.draw(st.booleans())))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=window.shape).astype(dtype) if not law.winners else values(rng, window.shape, dtype)
    x = np.asfortranarray(x) if data.draw(st.booleans()) else x
    part = np.ascontiguousarray(x[where]) if data.draw(st.booleans()) else x[where]
    if not (engine.supports(window, law, x) and engine.supports(alone, law, part)):
        return
    note = (window, outputs, alone)
    all_, some = engine.bind(window, law, x), engine.bind(alone, law, part)
    same(some.forward(part), all_.forward(x)[outputs], note)
    if not (all_.differentiates and some.differentiates):
        return
    dx, dy = (rng.normal(size=shape).astype(dtype) for shape in (window.shape, window.out_shape))
    whole_at, part_at = all_.linearize(x), some.linearize(part)
    same(part_at.jvp(dx[where]), whole_at.jvp(dx)[outputs], note)
    got, want = part_at.vjp(dy[outputs]), whole_at.vjp(dy)[where]
    for a, (axis, o, w) in enumerate(zip(window.axes, outputs, where, strict=True)):
        known = [all(o.start <= r < o.stop for r in axis.readers(p)) for p in range(w.start, w.stop)]
        got, want = (np.compress(known, g, axis=a) for g in (got, want))
    if engine is portable:  # it adds the zeros around an input, which takes the sign of -0
        got, want = got + 0, want + 0
    same(got, want, note)


@pytest.mark.parametrize("name", RECORDS)
@given(st.data(), st.integers(0, 99))
def test_slabs_of_every_record(name: str, data: Any, seed: int) -> None:
    op, rng = RECORDS[name], np.random.default_rng(seed)
    window = op.window(SHAPE)
    x = values(rng, SHAPE, "float32")
    outputs, inputs = (tuple(data.draw(stretch(n)) for n in sizes) for sizes in (window.out_shape, SHAPE))
    slab, keeping = Slab(op, SHAPE, outputs), Slab(op, SHAPE, tuple(slice(None) for _ in SHAPE))
    same(slab(x[slab.reads]), keeping(x[keeping.reads])[outputs], slab)
    dy = tangents(rng, window.out_shape, "float32")
    same(cotangent(op, SHAPE, inputs, x, dy), op.vjp(x, dy.reshape(op.out_shape(SHAPE)))[inputs], slab)
    if hasattr(op, "return_indices"):
        y, where = slab.winners(x[slab.reads])
        all_y, all_where = replace(op, return_indices=True)(x)
        same(y, all_y.reshape(window.out_shape)[outputs], slab)
        same(where, all_where.reshape(window.out_shape)[outputs], slab)


def test_no_reader() -> None:
    op, x = ndpool.SumPool((1,), stride=4), np.arange(9, dtype=np.float32)
    assert readers(op, x.shape, (slice(1, 3),)) is None
    assert cotangent(op, x.shape, (slice(1, 3),), x, np.ones(3, np.float32)).tolist() == [0, 0]
    assert cotangent(op, x.shape, (slice(3, 7),), x, np.ones(3, np.float32)).tolist() == [0, 1, 0, 0]


def test_dtype_converts_each_part() -> None:
    op, x = ndpool.SumPool((2,), dtype="int64"), np.full(6, 200, np.uint8)
    slab = Slab(op, x.shape, (slice(1, 3),))
    assert_exact(slab(x[slab.reads]), np.array([400, 400]))
    op, close = ndpool.MaxPool((2,), dtype="float32"), np.array([1.0, 1.0, 1.0 + 2.0**-40, 1.0 + 2.0**-30, 0.0, 2.0])
    slab = Slab(op, close.shape, (slice(1, 3),))  # of what is equal when converted the first has won
    y, where = slab.winners(close[slab.reads])
    assert_exact(y, np.array([1, 2], np.float32))
    assert where.tolist() == replace(op, return_indices=True)(close)[1][1:].tolist() == [2, 5]


def test_a_cotangent_keeps_no_more_than_it_is() -> None:
    op, x = ndpool.MaxPool((5,), stride=1), np.arange(90.0)
    found = cotangent(op, x.shape, (slice(30, 60),), x, np.ones(86))
    assert found.base is None
    assert np.array_equal(found, op.vjp(x, np.ones(86))[30:60])


@pytest.mark.parametrize("outputs", [(slice(0, 2),), (slice(2, 2), slice(0, 1)), (slice(0, 9), slice(0, 1))])
def test_bad_outputs(outputs: Any) -> None:
    with pytest.raises(PoolError, match="outputs has"):
        Slab(ndpool.MaxPool(2), (4, 6), outputs)


def test_another_part_of_x() -> None:
    slab = Slab(ndpool.MaxPool((2,)), (8,), (slice(1, 3),))
    with pytest.raises(PoolError, match=r"max_pool: .*give it x\[slab.reads\]"):
        slab(np.zeros(8))


@pytest.mark.parametrize("axes", [(1, 2), (0, 1), (2,)])
def test_a_slab_that_is_converted_in_parts(axes: tuple[int, ...]) -> None:
    """So large that no call converts all of it at once; cut along axes that are pooled, and others."""
    op = ndpool.AvgPool((2,) * len(axes), axes=axes, dtype="float64")
    x = np.random.default_rng(0).integers(0, 256, (8, 400, 500), "u1")
    slab = Slab(op, x.shape, tuple((n // 4, n) for n in op.out_shape(x.shape)))
    assert x[slab.reads].size > 2 * PART
    np.testing.assert_array_equal(slab(x[slab.reads]), op(x)[slab.writes])
