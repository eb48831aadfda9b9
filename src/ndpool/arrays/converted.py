"""`dtype=`: x is converted first, so that sums are kept, and results given, in that type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import named
from ..engines import Linear, namespace
from ..engines.dtypes import kind, name
from ..errors import PoolError, PoolTypeError
from .adapter import Adapter, changed, values_alone

if TYPE_CHECKING:
    from ..op import Op

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
