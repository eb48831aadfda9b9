"""What is read: an Axis maps each output index to the input positions it reads; a Window is a product of axes.

Everything that differs between sliding, dilated, padded, ceil-mode, adaptive and global pooling is in the one
formula of `Axis.span`. Rank is not a case: batch and channel are axes on which every output reads itself.

Legend: n size, o output, k kernel, s stride, d dilation, lo/hi padding before and after, t tap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..errors import PoolError
from ..lazy import lazy


@dataclass(frozen=True)
class Axis:
    """For each output, the input positions that it reads and the number of positions that it counts.

    Before clipping, output o covers the positions

        start, start + dilation, start + 2 dilation, ...   below stop,   where
        start = floor((first + o) stride / per) - lo      stop = ceil(((first + o) stride + extent) / per) - lo

    so an adaptive axis is a sliding one with the rational stride and extent n/out, rounded outwards. It *reads*
    those inside the input, [0, size), and *counts* those inside [-margin[0], size + margin[1]): positions that
    are counted but not read are zeros. `part` makes an axis of some outputs alone: `of` is the axis they are from,
    and `first` the number that output 0 has there.

    >>> axis = sliding(5, kernel=3, stride=2, padding=(1, 1))
    >>> [list(axis.reads(o)) for o in range(axis.outputs)]
    [[0, 1], [1, 2, 3], [3, 4]]
    >>> [axis.count(o) for o in range(axis.outputs)]
    [3, 3, 3]
    """

    size: int
    outputs: int
    stride: int = 1
    extent: int = 1
    per: int = 1
    dilation: int = 1
    lo: int = 0
    margin: tuple[int, int] = (0, 0)
    first: int = 0
    of: Axis | None = None

    def start(self, o: Any) -> Any:
        """The first position that output `o` covers, before clipping."""
        return (o + self.first) * self.stride // self.per - self.lo

    def stop(self, o: Any) -> Any:
        """One past the last position that output `o` covers, before clipping; with a dilation, past the last tap."""
        return _ceil_div((o + self.first) * self.stride + self.extent, self.per) - self.lo

    def span(self, o: Any, margin: tuple[int, int] = (0, 0)) -> tuple[Any, Any]:
        """First position and number of o's positions inside [-margin[0], size + margin[1]).

        Only + - * // and abs: `o` may be an int or an integer array, so engines share this formula.
        """
        start, stop = self.start(o), self.stop(o)
        skipped = _positive(_ceil_div(-margin[0] - start, self.dilation))
        beyond = _positive(stop - (self.size + margin[1]))
        length = _positive(_ceil_div(stop - beyond - start, self.dilation) - skipped)
        return start + skipped * self.dilation, length

    @property
    def is_identity(self) -> bool:
        """Whether every output reads itself, as on a batch or channel axis."""
        return (
            self.extent == self.stride == self.per == self.dilation == 1
            and self.outputs == self.size
            and self.lo == 0
            and self.margin == (0, 0)
            and self.of is None
        )

    @property
    def is_whole(self) -> bool:
        """Whether there is one output, which reads every position and no padding: neighbouring ones can be one axis."""
        return (
            self.outputs == self.dilation == 1
            and self.extent == self.size * self.per
            and self.lo == 0
            and self.margin == (0, 0)
            and self.of is None
            and not self.is_identity
        )

    @property
    def is_sliding(self) -> bool:
        """Whether every output covers as many positions, a whole number after the one before: not so uneven bins."""
        return self.stride % self.per == self.extent % self.per == 0

    def simplified(self) -> Axis:
        """The same axis without a fraction if it is sliding: bins of one size are windows of that size."""
        if self.per == 1 or not self.is_sliding:
            return self
        return replace(self, stride=self.stride // self.per, extent=self.extent // self.per, per=1)

    def with_margin_inside(self) -> Axis:
        """The same axis over an input that has the positions that count, `margin`, inside."""
        before, after = self.margin
        return replace(self, size=self.size + before + after, lo=self.lo - before, margin=(0, 0))

    def part(self, begin: int, end: int) -> tuple[range, Axis]:
        """Outputs [begin, end) alone: the positions that they lie between, and what each reads of those.

        A part reads and counts what these outputs read and count in the whole. It still knows the whole, because what
        is merged first may depend on where in it a window lies.

        >>> axis = sliding(9, kernel=3, stride=2, padding=(1, 1))
        >>> where, part = axis.part(2, 4)
        >>> where, [list(part.reads(o)) for o in range(part.outputs)]
        (range(3, 8), [[0, 1, 2], [2, 3, 4]])
        """
        first, last = (min(max(p, 0), self.size) for p in (self.start(begin), self.stop(end - 1)))
        where = range(first, last) if begin < end else range(0)
        if self.is_identity:
            return where, each(len(where))
        if (begin, end) == (0, self.outputs) and where == range(self.size):
            return where, self
        part = replace(self, size=last - first, outputs=end - begin, lo=self.lo + first, first=self.first + begin)
        before, after = self.margin[0] + first, self.margin[1] + self.size - last
        margin = min(before, _positive(-part.start(0))), min(after, _positive(part.stop(end - begin - 1) - part.size))
        return where, replace(part, margin=margin, of=self.of or self)

    @property
    def taps(self) -> int:
        """The taps of the largest window, before clipping.

        o stride / per exceeds its floor by at most (per - gcd(stride, per)) / per.
        """
        over = 0 if self.per == 1 else self.per - math.gcd(self.stride, self.per)
        return int(_ceil_div(_ceil_div(over + self.extent, self.per), self.dilation))

    @property
    def tap_bounds(self) -> tuple[Any, Any]:
        """Bounds of `taps` in arithmetic alone, so that a tracer's symbols will do; equal but for uneven bins."""
        least = _ceil_div(_ceil_div(self.extent, self.per), self.dilation)
        return least, least if self.per == 1 or self.is_sliding else least + 1

    def reads(self, o: int) -> range:
        """The input positions that output `o` reads: its taps along this axis."""
        first, length = self.span(o)
        return range(first, first + length * self.dilation, self.dilation)

    def readers(self, p: int) -> range:
        """The outputs that read position `p`: the axis transposed.

        >>> [list(sliding(5, kernel=3, stride=2, padding=(1, 1)).readers(p)) for p in range(5)]
        [[0], [0, 1], [1], [1, 2], [2]]
        """
        near = self.covering(p, p + 1)
        if self.dilation == 1:
            return near
        # taps are `dilation` apart: (p + lo - o stride) mod dilation = 0 (with a dilation there is no fraction)
        common = math.gcd(self.stride, self.dilation)
        period = self.dilation // common
        if (p + self.lo) % common:
            return range(0)
        o = (p + self.lo) // common * pow(self.stride // common, -1, period) % period - self.first if period > 1 else 0
        return range(near.start + (o - near.start) % period, near.stop, period)

    def covering(self, begin: int, end: int) -> range:
        """The outputs that cover any of the positions [begin, end), whether or not their taps step over them."""
        if begin == end:
            return range(0)
        before = ((begin + self.lo) * self.per - self.extent) // self.stride - self.first
        last = ((end + self.lo) * self.per - 1) // self.stride - self.first
        return range(max(0, before + 1), min(self.outputs - 1, last) + 1)

    def begun(self, p: int) -> int:
        """How many outputs begin before position `p` > 0, padding aside: their start + lo is below it."""
        return int(min(max(_ceil_div(p * self.per, self.stride) - self.first, 0), self.outputs))

    @property
    def most_readers(self) -> int:
        """How many outputs at most cover a position; at least 1. Taps that step over positions are not considered.

        Of the outputs that cover position p, the last is floor((q + per - 1) / stride) and the one before the first
        floor((q - extent) / stride), with q = (p + lo) per. Only where the last one moves on can there be more.
        """
        step = math.gcd(self.per, self.stride)
        moves = _ceil_div((1 - self.per) % self.stride, step) * step
        most = max(
            (q + self.per - 1) // self.stride - (q - self.extent) // self.stride for q in {0, moves % self.stride}
        )
        return int(max(1, min(most, self.outputs)))

    def count(self, o: int) -> int:
        """How many positions output `o` counts: this axis' factor of the mean's divisor."""
        return int(self.span(o, self.margin)[1])

    @property
    def surely_reads(self) -> bool:
        """Whether every output reads something, in arithmetic alone: False may mean that it takes a closer look."""
        if self.per > 1:
            return True
        return bool(
            self.stop(0) > 0
            and self.start(self.outputs - 1) < self.size
            and (self.dilation == 1 or self.dilation <= self.size)
        )

    def first_empty(self) -> int | None:
        """An output that reads nothing: the first, the last, or the first between them; None if all read something.

        Windows only move on. If both ends read something, one between can miss only an input that its taps step over:
        start(o) mod dilation, the one position of a tap below `dilation`, is not below `size`.
        """
        for o in (0, self.outputs - 1):
            if not self.reads(o):
                return o
        if self.size >= self.dilation:
            return None
        low, high = ((n - self.start(0)) % self.dilation for n in (self.size, self.dilation - 1))
        between = _first_within(self.stride, self.dilation, low, high)
        return between if between is not None and between < self.outputs else None


