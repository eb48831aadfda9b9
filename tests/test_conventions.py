"""One test a convention, of its name, through the public API, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ndpool
from ndpool import PoolError

INF, NAN = math.inf, math.nan

# -- output size -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "kernel", "stride", "lo", "hi", "dilation", "outputs"),
    [
        (7, 3, 2, 0, 0, 1, 3),  # floor((7 - 2 - 1)/2) + 1
        (8, 3, 2, 0, 0, 1, 3),  # floor((8 - 2 - 1)/2) + 1: the last input is not read
        (8, 3, 2, 1, 1, 1, 4),  # floor((8 + 2 - 2 - 1)/2) + 1
        (8, 3, 2, 0, 3, 1, 5),  # floor((8 + 3 - 2 - 1)/2) + 1
        (9, 3, 2, 0, 0, 3, 2),  # floor((9 - 6 - 1)/2) + 1
        (1, 1, 5, 0, 0, 1, 1),
    ],
)
def test_output_size(n: int, kernel: int, stride: int, lo: int, hi: int, dilation: int, outputs: int) -> None:
    op = ndpool.MaxPool((kernel,), stride, ((lo, hi),), dilation=dilation)
    assert op.out_shape((n,)) == (outputs,)
    assert outputs == (n + lo + hi - dilation * (kernel - 1) - 1) // stride + 1


def test_stride_is_the_kernel_by_default() -> None:
    assert ndpool.MaxPool((3,)).out_shape((9,)) == (3,)
    assert ndpool.sum_pool([1, 2, 3, 4], (2,)) == [3, 7]


def test_ceil_mode_lets_a_window_hang_over_the_end() -> None:
    assert ndpool.sum_pool([1, 2, 3, 4, 5], (2,), 2) == [3, 7]
    assert ndpool.sum_pool([1, 2, 3, 4, 5], (2,), 2, ceil_mode=True) == [3, 7, 5]
    assert ndpool.max_pool([1, 2, 3], (5,), 5, ceil_mode=True) == [3]  # even the first


@pytest.mark.parametrize(("n", "padding"), [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1)])
@pytest.mark.parametrize("stride", [1, 2, 3, 7])
def test_a_kernel_beyond_the_padded_input_hangs_over_by_less_than_a_stride_in_ceil_mode(
    n: int, padding: int, stride: int
) -> None:
    x, kernel = [float(i) for i in range(n)], 7
    beyond = kernel - (n + 2 * padding)
    assert beyond > 0
    with pytest.raises(PoolError, match="kernel_size=7 is larger than the padded input"):
        ndpool.max_pool(x, (kernel,), stride, padding)
    if beyond < stride:
        assert ndpool.max_pool(x, (kernel,), stride, padding, ceil_mode=True) == [n - 1]
        assert ndpool.avg_pool(x, (kernel,), stride, padding, ceil_mode=True) == [sum(x) / (n + 2 * padding)]
    else:
        with pytest.raises(PoolError, match="kernel_size=7 is larger than the padded input"):
            ndpool.max_pool(x, (kernel,), stride, padding, ceil_mode=True)


def test_ceil_mode_starts_no_window_in_the_right_padding() -> None:
    assert ndpool.MaxPool((1,), 2, 1, ceil_mode=True).out_shape((2,)) == (2,)  # the third would start at 3 = n + lo
    assert ndpool.MaxPool((1,), 2, 1, ceil_mode=True).out_shape((3,)) == (2,)
    assert ndpool.MaxPool((2,), 2, 1, ceil_mode=True).out_shape((3,)) == (2,)  # rounding up would give 3


# -- padding -----------------------------------------------------------------------------------------------------------


def test_padding_in_max_and_min_is_never_read() -> None:
    assert ndpool.max_pool([-5, -3], (2,), 1, 1) == [-5, -3, -3]
    assert ndpool.min_pool([5, 3], (2,), 1, 1) == [5, 3, 3]
    assert np.array_equal(ndpool.max_pool(np.array([-INF, -INF]), (2,), 1, 1), [-INF, -INF, -INF])
    lowest = np.iinfo(np.int8).min
    _, indices = ndpool.max_pool(np.full(2, lowest, np.int8), (2,), 1, 1, return_indices=True)
    assert indices.tolist() == [0, 0, 1]  # no sentinel to be mistaken for


def test_padding_may_be_wider_than_half_the_kernel() -> None:
    assert ndpool.max_pool([4, 7], (2,), 1, 2) == [0, 4, 7, 7, 0]


def test_padding_in_average_is_zeros_that_count() -> None:
    assert ndpool.avg_pool([6.0, 12.0], (3,), 1, 1) == [6.0, 6.0]
    assert ndpool.AvgPool((3,), 1, 1).vjp([6.0, 12.0], [3.0, 6.0]) == [3.0, 3.0]


def test_padding_in_smooth_max_is_zeros_that_count() -> None:
    (y,) = ndpool.smooth_max_pool([0.0], (3,), 1, 1)
    assert y == pytest.approx(math.log(3))
    (y,) = ndpool.smooth_max_pool([0.0], (3,), 1, 1, count_include_pad=False)
    assert y == 0


def test_count_include_pad_false_neither_reads_nor_counts_padding() -> None:
    assert ndpool.avg_pool([6.0, 12.0], (3,), 1, 1, count_include_pad=False) == [9.0, 9.0]
    assert ndpool.avg_pool([6.0, 12.0, 18.0], (3,), 2, 1, count_include_pad=False) == [9.0, 15.0]


def test_what_hangs_over_the_padding_is_never_counted() -> None:
    """PyTorch's rule in ceil mode: the divisor is the part of the window inside input and padding."""
    assert ndpool.avg_pool([2.0, 4.0, 6.0, 8.0], (3,), 3, ceil_mode=True) == [4.0, 8.0]
    assert ndpool.avg_pool([2.0, 4.0, 6.0, 8.0], (4,), 4, 1, ceil_mode=True) == [3.0, 4.0]  # 8 and a zero
    assert ndpool.avg_pool([2.0, 4.0, 6.0], (4,), 4, ((1, 0),), ceil_mode=True) == [3.0]


