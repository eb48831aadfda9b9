"""What the native engine knows of an axis by formula is what the spec's axis says of each output."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ndpool import PoolError
from ndpool.engines import native
from ndpool.spec import Axis, adaptive, sliding, whole

if not native.available():
    pytest.skip(f"the native engine is not in use: {native.reason()}", allow_module_level=True)


def axes(seed: int) -> Iterator[Axis]:
    """Axes of every kind: small enough to look at each output. First all of a few bins."""
    yield from itertools.starmap(adaptive, itertools.product(range(1, 8), repeat=2))
    rng = np.random.default_rng(seed)
    while True:
        n, k, s, d = (int(rng.integers(1, most)) for most in (40, 12, 9, 5))
        lo, hi, ceil, counts = (int(v) for v in rng.integers(0, (9, 9, 2, 2)))
        with contextlib.suppress(PoolError):
            slides = sliding(n, k, s, (lo, hi), d, bool(ceil), bool(counts))
            yield slides
            yield from some_of(slides, rng)
        with contextlib.suppress(PoolError):  # what begins inside the input has positions before all windows
            yield sliding(n, k, s, (-lo, hi), d, count_padding=False)
        bins = adaptive(n, int(rng.integers(1, 60)))
        yield bins
        yield from some_of(bins, rng)


def some_of(axis: Axis, rng: np.random.Generator) -> Iterator[Axis]:
    """A part of it, if its outputs lie over anything."""
    begin = int(rng.integers(0, axis.outputs))
    part = axis.part(begin, int(rng.integers(begin + 1, axis.outputs + 1)))[1]
    if part.size > 0:
        yield part


def test_what_an_axis_reads_is_the_specs() -> None:
    for axis in itertools.islice(axes(0), 3000):
        known = native._load()[0].axis(native.formula(axis), False, range(axis.outputs))
        wanted = [axis.reads(o) for o in range(axis.outputs)]
        counts = [axis.count(o) for o in range(axis.outputs)]
        for o, (_, taps, first, length, count, _) in enumerate(known["reads"]):
            assert (range(first, first + length * axis.dilation, axis.dilation) or range(0)) == (wanted[o] or range(0))
            assert count == counts[o], (axis, o)
            assert taps <= known["most_taps"] == axis.taps
            assert length <= known["longest"]
        lengths = [len(reads) for reads in wanted]
        assert axis.of or max(known["reads"], key=lambda r: r[1])[1] == known["most_taps"]
        assert known["even"] <= (len(set(counts)) == 1), axis
        assert axis.of or known["even"] == (len(set(counts)) == 1), axis  # of a part it may not be seen
        assert known["gaps"] or all(lengths), axis
        assert known["empty"] or all(counts), axis
        assert known["padded"] or counts == lengths, axis
        assert any(axis.margin) or not known["padded"], axis
        assert known["longest"] <= axis.size, axis  # scratch is made for so many
        check_runs(known, wanted, axis)


def test_who_reads_a_position_is_the_specs() -> None:
    for axis in itertools.islice(axes(1), 3000):
        known = native._load()[0].axis(native.formula(axis), True, range(axis.size))
        wanted = [[o for o in range(axis.outputs) if i in axis.reads(o)] for i in range(axis.size)]
        several = (axis.of or axis).outputs > 1
        step = axis.dilation // math.gcd(axis.dilation, axis.stride if several and axis.per == 1 else 1)
        for i, (_, taps, first, length, _, _) in enumerate(known["reads"]):
            assert list(range(first, first + length * step, step)) == wanted[i], (axis, i)
            assert length <= taps <= known["most_taps"]
            assert length <= known["longest"]
        assert known["gaps"] or all(wanted), axis
        assert known["longest"] <= axis.outputs, axis
        check_runs(known, [range(w[0], w[-1] + 1, step) if w else range(0) for w in wanted], axis)


def check_runs(known: dict[str, Any], reads: list[range], axis: Axis) -> None:
    """Between whole_from and whole_to, windows repeat every `phases` outputs, `stride` further on. Up to `same_until`
    they are one window."""
    for o, (*_, same_until) in enumerate(known["reads"]):
        assert o < same_until
        assert reads[o:same_until] == [reads[o]] * len(reads[o:same_until]), (axis, o)
    phases, stride = known["phases"], known["stride"]
    for o in range(known["whole_from"], known["whole_to"] - phases):
        here, later = reads[o], reads[o + phases]
        assert len(here) == len(later), (axis, o)
        assert not here or here.start + stride == later.start, (axis, o)


@pytest.mark.parametrize("size", [10**7 + 1, 3 * 10**9, 10**12])
def test_a_long_axis_costs_no_more_than_a_short_one(size: int) -> None:
    long = [sliding(size, 3, 1, (1, 1)), sliding(size, 5, 3, (2, 0), 2), adaptive(size, size // 10**6 - 1), whole(size)]
    for axis in long:
        ends = sorted({0, axis.outputs // 2, axis.outputs - 1})
        known = native._load()[0].axis(native.formula(axis), False, ends)
        for o, (_, _, first, length, count, _) in zip(ends, known["reads"], strict=True):
            assert range(first, first + length * axis.dilation, axis.dilation) == axis.reads(o)
            assert count == axis.count(o)
        places = [0, 1, size // 2, size - 1]
        back = native._load()[0].axis(native.formula(axis), True, places)
        for i, (_, _, first, length, _, _) in zip(places, back["reads"], strict=True):
            assert length == 0 or i in axis.reads(first)
            assert first == 0 or length == 0 or i not in axis.reads(first - 1)
