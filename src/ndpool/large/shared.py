"""Chunks that several tiles take some of, decoded once.

The tile that first asks for a chunk decodes it, and keeps for each other tile the piece that this one will ask for: of
overlapping windows a thin one. Tiles that are in work at the same time wait for one another's chunks; nobody waits who
has still to decode. Where pieces would need more memory than there is, they are not kept, and are decoded again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from copy import copy
from itertools import accumulate, product
from typing import Any

import numpy as np

from .store import Slices, Store, cut, shape_of, within
from .tiles import Grid, Need

Index = tuple[int, ...]


class Shared(Store):
    """A store that is read by the tiles of a grid, each once: part after part as `need` says. For reading."""

    def __init__(self, base: Store, need: Need, grid: Grid, finished: Callable[[int], bool], room: int) -> None:
        self.base, self.room, self.finished, self.counts = base, room, finished, grid.counts
        self.name, self.path, self.dtype, self.order = base.name, base.path, base.dtype, base.order
        self.shape, self.chunks, self.units, self.axes = base.shape, base.chunks, base.units, base.axes
        self.encoded = base.encoded
        self.spans = [
            [need.span(a, k * t, min(n, (k + 1) * t)) for k in range(count)]
            for a, (n, t, count) in enumerate(zip(grid.shape, grid.tile, grid.counts, strict=True))
        ]
        self.ends = [(_rising(r.start for r in spans), _rising(r.stop for r in spans)) for spans in self.spans]
        self.tile: Index = ()
        self.decoded: dict[Index, Future[None]] = {}  # done when the pieces are there
        self.pieces: dict[tuple[Index, Index], np.ndarray[Any, Any]] = {}  # of a chunk, for a tile
        self.waiting: dict[Index, set[Index]] = {}  # tiles that have not taken theirs

    def of(self, tile: int) -> Shared:
        """The same store as that tile reads it. A part alone does not tell: several tiles may take the same one."""
        view = copy(self)
        view.tile = tuple(map(int, np.unravel_index(tile, self.counts)))
        return view

    def read(self, part: Slices, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        out = np.empty(shape_of(part), self.dtype, order="F" if self.order == "F" else "C") if out is None else out
        left, others = [], []
        # what lies ready comes first, so that its memory is free for what others need
        for chunk, piece in cut(part, self.chunks):
            if (first := self.decoded.get(chunk)) is not None and first.done():
                self._take(chunk, piece, first, out[within(piece, part)])
            else:
                left.append((chunk, piece))
        for chunk, piece in left:
            own: Future[None] = Future()
            first = self.decoded.setdefault(chunk, own)
            if first is own:
                self._decode(chunk, piece, out[within(piece, part)])
            else:
                others.append((chunk, piece, first))
        for chunk, piece, first in others:
            self._take(chunk, piece, first, out[within(piece, part)])
        return out

    def _decode(self, chunk: Index, piece: Slices, out: np.ndarray[Any, Any]) -> None:
        """Put the piece of a chunk into `out`, and keep those of other tiles."""
        done = self.decoded[chunk]
        try:
            parts = self._parts(chunk)
            if not parts:
                out[...] = self.base.read(piece)
            else:
                whole = self._whole(chunk)
                values = self.base.read(whole)
                out[...] = values[within(piece, whole)]
                self.waiting[chunk] = set(parts)
                held = sum(kept.nbytes for kept in list(self.pieces.values()))
                for other, wanted in parts.items():
                    held += self.dtype.itemsize * int(np.prod(shape_of(wanted)))
                    if held <= self.room:
                        self.pieces[chunk, other] = values[within(wanted, whole)].copy()
        except BaseException as error:
            done.set_exception(error)
            raise
        done.set_result(None)
        if not parts:
            self.decoded.pop(chunk, None)

    def _take(self, chunk: Index, piece: Slices, decoded: Future[None], out: np.ndarray[Any, Any]) -> None:
        """The tile's piece of a chunk that another one decodes, to `out`; after the last one it is forgotten."""
        decoded.result()
        kept = self.pieces.pop((chunk, self.tile), None)
        out[...] = self.base.read(piece) if kept is None else kept
        waiting = self.waiting.get(chunk, set())
        waiting.discard(self.tile)
        if not waiting:
            self.waiting.pop(chunk, None)
            self.decoded.pop(chunk, None)

    def _whole(self, chunk: Index) -> Slices:
        return tuple(slice(i * c, min(n, (i + 1) * c)) for i, c, n in zip(chunk, self.chunks, self.shape, strict=True))

    def _parts(self, chunk: Index) -> dict[Index, Slices]:
        """The other tiles that take some of a chunk and are not finished, and what they take."""
        whole = self._whole(chunk)
        ranges = [
            range(bisect_right(stops, one.start), bisect_left(starts, one.stop))
            for (starts, stops), one in zip(self.ends, whole, strict=True)
        ]
        found = {}
        for other in product(*ranges):
            if other != self.tile and not self.finished(int(np.ravel_multi_index(other, self.counts))):
                spans = (self.spans[a][k] for a, k in enumerate(other))
                found[other] = tuple(
                    slice(max(w.start, r.start), min(w.stop, r.stop)) for w, r in zip(whole, spans, strict=True)
                )
        return {other: part for other, part in found.items() if all(one.start < one.stop for one in part)}

    def write(self, part: Slices, values: np.ndarray[Any, Any]) -> None:
        raise OSError(f"{self.name} is open for reading only")

    def working(self, part: Slices) -> int:
        return self.base.working(part)

    def state(self) -> str:
        return self.base.state()


def _rising(ends: Iterable[int]) -> list[int]:
    """Ends of spans in order, for bisection: those of spans of nothing may be anywhere."""
    return list(accumulate(ends, max))