def test_divisor_override_divides_by_that() -> None:
    assert ndpool.avg_pool([6.0, 12.0], (2,), 1, 1, divisor_override=4) == [1.5, 4.5, 3.0]
    same = ndpool.avg_pool([6.0, 12.0], (2,), 1, 1, divisor_override=4, count_include_pad=False)
    assert same == [1.5, 4.5, 3.0]
    assert ndpool.AvgPool((2,), divisor_override=4).vjp([6.0, 12.0], [1.0]) == [0.25, 0.25]


# -- ties --------------------------------------------------------------------------------------------------------------

TIES = {
    "first": ([0, 1, 0, 0], 20),
    "last": ([0, 0, 0, 1], 40),
    "all": ([0, 1, 1, 1], 90),
    "split": ([0, 1 / 3, 1 / 3, 1 / 3], 30),
}


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("of", [list, np.array])
def test_ties_in_max(of: type, ties: str) -> None:
    cotangent, tangent = TIES[ties]
    op = ndpool.MaxPool((4,), ties=ties)
    x = of([1.0, 2.0, 2.0, 2.0])
    assert list(op.vjp(x, of([1.0]))) == pytest.approx(cotangent)
    assert list(op.jvp(x, of([10.0, 20.0, 30.0, 40.0]))) == pytest.approx([tangent])


def test_first_of_equals_wins() -> None:
    """By default, in row-major order, the same in value, index, jvp and vjp."""
    x = np.array([[0.0, -0.0], [-0.0, 0.0]])
    for zeros in (x, -x):
        y, indices = ndpool.max_pool(zeros, 2, return_indices=True)
        assert np.signbit(y[0, 0]) == np.signbit(zeros[0, 0])
        assert indices.tolist() == [[0]]
        assert ndpool.MaxPool(2).vjp(zeros, np.ones((1, 1))).tolist() == [[1, 0], [0, 0]]
        assert ndpool.MaxPool(2).jvp(zeros, np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[1]]


