"""Arrays that lie in blocks: where their results are cut, which blocks a part meets, and the part made of these.

Nothing is known here of a library of such arrays: a grid of blocks is where it is cut, its edges along each axis, and
whoever has the blocks runs a `Recipe` on them. Geometry is `Axis`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .op import Op
from .settings import on_one_thread
from .slab import Slab, Slices, cotangent
from .spec import Axis

Edges = tuple[int, ...]  # along one axis: where each block begins, and where the last one ends
Bounds = tuple[int, int]


# -- along one axis ----------------------------------------------------------------------------------------------------


def edges(sizes: Iterable[int]) -> Edges:
    """Where blocks of these sizes begin, and where the last one ends."""
    return (0, *accumulate(sizes))


def cut(axis: Axis, inputs: Edges) -> Edges:
    """Outputs, cut as the inputs are: each lies in the block in which its window begins, padding aside. None is empty.

    So windows that move by 1 and keep an axis' size keep its blocks, and those that tile read no block but their own.

    >>> from ndpool.spec import sliding
    >>> cut(sliding(12, kernel=3, stride=1, padding=(1, 1)), (0, 4, 8, 12))
    (0, 4, 8, 12)
    >>> cut(sliding(12, kernel=3, stride=2), (0, 5, 6, 12))
    (0, 3, 5)
    """
    begun = {axis.begun(p) for p in inputs[1:-1] if p}
    return (0, *sorted(begun - {0, axis.outputs}), axis.outputs)


def meeting(blocks: Edges, begin: int, end: int) -> range:
    """The blocks that hold any of [begin, end); one where that is nothing, to have its dtype."""
    first = min(bisect_right(blocks, begin), len(blocks) - 1) - 1
    return range(first, max(first + 1, bisect_left(blocks, end)))


class Met(NamedTuple):
    """A block of a result along one axis: its bounds, and the blocks of each array that it is made of."""

    bounds: Bounds
    blocks: tuple[range, ...]
    edges: tuple[Edges, ...]


def _met(bounds: Bounds, *parts: tuple[Edges, int, int]) -> Met:
    found = tuple(meeting(*part) for part in parts)
    held = tuple(blocks[r.start : r.stop + 1] for r, (blocks, _, _) in zip(found, parts, strict=True))
    return Met(bounds, found, held)


def outputs_met(axis: Axis, grids: tuple[Edges, ...]) -> list[Met]:
    """The blocks of outputs, of which the first of `grids` is the input's; the others are of arrays like it."""
    found = []
    for begin, end in pairwise(cut(axis, grids[0])):
        reads, _ = axis.part(begin, end)
        found.append(_met((begin, end), *((grid, reads.start, reads.stop) for grid in grids)))
    return found


def inputs_met(axis: Axis, inputs: Edges, outputs: Edges) -> list[Met]:
    """The blocks of inputs: what those outputs read that read any of a block, and these outputs."""
    found = []
    for begin, end in pairwise(inputs):
        readers = axis.covering(begin, end)
        reads = axis.part(readers.start, readers.stop)[0] if readers else range(begin, begin)
        if begin < end or inputs[-1] == 0:
            held = (inputs, reads.start, reads.stop), (outputs, readers.start, readers.stop)
            found.append(_met((begin, end), *held))
    return found


# -- an array of some blocks -------------------------------------------------------------------------------------------


