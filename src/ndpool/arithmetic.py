"""Two kinds of number that laws were written for: `Dual` carries a tangent, `Interval` encloses what it may be.

They are plain arithmetic and know nothing of pooling. `exp`, `log` and `sign` find the function of any scalar: its
class's own, SymPy's, Decimal's, or math's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


def exp(x: Any) -> Any:
    """e**x by the scalar's own function: its class's `exp`, or math's for plain numbers."""
    return home(x).exp(x)


def log(x: Any) -> Any:
    """The natural logarithm by the scalar's own function."""
    return x.ln() if isinstance(x, Decimal) else home(x).log(x)


def home(x: Any) -> Any:
    """Where x's functions live."""
    return sys.modules["sympy"] if is_sympy(x) else type(x) if hasattr(type(x), "exp") else math


def is_sympy(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "sympy"


def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN for NaN; for an interval, the hull of those of its members."""
    if isinstance(x, Interval):
        return Interval(sign(x.lo), sign(x.hi))
    return home(x).sign(x) if is_sympy(x) else _plain_sign(primal(x))


def _plain_sign(x: Any) -> Any:
    return x if x != x else bool(x > 0) - bool(x < 0)


def primal(x: Any) -> Any:
    """x without its tangents."""
    return primal(x.value) if isinstance(x, Dual) else x


class Number:
    """The operators that follow from + * / >, negation and `of`."""

    def __radd__(self: Any, other: Any) -> Any:
        return self + other

    def __rmul__(self: Any, other: Any) -> Any:
        return self * other

    def __sub__(self: Any, other: Any) -> Any:
        return self + -other

    def __rsub__(self: Any, other: Any) -> Any:
        return -self + other

    def __rtruediv__(self: Any, other: Any) -> Any:
        return self.of(other) / self

    def __lt__(self: Any, other: Any) -> bool:
        return bool(self.of(other) > self)


@dataclass(frozen=True)
class Dual(Number):
    """value + tangent e with e**2 = 0. Ordered by value; nest for second order.

    >>> x = Dual(3, 1)
    >>> (x * x).tangent, Dual.exp(Dual(0, 2)).tangent
    (6, 2.0)
    """

    value: Any
    tangent: Any = 0

    @staticmethod
    def of(x: Any) -> Dual:
        return x if isinstance(x, Dual) else Dual(x)

    def __add__(self, other: Any) -> Dual:
        other = Dual.of(other)
        return Dual(self.value + other.value, self.tangent + other.tangent)

    def __mul__(self, other: Any) -> Dual:
        other = Dual.of(other)
        return Dual(self.value * other.value, self.tangent * other.value + self.value * other.tangent)

    def __truediv__(self, other: Any) -> Dual:
        other = Dual.of(other)
        value = self.value / other.value
        return Dual(value, (self.tangent - value * other.tangent) / other.value)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.tangent)

    def __pow__(self, p: Any) -> Dual:
        return Dual(self.value**p, p * self.value ** (p - 1) * self.tangent)

    def __abs__(self) -> Dual:
        return Dual(abs(self.value), sign(self.value) * self.tangent)

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > Dual.of(other).value)

    def exp(self) -> Dual:
        value = exp(self.value)
        return Dual(value, value * self.tangent)

    def log(self) -> Dual:
        return Dual(log(self.value), self.tangent / self.value)


def _binary(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operator of intervals that takes plain numbers too, and leaves duals to themselves."""
    return lambda a, b: NotImplemented if isinstance(b, Dual) else f(a, Interval.of(b))


@dataclass(frozen=True)
class Interval(Number):
    """Every number between lo and hi. Results are rounded outwards, so they enclose the exact ones.

    a > b only when it is certain: every member of a is above every member of b. An end may be infinite: 0 times it is
    0, and where it has no answer (inf - inf, inf / inf) the result is as wide as the answer may be. NaN stays NaN.

    >>> Interval(0, 1) > Interval(0.5, 2), Interval(3, 4) > Interval(1, 2), 1 in Interval(1, 1) / 3 * 3
    (False, True, True)
    >>> Interval(0, 1) * math.inf, Interval(1, math.inf) / Interval(1, math.inf)
    (Interval(lo=0.0, hi=inf), Interval(lo=0.0, hi=inf))
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        if self.lo > self.hi:
            raise ValueError(f"Interval({self.lo}, {self.hi}) has its ends swapped; use Interval({self.hi}, {self.lo})")

    @staticmethod
    def of(x: Any) -> Interval:
        """x as an interval: the one number where a float holds it, its neighbours where the conversion rounds."""
        if isinstance(x, Interval):
            return x
        try:
            f = float(x)
        except OverflowError:
            f = math.inf if x > 0 else -math.inf
        return Interval(f, f) if f == x else Interval(_down(f), _up(f))

    @_binary
    def __add__(self, other: Interval) -> Interval:
        for a, b in ((self, other), (other, self)):
            if a.lo == a.hi == 0:
                return b
        return _outward([_plus(self.lo, other.lo, -math.inf), _plus(self.hi, other.hi, math.inf)])

    @_binary
    def __mul__(self, other: Interval) -> Interval:
        return _outward([_times(a, b) for a in (self.lo, self.hi) for b in (other.lo, other.hi)])

    @_binary
    def __truediv__(self, other: Interval) -> Interval:
        if other.lo <= 0 <= other.hi:
            raise ZeroDivisionError(f"{self} / {other}: the divisor contains 0")
        return _outward([q for a in (self.lo, self.hi) for b in (other.lo, other.hi) for q in _over(a, b)])

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __pow__(self, p: Any) -> Interval:
        if self.lo < 0:
            raise ValueError(f"{self} ** {p}: only for intervals of numbers >= 0; take abs first")
        if isinstance(p, Interval) or float(p) != p:
            return Interval.exp(self.log() * p)
        return self.monotone(lambda x: _power(x, p), (0, math.inf))

    def __abs__(self) -> Interval:
        if self.lo >= 0:
            return self
        return -self if self.hi <= 0 else Interval(0, max(-self.lo, self.hi))

    @_binary
    def __gt__(self, other: Interval) -> bool:
        return self.lo > other.hi

    def __contains__(self, x: Any) -> bool:
        return bool(self.lo <= x <= self.hi)

    def exp(self) -> Interval:
        return self.monotone(_exp, (0, math.inf))

    def log(self) -> Interval:
        return self.monotone(lambda x: math.log(x) if x > 0 else -math.inf if x <= 0 else x)

    def monotone(self, f: Callable[[float], float], within: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
        """The values of a monotone f, which all lie `within` those bounds."""
        near = _hull([f(self.lo), f(self.hi)])
        lo, hi = (
            _down(_down(near.lo)),
            _up(_up(near.hi)),
        )  # twice: libm may err by more than half a unit of the last place
        return Interval(max(lo, within[0]), min(hi, within[1]))


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _power(x: float, p: Any) -> float:
    try:
        return float(float(x) ** p)
    except (OverflowError, ZeroDivisionError):  # too large, or 0 to a negative power
        return math.inf


def _plus(a: float, b: float, unbounded: float) -> float:
    s = a + b
    return unbounded if s != s and a == a and b == b else s  # inf - inf


def _times(a: float, b: float) -> float:
    if a == 0 or b == 0:
        return 0.0 if a == a and b == b else math.nan  # an end 0 stays 0 beside an infinite one
    return a * b or math.copysign(LEAST, a * b)  # a product that is too small is not 0


def _over(a: float, b: float) -> tuple[float, ...]:
    if math.isinf(a) and math.isinf(b):
        return 0.0, math.copysign(math.inf, a) * math.copysign(1, b)
    q = a / b
    return (q if q or not a else math.copysign(LEAST, q),)


LEAST = math.ulp(0.0)


def _outward(ends: Sequence[float]) -> Interval:
    """The hull of numbers that were rounded to nearest, widened by one step each way; a 0 is exact."""
    hull = _hull(ends)
    return Interval(_down(hull.lo) if hull.lo else 0.0, _up(hull.hi) if hull.hi else 0.0)


def _hull(ends: Sequence[float]) -> Interval:
    """From the least to the greatest; NaN if one of them is, which min and max would miss."""
    if any(end != end for end in ends):
        return Interval(math.nan, math.nan)
    return Interval(min(ends), max(ends))


def _down(x: float) -> float:
    return math.nextafter(x, -math.inf)


def _up(x: float) -> float:
    return math.nextafter(x, math.inf)