def _ceil_div(a: Any, b: int) -> Any:
    return -(-a // b)


def _positive(a: Any) -> Any:
    return (a + abs(a)) // 2  # max(a, 0) that also serves integer arrays


def _first_within(step: int, modulus: int, low: int, high: int) -> int | None:
    """The least x >= 0 with low <= step x mod modulus <= high, by Euclid's algorithm: as many steps as it has."""
    step %= modulus
    if low == 0 or low > high:  # a range around the end holds 0
        return 0
    if 2 * step > modulus:
        return _first_within(modulus - step, modulus, modulus - high, modulus - low)
    if step == 0:
        return None
    if -(-low // step) * step <= high:
        return -(-low // step)
    wraps = _first_within(modulus, step, -high % step, -low % step)
    return None if wraps is None else -(-(low + modulus * wraps) // step)


def each(n: int) -> Axis:
    """Batch or channel: every output reads itself."""
    return Axis(size=n, outputs=n)


def sliding(
    n: int,
    kernel: int,
    stride: int | None = None,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Axis:
    """Output o covers `kernel` positions, `dilation` apart, from o stride - lo on.

        outputs = floor((n + lo + hi - dilation (kernel - 1) - 1) / stride) + 1

    With `ceil_mode` the division rounds up, but the last window must start inside the input or the left padding.
    With `count_padding` the padding is zeros that count; without it padding is neither read nor counted.

    >>> sliding(5, kernel=2, stride=2).outputs, sliding(5, kernel=2, stride=2, ceil_mode=True).outputs
    (2, 3)
    """
    stride = kernel if stride is None else stride
    lo, hi = padding
    extent = dilation * (kernel - 1) + 1
    room = n + lo + hi - extent
    outputs = min(_ceil_div(room, stride) + 1, _ceil_div(n + lo, stride)) if ceil_mode else room // stride + 1
    if outputs < 1 and room >= 0:
        raise PoolError(
            f"ceil_mode lets no window start after {n} + {lo} positions; use ceil_mode=False or padding before"
        )
    if outputs < 1:
        spread = f"spans {extent} with dilation={dilation}, more" if dilation > 1 else "is larger"
        fits = (n + lo + hi - 1) // dilation + 1 if n + lo + hi else 0
        smaller = f"kernel_size <= {fits} or " if fits else ""
        raise PoolError(
            f"kernel_size={kernel} {spread} than the padded input ({n} + {lo} + {hi}); "
            f"use {smaller}padding that adds at least {-room}"
        )
    margin = padding if count_padding else (0, 0)
    return Axis(n, outputs, stride, extent, dilation=dilation, lo=lo, margin=margin)


def adaptive(n: int, outputs: int) -> Axis:
    """Output o reads floor(o n / outputs) up to, not including, ceil((o + 1) n / outputs).

    >>> axis = adaptive(5, 3)
    >>> [list(axis.reads(o)) for o in range(3)]
    [[0, 1], [1, 2, 3], [3, 4]]
    """
    return Axis(n, outputs, stride=n, extent=n, per=outputs)


def whole(n: int) -> Axis:
    """Global pooling: one output reads everything."""
    return adaptive(n, 1)


def adaptive_start(o: int, n: int, outputs: int) -> int:
    """The first position of adaptive bin `o`: floor(o n / outputs)."""
    return adaptive(n, outputs).reads(o).start


def adaptive_end(o: int, n: int, outputs: int) -> int:
    """One past the last position of adaptive bin `o`: ceil((o + 1) n / outputs)."""
    return adaptive(n, outputs).reads(o).stop


@dataclass(frozen=True)
class Window:
    """The product of axes, one for each axis of the array: output (o1, o2, ...) reads reads(o1) x reads(o2) x ...

    Iterating gives, for every output in row-major order, its taps (flat positions in row-major order) and its count.

    >>> list(Window((each(2), sliding(3, kernel=2, stride=1))))
    [([0, 1], 2), ([1, 2], 2), ([3, 4], 2), ([4, 5], 2)]
    """

    axes: tuple[Axis, ...]

    @lazy
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @lazy
    def out_shape(self) -> tuple[int, ...]:
        return tuple(axis.outputs for axis in self.axes)

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        strides = [math.prod(self.shape[i + 1 :]) for i in range(len(self.axes))]
        for output in product(*(range(axis.outputs) for axis in self.axes)):
            reads = [axis.reads(o) for axis, o in zip(self.axes, output, strict=True)]
            taps = [sum(s * i for s, i in zip(strides, tap, strict=True)) for tap in product(*reads)]
            yield taps, math.prod(axis.count(o) for axis, o in zip(self.axes, output, strict=True))
