"""Which positions each output reads and counts, against a brute-force reading of PyTorch's rules."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from ndpool import PoolError
from ndpool.spec import Axis, Window, adaptive, adaptive_end, adaptive_start, each, sliding, whole

from .strategies import AXES, Slide, given, slides, taps_of, window_of


def reads(axis: Axis) -> list[list[int]]:
    return [list(axis.reads(o)) for o in range(axis.outputs)]


def counts(axis: Axis) -> list[int]:
    return [axis.count(o) for o in range(axis.outputs)]


# -- sliding


@given(slides())
def test_output_size_is_the_number_of_windows_that_fit(slide):
    assert slide.axis.outputs == slide.outputs


@given(slides())
def test_taps_are_the_covered_positions_inside_the_input(slide):
    assert reads(slide.axis) == [slide.reads(o) for o in range(slide.outputs)]


@given(slides())
def test_count_is_the_covered_positions_inside_the_padding(slide):
    assert counts(slide.axis) == [slide.counts(o) for o in range(slide.outputs)]


@given(slides())
def test_uncounted_padding_leaves_as_many_counted_as_read(slide):
    axis = sliding(slide.n, slide.k, slide.s, (slide.lo, slide.hi), slide.d, slide.ceil, count_padding=False)
    assert counts(axis) == [len(taps) for taps in reads(axis)]


@given(st.integers(1, 9), st.integers(1, 9))
def test_stride_defaults_to_the_kernel(n, k):
    assume(k <= n)
    assert sliding(n, k) == sliding(n, k, stride=k)


def test_floor_mode_leaves_out_a_window_that_does_not_fit():
    assert reads(sliding(5, kernel=2)) == [[0, 1], [2, 3]]


def test_ceil_mode_keeps_a_window_that_hangs_over_the_end():
    assert reads(sliding(5, kernel=2, ceil_mode=True)) == [[0, 1], [2, 3], [4]]


def test_ceil_mode_keeps_a_first_window_that_hangs_over_the_end():
    assert reads(sliding(2, kernel=3, stride=2, ceil_mode=True)) == [[0, 1]]


def test_ceil_mode_drops_a_window_that_starts_in_the_right_padding():
    axis = sliding(4, kernel=2, stride=3, padding=(0, 1), ceil_mode=True)
    assert reads(axis) == [[0, 1], [3]]
    assert sliding(3, kernel=2, stride=3, padding=(0, 1), ceil_mode=True).outputs == 1


@given(slides(), st.integers(0, 9))
def test_ceil_mode_windows_start_inside_the_input_or_the_left_padding(slide, hi):
    axis = sliding(slide.n, slide.k, slide.s, (slide.lo, slide.hi + hi), slide.d, ceil_mode=True)
    assert (axis.outputs - 1) * slide.s < slide.lo + slide.n


def test_ceil_overhang_counts_padding_but_not_beyond():
    axis = sliding(4, kernel=3, stride=3, padding=(0, 1), ceil_mode=True)
    assert (reads(axis), counts(axis)) == ([[0, 1, 2], [3]], [3, 2])


def test_padding_wider_than_the_window_gives_windows_without_a_tap():
    axis = sliding(2, kernel=1, stride=1, padding=(2, 1))
    assert (reads(axis), counts(axis)) == ([[], [], [0], [1], []], [1, 1, 1, 1, 1])


# -- a kernel that does not fit


def test_error_names_the_sizes_and_both_fixes():
    with pytest.raises(PoolError) as error:
        sliding(3, kernel=7, padding=(1, 0))
    fact, fix = str(error.value).split("; ")
    assert fact == "kernel_size=7 is larger than the padded input (3 + 1 + 0)"
    assert fix == "use kernel_size <= 4 or padding that adds at least 3"


def test_error_names_the_dilation():
    with pytest.raises(PoolError, match=r"kernel_size=3 spans 7 with dilation=3, more than the padded input \(5 \+ 0"):
        sliding(5, kernel=3, dilation=3)


def test_error_for_an_empty_input_offers_only_padding():
    with pytest.raises(PoolError, match=r"\(0 \+ 0 \+ 0\); use padding that adds at least 2$"):
        sliding(0, kernel=2)


@given(st.integers(0, 6), st.integers(1, 9), st.integers(0, 2), st.integers(0, 2), st.integers(1, 3))
def test_either_fix_of_the_error_is_enough_and_less_is_not(n, k, lo, hi, d):
    assume(d * (k - 1) + 1 > n + lo + hi)
    with pytest.raises(PoolError) as error:
        sliding(n, k, 1, (lo, hi), d)
    least = int(re.search(r"adds at least (\d+)$", str(error.value))[1])
    assert sliding(n, k, 1, (lo, hi + least), d).outputs == 1
    with pytest.raises(PoolError):
        sliding(n, k, 1, (lo, hi + least - 1), d)
    if n + lo + hi:
        most = int(re.search(r"kernel_size <= (\d+)", str(error.value))[1])
        assert sliding(n, most, 1, (lo, hi), d).outputs >= 1
        with pytest.raises(PoolError):
            sliding(n, most + 1, 1, (lo, hi), d)


@pytest.mark.parametrize("n", range(4))
def test_a_kernel_that_fits_is_never_called_larger(n):
    for lo, hi in product(range(3), repeat=2):
        for k in range(1, n + lo + hi + 1):
            try:
                text = repr(sliding(n, k, 1, (lo, hi), ceil_mode=True))
            except PoolError as error:
                text = str(error)
            assert "larger than the padded input" not in text


# -- adaptive, each, whole


@given(st.integers(1, 12), st.integers(1, 15))
def test_an_adaptive_bin_reads_every_position_that_its_share_touches(n, out):
    """Position i is the real interval [i, i + 1), bin o is [o n/out, (o + 1) n/out): they overlap."""
    share = Fraction(n, out)
    bins = [[i for i in range(n) if i + 1 > o * share and i < (o + 1) * share] for o in range(out)]
    assert reads(adaptive(n, out)) == bins
    assert counts(adaptive(n, out)) == [len(taps) for taps in bins]
    assert [adaptive_start(o, n, out) for o in range(out)] == [taps[0] for taps in bins]
    assert [adaptive_end(o, n, out) for o in range(out)] == [taps[-1] + 1 for taps in bins]


@given(st.integers(1, 6), st.integers(1, 6))
def test_adaptive_bins_that_divide_the_input_are_a_tiling(k, out):
    assert reads(adaptive(k * out, out)) == reads(sliding(k * out, kernel=k))


@given(st.integers(0, 9))
def test_each_output_reads_itself(n):
    assert reads(each(n)) == [[i] for i in range(n)]
    assert counts(each(n)) == [1] * n


@given(st.integers(0, 9))
def test_whole_is_one_output_that_reads_everything(n):
    assert reads(whole(n)) == [list(range(n))] == reads(adaptive(n, 1))
    assert counts(whole(n)) == [n]


def test_adaptive_bins_of_an_empty_input_are_empty():
    assert reads(adaptive(0, 3)) == [[], [], []]


# -- span


# -- what an axis says of itself, by formula


@given(st.sampled_from(AXES))
def test_the_readers_of_a_position_are_the_outputs_that_read_it(axis):
    want = [[o for o in range(axis.outputs) if p in axis.reads(o)] for p in range(axis.size)]
    assert [list(axis.readers(p)) for p in range(axis.size)] == want
    covered = [sum(axis.start(o) <= p < axis.stop(o) for o in range(axis.outputs)) for p in range(axis.size)]
    assert max(covered, default=0) <= axis.most_readers <= max(1, axis.outputs)


@given(st.integers(1, 30), st.integers(1, 30))
def test_no_position_of_a_bin_has_more_readers_than_said_and_one_has_as_many(n, out):
    axis = adaptive(n, out)
    assert axis.most_readers == max(len(axis.readers(p)) for p in range(n))


def test_most_readers_of_windows_that_slide():
    assert [sliding(20, k, s).most_readers for k, s in ((3, 1), (3, 2), (4, 2), (5, 2), (2, 3), (1, 1))] == [
        3, 2, 2, 3, 1, 1,
    ]  # fmt: skip
    assert sliding(4, 3, 1).most_readers == 2  # no more than there are outputs


@given(st.sampled_from(AXES))
def test_an_axis_knows_its_own_kind(axis):
    all_of_it = [list(range(axis.size))]
    unclipped = [(axis.start(o), axis.stop(o)) for o in range(axis.outputs)]
    plain = axis.margin == (0, 0)
    assert axis.is_identity == (axis == each(axis.size))
    if axis.is_whole:
        assert (reads(axis), unclipped, plain) == (all_of_it, [(0, axis.size)], True)
    elif reads(axis) == all_of_it and unclipped == [(0, axis.size)] and plain:
        assert axis.is_identity or axis.dilation > 1
    assert axis.is_sliding or len({stop - start for start, stop in unclipped}) > 1 or axis.outputs <= 2
    least, most = axis.tap_bounds
    assert least <= axis.taps <= (least if axis.is_sliding else most)
    if axis.surely_reads:
        assert all(reads(axis))


@given(st.sampled_from(AXES))
def test_the_same_axis_in_other_words(axis):
    assert (reads(axis.simplified()), counts(axis.simplified())) == (reads(axis), counts(axis))
    assert axis.simplified().per == 1 or not axis.is_sliding
    inside = axis.with_margin_inside()
    assert [len(r) for r in reads(inside)] == counts(axis) == counts(inside)


@given(st.sampled_from(AXES), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_span_of_an_integer_array_is_span_of_each_int(axis, margin):
    first, length = axis.span(np.arange(axis.outputs), margin)
    assert [axis.span(o, margin) for o in range(axis.outputs)] == list(zip(first, length, strict=True))


@given(st.sampled_from(AXES), st.integers(1, 12))
def test_begun_counts_the_outputs_whose_start_padding_aside_is_before(axis, p):
    assert axis.begun(p) == sum(axis.start(o) + axis.lo < p for o in range(axis.outputs))


@given(st.sampled_from(AXES), st.integers(0, 12), st.integers(0, 12))
def test_covering_nothing_is_nothing(axis, begin, length):
    covering = [o for o in range(axis.outputs) if max(axis.start(o), begin) < min(axis.stop(o), begin + length)]
    assert list(axis.covering(begin, begin + length)) == covering


# -- outputs that read nothing


@pytest.mark.parametrize("n", range(6))
def test_first_empty_finds_an_output_that_reads_nothing_if_there_is_one(n):
    for kernel, stride, dilation, *padding in product((1, 2, 4), range(1, 8), range(1, 9), (0, 3, 8, 13), (0, 5, 11)):
        if n + sum(padding) >= dilation * (kernel - 1) + 1:
            axis = sliding(n, kernel, stride, tuple(padding), dilation)
            empty = [o for o in range(axis.outputs) if not axis.reads(o)]
            found = axis.first_empty()
            assert found in empty if empty else found is None, axis


def test_first_empty_walks_no_outputs():
    """A trillion of them: one in a cycle of a trillion would be found, and none is."""
    n = 10**12
    assert sliding(n - 1, 2, 2, (n, n), n).first_empty() is None
    assert sliding(n - 1, 2, 2, (n - 1, n), n).first_empty() == n // 2 - 1
    assert sliding(n - 2, 2, 3, (n, n), n).first_empty() == (n - 1) // 3


# -- windows


@given(st.lists(slides(n=3, k=2, s=2), max_size=4))
def test_a_window_reads_the_product_of_what_its_axes_read(slides):
    window = window_of(slides)
    assert list(window) == taps_of(slides)
    assert window.shape == tuple(slide.n for slide in slides)
    assert window.out_shape == tuple(slide.outputs for slide in slides)


def test_a_window_of_rank_0_reads_the_one_scalar():
    assert list(Window(())) == [([0], 1)]


@pytest.mark.parametrize("rank", range(9))
def test_a_window_of_any_rank_reads_all_corners(rank):
    taps, count = next(iter(Window((whole(2),) * rank)))
    assert (taps, count) == (list(range(2**rank)), 2**rank)


def test_a_zero_size_axis_leaves_no_output():
    assert list(Window((each(0), sliding(4, kernel=2)))) == []


def test_taps_are_in_row_major_order():
    slide = Slide(4, 2, 2)
    found = [list(place) for place in product(range(2), range(2))]
    assert next(iter(window_of([slide, slide])))[0] == [4 * i + j for i, j in found]
