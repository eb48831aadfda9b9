"""Folding along one axis in array operations: which slices meet, and how a tangent follows them both ways.

A *pass* replaces one axis of an array by its outputs. It joins states that each cover a block of positions:

    doubling   block(2^(j+1))[i] = merge(block(2^j)[i], block(2^j)[i + 2^j d])      every position, log2(k) merges
    joining    acc[o] = merge(acc[o], block(2^j)[next position of o])               every output

Direct folding is joining blocks of one tap, k - 1 merges an output; long windows double first, so that an output
costs about 2 log2(k) merges whatever the kernel. Order is kept (merge's first argument is the earlier), nothing is
subtracted (a NaN stays in its window), and the order depends on the window alone.

What may not live here: a law, a dtype, an array library. Index vectors are NumPy's, on the host, made once a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..spec import Axis

Array = Any
State = tuple[Array, ...]
Merged = tuple[State, Array, Array]  # the state, and how much of each argument's tangent goes into it (None: all)

LONG = 512  # taps beyond which one call a tap costs more than doubling, however few the outputs


def along(vector: Any, axis: int, ndim: int) -> Any:
    """A host vector, shaped to broadcast along `axis`."""
    return vector.reshape((1,) * axis + (-1,) + (1,) * (ndim - axis - 1))


def device(a: Array) -> Any:
    """Where `a` lives; None, the default device, for an array that is only traced."""
    return getattr(a, "device", None)


def on(xp: Any, device: Any, host: Any) -> Array:
    """A host array as one of that library and device."""
    return xp.asarray(host, device=device)


def zeros_like(xp: Any, a: Array, axis: int, n: int) -> Array:
    """Zeros of a's shape, dtype and device, but `n` long on `axis`."""
    shape = (*a.shape[:axis], n, *a.shape[axis + 1 :])
    return xp.zeros(shape, dtype=a.dtype, device=device(a))


def cut(a: Array, axis: int, part: slice) -> Array:
    """A part of `a` along `axis`."""
    return a[(slice(None),) * axis + (part, ...)]


def pad(xp: Any, a: Array, axis: int, before: int, after: int) -> Array:
    """`a` with zeros before and after it on `axis`; the transpose of `cut`."""
    if before == after == 0:
        return a
    return xp.concat([zeros_like(xp, a, axis, before), a, zeros_like(xp, a, axis, after)], axis=axis)


@dataclass(frozen=True, eq=False)
class Select:
    """out[o] = in[index[o]] along an axis, and its transpose: what was read from the same place is added there."""

    index: np.ndarray[Any, Any]
    size: int
    used: np.ndarray[Any, Any]  # outputs whose value matters; the others read anything

    @cached_property
    def slice(self) -> slice | None:
        """The index as a slice, if it is one."""
        i = self.index
        step = int(i[1] - i[0]) if len(i) > 1 else 1
        if len(i) == 0 or step < 1 or not np.array_equal(i, i[0] + step * np.arange(len(i))):
            return None
        return slice(int(i[0]), int(i[-1]) + 1, step)

    @cached_property
    def inverse(self) -> list[np.ndarray[Any, Any]]:
        """For each input its first reader, its second reader, ...; len(index) where there is none."""
        outputs = np.flatnonzero(self.used)
        outputs = outputs[np.argsort(self.index[outputs], kind="stable")]
        ends = np.searchsorted(self.index[outputs], np.arange(self.size + 1))
        readers, none = np.append(outputs, len(self.index)), len(outputs)
        most = int(np.max(ends[1:] - ends[:-1], initial=1))
        return [readers[np.where(ends[:-1] + r < ends[1:], ends[:-1] + r, none)] for r in range(most)]

    def push(self, xp: Any, a: Array, axis: int) -> Array:
        if self.slice is not None:
            return cut(a, axis, self.slice)
        return xp.take(a, on(xp, device(a), self.index), axis=axis)

    def pull(self, xp: Any, g: Array, axis: int) -> Array:
        part = self.slice
        if part is not None and part.step == 1 and self.used.all():
            return pad(xp, g, axis, part.start, self.size - part.stop)
        padded = xp.concat([g, zeros_like(xp, g, axis, 1)], axis=axis)
        parts = [xp.take(padded, on(xp, device(g), readers), axis=axis) for readers in self.inverse]
        return sum(parts[1:], parts[0])


