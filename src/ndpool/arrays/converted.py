"""`dtype=`: x is converted first, so that sums are kept, and results given, in that type.

A large NumPy array is converted, and pooled, part by part, so that a call takes PART more elements and not a copy of x.
Derivatives convert x whole: they may keep it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import named
from ..engines import Linear, namespace
from ..engines.dtypes import kind, name
from ..errors import PoolError, PoolTypeError
from ..spec import Axis
from .adapter import Adapter, changed, values_alone

if TYPE_CHECKING:
    from ..op import Op

PART = 1 << 18  # elements of x that are converted at a time, about: they stay in a processor's cache
ORDER = ("bool", "integer", "real", "complex")  # each holds what those before it hold


def allows(dtype: Any, wanted: str) -> None:
    """Raise where numbers of `dtype` would not stay what they are, but for rounding, as `wanted`."""
    have, want = kind(dtype), kind(wanted)
    if have not in ORDER:
        return  # the law will say so
    if ORDER.index(have) > ORDER.index(want):
        raise PoolTypeError(f"dtype={wanted!r} cannot hold x's {name(dtype)}; use a {have} dtype, or x.astype")
    if have == want == "integer":
        given, range_ = np.iinfo(name(dtype)), np.iinfo(wanted)
        if given.min < range_.min or given.max > range_.max:
            raise PoolError(f"dtype={wanted!r} cannot hold all of x's {name(dtype)}; use a wider one")


def converted(x: Any, wanted: str, of: str = "x") -> Any:
    """An array of any library in the dtype of that name."""
    xp = namespace(x, of)
    if xp is None:
        raise PoolTypeError(f"dtype={wanted!r} has no meaning for nested lists, whose scalars stay what they are")
    if name(x.dtype) == wanted:
        return x
    if xp is np and wanted == "bfloat16":
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16)
    return xp.astype(x, getattr(xp, wanted))


# -- in parts ----------------------------------------------------------------------------------------------------------


def in_parts(op: Op, x: Any, wanted: str) -> Any:
    """What the record, which has no dtype, makes of x in that dtype: with the bits of the whole."""
    from ..slab import Slab

    kept = changed(op, keepdims=True) if hasattr(op, "keepdims") else op
    window, pooled = op.window(x.shape), op.pooled_axes(x.ndim)
    op.consider(x.shape)
    two = getattr(op, "return_indices", False)
    results: tuple[Any, ...] = ()
    for outputs in boxes(window.axes, x.strides):
        independent = all(outputs[a] == slice(0, window.axes[a].outputs) for a in pooled)
        if independent and not isinstance(kept, Slab):  # one plan for all; a slab is of one shape alone
            reads = tuple(slice(None) if a in pooled else part for a, part in enumerate(outputs))
            found = kept(converted(x[reads], wanted))
        else:
            slab = Slab(kept, x.shape, outputs)
            held = converted(x[slab.reads], wanted)
            found = slab.winners(held) if two else slab(held)
        found = found if two else (found,)
        results = results or tuple(np.empty(window.out_shape, part.dtype) for part in found)
        for result, part in zip(results, found, strict=True):
            result[outputs] = part
    shown = tuple(result.reshape(op.out_shape(x.shape)) for result in results)
    return shown if two else shown[0]


def boxes(axes: tuple[Axis, ...], strides: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """The outputs, in boxes that read about PART inputs each; cut where memory is least torn. One along a pooled axis
    reads at least four times what a window covers, so that little is converted twice."""
    left = math.prod(axis.size for axis in axes)
    cuts = [[slice(0, axis.outputs)] for axis in axes]
    for a in sorted(range(len(axes)), key=lambda a: -abs(strides[a])):
        axis, pieces = axes[a], max(1, left // PART)
        step = -(-axis.outputs // pieces)
        if not axis.is_identity:
            step = max(step, 4 * -(-axis.taps * axis.dilation * axis.per // axis.stride))
        cuts[a] = [slice(o, min(o + step, axis.outputs)) for o in range(0, axis.outputs, step)]
        left //= len(cuts[a])
    yield from product(*cuts)


class Converted(Adapter):
    """Runs a record that has a dtype: without it, on what x is when converted.

    A tangent has x's dtype where that is real, else the record's; a cotangent of y has the record's.
    """

    def into(self, op: Op, x: Any) -> tuple[Op, Any]:
        """The record without its dtype, and x in it."""
        if namespace(x) is not None:
            allows(x.dtype, op.dtype)
        return changed(op, dtype=None), converted(x, op.dtype)

    def pool(self, op: Op, x: Any) -> Any:
        if type(x) is np.ndarray and x.size > 2 * PART and name(x.dtype) != op.dtype:
            allows(x.dtype, op.dtype)
            return in_parts(changed(op, dtype=None), x, op.dtype)
        plain, wide = self.into(op, x)
        return plain(wide)

    def linearize(self, op: Op, x: Any) -> Linear:
        plain, wide = self.into(op, x)
        at, dtype, real = plain.linearize(wide), name(x.dtype), kind(x.dtype) in ("real", "complex")

        def jvp(dx: Any) -> Any:
            with named(op.name):
                if real and name(getattr(dx, "dtype", None)) != dtype:
                    raise PoolTypeError(f"dx is not an array of {dtype}, as x is; convert it")
                return at.jvp(converted(dx, op.dtype, "dx") if real else dx)

        def vjp(dy: Any) -> Any:
            dx = at.vjp(dy)
            return converted(dx, dtype) if real else dx

        return Linear(at.y, jvp, vjp)

    def jacobian(self, op: Op, x: Any) -> Any:
        plain, wide = self.into(values_alone(op), x)
        return plain.jacobian(wide)

    def hvp(self, op: Op, x: Any, dx: Any, dy: Any) -> Any:
        plain, wide = self.into(values_alone(op), x)
        got = plain.hvp(wide, converted(dx, op.dtype, "dx"), dy)
        return converted(got, name(x.dtype)) if kind(x.dtype) == "real" else got


CONVERTED = Converted()
