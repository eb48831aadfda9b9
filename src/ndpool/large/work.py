"""What is made of a tile: values level after level, tangents, or cotangents.

A `Work` knows its sources, what it makes (`Target`), the array whose tiles it is cut into, and what a tile needs of
each store. It is frozen and can be pickled: any thread or process can make any tile, once or again, with the same bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engines import native
from ..lazy import lazy
from ..op import Op
from ..slab import Slab, cotangent
from ..spec import Axis
from .store import Slices, Store
from .targets import Target
from .tiles import Need


class Work(ABC):
    """One sweep over the tiles of an array."""

    targets: tuple[Target, ...]
    shape: tuple[int, ...]  # of the array that is cut into tiles

    @property
    @abstractmethod
    def sources(self) -> tuple[Store | Target, ...]:
        """What is read. A target is one of the sweep before, of which there is no store yet."""

    @abstractmethod
    def on(self, *sources: Store) -> Work:
        """The same work on other stores, of the same arrays."""

    @property
    @abstractmethod
    def unit(self) -> tuple[int, ...]:
        """Tiles are made of these: so that every target is written in whole units."""

    @property
    @abstractmethod
    def needs(self) -> tuple[Need, ...]:
        """What a tile takes of each source and target, and of memory besides."""

    @abstractmethod
    def make(self, tile: Slices, stores: Sequence[Store]) -> None:
        """Make a tile, and write it to the stores of the targets."""


BAND = 5  # windows along the outermost axis that are folded at a time


@dataclass(frozen=True)
class Pooling(Work):
    """`ops` one after the other, each on what the one before made, and every result written.

    With more than one op, the windows of all but the first must tile, so that tiles of the last level are made of whole
    tiles of those before. `copied` makes the source itself the first target.
    """

    source: Store | Target
    ops: tuple[Op, ...]
    targets: tuple[Target, ...]
    copied: bool = False

    @property
    def sources(self) -> tuple[Store | Target, ...]:
        return (self.source,)

    def on(self, *sources: Store) -> Work:
        return replace(self, source=sources[0])

    @lazy
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of the source, and of each op's result."""
        found = [self.source.shape]
        for op in self.ops:
            found.append(op.window(found[-1]).out_shape)
        return tuple(found)

    @lazy
    def shape(self) -> tuple[int, ...]:
        return self.shapes[-1]

    @lazy
    def _axes(self) -> tuple[tuple[Axis, ...], ...]:
        return tuple(op.window(shape).axes for op, shape in zip(self.ops, self.shapes[:-1], strict=True))

    @property
    def _levels(self) -> range:
        """The levels that are written; level 0 is the source."""
        return range(0 if self.copied else 1, len(self.ops) + 1)

    def span(self, level: int, a: int, begin: int, end: int) -> range:
        """The positions of a level that outputs [begin, end) of the last one are made of."""
        found = range(begin, end)
        for axes in reversed(self._axes[level:]):
            found = axes[a].part(found.start, found.stop)[0]
        return found

    def _part(self, level: int, tile: Slices) -> Slices:
        spans = (self.span(level, a, one.start, one.stop) for a, one in enumerate(tile))
        return tuple(slice(r.start, r.stop) for r in spans)

    @property
    def unit(self) -> tuple[int, ...]:
        found = []
        for a, n in enumerate(self.shape):
            unit = 1
            for level, target in zip(self._levels, self.targets, strict=True):
                ratio = math.prod(axes[a].stride for axes in self._axes[level:])
                unit = math.lcm(unit, target.units[a] // math.gcd(target.units[a], ratio))
            found.append(min(unit, n) or 1)
        return tuple(found)

    @property
    def needs(self) -> tuple[Need, ...]:
        made = (_making(target, _Span(self, level)) for level, target in zip(self._levels, self.targets, strict=True))
        folded = _folding(self.ops[0], self.source, _Span(self, 0))
        return _reading(self.source, _Span(self, 0)), folded, *made

    def make(self, tile: Slices, stores: Sequence[Store]) -> None:
        parts = [self._part(level, tile) for level in range(len(self.ops) + 1)]
        written = dict(zip(self._levels, stores, strict=True))
        assert isinstance(self.source, Store)
        x = self.source.read(parts[0])
        if self.copied:
            written[0].write(parts[0], x)
        for level, op in enumerate(self.ops, 1):
            slab = Slab(op, self.shapes[level - 1], parts[level])
            x = _write(slab, x, written[level], parts[level])


@dataclass(frozen=True)
class _Span:
    """`Need.span` of a level; a class, because a function made on the spot cannot be pickled."""

    work: Pooling | Jvp | Vjp
    which: int

    def __call__(self, a: int, begin: int, end: int) -> range:
        return self.work.span(self.which, a, begin, end)


@dataclass(frozen=True)
class Jvp(Work):
    """The tangent of op(x) for the tangent dx."""

    op: Op
    x: Store
    dx: Store
    targets: tuple[Target, ...]

    @property
    def sources(self) -> tuple[Store | Target, ...]:
        return (self.x, self.dx)

    def on(self, *sources: Store) -> Work:
        return replace(self, x=sources[0], dx=sources[1])

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.op.window(self.x.shape).out_shape

    @property
    def unit(self) -> tuple[int, ...]:
        return _unit(self.targets[0])

    def span(self, which: int, a: int, begin: int, end: int) -> range:
        axis = self.op.window(self.x.shape).axes[a]
        return axis.part(begin, end)[0] if which == 0 else range(begin, end)

    @property
    def needs(self) -> tuple[Need, ...]:
        reads, outputs = _Span(self, 0), _Span(self, 1)
        besides = _memory(self.x.dtype, outputs), _folding(self.op, self.x, reads, 2)
        return _reading(self.x, reads), _reading(self.dx, reads), *besides, _making(self.targets[0], outputs)

    def make(self, tile: Slices, stores: Sequence[Store]) -> None:
        slab = Slab(self.op, self.x.shape, tile)
        stores[0].write(tile, slab.jvp(self.x.read(slab.reads), self.dx.read(slab.reads)))


@dataclass(frozen=True)
class Vjp(Work):
    """The cotangent of x for the cotangent dy of op(x): every tile of x asks the outputs that read it."""

    op: Op
    x: Store
    dy: Store
    targets: tuple[Target, ...]

    @property
    def sources(self) -> tuple[Store | Target, ...]:
        return (self.x, self.dy)

    def on(self, *sources: Store) -> Work:
        return replace(self, x=sources[0], dy=sources[1])

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.x.shape

    @property
    def unit(self) -> tuple[int, ...]:
        return _unit(self.targets[0])

    def span(self, which: int, a: int, begin: int, end: int) -> range:
        """0: the positions that the readers of [begin, end) read; 1: these readers; 2: the positions themselves."""
        if which == 2:
            return range(begin, end)
        axis = self.op.window(self.x.shape).axes[a]
        outputs = axis.covering(begin, end)
        return outputs if which == 1 else axis.part(outputs.start, outputs.stop)[0] if outputs else range(0)

    @property
    def needs(self) -> tuple[Need, ...]:
        reads, outputs, tile = (_Span(self, which) for which in range(3))
        slab = _memory(self.targets[0].dtype, reads), _memory(self.x.dtype, outputs)
        besides = *slab, _folding(self.op, self.x, reads, 2)
        return _reading(self.x, reads), _reading(self.dy, outputs), *besides, _making(self.targets[0], tile)

    def make(self, tile: Slices, stores: Sequence[Store]) -> None:
        stores[0].write(tile, cotangent(self.op, self.x.shape, tile, _Read(self.x), _Read(self.dy)))


@dataclass(frozen=True)
class _Read:
    """A store as an array that is asked for by slices."""

    store: Store

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.store.dtype

    def __getitem__(self, part: Slices) -> np.ndarray[Any, Any]:
        return self.store.read(part)


def _write(op: Op, x: np.ndarray[Any, Any], store: Store, part: Slices) -> np.ndarray[Any, Any]:
    """op(x), written: made in the store's own memory if it has some that the op can use."""
    memory = store.memory(part)
    if memory is not None:
        return op(x, memory)  # type: ignore[no-any-return]
    y = op(x)
    store.write(part, y)
    return y  # type: ignore[no-any-return]


def _unit(target: Target) -> tuple[int, ...]:
    """Tiles of an array that is itself the target: its units, none larger than the array."""
    return tuple(max(1, min(u, n)) for u, n in zip(target.units, target.shape, strict=True))


def _reading(store: Store | Target, span: Any) -> Need:
    return Need(store.dtype.itemsize, store.chunks, span, store.working, encoded=store.encoded)


def _making(target: Target, span: Any) -> Need:
    return Need(target.dtype.itemsize, target.units, span, target.working, read=False)


def _folding(op: Op, source: Store | Target, span: _Span, parts: int = 1) -> Need:
    """The memory that windows are folded in: states of a band of the input, before and after an axis is folded.

    A band is as long as the native engine cuts it (native/plan.h): a few windows along the outermost pooled axis. The
    portable engine, which folds what that one has no kernels for, has no bands. `parts` is 2 where states have a
    tangent.
    """
    short = source.dtype.kind not in "biu" and source.dtype.itemsize < 4  # folded as float32
    state = (4 if short else source.dtype.itemsize) if op.law.winners else max(8, source.dtype.itemsize)
    axes = op.window(source.shape).axes
    pooled = [a for a, axis in enumerate(axes) if not axis.is_identity]
    most, outer = sum(source.shape), 0
    if pooled and native.available() and native.takes(op.law, op.dtype or source.dtype):
        outer = pooled[-1] if getattr(source, "order", "C") == "F" else pooled[0]
        most = BAND * axes[outer].taps * axes[outer].dilation
    return Need(2 * parts * state, (), _Band(span, outer, most), _nothing, read=False)


@dataclass(frozen=True)
class _Band:
    """A span of which no more than `most` positions along one axis are needed at a time."""

    span: _Span
    axis: int
    most: int

    def __call__(self, a: int, begin: int, end: int) -> range:
        found = self.span(a, begin, end)
        return found[: self.most] if a == self.axis else found


def _memory(dtype: np.dtype[Any], span: Any) -> Need:
    """Memory of that dtype, as many elements as the span says."""
    return Need(dtype.itemsize, (), span, _nothing, read=False)


def _nothing(part: Slices) -> int:
    return 0
