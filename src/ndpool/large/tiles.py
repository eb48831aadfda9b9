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

    def part(self, tile: Slices) -> Slices:
        spans = (self.span(a, one.start, one.stop) for a, one in enumerate(tile))
        return tuple(slice(r.start, r.stop) for r in spans)


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


def tile_bytes(needs: tuple[Need, ...], tile: Slices) -> int:
    """The memory of one tile in work."""
    return _bytes(needs, [need.part(tile) for need in needs])


def _bytes(needs: tuple[Need, ...], parts: list[Slices]) -> int:
    """The memory of these parts, and the most that reading or writing one of them takes besides."""
    held = (need.itemsize * math.prod(shape_of(part)) for need, part in zip(needs, parts, strict=True))
    working = (need.working(part) for need, part in zip(needs, parts, strict=True))
    return int(sum(held) + max(working, default=0))


def choose(shape: tuple[int, ...], unit: tuple[int, ...], needs: tuple[Need, ...], memory: int, most: int) -> Plan:
    """The plan that costs least, of tiles of whole units, up to `most` of them at a time in that much memory.

    The cost is what each worker reads: bytes_read / at_a_time. So more memory never costs more.
    """
    if not math.prod(shape):
        return Plan(Grid(shape, tuple(max(1, n) for n in shape)), 1, 0, 0, 0)
    candidates = _candidates(shape, unit)
    axes = [[_costs(n, t, a, needs) for t in sizes] for a, (n, sizes) in enumerate(zip(shape, candidates, strict=True))]
    held, chunks, read = (_products(axes, needs, which).ravel() for which in ("held", "touched", "decoded"))
    counts = _outer([np.array([cost.tiles for cost in costs], float) for costs in axes]).ravel()
    wanted = min(max(held.max() / (4 * most), LEAST), TARGET)  # some tiles for each worker, so that none is left alone
    size = np.abs(np.log2(np.maximum(held, 1) / wanted)).round(1)

    def grid(i: int) -> Grid:
        where = np.unravel_index(i, [len(sizes) for sizes in candidates])
        return Grid(shape, tuple(sizes[k] for sizes, k in zip(candidates, where, strict=True)))

    best, least = None, math.inf
    for at_a_time in range(most, 0, -1):
        costs = read / np.minimum(at_a_time, counts)
        if costs.min() >= least:
            break  # fewer at a time cannot cost less
        fits = np.flatnonzero(held * at_a_time <= memory)
        for i in fits[np.lexsort((size[fits], costs[fits]))].tolist():
            if costs[i] >= least:
                break
            needed = largest(grid(i), needs)
            if needed * at_a_time <= memory:
                at_once = min(at_a_time, round(counts[i]))
                best, least = Plan(grid(i), at_once, needed, round(chunks[i]), round(read[i])), costs[i]
                break
    if best is None:
        smallest = largest(grid(0), needs)
        raise TooLittle(min(largest(grid(i), needs) for i in np.flatnonzero(held <= smallest).tolist()))
    return best


class TooLittle(PoolError):
    """The memory is not enough for one of the smallest tiles."""

    def __init__(self, needed: int):
        super().__init__(f"the smallest tile needs {needed} bytes")
        self.needed = needed


def measure(grid: Grid, needs: tuple[Need, ...], at_a_time: int) -> Plan:
    """The plan of a grid that was chosen before."""
    axes = [[_costs(n, t, a, needs)] for a, (n, t) in enumerate(zip(grid.shape, grid.tile, strict=True))]
    chunks, read = (round(float(_products(axes, needs, which).sum())) for which in ("touched", "decoded"))
    return Plan(grid, min(at_a_time, max(1, len(grid))), largest(grid, needs), chunks, read)


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


@dataclass(frozen=True)
class _Cost:
    """Of one size of tiles along one axis, for each need: the longest span, and over all tiles the chunks that are
    touched and the positions in them."""

    tiles: int
    held: tuple[float, ...]
    touched: tuple[float, ...]
    decoded: tuple[float, ...]


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
    held, touched, decoded = [], [], []
    for need in needs:
        spans = [need.span(a, k * t, min(n, (k + 1) * t)) for k in picked]
        chunk = need.chunks[a] if need.read else 1
        pieces = [(r.stop - 1) // chunk - r.start // chunk + 1 if len(r) else 0 for r in spans]
        held.append(max(map(len, spans)))
        touched.append(sum(pieces) * scale)
        decoded.append(sum(pieces) * scale * chunk)
    return _Cost(tiles, tuple(held), tuple(touched), tuple(decoded))


def _some(n: int, most: int) -> Sequence[int]:
    """All of range(n), or `most` of it: the first, the last, and those between as evenly as can be."""
    return range(n) if n <= most else [round(i * (n - 1) / (most - 1)) for i in range(most)]


def _products(axes: list[list[_Cost]], needs: tuple[Need, ...], which: str) -> Any:
    """Of every grid, the sum over needs of the product over axes: bytes that are held or read, or chunks."""
    total: Any = 0.0
    for i, need in enumerate(needs):
        if which == "held" or need.read:
            each = [np.array([getattr(cost, which)[i] for cost in costs], float) for costs in axes]
            total = total + (1 if which == "touched" else need.itemsize) * _outer(each)
    return total + np.zeros([len(costs) for costs in axes])


def _outer(vectors: list[Any]) -> Any:
    """The products of an entry of each."""
    found = np.ones(())
    for vector in vectors:
        found = np.multiply.outer(found, vector)
    return found
