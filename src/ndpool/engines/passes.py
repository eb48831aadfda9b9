"""Folding along one axis in array operations: which slices meet, and how a tangent follows them both ways.

A *pass* replaces one axis of an array by its outputs. It joins states that each cover a block of positions:

    doubling   block(2^(j+1))[i] = merge(block(2^j)[i], block(2^j)[i + 2^j d])      every position, log2(k) merges
    joining    acc[o] = merge(acc[o], block(2^j)[next position of o])               every output

Direct folding is joining blocks of one tap, k - 1 merges per output; long windows double first, so that an output
costs about 2 log2(k) merges whatever the kernel. Order is kept (merge's first argument is the earlier), nothing is
subtracted (a NaN stays in its window), and the order depends on the window alone.

Reading order: `AxisPlan` and `plan`, `Pass`. Where all windows have the same taps a plan is a few numbers, however long
the axis: what is read is a slice, what is there a run of neighbours. Other axes (bins of uneven length) have index
vectors: NumPy's, on the host.

What may not live here: a law, a dtype, an array library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from ..lazy import lazy
from ..spec import Axis
from .along import Array, Select, Vector, along, cut, device, gather, on, pad, spread
from .meeting import BOTH, Masked, Merge, Runs, State, Weights, runs, weighted

LONG = 512  # taps beyond which one call per tap costs more than doubling, however few the outputs


# -- plans -------------------------------------------------------------------------------------------------------------


class Meeting(NamedTuple):
    """Which states are there when two are merged. Zeros change nothing in a sum, so there padding counts as a state."""

    padded: Runs | Masked
    zeros: Runs | Masked

    def of(self, neutral_zero: bool) -> Runs | Masked:
        return self.zeros if neutral_zero else self.padded


class Hop(NamedTuple):
    """A doubling: `length` blocks, each of the block at its own position and of the one `hop` positions further."""

    hop: int
    length: int
    meeting: Meeting


class Join(NamedTuple):
    """Append to each output's state the block of 2^level taps that comes next."""

    level: int
    select: Select
    meeting: Meeting


@dataclass(frozen=True, eq=False)
class Count:
    """How many positions each output counts: `head`, then `times` times the same, then `tail`."""

    head: Vector
    same: int
    times: int
    tail: Vector

    @lazy
    def all_same(self) -> int | None:
        """What every output counts, if that is one number."""
        found = {int(end) for part in (self.head, self.tail) if part.size for end in (part.min(), part.max())}
        found |= {self.same} if self.times else set()
        return found.pop() if len(found) == 1 else None

    @lazy
    def all_count(self) -> bool:
        """Whether every output counts something."""
        return bool(self.head.all() and self.tail.all() and (self.same or not self.times))

    def vector(self) -> Vector:
        return np.concatenate([self.head, np.full(self.times, self.same), self.tail])


@dataclass(frozen=True, eq=False)
class AxisPlan:
    """Every decision of one pass. Positions are those of the axis with `before` and `after` zeros around it.

    A negative `after` cuts off what lies behind the last window.
    """

    before: int
    after: int
    size: int
    hops: tuple[Hop, ...]
    first: Select
    joins: tuple[Join, ...]
    count: Count
    at_once: bool  # whether single taps are pulled together, first to last; or one by one, last to first

    @property
    def taps(self) -> list[Select]:
        """The single taps of an output, first to last."""
        return [self.first, *(join.select for join in self.joins if join.level == 0)]

    def give_back_taps(self, xp: Any, parts: list[Array], axis: int) -> Array:
        """The cotangents of single taps, first to last, added up by position."""
        pairs = list(zip(self.taps, parts, strict=True))
        if isinstance(self.first.index, slice):
            slices = [(select.index, part) for select, part in (pairs if self.at_once else reversed(pairs))]
            return spread(xp, [(i.start, part) for i, part in slices], self.first.index.step, self.size, axis)  # type: ignore[union-attr]
        if self.at_once:
            return gather(xp, xp.concat(parts, axis=axis), self._readers, axis)
        pulled = [select.give_back(xp, part, axis) for select, part in reversed(pairs)]
        return sum(pulled[1:], pulled[0])

    @lazy
    def _readers(self) -> list[Vector]:
        index, used = (np.concatenate([getattr(tap, name) for tap in self.taps]) for name in ("index", "used"))
        return Select(index, self.size, used).inverse

    def read(self) -> list[Vector]:
        """For each level, which of its blocks some output is made of; at level 0, which positions are read."""
        found = [np.zeros(n, bool) for n in (self.size, *(hop.length for hop in self.hops))]
        self.first.mark(found[0])
        for join in self.joins:
            join.select.mark(found[join.level])
        for level in reversed(range(len(self.hops))):
            longer, hop = found[level + 1], self.hops[level].hop
            found[level][: len(longer)] |= longer
            found[level][hop : hop + len(longer)] |= longer
        return found

    @lazy
    def nbytes(self) -> int:
        """What the plan takes, with the vectors that a vjp adds."""
        steps = len(self.joins) + len(self.hops) + 1
        if isinstance(self.first.index, slice):
            return 1024 * steps + self.count.head.nbytes + self.count.tail.nbytes
        outputs, word = len(self.first.index), self.first.index.itemsize
        readers = 2 + outputs // max(self.size, 1) if self.at_once else steps
        return outputs * (steps * (word + 4) + 8) + self.size * word * readers


