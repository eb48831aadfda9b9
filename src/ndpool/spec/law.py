"""What is made of the taps: a Law, and the seven that ndpool ships.

A law is four functions. `lift` turns a tap into a state, `merge` combines two states (associative, earlier first),
`finish` gives the value and what the derivative needs, `weigh` is the one derivative: jvp gathers it, vjp scatters
it, so the two are adjoint whatever it says. Nothing here knows of rank, shape, stride or padding; padding that counts
arrives as taps with the value 0 and no position (`lift(0, None)`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from ..errors import PoolError, PoolTypeError
from .scalar import (
    Dual,
    Interval,
    blend,
    exp,
    greater,
    is_nan,
    less,
    log,
    meet,
    minus,
    part,
    point,
    power,
    primal,
    root,
    sign,
    undecided,
)  # fmt: skip

Ties = Literal["first", "last", "all", "split"]
Nan = Literal["propagate", "ignore"]
Among = Literal["smallest", "first"]  # which of several modes
Kind = Literal["bool", "integer", "real", "complex"]  # of elements
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Law:
    """y, r = finish(merge(lift(x1, t1), merge(lift(x2, t2), ...)), count), and its derivative

        jvp   y'_o = sum over the taps t of o         of weigh(x'_t, x_t, t, r_o)
        vjp   x'_t = sum over the outputs o reading t of weigh(y'_o, x_t, t, r_o)

    Below its equations stands what engines and adapters ask of a law: they never ask for its name, but to find it in a
    table of their own. A law of your own needs none of it, and runs on the reference engine.

    >>> product = Law(lambda x, t: x, lambda a, b: a * b, lambda s, n: (s, s), lambda g, x, t, y: g * y / x)
    >>> y, r = product.finish(product.merge(product.lift(2, 0), product.lift(5, 1)), 2)
    >>> y, product.weigh(1, 2, 0, r)
    (10, 5.0)
    """

    lift: Callable[[Any, int | None], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any, int], tuple[Any, Any]]
    weigh: Callable[[Any, Any, int, Any], Any]
    name: str = "custom"  # with `params`: which law it is, to engines that have a faster way
    params: tuple[Any, ...] = ()
    kinds: tuple[Kind, ...] = KINDS  # the elements that it is defined on
    linear: bool = False  # y is a linear function of the taps, so jvp is forward
    picks: bool = False  # y is one of the taps, so zeros that count tie with them
    winners: Literal["one", "all", "split"] | None = None  # of those that pick: who among equals has the derivative
    first: Law | None = None  # where equals share the derivative: the same law with one winner, the first
    divides: bool = False  # by what each output counts, so the values of integers are rounded
    zero_is_neutral: bool = False  # a tap that is 0 changes nothing
    curvature: Callable[[Any], Any] | None = None  # phi''/phi' of a law with phi(y) = sum_t phi(x_t): its second order
    pole_at_zero: bool = False  # of that curvature
    no_derivative: str = ""  # why there is none, for an error
    built_in: bool = False  # ndpool's own: its mistakes are not the user's

    @property
    def one_winner(self) -> bool:
        """Whether which tap won is the whole derivative."""
        return self.winners == "one"


# -- max and min: the taps that no other tap beats ---------------------------------------------------------------


@lru_cache(typed=True)
def maximum(ties: Ties = "first", nan: Nan = "propagate") -> Law:
    """The largest tap. r = the winners and the number that share the derivative.

        ties="first"  y' = x'_t of the first winner in row-major order      "last"   of the last
        ties="split"  y' = mean of x'_t over the winners                    "all"    sum of x'_t over the winners

    nan="propagate": a NaN beats every number, so the first NaN wins; "ignore": every number beats a NaN.
    """
    return _extreme("max", greater, max, ties, nan)


@lru_cache(typed=True)
def minimum(ties: Ties = "first", nan: Nan = "propagate") -> Law:
    """The smallest tap; ties and NaN as in `maximum`."""
    return _extreme("min", less, min, ties, nan)


def _extreme(name: str, above: Callable[[Any, Any], bool], ends: Callable[..., Any], ties: Ties, nan: Nan) -> Law:
    for argument, given, rules in (("ties", ties, get_args(Ties)), ("nan", nan, get_args(Nan))):
        if given not in rules:
            raise PoolError(f"{argument}={given!r} is not a rule; use one of {', '.join(map(repr, rules))}")
    chosen = {"first": slice(0, 1), "last": slice(-1, None)}.get(ties, slice(None))

    def beats(a: Any, b: Any) -> bool:
        if is_nan(a) or is_nan(b):
            return is_nan(a) > is_nan(b) if nan == "propagate" else is_nan(a) < is_nan(b)
        return above(a, b)  # strict: equals do not beat one another, so all of them stay

    def unbeaten(these: Any, those: Any) -> Any:
        return tuple(this for this in these if not any(beats(that[0], this[0]) for that in those))

    def merge(a: Any, b: Any) -> Any:
        return unbeaten(a, b) + unbeaten(b, a)  # the earlier first: row-major order among equals

    def finish(state: Any, count: int) -> tuple[Any, Any]:
        xs, taps = zip(*state, strict=True)
        if undecided(xs):  # intervals that overlap: each may win, so its share is somewhere in [0, 1]
            if isinstance(xs[0], Dual):
                raise PoolTypeError("the winner among overlapping intervals is undecided; use jvp, not dual numbers")
            boxes = [Interval.of(x) for x in xs]
            return Interval(ends(x.lo for x in boxes), ends(x.hi for x in boxes)), (taps, None)
        n = len(taps) if ties == "split" else 1
        return blend(xs[chosen], n), (taps[chosen], n)

    def weigh(g: Any, x: Any, t: int, residual: Any) -> Any:
        taps, n = residual
        if t not in taps:
            return 0
        return g * Interval(0, 1) if n is None else g if n == 1 else g / n

    return Law(
        lambda x, t: ((x, t),),
        merge,
        finish,
        weigh,
        name,
        (ties, nan),
        kinds=("bool", "integer", "real"),
        picks=True,
        winners=ties if ties == "all" or ties == "split" else "one",
        first=_extreme(name, above, ends, "first", nan) if ties in ("all", "split") else None,
        built_in=True,
    )


# -- mode: the most frequent tap -----------------------------------------------------------------------------------

COUNTED = "a mode is the most frequent value and has no derivative; keep it out of what is differentiated"


@lru_cache(typed=True)
def mode(ties: Among = "smallest") -> Law:
    """The tap that most taps are equal to. State: each value and how often it occurs, in the order of appearance.

        merge(((a, 2), (b, 1)), ((b, 1), (c, 1))) = ((a, 2), (b, 2), (c, 1))

    ties="smallest": the smallest of the most frequent; "first": the one that appears first in row-major order.
    """
    if ties not in get_args(Among):
        raise PoolError(f"ties={ties!r} is not a rule; use one of {', '.join(map(repr, get_args(Among)))}")

    def lift(x: Any, t: int | None) -> Any:
        if isinstance(x, (Dual, Interval)):
            raise PoolTypeError(f"a mode counts equals, of which {type(x).__name__} has none; give it plain scalars")
        return ((x, 1),)

    def merge(a: Any, b: Any) -> Any:
        counts = list(a)
        for x, n in b:
            at = next((i for i, (y, _) in enumerate(counts) if y == x), None)
            if at is None:
                counts.append((x, n))
            else:
                counts[at] = (counts[at][0], counts[at][1] + n)
        return tuple(counts)

    def finish(state: Any, count: int) -> tuple[Any, None]:
        most = max(n for _, n in state)
        modes = [x for x, n in state if n == most]
        return (min(modes) if ties == "smallest" else modes[0]), None

    def weigh(g: Any, x: Any, t: int, residual: Any) -> Any:
        raise PoolTypeError(COUNTED)

    return Law(
        lift,
        merge,
        finish,
        weigh,
        "mode",
        (ties,),
        kinds=("bool", "integer"),
        picks=True,
        no_derivative=COUNTED,
        built_in=True,
    )


# -- sum and mean --------------------------------------------------------------------------------------------------


ADDED: dict[str, Any] = {
    "kinds": ("integer", "real", "complex"),
    "linear": True,
    "zero_is_neutral": True,
    "built_in": True,
}
SUM = Law(lambda x, t: x, operator.add, lambda s, n: (s, None), lambda g, x, t, r: g, "sum", **ADDED)


@lru_cache(typed=True)
def mean(divisor: int | None = None) -> Law:
    """The sum over the count, or over `divisor` if one is given. r = what was divided by."""

    def finish(s: Any, count: int) -> tuple[Any, int]:
        n = divisor or count
        return s / n, n

    return Law(
        lambda x, t: x, operator.add, finish, lambda g, x, t, n: g / n, "mean", (divisor,), divides=True, **ADDED
    )


# -- smooth max and Lp: a sum of terms, each kept relative to the largest so that none overflows -------------------


def _relative(ratio: Callable[[Any, Any], Any], above: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """Merge of states (m, s) that stand for s times the term of m: move the lesser m to the greater, or to a NaN."""

    def merge(a: Any, b: Any) -> Any:
        (m, s), (n, r) = a, b
        if m == n:  # asked first: equal infinities have no ratio
            return m, s + r
        return (n, s * ratio(m, n) + r) if above(n, m) or is_nan(n) else (m, s + r * ratio(n, m))

    return merge


@lru_cache(typed=True)
def smooth_max(beta: Any = 1.0) -> Law:
    """Log-sum-exp: a smooth stand-in for max (beta > 0) or min (beta < 0). r = (m, s).

        y  = (1/beta) log sum_t exp(beta x_t) = m + (1/beta) log s,    s = sum_t exp(beta (x_t - m))
        y' = sum_t softmax(beta x)_t x'_t,                             softmax(beta x)_t = exp(beta (x_t - m)) / s

    Any m gives the same y; the largest x_t (smallest for beta < 0) keeps every exponent at or below 0.
    """
    if primal(beta) == 0 or is_nan(beta) or abs(primal(beta)) == float("inf"):
        raise PoolError(f"beta={beta!r} gives no smooth max; use beta > 0, or beta < 0 for a smooth min")
    above = less if less(point(beta), 0) else greater

    def term(x: Any, m: Any) -> Any:
        d = minus(x, m)
        return exp(meet(beta, d) * d) if d != 0 else meet(1, d)

    def lift(x: Any, t: int | None) -> Any:
        m = point(x)
        return m, term(x, m)

    def finish(state: Any, count: int) -> tuple[Any, Any]:
        m, s = state
        return m + log(s) / meet(beta, s), state

    def weigh(g: Any, x: Any, t: int, r: Any) -> Any:
        return g * part(term(x, r[0]), r[1])

    return Law(
        lift,
        _relative(term, above),
        finish,
        weigh,
        "smooth_max",
        (beta,),
        kinds=("real",),
        curvature=lambda x: beta,  # phi(x) = exp(beta x)
        built_in=True,
    )


@lru_cache(typed=True)
def lp(p: Any = 2) -> Law:
    """The p-norm. r = (m, s, y).

    y  = (sum_t |x_t|^p)^(1/p) = m s^(1/p),         s = sum_t (|x_t| / m)^p
    y' = sum_t sign(x_t) (|x_t| / y)^(p-1) x'_t,    and 0 where y = 0
    """
    if not 1 <= p < float("inf"):
        raise PoolError(f"norm_type={p!r} is not a norm; use a finite norm_type >= 1 (max_pool of |x| is its limit)")

    def smooth(x: Any) -> bool:  # an even power needs no abs, whose kink at 0 would hide the second derivative
        return p % 2 == 0 and not isinstance(x, Interval)

    def lift(x: Any, t: int | None) -> Any:
        m = point(a := abs(x), neutral=1)
        if a is m or a == m:
            return m, meet(1, m)
        m = m if greater(m, 0) else meet(1, m)
        return m, power(x / m if smooth(x) else abs(x / m), p)

    def finish(state: Any, count: int) -> tuple[Any, Any]:
        m, s = state
        y = m * root(abs(s), p) if primal(s) != 0 else 0 * m
        return y, (m, s, y)

    def weigh(g: Any, x: Any, t: int, r: Any) -> Any:
        m, s, y = r
        if p == 1 or primal(y) == 0:
            return g * sign(x)
        if primal(y) == float("inf"):  # the s infinite taps share alike
            return g * sign(x) / power(s, 1 - 1 / p) if abs(x) == m else 0
        q = part(x, y)
        return g * power(q, p - 1) if smooth(x) else g * sign(x) * power(abs(q), p - 1)

    return Law(
        lift,
        _relative(lambda a, b: power(abs(a / b), p), greater),
        finish,
        weigh,
        "lp",
        (p,),
        kinds=("real",),
        zero_is_neutral=True,
        curvature=None if p == 1 else lambda x: (p - 1) / x,  # phi(x) = |x|^p
        pole_at_zero=True,
        built_in=True,
    )