def test_last_of_equals_wins_if_told() -> None:
    y, indices = ndpool.min_pool(np.array([[0.0, 0.0], [0.0, -0.0]]), 2, ties="last", return_indices=True)
    assert np.signbit(y[0, 0])
    assert indices.tolist() == [[3]]


@pytest.mark.parametrize("ties", ["all", "split"])
def test_the_index_is_the_first_winners_where_many_share(ties: str) -> None:
    assert ndpool.max_pool([1, 2, 2, 2], (4,), ties=ties, return_indices=True) == ([2], [1])


def test_first_in_row_major_order_whatever_the_axes() -> None:
    x = np.zeros((3, 2, 4))
    x[1, :, 2] = x[2, :, 0] = 5.0
    _, indices = ndpool.max_pool(x, (3, 4), axes=(0, 2), return_indices=True)
    assert indices.tolist() == [[[6], [6]]]  # 1 * 4 + 2, not 2 * 4 + 0


def test_ties_in_global_max() -> None:
    x = [[2.0, 7.0], [7.0, 1.0]]
    assert ndpool.GlobalMaxPool().vjp(x, [[1.0]]) == [[0, 1.0], [1.0, 0]]
    assert ndpool.GlobalMinPool().vjp([[3.0, 3.0]], [[1.0]]) == [[1.0, 1.0]]
    assert ndpool.GlobalMaxPool(ties="split").vjp(x, [[1.0]]) == [[0, 0.5], [0.5, 0]]
    assert ndpool.GlobalMaxPool(ties="first").vjp(x, [[1.0]]) == [[0, 1.0], [0, 0]]


# -- windows without a tap ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Max", "Min", "Sum", "Avg", "SmoothMax", "Lp"])
def test_window_with_no_tap(name: str) -> None:
    """The value 0, the tangent 0, the index -1."""
    law = {"norm_type": 2} if name == "Lp" else {"count_include_pad": False} if name in ("Avg", "SmoothMax") else {}
    op = getattr(ndpool, f"{name}Pool")(kernel_size=(1,), stride=1, padding=1, **law)
    x, dx, dy = np.array([5.0]), np.array([7.0]), np.array([1.0, 1.0, 1.0])
    assert op(x).tolist() == [0, 5, 0]
    assert op.jvp(x, dx).tolist() == [0, 7, 0]
    assert op.vjp(x, dy).tolist() == [1]
    assert op([5.0]) == [0, 5, 0]


def test_window_with_no_tap_has_index_minus_1() -> None:
    assert ndpool.max_pool([5], (1,), 1, 1, return_indices=True) == ([0, 5, 0], [-1, 0, -1])
    _, indices = ndpool.min_pool(np.array([5]), (1,), 1, 1, return_indices=True)
    assert indices.tolist() == [-1, 0, -1]


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "smooth_max_pool"])
def test_empty_error_rejects_a_window_with_no_tap(name: str) -> None:
    with pytest.raises(PoolError, match=rf"^{name}: on axis 0, output 0 reads nothing"):
        getattr(ndpool, name)(np.ones(3), (1,), 1, 1, empty="error")
    assert getattr(ndpool, name)(np.ones(3), (2,), 1, 1, empty="error").shape == (4,)


def test_pooling_nothing_gives_zero() -> None:
    assert ndpool.global_avg_pool(np.zeros((2, 0, 3))).tolist() == [[[0]], [[0]]]
    assert ndpool.adaptive_max_pool(np.zeros((0,)), (2,)).tolist() == [0, 0]


# -- adaptive bins -----------------------------------------------------------------------------------------------------