KEPT = 256 << 20  # bytes of plans that are kept
_plans: dict[Axis, AxisPlan] = {}  # the least recently used first


def plan(axis: Axis) -> AxisPlan:
    """The cheaper way to fold `axis`. Plans are kept, up to KEPT bytes of them."""
    found = _plans.pop(axis, None)
    if found is None:
        found = _plan(axis)
        room = KEPT - found.nbytes
        for old, kept in reversed(list(_plans.items())):  # no lock: a plan that another thread drops is made again
            room -= kept.nbytes
            if room < 0:
                _plans.pop(old, None)
        if found.nbytes > KEPT:
            return found
    _plans[axis] = found
    return found


def kept() -> int:
    """The bytes of all plans that are kept."""
    return sum(found.nbytes for found in list(_plans.values()))


def forget() -> None:
    """Drop all plans."""
    _plans.clear()


def _plan(axis: Axis) -> AxisPlan:
    axis = axis.simplified()
    # taps further apart than the input is long may step over it, so that what is there makes no run
    meets = axis.size >= axis.dilation and axis.stop(axis.outputs - 1) > 0
    return _regular(axis) if axis.per == 1 and meets else _irregular(axis)


def _regular(axis: Axis) -> AxisPlan:
    """All windows whole, by padding or cutting the input: slices and runs, however long the axis."""
    d, s, outputs, lo = axis.dilation, axis.stride, axis.outputs, -axis.start(0)
    taps, size = axis.taps, lo + axis.stop(outputs - 1)
    s = s if outputs > 1 else size  # one output is not s away from anything
    levels = _levels(taps, axis.stride, 1)
    sizes = [size - d * ((1 << j) - 1) for j in range(max(levels, default=0) + 1)]

    def there(length: int, covers: int, start: int, step: int) -> tuple[int, int]:
        """Of `length` blocks of `covers` taps, the first at `start` and `step` apart, those that hold an input."""
        first, stop = lo - (covers - 1) * d - start, lo + axis.size - start
        first = min(length, max(0, -(-first // step)))
        return first, min(length, max(first, -(-stop // step)))

    padded = lo > 0 or size > lo + axis.size

    def meeting(length: int, first: tuple[int, int], second: tuple[int, int], step: int) -> Meeting:
        """Of so many pairs of blocks; of each side, the taps it covers and where it starts."""
        zeros = Runs(((length, BOTH),))
        if not padded:
            return Meeting(zeros, zeros)
        return Meeting(runs(length, there(length, *first, step), there(length, *second, step)), zeros)

    hops = []
    for j, length in enumerate(sizes[1:]):
        hop, covers = d << j, 1 << j
        hops.append(Hop(hop, length, meeting(length, (covers, 0), (covers, hop), 1)))

    def select(start: int, size: int) -> Select:
        return Select(slice(start, start + (outputs - 1) * s + 1, s), size)

    everywhere = None if padded else meeting(outputs, (1, 0), (1, 0), s)
    joins, taken = [], 1
    for j in levels:
        if taken + (1 << j) > taps:
            continue
        both = everywhere or meeting(outputs, (taken, 0), (1 << j, d * taken), s)
        joins.append(Join(j, select(d * taken, sizes[j]), both))
        taken += 1 << j
    single = 1 + sum(join.level == 0 for join in joins)
    of = axis.of or axis
    apart = gcd(of.stride, d)
    most = min(-(-single * apart // of.stride), (of.outputs - 1) * apart // d + 1)  # outputs that read one position
    at_once = single > 4 and single > 4 * most
    after = size - lo - axis.size
    return AxisPlan(lo, after, size, tuple(hops), select(0, size), tuple(joins), _count(axis, taps), at_once)


def _count(axis: Axis, taps: int) -> Count:
    """All count their taps but those that begin before the margin, and those that end behind it."""
    before, after = axis.margin
    head = min(axis.outputs, max(0, -((axis.start(0) + before) // axis.stride)))
    whole = (axis.size + after - axis.stop(0)) // axis.stride + 1
    tail = min(axis.outputs, max(head, whole))

    def counted(start: int, stop: int) -> Vector:
        return axis.span(np.arange(start, stop), axis.margin)[1] if start < stop else np.zeros(0, int)

    return Count(counted(0, head), taps, tail - head, counted(tail, axis.outputs))


def _irregular(axis: Axis) -> AxisPlan:
    """Windows of different lengths, or that may step over the input: index vectors."""
    o, d = np.arange(axis.outputs), axis.dilation
    if axis.per == 1:
        before = -axis.start(0)
        starts = before + axis.start(o)
        lengths = np.full(axis.outputs, axis.taps)
        after = max(0, axis.stop(axis.outputs - 1) - axis.size)
    else:
        starts, lengths = axis.span(o)
        before, after = 0, 0
    after = after or int(before + axis.size == 0)  # something to read even where nothing is there
    size = before + axis.size + after
    position = np.arange(size) - before
    there = (position >= 0) & (position < axis.size)
    starts = starts.astype(np.int32 if size < 1 << 31 else np.int64)
    lengths = np.maximum(lengths, 1)
    levels = _levels(axis.taps, axis.stride, axis.per)

    def meeting(a: Vector, b: Vector, more: Vector) -> Meeting:
        everywhere = Runs(((len(more), BOTH),))
        masks = ((a, b), (np.ones_like(more), more))
        padded, zeros = (everywhere if p.all() and q.all() else Masked(p, q) for p, q in masks)
        return Meeting(padded, zeros)

    present, hops = [there], []
    for j in range(max(levels, default=0)):
        hop, last = d << j, present[-1]
        present.append(last[:-hop] | last[hop:])
        length = len(present[-1])
        hops.append(Hop(hop, length, meeting(last[:length], last[hop:], np.ones(length, bool))))

    first = Select(starts, size, there[starts])
    joins, taken, acc_there = [], np.ones_like(starts), there[starts]
    for j in levels:
        more = lengths - taken >= 1 << j
        index = np.minimum(starts + d * taken, len(present[j]) - 1)
        block_there = more if present[j].all() else more & present[j][index]
        joins.append(Join(j, Select(index, len(present[j]), block_there), meeting(acc_there, block_there, more)))
        acc_there = acc_there if acc_there.all() else acc_there | block_there
        taken = taken + np.where(more, taken.dtype.type(1 << j), 0)
    count = Count(axis.span(o, axis.margin)[1], 0, 0, np.zeros(0, int))
    # bins overlap by a position at most, and then few read one: what is added first does not matter
    at_once = axis.per > 1 and not hops
    return AxisPlan(before, after, size, tuple(hops), first, tuple(joins), count, at_once)


def _levels(longest: int, stride: int, per: int) -> list[int]:
    """The blocks that are joined to an output's first tap: one by one, or the powers of two, largest first.

    One by one is `longest - 1` merges per output; doubling is one per level for each of the stride's positions and one
    for the output. Nothing but the window decides, so that a batch or a crop gives the same bits.
    """
    if longest == 1:
        return []
    top = (longest - 1).bit_length() - 1
    direct = longest <= LONG and (longest - 1) * per <= (top + 1) * (stride + per)
    return [0] * (longest - 1) if direct else list(range(top, -1, -1))


def _ends(mask: Vector) -> tuple[int, int]:
    """The first that is set, and the one behind the last."""
    return int(mask.argmax()), len(mask) - int(mask[::-1].argmax())


# -- running -----------------------------------------------------------------------------------------------------------


class Pass:
    """One axis folded by a law: `forward` once, then `jvp` tangents and `vjp` cotangents as often as wanted.

    `neutral_zero`: merging with the zeros of padding changes nothing. `multiplies`: weights are numbers, and then one
    that is NaN must not meet the cotangent 0 of a block that no output is made of.
    """

    def __init__(self, xp: Any, plan: AxisPlan, axis: int, neutral_zero: bool, multiplies: bool):
        self.xp, self.plan, self.axis, self.multiplies = xp, plan, axis, multiplies
        self.hops = [(hop, hop.meeting.of(neutral_zero)) for hop in plan.hops]
        self.joins = [(join, join.meeting.of(neutral_zero)) for join in plan.joins]
        self.doubled: list[Weights] = []
        self.joined: list[Weights] = []

    def forward(self, merge: Merge, state: State, keep: bool) -> State:
        """The states of the outputs; with `keep`, remember what a tangent needs."""
        xp, axis = self.xp, self.axis
        state = tuple(self._pad(c) for c in state)
        blocks = [state]
        for hop, meeting in self.hops:
            a = tuple(cut(c, axis, slice(hop.length)) for c in blocks[-1])
            b = tuple(cut(c, axis, slice(hop.hop, hop.hop + hop.length)) for c in blocks[-1])
            block, ra, rb = meeting.merge(xp, axis, merge, a, b)
            blocks.append(block)
            if keep:
                self.doubled.append((ra, rb))
        acc: State = tuple(self.plan.first.take(xp, c, axis) for c in state)
        for join, meeting in self.joins:
            block = tuple(join.select.take(xp, c, axis) for c in blocks[join.level])
            acc, ra, rb = meeting.merge(xp, axis, merge, acc, block)
            if keep:
                self.joined.append((ra, rb))
        return acc

    def _pad(self, a: Array) -> Array:
        return pad(self.xp, a, self.axis, self.plan.before, self.plan.after)

    def jvp(self, t: Array) -> Array:
        """The tangents of the outputs."""
        xp, axis = self.xp, self.axis
        t = self._pad(t)
        blocks = [t]
        for (hop, meeting), weights in zip(self.hops, self.doubled, strict=True):
            last = blocks[-1]
            earlier, later = cut(last, axis, slice(hop.length)), cut(last, axis, slice(hop.hop, hop.hop + hop.length))
            blocks.append(meeting.jvp(xp, axis, weights, earlier, later))
        acc = self.plan.first.take(xp, t, axis)
        for (join, meeting), weights in zip(self.joins, self.joined, strict=True):
            acc = meeting.jvp(xp, axis, weights, acc, join.select.take(xp, blocks[join.level], axis))
        return acc

    def vjp(self, g: Array) -> Array:
        """The cotangents of the inputs: `jvp` transposed, the same steps backwards."""
        xp, axis, plan = self.xp, self.axis, self.plan
        blocks: list[Array] = [None] * (len(plan.hops) + 1)

        def give(level: int, part: Array) -> None:
            blocks[level] = part if blocks[level] is None else blocks[level] + part

        single: list[Array] = []
        for (join, meeting), weights in zip(reversed(self.joins), reversed(self.joined), strict=True):
            g, part = meeting.vjp(xp, axis, weights, g)
            if join.level == 0:
                single.append(part)
            else:
                give(join.level, join.select.give_back(xp, part, axis))
        give(0, plan.give_back_taps(xp, [g, *reversed(single)], axis))
        read = plan.read() if plan.hops and self.multiplies else []
        for level, (hop, meeting) in reversed(list(enumerate(self.hops))):
            parts = meeting.vjp(xp, axis, self.doubled[level], blocks[level + 1])
            start, stop = 0, hop.length
            if read:
                start, stop = _ends(read[level + 1])
                parts = tuple(cut(part, axis, slice(start, stop)) for part in parts)
                if not read[level + 1][start:stop].all():
                    mask = on(xp, device(g), along(read[level + 1][start:stop], axis, g.ndim))
                    parts = tuple(weighted(xp, mask, part) for part in parts)
            for part, before in zip(parts, (start, start + hop.hop), strict=True):
                give(level, pad(xp, part, axis, before, hop.hop + hop.length - before - (stop - start)))
        return pad(xp, blocks[0], axis, -plan.before, -plan.after)

    def read(self) -> Vector:
        """Which inputs some output reads."""
        return pad(np, self.plan.read()[0], 0, -self.plan.before, -self.plan.after)  # type: ignore[no-any-return]
