"""Which tiles an array is made in: the grid that reads least within the memory there is.

A tile is a box of outputs, made of whole units (chunks or shards) of what is written. What a tile needs of other arrays
is a box, too: along each axis a range that depends on the tile's range alone. So what a grid costs is a product over
axes, and all grids can be looked at: larger tiles decode fewer chunks twice, smaller ones need less memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import PoolError
from .store import Slices, shape_of

LEAST, TARGET = 1 << 20, 64 << 20  # bytes that a tile holds where nothing else decides
SAMPLED = 128  # tiles per axis that are looked at to compare grids; all, if there are no more
MOST = 2**20  # grids that are compared
DIAGONAL = 1.25  # pieces for tiles that differ along several axes are kept for each of them


@dataclass(frozen=True)
class Need:
    """What a tile takes of one array: along axis `a`, tile [begin, end) takes the positions span(a, begin, end).

    `chunks` are decoded as a whole, and `working(part)` is the memory that takes beside the part.
    """

    itemsize: int
    chunks: tuple[int, ...]
    span: Callable[[int, int, int], range]
    working: Callable[[Slices], int]
    read: bool = True
    encoded: bool = False  # whether reading decodes, so that a piece of a chunk is worth keeping

    def part(self, tile: Slices) -> Slices:
        spans = (self.span(a, one.start, one.stop) for a, one in enumerate(tile))
        return tuple(slice(r.start, r.stop) for r in spans)

    def held(self, tile: Slices) -> int:
        """Bytes of the part."""
        return int(self.itemsize * math.prod(one.stop - one.start for one in self.part(tile)))


@dataclass(frozen=True)
class Grid:
    """The tiles of an array of that `shape`, in row-major order; the last ones of an axis may be smaller."""

    shape: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(-(-n // t) for n, t in zip(self.shape, self.tile, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def __getitem__(self, i: int) -> Slices:
        """The part that tile `i` is.

        >>> Grid((5, 4), (2, 4))[2]
        (slice(4, 5, None), slice(0, 4, None))
        """
        if not 0 <= i < len(self):
            raise IndexError(i)
        found = []
        for n, t, count in zip(reversed(self.shape), reversed(self.tile), reversed(self.counts), strict=True):
            i, k = divmod(i, count)
            found.append(slice(k * t, min(n, (k + 1) * t)))
        return tuple(reversed(found))

    def __iter__(self) -> Iterator[Slices]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True)
class Plan:
    """A grid, how many of its tiles are in work at a time, and what that takes."""

    grid: Grid
    at_a_time: int
    tile_bytes: int  # the memory of one tile in work: what it reads and makes, decoded, and beside that
    chunks_read: int  # chunks decoded, each as often as a tile takes some of it
    bytes_read: int  # in those
    shared: tuple[int, ...] = ()  # of each need, memory for pieces of chunks that wait; then each is decoded once

    @property
    def shared_bytes(self) -> int:
        return sum(self.shared)

    @property
    def bytes(self) -> int:
        """All the memory that it takes."""
        return self.at_a_time * self.tile_bytes + self.shared_bytes


def tile_bytes(needs: tuple[Need, ...], tile: Slices) -> int:
    """The memory of one tile in work."""
    return _bytes(needs, [need.part(tile) for need in needs])


def _bytes(needs: tuple[Need, ...], parts: list[Slices]) -> int:
    """The memory of these parts, and what reading or writing them takes besides."""
    held = (need.itemsize * math.prod(shape_of(part)) for need, part in zip(needs, parts, strict=True))
    working = (need.working(part) for need, part in zip(needs, parts, strict=True))
    return int(sum(held) + sum(working))


def choose(
    shape: tuple[int, ...], unit: tuple[int, ...], needs: tuple[Need, ...], memory: int, most: int, shares: bool = True
) -> Plan:
    """The plan that costs least, of tiles of whole units, up to `most` of them at a time in that much memory.

    The cost is what each worker reads: bytes_read / at_a_time. So more memory never costs more. `shares`: whether tiles
    can keep pieces of chunks for one another.
    """
    if not math.prod(shape):
        return Plan(Grid(shape, tuple(max(1, n) for n in shape)), 1, 0, 0, 0)
    grids = _Grids(shape, _candidates(shape, unit), needs, shares)
    counts, held = grids.counts, grids.held
    wanted = min(max(held.max() / (4 * most), LEAST), TARGET)  # some tiles for each worker, so that none is left alone
    size = np.abs(np.log2(np.maximum(held, 1) / wanted)).round(1)
    best, least = None, math.inf
    for at_a_time in range(most, 0, -1):
        workers = np.minimum(at_a_time, counts)
        if (grids.once / workers).min() >= least:
            break  # fewer at a time cannot cost less
        costs = np.where(held * at_a_time + grids.shared <= memory, grids.once, grids.read) / workers
        fits = np.flatnonzero(held * at_a_time <= memory)
        for i in fits[np.lexsort((size[fits], costs[fits]))].tolist():
            if costs[i] >= least:
                break
            plan = grids.plan(i, min(at_a_time, round(counts[i])), memory)
            if plan is not None and plan.bytes_read / plan.at_a_time < least:
                best, least = plan, plan.bytes_read / plan.at_a_time
                break
    if best is None:
        smallest = largest(grids.grid(0), needs)
        raise TooLittle(min(largest(grids.grid(i), needs) for i in np.flatnonzero(held <= smallest).tolist()))
    return best


class TooLittle(PoolError):
    """The memory is not enough for one of the smallest tiles."""

    def __init__(self, needed: int):
        super().__init__(f"the smallest tile needs {needed} bytes")
        self.needed = needed


def measure(grid: Grid, needs: tuple[Need, ...], memory: int, most: int, shares: bool = True) -> Plan:
    """The plan of a grid that was chosen before: as many tiles at a time as there is memory for, up to `most`."""
    grids = _Grids(grid.shape, [[t] for t in grid.tile], needs, shares)
    for at_a_time in range(min(most, max(1, len(grid))), 0, -1):
        plan = grids.plan(0, at_a_time, memory)
        if plan is not None:
            return plan
    raise TooLittle(largest(grid, needs))


def largest(grid: Grid, needs: tuple[Need, ...]) -> int:
    """What no tile takes more memory than: along each axis, the longest span counts."""
    if not len(grid):
        return 0
    parts = [
        tuple(_longest(need, a, n, t) for a, (n, t) in enumerate(zip(grid.shape, grid.tile, strict=True)))
        for need in needs
    ]
    return _bytes(needs, parts)


def _longest(need: Need, a: int, n: int, t: int) -> slice:
    """Of tiles of t positions along an axis of n, the longest span."""
    spans = (need.span(a, k * t, min(n, (k + 1) * t)) for k in _some(-(-n // t), 32 * SAMPLED))
    longest = max(spans, key=len)
    return slice(longest.start, longest.stop)


# -- what grids cost ---------------------------------------------------------------------------------------------------


class _Grids:
    """Many grids, numbered, and what each costs; an entry of each array is a grid's.

    `held` is the memory of a tile, `read` the bytes that are decoded where every tile reads for itself, and `once`
    where tiles keep pieces for others, which takes `shared` bytes, and of each need its `pieces`: those that wait for
    tiles further on along an axis, of the present tile along the axes before it and of all tiles along those after it.
    """

    def __init__(self, shape: tuple[int, ...], sizes: list[list[int]], needs: tuple[Need, ...], shares: bool) -> None:
        self.shape, self.sizes, self.needs = shape, sizes, needs
        axes = [[_costs(n, t, a, needs) for t in some] for a, (n, some) in enumerate(zip(shape, sizes, strict=True))]
        self.counts = _outer([np.array([cost.tiles for cost in costs], float) for costs in axes]).ravel()
        none = np.zeros(len(self.counts))
        self.held, self.read, self.once, self.chunks, self.chunks_once = (none for _ in range(5))
        self.pieces = [none for _ in needs]
        for i, need in enumerate(needs):
            along = {
                which: [np.array([getattr(cost, which)[i] for cost in costs], float) for costs in axes]
                for which in ("held", "touched", "once", "all", "ahead")
            }
            self.held = self.held + need.itemsize * _outer(along["held"]).ravel()
            if not need.read:
                continue
            chunk = need.itemsize * math.prod(need.chunks)
            touched, once = (_outer(along[which]).ravel() for which in ("touched", "once"))
            once = np.minimum(touched, once) if shares and need.encoded else touched
            self.chunks, self.chunks_once = self.chunks + touched, self.chunks_once + once
            self.read, self.once = self.read + chunk * touched, self.once + chunk * once
            for a in range(len(shape) if shares and need.encoded else 0):
                waiting = _outer([*along["held"][:a], along["ahead"][a], *along["all"][a + 1 :]]).ravel()
                self.pieces[i] = self.pieces[i] + DIAGONAL * need.itemsize * waiting
        self.shared = sum(self.pieces, none)

    def grid(self, i: int) -> Grid:
        where = np.unravel_index(i, [len(some) for some in self.sizes])
        return Grid(self.shape, tuple(some[k] for some, k in zip(self.sizes, where, strict=True)))

    def plan(self, i: int, at_a_time: int, memory: int) -> Plan | None:
        """The plan of that grid, if there is memory for so many tiles at a time."""
        grid, shared = self.grid(i), tuple(math.ceil(each[i]) for each in self.pieces)
        needed = largest(grid, self.needs)
        if needed * at_a_time > memory:
            return None
        if any(shared) and needed * at_a_time + sum(shared) <= memory:
            return Plan(grid, at_a_time, needed, round(self.chunks_once[i]), round(self.once[i]), shared)
        return Plan(grid, at_a_time, needed, round(self.chunks[i]), round(self.read[i]))


@dataclass(frozen=True)
class _Cost:
    """Of one size of tiles along one axis, for each need."""

    tiles: int
    held: tuple[float, ...]  # the longest span
    touched: tuple[float, ...]  # chunks, each as often as a tile touches it
    once: tuple[float, ...]  # chunks, each once
    all: tuple[float, ...]  # positions, each as often as a tile takes it
    ahead: tuple[float, ...]  # positions of tiles further on, at most, in chunks that a tile or those before it touch


def _candidates(shape: tuple[int, ...], unit: tuple[int, ...]) -> list[list[int]]:
    """Sizes of tiles along each axis: 1, 2, 3, 4, 6, 8, ... units up to all."""
    found = []
    for n, u in zip(shape, unit, strict=True):
        units = -(-n // u)
        powers = [2**i for i in range(units.bit_length())]
        some = {m for p in powers for m in (p, 3 * p // 2, -(-units // p)) if m < units}
        found.append([min(n, m * u) for m in sorted(some | {units})])
    while math.prod(map(len, found)) > MOST:  # of arrays of many axes, every second size of the axis with most of them
        longest = max(range(len(found)), key=lambda a: len(found[a]))
        found[longest] = [found[longest][0], *found[longest][1:-1:2][1:], found[longest][-1]]
    return found


def _costs(n: int, t: int, a: int, needs: tuple[Need, ...]) -> _Cost:
    tiles = -(-n // t)
    picked = _some(tiles, SAMPLED)
    scale = tiles / len(picked)
    held, touched, once, whole, ahead = [], [], [], [], []
    for need in needs:

        def span(k: int, need: Need = need) -> range:
            return need.span(a, k * t, min(n, (k + 1) * t))

        chunk = need.chunks[a] if need.read else 1
        spans = [span(k) for k in picked]
        held.append(max(map(len, spans)))
        touched.append(sum(_touched(r, chunk) for r in spans) * scale)
        reach = range(min(r.start for r in spans), max(r.stop for r in spans))
        once.append(_touched(reach, chunk))
        whole.append(sum(map(len, spans)) * scale)
        ahead.append(max((_ahead(span, k, tiles, chunk) for k in picked), default=0) if need.encoded else 0)
    return _Cost(tiles, tuple(held), tuple(touched), tuple(once), tuple(whole), tuple(ahead))


def _touched(positions: range, chunk: int) -> int:
    """The chunks that some positions lie in."""
    return (positions.stop - 1) // chunk - positions.start // chunk + 1 if len(positions) else 0


def _ahead(span: Callable[[int], range], k: int, tiles: int, chunk: int) -> int:
    """Positions of tiles after tile k in the chunks up to its last one."""
    end, found = -(-span(k).stop // chunk) * chunk, 0
    for later in range(k + 1, tiles):
        r = span(later)
        if r.start >= end:
            break
        found += min(end, r.stop) - r.start
    return found


def _some(n: int, most: int) -> Sequence[int]:
    """All of range(n), or `most` of it: the first, the last, and those between as evenly as can be."""
    return range(n) if n <= most else [round(i * (n - 1) / (most - 1)) for i in range(most)]


def _outer(vectors: list[Any]) -> Any:
    """The products of an entry of each."""
    found = np.ones(())
    for vector in vectors:
        found = np.multiply.outer(found, vector)
    return found