def test_adaptive_bins() -> None:
    """Bin i is floor(i n/out) up to ceil((i + 1) n/out)."""
    assert ndpool.adaptive_sum_pool([1, 10, 100, 1000, 10000], (3,)) == [11, 1110, 11000]
    assert ndpool.adaptive_sum_pool([1, 10, 100], (5,)) == [1, 11, 10, 110, 100]
    assert [(ndpool.adaptive_start(o, 5, 3), ndpool.adaptive_end(o, 5, 3)) for o in range(3)] == [
        (0, 2),
        (1, 4),
        (3, 5),
    ]


def test_adaptive_none_keeps_an_axis() -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(ndpool.adaptive_max_pool(x, (None, 2)), x[:, 1::2])
    assert np.array_equal(ndpool.adaptive_max_pool(x, None), x)


# -- smooth max --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [list, np.array])
def test_smooth_max_is_log_sum_exp(of: type) -> None:
    x, beta = [0.3, -1.2, 2.0], 1.7
    want = math.log(sum(math.exp(beta * v) for v in x)) / beta
    assert list(ndpool.smooth_max_pool(of(x), (3,), beta=beta)) == pytest.approx([want], rel=1e-14)


@pytest.mark.parametrize("of", [list, np.array])
def test_smooth_max_never_overflows(of: type) -> None:
    op = ndpool.SmoothMaxPool((2,), beta=1000.0)
    assert list(op(of([1e4, 1e4]))) == pytest.approx([1e4 + math.log(2) / 1000], rel=1e-15)
    assert list(op(of([-1e4, 1e4]))) == [1e4]
    assert list(op.vjp(of([-1e4, 1e4]), of([1.0]))) == [0, 1]
    assert list(op.vjp(of([1e4, 1e4]), of([1.0]))) == [0.5, 0.5]
    assert np.isfinite(ndpool.smooth_max_pool(np.full(2, 6e4, np.float16), (2,), beta=1000.0)).all()


@pytest.mark.parametrize("of", [list, np.array])
def test_beta_below_zero_is_a_smooth_min(of: type) -> None:
    assert list(ndpool.smooth_max_pool(of([1.0, 2.0]), (2,), beta=-1000.0)) == pytest.approx([1.0])
    low = ndpool.smooth_max_pool(of([-1.0, 3.0]), (2,), beta=-2.0)
    high = ndpool.smooth_max_pool(of([1.0, -3.0]), (2,), beta=2.0)
    assert low[0] == pytest.approx(-high[0], rel=1e-15)


@pytest.mark.parametrize("of", [list, np.array])
def test_smooth_max_has_a_derivative_in_beta(of: type) -> None:
    """Of two equal values y = x + log(2)/beta, so dy/dbeta = -log(2)/beta**2."""
    got = ndpool.SmoothMaxPool((2,), beta=4.0).beta_derivative(of([1.0, 1.0]))
    assert list(got) == pytest.approx([-math.log(2) / 16])


# -- NaN ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("of", [list, np.array])
def test_nan_in_max_and_min_propagates(of: type, name: str) -> None:
    y, indices = getattr(ndpool, f"{name}_pool")(of([1.0, NAN, 3.0, NAN, 0.0, 2.0]), (3,), return_indices=True)
    assert np.isnan(y).tolist() == [True, True]
    assert list(indices) == [1, 3]


def test_the_first_nan_is_the_winner() -> None:
    op = ndpool.MaxPool((4,), return_indices=True)
    assert op(np.array([INF, NAN, INF, NAN]))[1].tolist() == [1]
    assert op.vjp(np.array([INF, NAN, INF, NAN]), np.array([1.0])).tolist() == [0, 1, 0, 0]
    assert op([INF, NAN, INF, NAN])[1] == [1]


@pytest.mark.parametrize("of", [list, np.array])
def test_nan_ignore_lets_every_number_beat_a_nan(of: type) -> None:
    highest = ndpool.MaxPool((3,), nan="ignore")
    assert list(highest(of([NAN, -INF, NAN]))) == [-INF]
    assert list(highest.vjp(of([NAN, 4.0, 1.0]), of([1.0]))) == [0, 1, 0]
    assert list(ndpool.min_pool(of([NAN, INF, 7.0]), (3,), nan="ignore")) == [7]
    assert np.isnan(highest(of([NAN, NAN, NAN]))).all()


