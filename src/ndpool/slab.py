"""Some outputs of a record over an array that is too large to be held, or that lies in pieces.

A slab says which part of the array its outputs read, and makes them of that part alone, with the bits that the whole
array would give:

    slab = Slab(op, x.shape, outputs)
    y[slab.writes] = slab(x[slab.reads])

A slab is a record, so whatever records do it does. Its results have all axes of x, those too that a global op with
keepdims=False drops. `readers` and `cotangent` go the other way, from a part of x to the outputs that read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .arguments import integer
from .arrays import CONVERTED, Adapter, changed, values_alone
from .engines.dtypes import kind
from .errors import PoolError, PoolTypeError
from .lazy import lazy
from .op import Op
from .spec import Axis, Law

Slices = tuple[slice, ...]


@dataclass(frozen=True, repr=False)
class Slab(Op):
    """The outputs in `outputs`, a slice or (begin, end) per axis, of `op` over an array of that `shape`.

    >>> import numpy as np, ndpool
    >>> op, x = ndpool.MaxPool((3,), stride=2, padding=1), np.array([3, 1, 4, 1, 5, 9, 2, 6])
    >>> slab = Slab(op, x.shape, (slice(1, 3),))
    >>> slab.reads, slab(x[slab.reads]), op(x)
    ((slice(1, 6, None),), array([4, 9]), array([3, 4, 9, 9]))
    """

    op: Op
    shape: tuple[int, ...]
    outputs: tuple[Any, ...]

    def _check(self) -> None:
        op = values_alone(self.op)
        if op.dtype is not None:  # this record converts, and the one in it need not
            self._set(dtype=op.dtype)
            op = changed(op, dtype=None)
        shape = tuple(integer("shape", n, 0) for n in self.shape)
        self._set(op=op, shape=shape, outputs=_bounds("outputs", self.outputs, op.window(shape).out_shape))
        super()._check()

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def law(self) -> Law:
        return self.op.law

    @lazy
    def _parts(self) -> list[tuple[range, Axis]]:
        axes = self.op.window(self.shape).axes
        return [axis.part(*bounds) for axis, bounds in zip(axes, self.outputs, strict=True)]

    @lazy
    def reads(self) -> Slices:
        """The part of x that these outputs lie over; what they read is in it."""
        return tuple(slice(where.start, where.stop) for where, _ in self._parts)

    @lazy
    def writes(self) -> Slices:
        """The outputs, as slices."""
        return tuple(slice(*bounds) for bounds in self.outputs)

    def _pooled(self, ndim: int) -> tuple[int, ...]:
        return self.op._pooled(ndim)

    def axes_over(self, shape: tuple[Any, ...]) -> list[Axis]:
        found = [axis for _, axis in self._parts]
        if shape != tuple(axis.size for axis in found):
            read = tuple(axis.size for axis in found)
            raise PoolError(
                f"x has shape {shape}, but these outputs read a part of shape {read}; give it x[slab.reads]"
            )
        return found

    def _axis(self, n: int, i: int, rank: int) -> Axis:
        return self.axes_over(self.shape)[self._pooled(len(self.shape))[i]]

    def winners(self, x: Any) -> tuple[Any, Any]:
        """The values, and where in the whole array each was taken from: flat positions within the pooled axes."""
        axes = self.pooled_axes(len(self.shape))
        bound = self._bind(x)
        if bound is CONVERTED:
            return replace(self, dtype=None).winners(CONVERTED.into(self, x)[1])
        if isinstance(bound, Adapter):
            raise PoolTypeError(
                f"{self.name}: a slab has winners in NumPy arrays as they are, not in {type(x).__name__}"
            )
        y, places = bound.plan.winners(x, axes)
        sizes = [self.reads[a].stop - self.reads[a].start for a in axes]
        whole, step, rest = np.zeros_like(places), 1, np.maximum(places, 0)
        for a, size in zip(reversed(axes), reversed(sizes), strict=True):
            whole += (rest % size + self.reads[a].start) * step
            rest, step = rest // size, step * self.shape[a]
        return y, np.where(places < 0, places, whole)


def _bounds(name: str, given: Any, sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Slices, or pairs, as (begin, end) within `sizes`; errors call them `name`."""
    given = tuple((one.start, one.stop) if isinstance(one, slice) else tuple(one) for one in given)
    if len(given) != len(sizes):
        raise PoolError(f"{name} has {len(given)} slices for an array of {len(sizes)} axes; use one per axis")
    found = []
    for a, ((begin, end), n) in enumerate(zip(given, sizes, strict=True)):
        begin, end = 0 if begin is None else begin, n if end is None else end
        if not (0 <= begin < end <= n or begin == end == n == 0):
            raise PoolError(f"{name} has {begin}:{end} on axis {a}; use 0 <= begin < end <= {n}")
        found.append((int(begin), int(end)))
    return tuple(found)


def readers(op: Op, shape: tuple[int, ...], inputs: Slices) -> Slices | None:
    """The outputs that read any of `inputs`, a slice per axis; None if there is none."""
    axes = op.window(shape).axes
    found = [axis.covering(*bounds) for axis, bounds in zip(axes, _bounds("inputs", inputs, shape), strict=True)]
    return tuple(slice(o.start, o.stop) for o in found) if all(found) else None


def cotangent(op: Op, shape: tuple[int, ...], inputs: Slices, x: Any, dy: Any) -> Any:
    """op.vjp(x, dy)[inputs], of the parts that it takes: x and dy, of all axes, are asked for these by slices.

    All outputs that read an input are in the slab, and are added in the order of the whole: so are the bits.
    """
    wanted, outputs = _bounds("inputs", inputs, shape), readers(op, shape, inputs)
    sizes = tuple(end - begin for begin, end in wanted)
    if outputs is None:
        return np.zeros(sizes, x.dtype if kind(x.dtype) in ("real", "complex") else dy.dtype)
    slab = Slab(op, shape, outputs)
    found = slab.vjp(x[slab.reads], dy[slab.writes])
    held = [(max(i, r.start), min(j, r.stop)) for (i, j), r in zip(wanted, slab.reads, strict=True)]
    cut = found[tuple(slice(i - r.start, j - r.start) for (i, j), r in zip(held, slab.reads, strict=True))]
    if cut.shape == sizes:
        return cut if cut.shape == found.shape else cut.copy("K")  # of its own: who keeps it does not keep the rest
    whole = np.zeros(sizes, found.dtype)  # what lies beyond the windows is read by none
    whole[tuple(slice(i - begin, j - begin) for (i, j), (begin, _) in zip(held, wanted, strict=True))] = cut
    return whole
