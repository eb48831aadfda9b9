"""What the tests of the specification draw from: small windows of any rank, scalars with many ties, every law.

`Slide` and `taps_of` are a second, brute-force definition of the geometry; `Exact` is a rational scalar with stand-ins
for exp, log and roots. Nothing here checks anything.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from ndpool.spec import (
    SUM,
    Axis,
    Law,
    Window,
    adaptive,
    each,
    forward,
    lp,
    maximum,
    mean,
    minimum,
    sliding,
    smooth_max,
    whole,
)

from .. import examples

settings.register_profile(
    "spec",
    derandomize=True,
    deadline=None,
    max_examples=examples(30),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


def given(*args: Any, **kwargs: Any) -> Any:
    """hypothesis' `given` under the profile "spec", whatever profile the rest of a run has loaded."""
    return lambda test: settings.get_profile("spec")(hypothesis.given(*args, **kwargs)(test))


# -- laws ----------------------------------------------------------------------------------------------------------

EXTREMES = {
    f"{name}-{ties}-{nan}": law(ties, nan)
    for name, law in (("max", maximum), ("min", minimum))
    for ties in ("first", "last", "all", "split")
    for nan in ("propagate", "ignore")
}
LINEAR = {"sum": SUM, "mean": mean(), "mean-over-3": mean(3)}
SMOOTH = {"smooth_max": smooth_max(2), "smooth_min": smooth_max(-1)}
NORMS = {f"lp-{p}": lp(p) for p in (1, 2, 3)}
LAWS = EXTREMES | LINEAR | SMOOTH | NORMS


def every(laws: dict[str, Law]) -> Any:
    return pytest.mark.parametrize("law", laws.values(), ids=laws)


def pool(law: Law, x: Sequence[Any]) -> Any:
    """The law of one window over all of x."""
    return forward(Window((whole(len(x)),)), law, x)[0][0]


# -- scalars -------------------------------------------------------------------------------------------------------


class Exact:
    """A rational with rational stand-ins for exp, log and roots: what holds whatever these say is checked exactly."""

    def __init__(self, q: Any):
        self.q = q.q if isinstance(q, Exact) else Fraction(q)

    def __repr__(self) -> str:
        return f"Exact({self.q})"

    def __hash__(self) -> int:
        return hash(self.q)

    def __neg__(self) -> Exact:
        return Exact(-self.q)

    def __abs__(self) -> Exact:
        return Exact(abs(self.q))

    def __pow__(self, p: Any) -> Exact:
        return Exact(self.q**p if p == int(p) else (self.q + Fraction(p)) / 2)

    def exp(self) -> Exact:
        assert self.q.denominator == 1  # all that the tests ask for; 2**q turns sums into products as e**q does
        return Exact(Fraction(2) ** self.q)

    def log(self) -> Exact:
        return Exact(self.q - 1)


def _binary(operation: Any, result: Any, swapped: bool = False) -> Any:
    def apply(a: Any, b: Any) -> Any:
        if not isinstance(b, Exact | Fraction | int | float):
            return NotImplemented
        q, r = a.q, b.q if isinstance(b, Exact) else b if result is bool else Fraction(b)  # bool: b may be infinite
        return result(operation(r, q) if swapped else operation(q, r))

    return apply


for _name in ("add", "sub", "mul", "truediv"):
    setattr(Exact, f"__{_name}__", _binary(getattr(operator, _name), Exact))
    setattr(Exact, f"__r{_name}__", _binary(getattr(operator, _name), Exact, swapped=True))
for _name in ("eq", "gt", "lt"):
    setattr(Exact, f"__{_name}__", _binary(getattr(operator, _name), bool))


fractions = st.integers(-2, 2).map(Fraction)  # few values, so many ties
floats = st.floats(-4, 4, width=32)
nonzero = floats.filter(lambda x: abs(x) > 1e-2)


def lists(n: int, scalars: Any = fractions) -> Any:
    return st.lists(scalars, min_size=n, max_size=n)


def inputs(window: Window, scalars: Any = fractions) -> Any:
    return lists(math.prod(window.shape), scalars)


def outputs(window: Window, scalars: Any = fractions) -> Any:
    return lists(math.prod(window.out_shape), scalars)


def inner(a: Sequence[Any], b: Sequence[Any]) -> Any:
    return sum(x * y for x, y in zip(a, b, strict=True))


# -- sliding windows, twice: as the specification has them and by brute force --------------------------------------


