"""Any scalar: what the laws ask of a number, and two numbers that they were written for.

A law uses + - * / ** abs, the strict order >, and `exp` and `log` from where the scalar keeps its own. `Dual` carries
a tangent (nest it for higher order); `Interval` encloses, rounded outwards, everything that its arguments may be.
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
    return _home(x).exp(x)


def log(x: Any) -> Any:
    """The natural logarithm by the scalar's own function."""
    return x.ln() if isinstance(x, Decimal) else _home(x).log(x)


def _home(x: Any) -> Any:
    """Where x's functions live."""
    return sys.modules["sympy"] if _is_sympy(x) else type(x) if hasattr(type(x), "exp") else math


def _is_sympy(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "sympy"


def power(x: Any, p: Any) -> Any:
    """x**p for x >= 0; p is an int, a float or a Fraction."""
    return x if p == 1 else x ** meet(p, x)


def root(x: Any, p: Any) -> Any:
    """The p-th root of x >= 0, exact for p = 1."""
    return power(x, (sys.modules["sympy"].Integer(1) if _is_sympy(x) else 1) / p)


def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN for NaN; for an interval, the hull of those of its members."""
    if isinstance(x, Interval):
        return Interval(sign(x.lo), sign(x.hi))
    return _home(x).sign(x) if _is_sympy(x) else primal(x) if is_nan(x) else greater(x, 0) - less(x, 0)


def meet(c: Any, x: Any) -> Any:
    """The constant c as a number that x can be multiplied with: Decimal refuses floats."""
    return Decimal(c) if isinstance(x, Decimal) and isinstance(c, float) else c


def point(x: Any, neutral: int = 0) -> Any:
    """A constant near x, without tangent or width, that a stable formula may shift by; `neutral` for a free symbol."""
    x = primal(x)
    if isinstance(x, Interval):
        return Interval(x.hi, x.hi)
    return neutral if _is_sympy(x) and not x.is_number else x


def is_nan(x: Any) -> bool:
    """Whether x is not a number, which is the one thing that differs from itself."""
    return bool((p := point(x)) != p)


def greater(a: Any, b: Any) -> bool:
    """Whether a > b for certain; False where either is NaN (Decimal would raise) or two intervals overlap."""
    return not is_nan(a) and not is_nan(b) and bool(a > b)


def less(a: Any, b: Any) -> bool:
    """Whether a < b for certain."""
    return greater(b, a)


def undecided(xs: Sequence[Any]) -> bool:
    """Whether scalars that do not beat one another may yet differ: overlapping intervals."""
    return len(xs) > 1 and any(isinstance(x, Interval) and x.lo < x.hi for x in map(primal, xs))


def primal(x: Any) -> Any:
    """x without its tangents."""
    return primal(x.value) if isinstance(x, Dual) else x


class _Number:
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
class Dual(_Number):
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


def blend(xs: Sequence[Any], n: int) -> Any:
    """Equal scalars as one: the value of the first, moved by the tangents of all, each divided by n."""
    if not isinstance(xs[0], Dual):
        return xs[0]
    moved = sum(x.tangent for x in xs)
    return Dual(blend([x.value for x in xs], n), moved if n == 1 else moved / n)


@dataclass(frozen=True)
class Interval(_Number):
    """Every real between lo and hi. Results are rounded outwards, so they enclose the exact ones.

    a > b only when it is certain: every member of a is above every member of b.

    >>> Interval(0, 1) > Interval(0.5, 2), Interval(3, 4) > Interval(1, 2), 1 in Interval(1, 1) / 3 * 3
    (False, True, True)
    """

    lo: float
    hi: float

    @staticmethod
    def of(x: Any) -> Interval:
        if isinstance(x, Interval):
            return x
        f = float(x)  # widened where the conversion rounds
        return Interval(f, f) if f == x else _outward([f])

    def __add__(self, other: Any) -> Interval:
        other = Interval.of(other)
        return _outward([self.lo + other.lo, self.hi + other.hi])

    def __mul__(self, other: Any) -> Interval:
        other = Interval.of(other)
        return _outward([_times(a, b) for a in (self.lo, self.hi) for b in (other.lo, other.hi)])

    def __truediv__(self, other: Any) -> Interval:
        other = Interval.of(other)
        if other.lo <= 0 <= other.hi:
            raise ZeroDivisionError(f"{self} / {other}: the divisor contains 0")
        return _outward([a / b for a in (self.lo, self.hi) for b in (other.lo, other.hi)])

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __pow__(self, p: Any) -> Interval:
        if self.lo < 0:
            raise ValueError(f"{self} ** {p}: only for intervals of numbers >= 0; take abs first")
        return self._monotone(lambda x: float(x) ** p, floor=0)

    def __abs__(self) -> Interval:
        if self.lo >= 0:
            return self
        return -self if self.hi <= 0 else Interval(0, max(-self.lo, self.hi))

    def __gt__(self, other: Any) -> bool:
        return self.lo > Interval.of(other).hi

    def __contains__(self, x: Any) -> bool:
        return bool(self.lo <= x <= self.hi)

    def exp(self) -> Interval:
        return self._monotone(_exp, floor=0)

    def log(self) -> Interval:
        return self._monotone(lambda x: math.log(x) if x > 0 else -math.inf)

    def _monotone(self, f: Callable[[float], float], floor: float = -math.inf) -> Interval:
        near = _outward([f(self.lo), f(self.hi)])
        wide = _outward([near.lo, near.hi])  # twice: libm may err by more than half a unit in the last place
        return Interval(max(wide.lo, floor), wide.hi)


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b  # an endpoint 0 stays 0 beside an infinite one


def _outward(ends: Sequence[float]) -> Interval:
    return Interval(math.nextafter(min(ends), -math.inf), math.nextafter(max(ends), math.inf))
