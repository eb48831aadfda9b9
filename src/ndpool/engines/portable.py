"""Pooling in array operations of the array's own namespace and no more: NumPy now, and the fallback everywhere else.

Reading order: `Portable` (what ops call), `_Fold` (pad, lift, one pass per axis, finish), the
laws: `Extreme`, `Sum`, `IntegerSum`, `SmoothMax`, `Lp`. (A law whose state is no few numbers is in `stacked`.) A law
here is the spec's, on whole arrays:

    lift(x)       -> state, slope        state: a tuple of arrays; slope: d state / dx, or None for 1
    merge(a, b)   -> state, ra, rb       the tangent of the result is ra a' + rb b' (`passes.weighted` says how)
    finish(state) -> y, divisor          y' = the folded tangent over the divisor, or None for 1

so the derivative of every law is the same linear recursion, run forwards by jvp and backwards by vjp: deterministic,
no scatter, no atomics. Passes go from the last axis to the first, which keeps row-major order among equals. A law says
whether zeros change nothing (`neutral_zero`) and whether it `multiplies` tangents by numbers, which may be NaN: then an
input that no output reads must be left out, because 0 times NaN is not 0.

What may not live here: geometry (it is in `passes` and the spec), argument names, any array library by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from ..errors import PoolError
from ..spec import Law, Window
from .along import Array, along, device, on, pad
from .base import Linear, Plan, namespace
from .dtypes import kind, name, wide
from .dual import DualArray, DualNamespace, point
from .meeting import Merged, State, weighted
from .passes import Pass, plan
from .stacked import STACKED, Stacked

MASK32 = (1 << 32) - 1
Count = Callable[[], Any]  # what each output counts, asked for only by those who divide by it


# -- the engine ------------------------------------------------------------------------------------------------------

NAME = "portable"


def supports(window: Window, law: Law, x: Any) -> bool:
    """Whether there is an array form of `law`; ties with zeros that count, which come last, are left to the spec."""
    return (
        (law.name in LAWS or law.name in STACKED)
        and namespace(x) is not None
        and kind(x.dtype) in law.kinds
        and not (law.picks and any(any(axis.margin) for axis in window.axes))
    )


def bind(window: Window, law: Law, x: Array) -> Plan:
    return plan_of(namespace(x), window, law)


def plan_of(xp: Any, window: Window, law: Law) -> Plan:
    """The plan for arrays of that library: axis by axis where a law's states are arrays, else all taps at once."""
    return (Portable if law.name in LAWS else Stacked)(xp, window, law)


def forward(window: Window, law: Law, x: Array) -> Array:
    """The values of all outputs, in x's dtype."""
    return bind(window, law, x).forward(x)


def linearize(window: Window, law: Law, x: Array) -> Linear:
    """The values, and jvp and vjp that need no further look at x."""
    return bind(window, law, x).linearize(x)


