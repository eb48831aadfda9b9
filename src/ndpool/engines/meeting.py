"""Two states, one of which may be nothing but padding: which are merged, which stay, and where their tangents go.

`Runs` says it by runs of neighbours, `Masked` by a mask. Both merge states, jvp two tangents into one, and vjp one
cotangent apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..lazy import lazy
from .along import Array, Vector, along, concat, cut, device, on

State = tuple[Array, ...]
Weights = tuple[Any, Any]  # how much of each argument's tangent goes into the merged one; see `weighted`
Merged = tuple[State, Any, Any]  # the state and its weights
Merge = Callable[[State, State], Merged]

FIRST, SECOND, BOTH = "first", "second", "both"


@dataclass(frozen=True)
class Runs:
    """Runs of neighbours, (stop, who) each: where both states are there, or which of them stays.

    A merge happens where both are there. Elsewhere one stays as it is, and so does its tangent: nothing is multiplied
    by 0 or 1, so no NaN of the other gets into it.
    """

    runs: tuple[tuple[int, str], ...]

    @lazy
    def everywhere(self) -> bool:
        """Whether both are there all along, so that nothing need be cut."""
        return [who for _, who in self.runs] == [BOTH]

    def _parts(self) -> Iterator[tuple[slice, str]]:
        start = 0
        for stop, who in self.runs:
            yield slice(start, stop), who
            start = stop

    def merge(self, xp: Any, axis: int, merge: Merge, a: State, b: State) -> Merged:
        if self.everywhere:
            return merge(a, b)
        states: list[State] = []
        ra = rb = None
        for part, who in self._parts():
            here, there = (tuple(cut(c, axis, part) for c in state) for state in (a, b))
            if who is BOTH:
                here, ra, rb = merge(here, there)
            states.append(there if who is SECOND else here)
        return tuple(concat(xp, list(parts), axis) for parts in zip(*states, strict=True)), ra, rb

    def jvp(self, xp: Any, axis: int, weights: Weights, a: Array, b: Array) -> Array:
        if self.everywhere:
            return weighted(xp, weights[0], a) + weighted(xp, weights[1], b)
        parts = []
        for part, who in self._parts():
            here, there = cut(a, axis, part), cut(b, axis, part)
            if who is BOTH:
                here = weighted(xp, weights[0], here) + weighted(xp, weights[1], there)
            parts.append(there if who is SECOND else here)
        return concat(xp, parts, axis)

    def vjp(self, xp: Any, axis: int, weights: Weights, g: Array) -> tuple[Array, Array]:
        if self.everywhere:
            return weighted(xp, weights[0], g), weighted(xp, weights[1], g)
        given: tuple[list[Array], list[Array]] = [], []
        for part, who in self._parts():
            here = cut(g, axis, part)
            for to, other, r in zip(given, (SECOND, FIRST), weights, strict=True):
                to.append(weighted(xp, r, here) if who is BOTH else xp.zeros_like(here) if who is other else here)
        return concat(xp, given[0], axis), concat(xp, given[1], axis)


def runs(length: int, a: tuple[int, int], b: tuple[int, int]) -> Runs:
    """Of `length` pairs the first state is there from a[0] up to a[1], the second from b[0] up to b[1]."""
    found: list[tuple[int, str]] = []
    start = 0
    for stop in sorted({*a, *b, length} - {0}):
        second = b[0] <= start < b[1]
        who = BOTH if second and a[0] <= start < a[1] else SECOND if second else FIRST
        found = [*(found[:-1] if found and found[-1][1] is who else found), (stop, who)]
        start = stop
    return Runs(tuple(found))


@dataclass(frozen=True, eq=False)
class Masked:
    """The same where no runs can be told: a bool for each, host vectors."""

    first: Vector
    second: Vector

    def _only(self, xp: Any, axis: int, a: Array) -> tuple[Array, Array]:
        """Where not to merge but to take the first, or the second; shaped to broadcast."""
        only = (~self.second, self.second & ~self.first)
        return tuple(on(xp, device(a), along(v, axis, a.ndim)) for v in only)

    def merge(self, xp: Any, axis: int, merge: Merge, a: State, b: State) -> Merged:
        state, ra, rb = merge(a, b)
        only_a, only_b = self._only(xp, axis, a[0])
        state = tuple(xp.where(only_a, p, xp.where(only_b, q, m)) for p, q, m in zip(a, b, state, strict=True))
        return state, _choose(xp, only_a, only_b, ra), _choose(xp, only_b, only_a, rb)

    def jvp(self, xp: Any, axis: int, weights: Weights, a: Array, b: Array) -> Array:
        # what an output does not read must not reach it, not even as 0 times NaN
        b = weighted(xp, on(xp, device(b), along(self.second, axis, b.ndim)), b)
        return weighted(xp, weights[0], a) + weighted(xp, weights[1], b)

    def vjp(self, xp: Any, axis: int, weights: Weights, g: Array) -> tuple[Array, Array]:
        return weighted(xp, weights[0], g), weighted(xp, weights[1], g)


def weighted(xp: Any, r: Any, t: Array) -> Array:
    """r t: r is None for 1, a mask (0 t is 0 even if t is not finite), a number per element, or a mask and a number."""
    if r is None:
        return t
    if isinstance(r, tuple):
        return weighted(xp, r[0], weighted(xp, r[1], t))
    if r.dtype == xp.bool:
        return xp.where(r, t, xp.zeros_like(t))
    return r * t


def _choose(xp: Any, one: Array, zero: Array, r: Any) -> Any:
    """1 where `one`, 0 where `zero`, else r."""
    if r is None:
        return ~zero
    if isinstance(r, tuple):
        return tuple(_choose(xp, one, zero, part) for part in r)
    if r.dtype == xp.bool:
        return (r | one) & ~zero
    return xp.where(one, xp.ones_like(r), xp.where(zero, xp.zeros_like(r), r))
