"""What a law asks of a scalar, whatever its kind: order, NaN, powers, and constants to shift by.

A law uses + - * / ** abs, the strict order >, and `exp` and `log` from where the scalar keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from ..arithmetic import Dual, Interval, Number, exp, home, is_sympy, log, primal, sign

__all__ = [
    "Dual", "Interval", "alike", "blend", "exp", "greater", "is_nan", "less", "log", "meet", "minus", "part", "point",
    "power", "primal", "root", "sign", "undecided",
]  # fmt: skip


def alike(*lists: Sequence[Any], params: Sequence[Any] = ()) -> tuple[Any, ...]:
    """A 0, and the lists: all intervals if one scalar or parameter is an interval, so that every rounding is enclosed.

    >>> alike([0.5, Interval(1, 2)])
    (Interval(lo=0.0, hi=0.0), [Interval(lo=0.5, hi=0.5), Interval(lo=1, hi=2)])
    >>> alike([0.5, 2])
    (0, [0.5, 2])
    """
    if not any(isinstance(primal(x), Interval) for xs in (*lists, params) for x in xs):
        return (0, *lists)
    return (Interval(0.0, 0.0), *([_enclosing(x) for x in xs] for xs in lists))


def _enclosing(x: Any) -> Any:
    return Dual(_enclosing(x.value), _enclosing(x.tangent)) if isinstance(x, Dual) else Interval.of(x)


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
    """a / b for |a| <= b, a share of a whole: of intervals never beyond -1 and 1, also where b touches 0."""
    if not isinstance(b, Interval):
        return a / b
    if is_nan(a) or is_nan(b):
        return Interval(math.nan, math.nan)
    q = a / b if b.lo > 0 else sign(a) * Interval(0, 1)
    return Interval(max(q.lo, -1.0), min(q.hi, 1.0))


def point(x: Any, neutral: int = 0) -> Any:
    """A constant near x, without tangent or width, that a stable formula may shift by; `neutral` for a free symbol."""
    x = primal(x)
    if isinstance(x, Interval):
        ends = (x.hi,) if x.lo == x.hi else (x.hi, x.lo, 0.0)
        end = next((end for end in ends if abs(end) < math.inf), x.hi)
        return Interval(end, end)
    return neutral if is_sympy(x) and not x.is_number else x


def is_nan(x: Any) -> bool:
    """Whether x is not a number, which is the one thing that differs from itself; of an interval, one of its ends."""
    x = primal(x)
    return x.lo != x.lo or x.hi != x.hi if isinstance(x, Interval) else bool((p := point(x)) != p)


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