def winners(window: Window, law: Law, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """The values and where each was taken from: flat row-major positions within `axes`; -1 where nothing is read."""
    return bind(window, law, x).winners(x, axes)


@dataclass(frozen=True)
class Portable(Plan):
    """A window and a law, for arrays of one library."""

    xp: Any
    window: Window
    law: Law

    def forward(self, x: Array) -> Array:
        return self._fold(x, keep=False).y

    def linearize(self, x: Array) -> Linear:
        fold = self._fold(x, keep=True)
        y, fold.y = fold.y, None  # the maps keep residuals only
        return Linear(y, quiet(fold.jvp), quiet(fold.vjp))

    def winners(self, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
        window = self.window
        sizes = [window.axes[a].size for a in axes]
        places = [along(np.arange(n), a, len(window.axes)) for a, n in zip(axes, sizes, strict=True)]
        origin = np.zeros((1,) * len(window.axes), int)
        flat = sum((p * math.prod(sizes[i + 1 :]) for i, p in enumerate(places)), origin)
        fold = self._fold(x, keep=False, place=on(self.xp, device(x), flat))
        return fold.y, fold.place

    def _fold(self, x: Array, **options: Any) -> Any:
        return quiet(_Fold)(self.xp, self.window, self.law, x, **options)


def quiet(run: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy warns about inf - inf and the like inside formulas that handle them; other libraries do not."""

    def call(*args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(*args, **options)

    return call


# -- one run -----------------------------------------------------------------------------------------------------------


class _Fold:
    """One run over one array: `y`, `place` (if asked for), and `jvp` and `vjp` (if kept)."""

    def __init__(self, xp: Any, window: Window, law: Law, x: Array, keep: bool, place: Array = None):
        self.xp, self.window, self.device = xp, window, device(x)
        self.law = LAWS[law.name](xp, x.dtype, *law.params)
        self.pooled = [i for i, axis in enumerate(window.axes) if not axis.is_identity]
        # zeros that count are put into x, and are read like any tap, unless they change nothing
        axes = [window.axes[i] for i in self.pooled]
        self.margins = [(0, 0) if self.law.neutral_zero else axis.margin for axis in axes]
        if not self.law.neutral_zero:
            axes = [axis.with_margin_inside() for axis in axes]
        self.plans = [plan(axis) for axis in axes]
        state, self.slope = self.law.lift(self._pad(x))
        if place is not None:
            state = (*state, self._pad(place))
        self.passes = []
        for i, p in reversed(list(zip(self.pooled, self.plans, strict=True))):
            one = Pass(xp, p, i, self.law.neutral_zero, self.law.multiplies)
            state = one.forward(self.law.merge, state, keep)
            self.passes.append(one)
        y, divisor = self.law.finish(state, self._count)
        self.divisor = divisor if divisor is None or isinstance(divisor, int) else self._where_read(divisor, 1)
        self.y = xp.astype(self._where_read(y, 0), x.dtype)
        if place is not None:
            self.place = self._where_read(xp.broadcast_to(state[-1], y.shape), -1)

    def jvp(self, dx: Array) -> Array:
        xp = self.xp
        if isinstance(dx, DualArray) and not isinstance(xp, DualNamespace):  # linear, so part by part
            return DualArray(self.jvp(dx.value), self.jvp(dx.tangent))
        t = weighted(xp, self.slope, self._pad(xp.astype(dx, wide(xp, dx.dtype))))
        for one in self.passes:
            t = one.jvp(t)
        return xp.astype(divided(xp, t, self.divisor), dx.dtype)

    def vjp(self, dy: Array) -> Array:
        xp = self.xp
        if isinstance(dy, DualArray) and not isinstance(xp, DualNamespace):
            return DualArray(self.vjp(dy.value), self.vjp(dy.tangent))
        g = divided(xp, xp.astype(dy, wide(xp, dy.dtype)), self.divisor)
        for one in reversed(self.passes):
            g = one.vjp(g)
        g = weighted(xp, self.slope, g)
        if self.law.multiplies:
            g = self._where([one.read() for one in reversed(self.passes)], g, 0)
        for i, (before, after) in zip(self.pooled, self.margins, strict=True):
            g = pad(xp, g, i, -before, -after)
        return xp.astype(g, dy.dtype)

    def _pad(self, a: Array) -> Array:
        for i, margin in zip(self.pooled, self.margins, strict=True):
            a = pad(self.xp, a, i, *margin)
        return a

    def _outer(self, combine: Callable[[Array, Array], Array], vectors: list[Any]) -> Array:
        """A host vector per pooled axis, combined over their product."""
        shaped = [along(v, i, len(self.window.axes)) for i, v in zip(self.pooled, vectors, strict=True)]
        return on(self.xp, self.device, reduce(combine, shaped))

    def _count(self) -> Array | int:
        """What each output counts; a plain number where all count the same."""
        counts = [p.count for p in self.plans]
        same = [n for c in counts if (n := c.all_same) is not None]
        if len(same) == len(counts):
            return max(1, math.prod(same))
        return self._outer(np.multiply, [np.maximum(c.vector(), 1) for c in counts])

    def _where_read(self, a: Array, otherwise: int) -> Array:
        """a, but `otherwise` at the outputs that count nothing."""
        if all(p.count.all_count for p in self.plans):
            return a
        return self._where([p.count.vector() > 0 for p in self.plans], a, otherwise)

    def _where(self, masks: list[Any], a: Array, otherwise: int) -> Array:
        """a where the masks of all pooled axes hold, else `otherwise`."""
        if all(mask.all() for mask in masks):
            return a
        return self.xp.where(self._outer(np.logical_and, masks), a, self.xp.full_like(a, otherwise))


class Extreme:
    """max and min. State: the value, with ties="split" how many share it, and whatever else travels along."""

    neutral_zero = multiplies = False

    def __init__(self, xp: Any, dtype: Any, ties: str, nan: str, above: str = "greater"):
        self.xp, self.ties, self.nan, self.above = xp, ties, nan, getattr(xp, above)
        self.real = kind(dtype) == "real"
        self.dtype = xp.uint8 if kind(dtype) == "bool" else wide(xp, dtype) if self.real else dtype

    def lift(self, x: Array) -> tuple[State, Array]:
        x = self.xp.astype(x, self.dtype)
        return ((x, self.xp.ones_like(x, dtype=self.xp.int32)) if self.ties == "split" else (x,)), None

    def beats(self, a: Array, b: Array) -> Array:
        """Strictly: equals do not beat one another."""
        above = self.above(a, b)
        if not self.real:
            return above
        return above | ((a != a) & (b == b) if self.nan == "propagate" else (a == a) & (b != b))

    def merge(self, a: State, b: State) -> Merged:
        xp = self.xp
        if self.ties == "first":
            rb = self.beats(b[0], a[0])
            ra = ~rb
        elif self.ties == "last":
            ra = self.beats(a[0], b[0])
            rb = ~ra
        else:
            ra, rb = ~self.beats(b[0], a[0]), ~self.beats(a[0], b[0])
        kept = [xp.where(ra, p, q) for p, q in zip(a, b, strict=True)]
        if isinstance(kept[0], DualArray):  # equals are one value, moved by the tangents of all who share it
            moved = weighted(xp, ra, a[0].tangent) + weighted(xp, rb, b[0].tangent)
            kept[0] = DualArray(kept[0].value, moved)
        if self.ties == "split":
            kept[1] = weighted(xp, ra, a[1]) + weighted(xp, rb, b[1])
        return tuple(kept), ra, rb

    def finish(self, state: State, count: Count) -> tuple[Array, Array]:
        if self.ties != "split":
            return state[0], None
        y, sharers = state[:2]
        if isinstance(y, DualArray):
            y = DualArray(y.value, divided(self.xp, y.tangent, sharers))
        return y, sharers


class Sum:
    """Sum and mean of real and complex elements. State: the sum."""

    neutral_zero, multiplies = True, False

    def __init__(self, xp: Any, dtype: Any, divisor: int | None = 1):
        self.xp, self.dtype, self.divisor = xp, wide(xp, dtype), divisor

    def lift(self, x: Array) -> tuple[State, Array]:
        return (self.xp.astype(x, self.dtype),), None

    def merge(self, a: State, b: State) -> Merged:
        return (a[0] + b[0],), None, None

    def finish(self, state: State, count: Count) -> tuple[Array, Array]:
        n = self.divisor or count()
        return divided(self.xp, state[0], n), None if self.divisor == 1 else n


class IntegerSum(Sum):
    """Sum and mean of integers, exact: what does not fit raises, a mean is rounded half to even.

    State: for 64-bit elements the sums of their upper and of their lower halves, else one 64-bit sum.
    """

    def __init__(self, xp: Any, dtype: Any, divisor: int | None = 1):
        super().__init__(xp, dtype, divisor)
        self.name, self.info = name(dtype), xp.iinfo(dtype)
        if divisor and divisor >= 1 << 31:
            raise PoolError(f"divisor_override={divisor} is beyond 2**31 - 1 for an exact mean; convert x to float64")

    def lift(self, x: Array) -> tuple[State, Array]:
        x = self.xp.astype(x, self.dtype)
        return ((x >> 32, x & MASK32) if self.info.bits == 64 else (x,)), None

    def merge(self, a: State, b: State) -> Merged:
        return tuple(p + q for p, q in zip(a, b, strict=True)), None, None

    def finish(self, state: State, count: Count) -> tuple[Array, Array]:
        n = self.divisor or count()
        n = n if isinstance(n, int) else self.xp.astype(n, self.dtype)
        low = state[-1]
        high = low >> 32 if len(state) == 1 else state[0] + (low >> 32)
        # the sum is high 2^32 + low with 0 <= low < 2^32; divide it by n as by hand: n < 2^31, so nothing overflows
        rest = (high % n) * (1 << 32) + (low & MASK32)
        upper, lower, rest = high // n, rest // n, rest % n
        down = upper * (1 << 32) + lower
        y = down + self.xp.astype((rest > n - rest) | (rest == n - rest) & (down % 2 == 1), self.dtype)
        least, most = int(self.info.min), int(self.info.max)
        fits = (upper >= least >> 32) & (upper <= most >> 32) & (y >= down)
        if self.info.bits < 64:
            fits &= (y >= least) & (y <= most)
        if device(fits) is not None and not bool(self.xp.all(fits)):  # an array that is only traced cannot be asked
            raise PoolError(f"a sum does not fit {self.name}; convert x to a wider type first")
        return y, None


class SmoothMax:
    """State (m, s), which stands for s exp(beta m); m is the largest tap, so no exponent is above 0."""

    neutral_zero, multiplies = False, True

    def __init__(self, xp: Any, dtype: Any, beta: float):
        self.xp, self.dtype, self.beta = xp, wide(xp, dtype), float(beta)
        self.extreme = xp.maximum if beta > 0 else xp.minimum

    def lift(self, x: Array) -> tuple[State, Array]:
        x = self.xp.astype(x, self.dtype)
        m = point(x)
        if m is x:
            return (m, self.xp.ones_like(m)), None
        s = self.xp.exp(self.beta * (x - m))
        return (m, s), s

    def merge(self, a: State, b: State) -> Merged:
        m = self.extreme(a[0], b[0])
        ra, rb = (self._ratio(c[0], m) for c in (a, b))
        return (m, a[1] * ra + b[1] * rb), ra, rb

    def _ratio(self, n: Array, m: Array) -> Array:
        return self.xp.where(n == m, self.xp.ones_like(m), self.xp.exp(self.beta * (n - m)))  # inf - inf has none

    def finish(self, state: State, count: Count) -> tuple[Array, Array]:
        m, s = state
        return m + self.xp.log(s) / self.beta, s


class Lp:
    """State (m, s), which stands for m^p s; m is the largest |tap|, so no power overflows."""

    neutral_zero, multiplies = False, True

    def __init__(self, xp: Any, dtype: Any, p: float):
        self.xp, self.dtype, self.p = xp, wide(xp, dtype), float(p)

    def lift(self, x: Array) -> tuple[State, Array]:
        xp, x = self.xp, self.xp.astype(x, self.dtype)
        a, slope = xp.abs(x), xp.sign(x)
        m = point(a)
        if m is a:
            return (m, xp.ones_like(m)), slope
        if self.p % 2 == 0:  # no abs, whose kink at 0 would hide the second derivative
            m = xp.where(m == 0, float(xp.finfo(self.dtype).smallest_normal) ** 0.5, m)
            q = x / m
            return (m, q**self.p), q ** (self.p - 1)
        q = xp.where(m == 0, xp.ones_like(m), a / m)
        return (m, q**self.p), slope * q ** (self.p - 1)

    def merge(self, a: State, b: State) -> Merged:
        xp, m = self.xp, self.xp.maximum(a[0], b[0])
        largest = [c[0] == m for c in (a, b)]
        qa, qb = (xp.where(top, xp.ones_like(m), c[0] / m) for c, top in zip((a, b), largest, strict=True))  # not 0 / 0
        state = m, a[1] * qa**self.p + b[1] * qb**self.p
        if self.p == 1:
            return state, None, None
        # beside an infinite tap a finite one has no share at all: not even of a tangent that is not finite
        shares = [top | (m != math.inf) for top in largest]
        return state, (shares[0], qa ** (self.p - 1)), (shares[1], qb ** (self.p - 1))

    def finish(self, state: State, count: Count) -> tuple[Array, Array]:
        m, s = state
        if self.p == 1 or point(s) is s:
            return m * s ** (1 / self.p), None if self.p == 1 else s ** (1 - 1 / self.p)
        xp, zero = self.xp, point(s) == 0  # where all taps are 0 there is no derivative, of any order
        s = xp.where(zero, xp.ones_like(s), s)
        return xp.where(zero, 0.0, m) * s ** (1 / self.p), xp.where(zero, math.inf, s ** (1 - 1 / self.p))


def divided(xp: Any, t: Array, n: Array | int | None) -> Array:
    """t / n, where n is None for 1, a number, or a number per element."""
    if n is None or (isinstance(n, int) and n == 1):
        return t
    return t / (n if isinstance(n, int) else xp.astype(n, t.dtype))


def _sum(xp: Any, dtype: Any, divisor: int | None = 1) -> Sum:
    return (IntegerSum if kind(dtype) == "integer" else Sum)(xp, dtype, divisor)


LAWS: dict[str, Callable[..., Any]] = {
    "max": Extreme,
    "min": partial(Extreme, above="less"),
    "sum": _sum,
    "mean": _sum,
    "smooth_max": SmoothMax,
    "lp": Lp,
}
