"""The planner: tiles cover every output once, no tile takes more than was said, and no plan more than there is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndpool import MaxPool
from ndpool.large import tiles
from ndpool.large.poolings import of_values
from ndpool.large.store import Like, cut
from ndpool.large.targets import Target
from ndpool.large.tiles import Grid, Need, TooLittle, choose, measure, tile_bytes
from ndpool.large.work import Jvp, Pooling, Vjp, Work

from .made import Counting, records

FLOATS = np.dtype("float32")


def sizes(rank: int, largest: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, largest), min_size=rank, max_size=rank).map(tuple)


@st.composite
def targets(draw: st.DrawFn, shape: tuple[int, ...]) -> Target:
    units = draw(sizes(len(shape), 7))
    return Target(Like(shape, FLOATS), units, draw(st.sampled_from((None, 4 * 8 * math.prod(units)))))


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Any work there is, over sources in chunks, and targets in units of their own."""
    rank = draw(st.integers(1, 3))
    shape = draw(sizes(rank, (70, 20, 8)[rank - 1]))
    op = of_values(draw(records(shape)), FLOATS)
    made = op.window(shape).out_shape

    def source(shape: tuple[int, ...]) -> Any:
        return Counting(np.zeros(shape, FLOATS), draw(st.none() | sizes(rank, 9)))

    kind = draw(st.sampled_from((Pooling, Pooling, Jvp, Vjp)))
    if kind is Pooling:
        return Pooling(source(shape), (op,), (draw(targets(made)),))
    if kind is Jvp:
        return Jvp(op, source(shape), source(shape), (draw(targets(made)),))
    return Vjp(op, source(shape), source(made), (draw(targets(shape)),))


def least(work: Work) -> int:
    """The memory that one of its smallest tiles takes."""
    try:
        choose(work.shape, work.unit, work.needs, 0, 1)
    except TooLittle as error:
        return error.needed
    raise AssertionError("no tile takes any memory")


@given(st.data())
def test_tiles_cover_every_output_once(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(0, 9), max_size=4).map(tuple))
    grid = Grid(shape, tuple(data.draw(st.integers(1, max(1, n))) for n in shape))
    seen = np.zeros(shape, int)
    for tile in grid:
        seen[tile] += 1
    assert (seen == 1).all()
    assert len(list(grid)) == len(grid)
    with pytest.raises(IndexError):
        grid[len(grid)]


@given(works(), st.floats(1, 12), st.integers(1, 4))
def test_every_tile_is_within_the_plan_and_the_plan_within_the_memory(work: Work, times: float, most: int) -> None:
    memory = int(times * least(work))
    plan = choose(work.shape, work.unit, work.needs, memory, most)
    assert plan.at_a_time * plan.tile_bytes <= memory
    assert 1 <= plan.at_a_time <= min(most, len(plan.grid))
    assert max(tile_bytes(work.needs, tile) for tile in plan.grid) <= plan.tile_bytes
    assert measure(plan.grid, work.needs, memory, plan.at_a_time) == plan


@given(works(), st.floats(1, 12))
def test_a_plan_says_what_is_read(work: Work, times: float) -> None:
    plan = choose(work.shape, work.unit, work.needs, int(times * least(work)), 1)
    chunks = read = 0
    for need in work.needs:
        if need.read:
            for tile in plan.grid:
                touched = len(list(cut(need.part(tile), need.chunks)))
                chunks, read = chunks + touched, read + touched * math.prod(need.chunks) * need.itemsize
    assert (plan.chunks_read, plan.bytes_read) == (chunks, read)


@given(works(), st.floats(1, 12))
def test_tiles_are_whole_units(work: Work, times: float) -> None:
    plan = choose(work.shape, work.unit, work.needs, int(times * least(work)), 2)
    (target,) = work.targets
    for tile in plan.grid:
        for one, unit, n in zip(tile, target.units, target.shape, strict=True):
            assert one.start % unit == 0
            assert one.stop % unit == 0 or one.stop == n


@given(works(), st.lists(st.floats(1, 12), min_size=2, max_size=4).map(sorted), st.integers(1, 4))
def test_more_memory_never_costs_more(work: Work, times: list[float], most: int) -> None:
    """The cost is what each worker reads; with one worker, what is read."""
    plans = [choose(work.shape, work.unit, work.needs, int(more * least(work)), most) for more in times]
    costs = [plan.bytes_read / plan.at_a_time for plan in plans]
    assert costs == sorted(costs, reverse=True)


@given(works(), st.integers(1, 4))
def test_too_little_says_the_least_that_is_enough(work: Work, most: int) -> None:
    needed = least(work)
    assert choose(work.shape, work.unit, work.needs, needed, most).at_a_time == 1
    with pytest.raises(TooLittle):
        choose(work.shape, work.unit, work.needs, needed - 1, most)


def test_of_uneven_bins_the_longest_counts() -> None:
    lengths = [2, 2, 2, 9, 2, 2, 2, 2]  # not among the first, the last, and the one in the middle
    ends = np.cumsum([0, *lengths])
    need = Need(1, (1,), lambda a, begin, end: range(ends[begin], ends[end]), lambda part: 0)
    assert measure(Grid((8,), (1,)), (need,), 100, 1).tile_bytes == 9


def test_many_tiles_along_an_axis_are_sampled_within_a_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Pooling(
        Counting(np.zeros(4000, FLOATS), (13,)),
        (of_values(MaxPool(7, 3, axes=0), FLOATS),),
        (Target(Like((1332,), FLOATS), (1,)),),
    )
    plan = measure(Grid((1332,), (2,)), work.needs, 10**6, 1)
    monkeypatch.setattr(tiles, "SAMPLED", 10**6)
    exact = measure(Grid((1332,), (2,)), work.needs, 10**6, 1)
    assert plan.tile_bytes == exact.tile_bytes
    assert plan.chunks_read == pytest.approx(exact.chunks_read, rel=0.05)


def test_fewer_at_a_time_where_more_would_read_much_more() -> None:
    op, shape = of_values(MaxPool(200, 1, axes=0), FLOATS), (400,)
    work = Pooling(Counting(np.zeros(shape, FLOATS)), (op,), (Target(Like((201,), FLOATS), (1,)),))
    enough = measure(Grid((201,), (201,)), work.needs, 10**6, 1).tile_bytes
    plan = choose(work.shape, work.unit, work.needs, enough, 2)  # or two at a time, each of which reads 200 and a few
    assert (plan.at_a_time, plan.bytes_read) == (1, 4 * 400)