# -- floats and integers -----------------------------------------------------------------------------------------------


def test_float_accumulation_is_in_float32_or_wider() -> None:
    x = np.full(4096, 1, np.float16)
    assert ndpool.global_sum_pool(x).tolist() == [4096]  # in float16, 2048 + 1 is 2048
    assert ndpool.sum_pool(np.array([2048, 1, 1], np.float16), (3,)).tolist() == [2050]
    assert ndpool.SumPool((1,), 1).vjp(np.ones(1, np.float16), np.array([3], np.float16)).tolist() == [3]


@pytest.mark.parametrize("name", ["AvgPool", "SumPool", "SmoothMaxPool"])
@pytest.mark.parametrize("kernel", [3, 10, 12, 33])
def test_float_accumulation_order_depends_on_the_window_alone(name: str, kernel: int) -> None:
    """The same bits for a batch of 1, of some and of many, and for a crop: results do not change with chunking."""
    x = np.random.default_rng(0).normal(size=(3000, 120)).astype(np.float32)
    op = getattr(ndpool, name)((kernel,))
    y, dx = op(x), op.jvp(x, x)
    dy = op.vjp(x, y)
    for part in (slice(0, 1), slice(0, 40)):
        assert np.array_equal(op(x[part]), y[part])
        assert np.array_equal(op.jvp(x[part], x[part]), dx[part])
        assert np.array_equal(op.vjp(x[part], y[part]), dy[part])
    assert np.array_equal(op(x[:, : 2 * kernel]), y[:, :2])


def test_integers_are_exact() -> None:
    big = 2**62 + 1  # a double would round it to 2**62
    assert ndpool.max_pool(np.array([big, big - 1]), (2,)).tolist() == [big]
    assert ndpool.sum_pool(np.array([big, -1]), (2,)).tolist() == [2**62]
    assert ndpool.avg_pool(np.array([big, big]), (2,)).tolist() == [big]


def test_integer_mean_is_rounded_half_to_even() -> None:
    x = np.array([0, 1, 1, 2, 2, 3, -1, 0, -1, -2, -3, -4])
    assert ndpool.avg_pool(x, (2,)).tolist() == [0, 2, 2, 0, -2, -4]


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_spatial_axes_are_the_last() -> None:
    x = np.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)
    assert ndpool.max_pool(x, (2,)).shape == (2, 3, 4, 3)
    assert ndpool.max_pool(x, (2, 2)).shape == (2, 3, 2, 3)
    assert ndpool.max_pool(x, (1, 2, 2)).shape == (2, 3, 2, 3)
    assert ndpool.max_pool(x, (2, 1, 2, 2)).shape == (1, 3, 2, 3)
    assert ndpool.max_pool(x, 2).shape == (2, 3, 2, 3)  # one number: the last two
    assert ndpool.max_pool(x[0, 0, 0], 2).shape == (3,)  # or the only one


def test_leading_axes_are_independent() -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 6))
    op = ndpool.AvgPool(3, 2, 1)
    assert np.array_equal(op(x), [[op(plane) for plane in planes] for planes in x])


def test_zero_size_leading_axes_are_legal() -> None:
    assert ndpool.max_pool(np.zeros((0, 3, 4, 4)), 2).shape == (0, 3, 2, 2)
    assert ndpool.avg_pool(np.zeros((2, 0, 4, 4)), 2).shape == (2, 0, 2, 2)
    assert ndpool.max_pool([[], []], (2,), axes=0) == [[]]


