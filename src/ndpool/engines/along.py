"""Array operations along one axis, of the array's own namespace: cut, pad, join, spread out, and `Select`.

What may not live here: geometry, a law, an array library by name. Index vectors are NumPy's, on the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..lazy import lazy

Array = Any
Vector = np.ndarray[Any, Any]  # of the host


def along(vector: Any, axis: int, ndim: int) -> Any:
    """A host vector, shaped to broadcast along `axis`."""
    return vector.reshape((1,) * axis + (-1,) + (1,) * (ndim - axis - 1))


def device(a: Array) -> Any:
    """Where `a` lives; None, the default device, for an array that is only traced."""
    return getattr(a, "device", None)


def on(xp: Any, device: Any, host: Any) -> Array:
    """A host array as one of that library and device."""
    return xp.asarray(host, device=device)


def zeros_like(xp: Any, a: Array, axis: int, n: int) -> Array:
    """Zeros of a's shape, dtype and device, but `n` long on `axis`."""
    shape = (*a.shape[:axis], n, *a.shape[axis + 1 :])
    return xp.zeros(shape, dtype=a.dtype, device=device(a))


def cut(a: Array, axis: int, part: slice) -> Array:
    """A part of `a` along `axis`."""
    return a[(slice(None),) * axis + (part, ...)]


def concat(xp: Any, parts: list[Array], axis: int) -> Array:
    """The parts one after another; those that are broadcast along other axes are spread out."""
    if len(parts) == 1:
        return parts[0]
    shapes = {(*p.shape[:axis], *p.shape[axis + 1 :]) for p in parts}
    if len(shapes) > 1:
        wide = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*shapes, strict=True))  # n may be a symbol
        parts = [xp.broadcast_to(p, (*wide[:axis], p.shape[axis], *wide[axis:])) for p in parts]
    return xp.concat(parts, axis=axis)


def pad(xp: Any, a: Array, axis: int, before: int, after: int) -> Array:
    """`a` with that many zeros before and after it on `axis`; a negative number cuts positions off."""
    if before < 0 or after < 0:
        a = cut(a, axis, slice(max(0, -before), a.shape[axis] - max(0, -after)))
    if before <= 0 and after <= 0:
        return a
    parts = [zeros_like(xp, a, axis, before)] if before > 0 else []
    parts += [a, zeros_like(xp, a, axis, after)] if after > 0 else [a]
    return xp.concat(parts, axis=axis)


def spread(xp: Any, parts: Iterable[tuple[int, Array]], step: int, size: int, axis: int) -> Array:
    """Zeros, `size` long on `axis`, with part[o] added at start + o step for each (start, part), in that order.

    Positions are written as rows of `step`. A part is one column of them, moved down by start // step rows, so it costs
    its own length; columns and the gaps between them are then laid side by side.
    """
    columns: dict[int, Array] = {}
    rows = -(-size // step)
    for start, part in parts:
        down, column = divmod(start, step)
        moved = pad(xp, part, axis, down, rows - down - part.shape[axis])
        columns[column] = moved if column not in columns else columns[column] + moved
    if step == 1:
        return columns[0]
    laid, end = [], 0
    some = next(iter(columns.values()))
    shape = (*some.shape[: axis + 1], 1, *some.shape[axis + 1 :])
    for column in sorted(columns):
        one = xp.reshape(columns[column], shape)
        laid += [zeros_like(xp, one, axis + 1, column - end), one] if column > end else [one]
        end = column + 1
    if end < step:
        laid.append(zeros_like(xp, laid[0], axis + 1, step - end))
    out = xp.reshape(xp.concat(laid, axis=axis + 1), (*some.shape[:axis], rows * step, *some.shape[axis + 1 :]))
    return cut(out, axis, slice(size)) if size < rows * step else out


@dataclass(frozen=True, eq=False)
class Select:
    """out[o] = in[index[o]] along an axis, and its transpose: what was read from the same place is added there."""

    index: slice | Vector
    size: int
    used: Vector | None = None  # outputs whose value matters, None for all; the others read anything

    @lazy
    def inverse(self) -> list[Vector]:
        """For each input its first reader, its second reader, ...; len(index) where there is none."""
        assert isinstance(self.index, np.ndarray)
        outputs = np.arange(len(self.index)) if self.used is None else np.flatnonzero(self.used)
        outputs = outputs[np.argsort(self.index[outputs], kind="stable")]
        ends = np.searchsorted(self.index[outputs], np.arange(self.size + 1))
        readers, none = np.append(outputs, len(self.index)).astype(self.index.dtype), len(outputs)
        most = int(np.max(ends[1:] - ends[:-1], initial=1))
        return [readers[np.where(ends[:-1] + r < ends[1:], ends[:-1] + r, none)] for r in range(most)]

    def mark(self, read: Vector) -> None:
        """Set the positions of `read` that are read."""
        read[self.index if self.used is None or isinstance(self.index, slice) else self.index[self.used]] = True

    def take(self, xp: Any, a: Array, axis: int) -> Array:
        if isinstance(self.index, slice):
            return cut(a, axis, self.index)
        return xp.take(a, on(xp, device(a), self.index), axis=axis)

    def give_back(self, xp: Any, g: Array, axis: int) -> Array:
        if isinstance(self.index, slice):
            return spread(xp, [(self.index.start, g)], self.index.step, self.size, axis)
        return gather(xp, g, self.inverse, axis)


def gather(xp: Any, g: Array, readers: list[Vector], axis: int) -> Array:
    """For each input, the sum of what its readers hold, first to last; the reader behind the last one holds 0."""
    padded = xp.concat([g, zeros_like(xp, g, axis, 1)], axis=axis)
    parts = [xp.take(padded, on(xp, device(g), at), axis=axis) for at in readers]
    return sum(parts[1:], parts[0])
