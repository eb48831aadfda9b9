"""What a law asks of a scalar, whatever its kind: order, NaN, powers, and constants to shift by.

A law uses + - * / ** abs, the strict order >, and `exp` and `log` from where the scalar keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from ..arithmetic import Dual, Interval, Number, exp, home, is_sympy, log, primal, sign

__all__ = [
    "Dual", "Interval", "blend", "exp", "greater", "is_nan", "less", "log", "meet", "minus", "part", "point", "power",
    "primal", "root", "sign", "undecided",
]  # fmt: skip


def power(x: Any, p: Any) -> Any:
    """x**p for x >= 0; p is an int, a float or a Fraction."""
    return x if p == 1 else x ** (p if isinstance(x, Interval) else meet(p, x))


def root(x: Any, p: Any) -> Any:
    """The p-th root of x >= 0, exact for p = 1."""
    return x if p == 1 else x ** (meet(1, x) / meet(p, x))


def meet(c: Any, x: Any) -> Any:
    """The constant c as a number of x's kind where it matters: Decimal refuses floats, an interval must enclose."""
    if isinstance(c, Number):
        return c
    if isinstance(x, Decimal):
        return Decimal((ratio := c.as_integer_ratio())[0]) / ratio[1]
    return Interval.of(c) if isinstance(x, Interval) else home(x).sympify(c) if is_sympy(x) else c


def minus(x: Any, m: Any) -> Any:
    """x - m for a constant m, and 0 where the two are one infinity."""
    if isinstance(x, Dual):
        return Dual(minus(x.value, m), x.tangent)
    return meet(0, m) if x is m or x == m else x - m


def part(a: Any, b: Any) -> Any:
    """a / b, a share of a whole: somewhere in [0, 1] if b is an interval that touches 0."""
    return Interval(0, 1) if isinstance(b, Interval) and b.lo <= 0 else a / b


def point(x: Any, neutral: int = 0) -> Any:
    """A constant near x, without tangent or width, that a stable formula may shift by; `neutral` for a free symbol."""
    x = primal(x)
    if isinstance(x, Interval):
        return Interval(x.hi, x.hi)
    return neutral if is_sympy(x) and not x.is_number else x


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


def blend(xs: Sequence[Any], n: int) -> Any:
    """Equal scalars as one: the value of the first, moved by the tangents of all, each divided by n."""
    if not any(isinstance(x, Dual) for x in xs):
        return xs[0]
    duals = [Dual.of(x) for x in xs]
    moved = sum(x.tangent for x in duals)
    return Dual(blend([x.value for x in duals], n), moved if n == 1 else moved / n)