def test_kernel_larger_than_the_padded_input_is_an_error() -> None:
    with pytest.raises(PoolError) as error:
        ndpool.max_pool(np.zeros((1, 3, 3)), 5)
    message = str(error.value)
    for part in ("max_pool: ", "kernel_size=5", "axis 1", "(3 + 0 + 0)", "kernel_size <= 3", "padding"):
        assert part in message
    assert ndpool.MaxPool(5, padding=1).out_shape((1, 3, 3)) == (1, 1, 1)


# -- fixtures that users report as wrong elsewhere ---------------------------------------------------------------------


@pytest.mark.parametrize("of", [list, np.array])
def test_average_in_ceil_mode(of: type) -> None:
    assert list(ndpool.avg_pool(of([1.0, 2.0, 3.0, 4.0, 5.0]), (2,), 2, ceil_mode=True)) == [1.5, 3.5, 5.0]
    x = np.arange(49.0).reshape(7, 7)
    y = ndpool.avg_pool(x if of is np.array else x.tolist(), 2, 3, ceil_mode=True)
    assert np.array_equal(y, [[4, 7, 9.5], [25, 28, 30.5], [42.5, 45.5, 48]])


@pytest.mark.parametrize("of", [list, np.array])
def test_max_with_padding_and_dilation(of: type) -> None:
    x = of([1, 9, 2, 8, 3, 7, 4, 6, 5])
    y, indices = ndpool.max_pool(x, (2,), 1, ((1, 1),), dilation=2, return_indices=True)
    assert list(y) == [9, 2, 9, 3, 8, 4, 7, 5, 6]
    assert list(indices) == [1, 2, 1, 4, 3, 6, 5, 8, 7]


def test_float16_global_average_of_ones_is_one() -> None:
    assert ndpool.global_avg_pool(np.ones((64, 64), np.float16)).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("ties", "want"), [("first", [0, 1, 0, 0]), ("split", [0, 1 / 3, 1 / 3, 1 / 3]), ("all", [0, 1, 1, 1])]
)
def test_gradient_of_ties(ties: str, want: list[float]) -> None:
    got = ndpool.GlobalMaxPool(ties=ties).vjp(np.array([1.0, 2.0, 2.0, 2.0]), np.ones(1))
    np.testing.assert_allclose(got, want, rtol=1e-15)


@pytest.mark.parametrize(("ties", "want"), [("smallest", [[3, 5]]), ("first", [[7, 5]])])
def test_ties_in_mode(ties: str, want: list[list[int]]) -> None:
    x = np.array([[7, 3, 5, 5], [3, 7, 9, 5]])
    assert ndpool.mode_pool(x, 2, ties=ties).tolist() == ndpool.mode_pool(x.tolist(), 2, ties=ties) == want


def test_the_smallest_mode_does_not_know_directions_and_the_first_does() -> None:
    x = np.array([[7, 3], [3, 7]])
    for turned in (x[::-1], x[:, ::-1], x.T):
        assert ndpool.mode_pool(turned, 2).tolist() == [[3]]
    assert [ndpool.mode_pool(y, 2, ties="first").tolist() for y in (x, x[::-1])] == [[[7]], [[3]]]


def test_padding_in_mode_is_never_read() -> None:
    assert ndpool.mode_pool([4, 4, 9, 0], (4,), 1, 3) == [4, 4, 4, 4, 0, 0, 0]
    x = np.array([[5, 5, 2], [5, 5, 2], [8, 1, 6]], np.uint8)
    assert ndpool.mode_pool(x, 2, ceil_mode=True).tolist() == [[5, 2], [1, 6]]
    assert ndpool.mode_pool(np.array([3]), (2,), 1, 2).tolist() == [0, 3, 3, 0]
    with pytest.raises(PoolError, match="empty='error'"):
        ndpool.mode_pool(np.array([3]), (2,), 1, 2, empty="error")


def test_adaptive_max_of_a_plane() -> None:
    y = ndpool.adaptive_max_pool(np.arange(25).reshape(5, 5), 3)
    assert y.tolist() == [[6, 8, 9], [16, 18, 19], [21, 23, 24]]