@dataclass(frozen=True)
class Slide:
    """One sliding axis by PyTorch's rules: list what each window covers, then see what of it is inside."""

    n: int
    k: int
    s: int = 1
    lo: int = 0
    hi: int = 0
    d: int = 1
    ceil: bool = False
    count: bool = True

    @property
    def extent(self) -> int:
        return self.d * (self.k - 1) + 1

    @property
    def axis(self) -> Axis:
        return sliding(self.n, self.k, self.s, (self.lo, self.hi), self.d, self.ceil, self.count)

    def exists(self, o: int) -> bool:
        """Window o fits; or, in ceil mode, the one before ended short, and o starts no later than the input ends."""
        padded, start = self.lo + self.n + self.hi, o * self.s
        fits = start + self.extent <= padded
        return fits or (self.ceil and start - self.s + self.extent < padded and start < self.lo + self.n)

    @property
    def outputs(self) -> int:
        return sum(self.exists(o) for o in range(self.lo + self.n + self.hi + 1))

    def covers(self, o: int) -> list[int]:
        return [o * self.s + j * self.d - self.lo for j in range(self.k)]

    def reads(self, o: int) -> list[int]:
        return [i for i in self.covers(o) if 0 <= i < self.n]

    def counts(self, o: int) -> int:
        """A window that hangs over the end in ceil mode counts padding, but not what lies beyond it."""
        inside = [i for i in self.covers(o) if -self.lo <= i < self.n + self.hi]
        return len(inside) if self.count else len(self.reads(o))


@st.composite
def slides(draw: Any, n: int = 6, k: int = 4, s: int = 3, d: int = 2) -> Slide:
    """Padding is less than the extent; PyTorch allows half of it."""
    kernel, stride, dilation = draw(st.integers(1, k)), draw(st.integers(1, s)), draw(st.integers(1, d))
    extent = dilation * (kernel - 1) + 1
    lo, hi = draw(st.integers(0, extent - 1)), draw(st.integers(0, extent - 1))
    size = draw(st.integers(max(1, extent - lo - hi), max(n, extent)))
    return Slide(size, kernel, stride, lo, hi, dilation, draw(st.booleans()), draw(st.booleans()))


def window_of(slides: Sequence[Slide]) -> Window:
    return Window(tuple(slide.axis for slide in slides))


def taps_of(slides: Sequence[Slide]) -> list[tuple[list[int], int]]:
    """For every output in row-major order, the flat positions that it reads and the number that it counts."""
    flat = {place: i for i, place in enumerate(product(*(range(slide.n) for slide in slides)))}
    found = []
    for output in product(*(range(slide.outputs) for slide in slides)):
        pairs = list(zip(slides, output, strict=True))
        read = [flat[place] for place in product(*(slide.reads(o) for slide, o in pairs))]
        found.append((read, math.prod(slide.counts(o) for slide, o in pairs)))
    return found


# -- windows of any rank -------------------------------------------------------------------------------------------


def _cost(axis: Axis) -> int:
    return max(axis.size, sum(max(1, axis.count(o), len(axis.reads(o))) for o in range(axis.outputs)))


_SLIDING = [
    sliding(n, k, s, (lo, hi), d, ceil, count)
    for n, k, s, lo, hi, d in product((1, 2, 3, 4), (1, 2, 3), (1, 2), (0, 1, 2), (0, 1, 2), (1, 2))
    for ceil, count in product((False, True), repeat=2)
    if d * (k - 1) < n + lo + hi
]
_OTHER = [each(1), each(2), *(adaptive(n, out) for n in (1, 2, 3, 4) for out in (1, 2, 3))]
_COSTS = {axis: _cost(axis) for axis in _OTHER + _SLIDING}
AXES = sorted(_COSTS, key=_COSTS.__getitem__)
BARE = [axis for axis in AXES if axis.margin == (0, 0)]  # padding is not counted
FULL = [axis for axis in BARE if all(axis.reads(o) for o in range(axis.outputs))]  # and every window reads something


@st.composite
def windows(draw: Any, axes: Sequence[Axis] = AXES, max_rank: int = 8, budget: int = 64) -> Window:
    """Up to two leading axes, then up to `max_rank` pooled ones, small enough in all that a window stays tiny."""
    drawn = [each(n) for n in draw(st.sampled_from([(), (2,), (1,), (2, 1)]))]
    budget //= math.prod(axis.size for axis in drawn)
    for pooled in range(draw(st.integers(0, max_rank)), 0, -1):
        limit = budget ** min(1, 2 / pooled)  # the later axes get their share of the budget
        affordable = bisect_right(axes, limit, key=_COSTS.__getitem__)
        drawn.append(draw(st.sampled_from(axes[:affordable])))
        budget //= _COSTS[drawn[-1]]
    return Window(tuple(drawn))