@dataclass(frozen=True, eq=False)
class Join:
    """Append to each output's state the block of 2^level taps that comes next, where `there`."""

    level: int
    select: Select
    more: np.ndarray[Any, Any]  # outputs whose window goes on for that long
    acc_there: np.ndarray[Any, Any]
    there: np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class AxisPlan:
    """Every decision of one pass. Positions are those of the padded axis: before zeros, the input, after zeros."""

    before: int
    after: int
    hops: tuple[tuple[int, int, np.ndarray[Any, Any]], ...]  # a doubling: hop, length, which of the longer are there
    first: Select
    joins: tuple[Join, ...]
    there: np.ndarray[Any, Any]  # positions of the padded axis that are read
    count: np.ndarray[Any, Any]  # by output

    @cached_property
    def gather(self) -> Select | None:
        """All single taps at once, where pulling them one by one would walk the axis far too often."""
        single = [self.first, *(join.select for join in self.joins if join.level == 0)]
        if len(single) <= 4:
            return None
        index, used = (np.concatenate([getattr(s, name) for s in single]) for name in ("index", "used"))
        found = Select(index, self.first.size, used)
        return found if len(single) > 4 * len(found.inverse) else None


@lru_cache(maxsize=1024)
def plan(axis: Axis) -> AxisPlan:
    """The cheaper way to fold `axis`."""
    o, d = np.arange(axis.outputs), axis.dilation
    if axis.per == 1:  # padded, so that all windows are whole: no two outputs read their t-th tap from one place
        starts = o * axis.stride
        lengths = np.full(axis.outputs, -(-axis.extent // d))
        before, after = axis.lo, max(0, int(axis.outputs - 1) * axis.stride + axis.extent - axis.lo - axis.size)
    else:
        starts, lengths = axis.span(o)
        before, after = 0, 0
    after = after or int(before + axis.size == 0)  # something to read even where nothing is there
    size = before + axis.size + after
    position = np.arange(size) - before
    there = (position >= 0) & (position < axis.size)
    lengths = np.maximum(lengths, 1)
    longest = int(lengths.max(initial=1))
    levels = _levels(longest, axis.stride, axis.per)

    sizes, present = [size], [there]
    hops: list[tuple[int, int, np.ndarray[Any, Any]]] = []
    for j in range(max(levels, default=0)):
        hop = d << j
        sizes.append(sizes[-1] - hop)
        present.append(present[-1][:-hop] | present[-1][hop:])
        hops.append((hop, sizes[-1], present[-1]))

    first = Select(starts, size, there[starts])
    joins, taken, acc_there = [], np.ones_like(lengths), there[starts]
    for j in levels:
        more = lengths - taken >= 1 << j
        index = np.minimum(starts + d * taken, sizes[j] - 1)
        block_there = more & present[j][index]
        joins.append(Join(j, Select(index, sizes[j], block_there), more, acc_there, block_there))
        acc_there = acc_there | block_there
        taken = taken + np.where(more, 1 << j, 0)
    return AxisPlan(before, after, tuple(hops), first, tuple(joins), there, axis.span(o, axis.margin)[1])


def _levels(longest: int, stride: int, per: int) -> list[int]:
    """The blocks that are joined to an output's first tap: one by one, or the powers of two, largest first.

    One by one is `longest - 1` merges an output; doubling is one a level for each of the stride's positions and one for
    the output. Nothing but the window decides, so that a batch or a crop gives the same bits.
    """
    if longest == 1:
        return []
    top = (longest - 1).bit_length() - 1
    direct = longest <= LONG and (longest - 1) * per <= (top + 1) * (stride + per)
    return [0] * (longest - 1) if direct else list(range(top, -1, -1))


class Pass:
    """One axis folded by a law: `forward` once, then `push` tangents and `pull` cotangents as often as wanted."""

    def __init__(self, xp: Any, plan: AxisPlan, axis: int, ndim: int, neutral_zero: bool):
        self.xp, self.plan, self.axis, self.ndim = xp, plan, axis, ndim
        self.neutral_zero = neutral_zero  # absent positions hold 0, and merging with 0 changes nothing
        self.doubled: list[tuple[Array, Array]] = []
        self.joined: list[tuple[Array, Array]] = []

    def forward(self, merge: Callable[[State, State], Merged], state: State, keep: bool) -> State:
        """The states of the outputs; with `keep`, remember what a tangent needs."""
        xp, axis = self.xp, self.axis
        state = tuple(self._pad(c) for c in state)
        blocks, there = [state], self.plan.there
        for hop, length, longer in self.plan.hops:
            a = tuple(cut(c, axis, slice(length)) for c in blocks[-1])
            b = tuple(cut(c, axis, slice(hop, hop + length)) for c in blocks[-1])
            masks = (longer | True,) * 2 if self.neutral_zero else (there[:length], there[hop:])
            block, ra, rb = self._merge(merge, a, b, *masks)
            blocks.append(block)
            there = longer
            if keep:
                self.doubled.append((ra, rb))
        acc: State = tuple(self.plan.first.push(xp, c, axis) for c in state)
        for join in self.plan.joins:
            block = tuple(join.select.push(xp, c, axis) for c in blocks[join.level])
            masks = (join.more | True, join.more) if self.neutral_zero else (join.acc_there, join.there)
            acc, ra, rb = self._merge(merge, acc, block, *masks)
            if keep:
                self.joined.append((ra, rb))
        return acc

    def _pad(self, a: Array) -> Array:
        return pad(self.xp, a, self.axis, self.plan.before, self.plan.after)

    def _merge(self, merge: Callable[[State, State], Merged], a: State, b: State, in_a: Any, in_b: Any) -> Merged:
        """Merge where both are there, else keep the one that is."""
        state, ra, rb = merge(a, b)
        if in_a.all() and in_b.all():
            return state, ra, rb
        xp = self.xp
        only_a, only_b = (on(xp, device(a[0]), along(v, self.axis, self.ndim)) for v in (~in_b, in_b & ~in_a))
        state = tuple(xp.where(only_a, p, xp.where(only_b, q, m)) for p, q, m in zip(a, b, state, strict=True))
        return state, _choose(xp, only_a, only_b, ra), _choose(xp, only_b, only_a, rb)

    def push(self, t: Array) -> Array:
        """The tangents of the outputs."""
        xp, axis = self.xp, self.axis
        t = self._pad(t)
        blocks = [t]
        for (hop, length, _), (ra, rb) in zip(self.plan.hops, self.doubled, strict=True):
            last = blocks[-1]
            earlier, later = cut(last, axis, slice(length)), cut(last, axis, slice(hop, hop + length))
            blocks.append(weighted(xp, ra, earlier) + weighted(xp, rb, later))
        acc = self.plan.first.push(xp, t, axis)
        for join, (ra, rb) in zip(self.plan.joins, self.joined, strict=True):
            block = join.select.push(xp, blocks[join.level], axis)
            if not join.there.all():  # what an output does not read must not reach it, not even as 0 times NaN
                block = weighted(xp, on(xp, device(t), along(join.there, axis, self.ndim)), block)
            acc = weighted(xp, ra, acc) + weighted(xp, rb, block)
        return acc

    def pull(self, g: Array) -> Array:
        """The cotangents of the inputs: `push` transposed, the same steps backwards."""
        xp, axis, plan = self.xp, self.axis, self.plan
        blocks: list[Array] = [None] * (len(plan.hops) + 1)

        def give(level: int, part: Array) -> None:
            blocks[level] = part if blocks[level] is None else blocks[level] + part

        single: list[Array] = []
        for join, (ra, rb) in zip(reversed(plan.joins), reversed(self.joined), strict=True):
            part = weighted(xp, rb, g)
            g = weighted(xp, ra, g)
            if plan.gather and join.level == 0:
                single.append(part)
            else:
                give(join.level, join.select.pull(xp, part, axis))
        if plan.gather:
            give(0, plan.gather.pull(xp, xp.concat([g, *reversed(single)], axis=axis), axis))
        else:
            give(0, plan.first.pull(xp, g, axis))
        for level, (hop, _, _) in reversed(list(enumerate(plan.hops))):
            ra, rb = self.doubled[level]
            longer = blocks[level + 1]
            give(level, pad(xp, weighted(xp, ra, longer), axis, 0, hop))
            give(level, pad(xp, weighted(xp, rb, longer), axis, hop, 0))
        return cut(blocks[0], axis, slice(plan.before, blocks[0].shape[axis] - plan.after))


def weighted(xp: Any, r: Array, t: Array) -> Array:
    """r t, where r is None for 1, a mask (0 t is 0 even if t is not finite) or a number an element."""
    if r is None:
        return t
    if r.dtype == xp.bool:
        return xp.where(r, t, xp.zeros_like(t))
    return r * t


def _choose(xp: Any, one: Array, zero: Array, r: Array) -> Array:
    """1 where `one`, 0 where `zero`, else r."""
    if r is None:
        return ~zero
    if r.dtype == xp.bool:
        return (r | one) & ~zero
    return xp.where(one, xp.ones_like(r), xp.where(zero, xp.zeros_like(r), r))