class Blocks:
    """Neighbouring blocks of an array, row-major, as the part of it that they are: asked for by slices of the whole."""

    def __init__(self, grid: tuple[Edges, ...], blocks: tuple[Any, ...]):
        self.grid = grid
        self.blocks = dict(zip(product(*(range(len(along) - 1) for along in grid)), blocks, strict=True))
        self.some, self.dtype = blocks[0], blocks[0].dtype

    def block(self, index: tuple[int, ...]) -> Any:
        """A block with all axes, those too that its array has dropped; a mapped file as the plain array that it is."""
        found = self.blocks[index]
        found = np.asarray(found) if isinstance(found, np.memmap) else found
        shape = tuple(along[i + 1] - along[i] for i, along in zip(index, self.grid, strict=True))
        return found if found.shape == shape else found.reshape(shape)

    def __getitem__(self, wanted: Slices) -> Any:
        """A view where one block has it all, and else a new array: never more than what is asked for."""
        met = [meeting(along, w.start, w.stop) for along, w in zip(self.grid, wanted, strict=True)]
        indices = list(product(*met))
        if len(indices) == 1:
            return self.block(indices[0])[self._within(indices[0], wanted)[0]]
        first = self.block(indices[0])
        whole = np.empty_like(first, shape=tuple(w.stop - w.start for w in wanted))
        for index in indices:
            held, where = self._within(index, wanted)
            whole[where] = self.block(index)[held]
        return whole

    def _within(self, index: tuple[int, ...], wanted: Slices) -> tuple[Slices, Slices]:
        """What is wanted of a block: where that lies in the block, and where in what is wanted."""
        bounds = [(along[i], along[i + 1]) for i, along in zip(index, self.grid, strict=True)]
        cuts = [(b, max(b, w.start), min(e, w.stop), w.start) for (b, e), w in zip(bounds, wanted, strict=True)]
        return tuple(slice(i - b, j - b) for b, i, j, _ in cuts), tuple(slice(i - w, j - w) for _, i, j, w in cuts)


# -- parts of results --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recipe:
    """One block of a result, to be made of the blocks that it takes: `edges` says which these are, array by array.

    It is small, and all that whoever makes the block has to be told. It runs on the caller's thread alone: who has many
    parts to make has threads of its own.
    """

    make: Callable[..., Any]
    op: Op
    shape: tuple[int, ...]  # of the whole input
    dropped: tuple[int, ...] = ()  # axes that the result does not have
    bounds: tuple[Bounds, ...] = ()
    edges: tuple[tuple[Edges, ...], ...] = ()

    def at(self, bounds: tuple[Bounds, ...], edges: tuple[tuple[Edges, ...], ...]) -> Recipe:
        """The same of another block."""
        return Recipe(self.make, self.op, self.shape, self.dropped, bounds, edges)

    def __call__(self, *blocks: Any) -> Any:
        given = iter(blocks)
        counts = [prod(len(along) - 1 for along in grid) for grid in self.edges]
        arrays = [Blocks(grid, tuple(islice(given, n))) for grid, n in zip(self.edges, counts, strict=True)]
        with on_one_thread():
            found = self.make(self.op, self.shape, self.bounds, *arrays)
        return found.squeeze(self.dropped) if self.dropped else found


def values(op: Op, shape: tuple[int, ...], outputs: tuple[Bounds, ...], x: Blocks) -> Any:
    """op(x)[outputs]."""
    slab = Slab(op, shape, outputs)
    return slab(x[slab.reads])


def places(op: Op, shape: tuple[int, ...], outputs: tuple[Bounds, ...], x: Blocks) -> Any:
    """Where in x these outputs were taken from."""
    slab = Slab(op, shape, outputs)
    return slab.winners(x[slab.reads])[1]


def tangents(op: Op, shape: tuple[int, ...], outputs: tuple[Bounds, ...], x: Blocks, dx: Blocks) -> Any:
    """op.jvp(x, dx)[outputs]."""
    slab = Slab(op, shape, outputs)
    return slab.jvp(x[slab.reads], dx[slab.reads])


def cotangents(op: Op, shape: tuple[int, ...], inputs: tuple[Bounds, ...], x: Any, dy: Blocks) -> Any:
    """op.vjp(x, dy)[inputs]."""
    return cotangent(op, shape, tuple(slice(*bounds) for bounds in inputs), x, dy)


def linear_cotangents(dtype: Any, op: Op, shape: tuple[int, ...], inputs: tuple[Bounds, ...], dy: Blocks) -> Any:
    """The same of a law whose cotangents are those of any x of that dtype, which is not read."""
    zero = np.zeros_like(dy.some, dtype=dtype, shape=())
    return cotangents(op, shape, inputs, np.broadcast_to(zero, shape), dy)
