"""Every limit on both sides: what is just allowed gives the right result, the next value beyond is an error."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ndpool
from ndpool import PoolError, PoolTypeError, remembered
from ndpool.engines import native, passes, portable, reference
from ndpool.spec import SUM, Axis, Dual, Window, adaptive, each, maximum, mean, sliding, whole

from .cases import INTEGERS, assert_exact

TOP = 2**63 - 1  # the largest size
X = np.arange(24.0).reshape(4, 6)

# -- arguments: what is allowed, what is not, and words of the error -------------------------------------------------

Rule = tuple[Callable[[], Any], Callable[[], Any], str]

RULES: dict[str, Rule] = {
    "the least kernel": (lambda: ndpool.MaxPool(1), lambda: ndpool.MaxPool(0), "kernel_size=0 is below 1"),
    "the least stride": (lambda: ndpool.MaxPool(1, 1), lambda: ndpool.MaxPool(1, 0), "stride=0 is below 1"),
    "the least padding": (lambda: ndpool.MaxPool(1, 1, 0), lambda: ndpool.MaxPool(1, 1, -1), "padding=-1 is below 0"),
    "the least padding before": (
        lambda: ndpool.MaxPool(2, padding=((0, 1), (0, 0))),
        lambda: ndpool.MaxPool(2, padding=((-1, 1), (0, 0))),
        "padding=-1 is below 0",
    ),
    "the least padding after": (
        lambda: ndpool.MaxPool(2, padding=((1, 0), (0, 0))),
        lambda: ndpool.MaxPool(2, padding=((1, -1), (0, 0))),
        "padding=-1 is below 0",
    ),
    "two sides": (
        lambda: ndpool.MaxPool(2, padding=((1, 0), (0, 1))),
        lambda: ndpool.MaxPool(2, padding=((1, 0), (0, 1, 1))),
        "mixes forms",
    ),
    "the least dilation": (
        lambda: ndpool.MaxPool(1, dilation=1),
        lambda: ndpool.MaxPool(1, dilation=0),
        "dilation=0 is below 1",
    ),
    "the largest size": (lambda: ndpool.MaxPool(TOP), lambda: ndpool.MaxPool(TOP + 1), "beyond 2\\*\\*63 - 1"),
    "the fewest bins": (lambda: ndpool.AdaptiveMaxPool(1), lambda: ndpool.AdaptiveMaxPool(0), "output_size=0 is below"),
    "the fewest bins of an axis": (
        lambda: ndpool.AdaptiveMaxPool((None, 1)),
        lambda: ndpool.AdaptiveMaxPool((None, 0)),
        "output_size=0 is below 1",
    ),
    "the least divisor": (
        lambda: ndpool.AvgPool(2, divisor_override=1),
        lambda: ndpool.AvgPool(2, divisor_override=0),
        "divisor_override=0 is below 1",
    ),
    "the least norm": (lambda: ndpool.LpPool(1, 2), lambda: ndpool.LpPool(0.999, 2), "norm_type=0.999 is not a norm"),
    "the largest norm": (lambda: ndpool.LpPool(1e300, 2), lambda: ndpool.LpPool(math.inf, 2), "norm_type=inf"),
    "the largest smooth max": (
        lambda: ndpool.SmoothMaxPool(2, beta=1e308),
        lambda: ndpool.SmoothMaxPool(2, beta=math.inf),
        "beta=inf gives no smooth max",
    ),
    "the largest smooth min": (
        lambda: ndpool.SmoothMaxPool(2, beta=-1e308),
        lambda: ndpool.SmoothMaxPool(2, beta=-math.inf),
        "beta=-inf gives no smooth max",
    ),
    "beta, a number": (
        lambda: ndpool.SmoothMaxPool(2, beta=5e-324),
        lambda: ndpool.SmoothMaxPool(2, beta=math.nan),
        "beta=nan gives no smooth max",
    ),
    "beta, not 0": (
        lambda: ndpool.SmoothMaxPool(2, beta=-5e-324),
        lambda: ndpool.SmoothMaxPool(2, beta=-0.0),
        "beta=-0.0 gives no smooth max",
    ),
    "the first axis": (
        lambda: ndpool.MaxPool(1, axes=-2)(X),
        lambda: ndpool.MaxPool(1, axes=-3)(X),
        "names axis -3, but x has 2 axes; use -2 to 1",
    ),
    "the last axis": (
        lambda: ndpool.MaxPool(1, axes=1)(X),
        lambda: ndpool.MaxPool(1, axes=2)(X),
        "names axis 2, but x has 2 axes; use -2 to 1",
    ),
    "each axis once": (
        lambda: ndpool.MaxPool(1, axes=(0, -1))(X),
        lambda: ndpool.MaxPool(1, axes=(1, -1))(X),
        r"axes=\(1, -1\) names an axis twice",
    ),
    "as many axes as x has": (
        lambda: ndpool.MaxPool((1, 1))(X),
        lambda: ndpool.MaxPool((1, 1, 1))(X),
        "name 3 spatial axes, but x has 2",
    ),
    "one entry for each axis": (
        lambda: ndpool.MaxPool((2, 2), (1, 1)),
        lambda: ndpool.MaxPool((2, 2), (1,)),
        "different numbers of axes",
    ),
    "a kernel as large as its input": (
        lambda: ndpool.MaxPool(4)(X),
        lambda: ndpool.MaxPool(5)(X),
        r"axis 0, kernel_size=5 is larger than the padded input \(4 \+ 0 \+ 0\); use kernel_size <= 4 or padding that "
        "adds at least 1",
    ),
    "a dilated kernel as large as its input": (
        lambda: ndpool.MaxPool((2,), dilation=5)(X[0]),
        lambda: ndpool.MaxPool((2,), dilation=6)(X[0]),
        "spans 7 with dilation=6, more than the padded input .* use kernel_size <= 1 or padding that adds at least 1",
    ),
    "a kernel of dilation 2": (
        lambda: ndpool.MaxPool((3,), dilation=2)(X[0]),
        lambda: ndpool.MaxPool((4,), dilation=2)(X[0]),
        "spans 7 with dilation=2, more than .* use kernel_size <= 3",
    ),
    "a padded size": (
        lambda: ndpool.MaxPool(1, 2**62, ((0, TOP - 6),), axes=0).window((6,)),
        lambda: ndpool.MaxPool(1, 2**62, ((0, TOP - 5),), axes=0).window((6,)),
        "the padded size is",
    ),
    "a padded size, both sides": (
        lambda: ndpool.MaxPool(1, 2**62, ((TOP - 7, 1),), axes=0).window((6,)),
        lambda: ndpool.MaxPool(1, 2**62, ((TOP - 7, 2),), axes=0).window((6,)),
        "the padded size is",
    ),
    "a kernel's extent": (
        lambda: ndpool.MaxPool(2, 1, ((0, TOP - 6),), dilation=TOP - 1, axes=0).window((6,)),
        lambda: ndpool.MaxPool(2, 1, ((0, TOP - 6),), dilation=TOP, axes=0).window((6,)),
        "the kernel's extent is",
    ),
    "the number of inputs": (
        lambda: ndpool.GlobalMaxPool().window((7, TOP // 7)),
        lambda: ndpool.GlobalMaxPool().window((2**31, 2**32)),
        "the number of inputs is",
    ),
    "the number of outputs": (
        lambda: ndpool.AdaptiveMaxPool((7, TOP // 7)).window((2, 2)),
        lambda: ndpool.AdaptiveMaxPool((2**31, 2**32)).window((2, 2)),
        "the number of outputs is",
    ),
    "the positions under a window": (
        lambda: ndpool.MaxPool((7, TOP // 7), padding=(7, TOP // 7)).window((2, 2)),
        lambda: ndpool.MaxPool((2**31, 2**32), padding=(2**31, 2**32)).window((2, 2)),
        "the number of positions under a window is",
    ),
    "the first window reads something": (
        lambda: ndpool.MaxPool(2, 1, ((1, 0),), axes=0, empty="error")(X),
        lambda: ndpool.MaxPool(2, 1, ((2, 0),), axes=0, empty="error")(X),
        "on axis 0, output 0 reads nothing of an input of size 4",
    ),
    "the last window reads something": (
        lambda: ndpool.MaxPool(2, 1, ((0, 1),), axes=1, empty="error")(X),
        lambda: ndpool.MaxPool(2, 1, ((0, 2),), axes=1, empty="error")(X),
        "on axis 1, output 6 reads nothing of an input of size 6",
    ),
    "windows of the last two axes read something": (
        lambda: ndpool.MaxPool(2, 1, 1, empty="error")(X),
        lambda: ndpool.MaxPool(2, 1, 2, empty="error")(X),
        "on axis 0, output 0 reads nothing",
    ),
    "taps that step over the input": (
        lambda: ndpool.MaxPool((2,), 1, ((2, 2),), dilation=2, empty="error").window((2,)),
        lambda: ndpool.MaxPool((2,), 1, ((3, 3),), dilation=3, empty="error").window((2,)),
        "output 2 reads nothing of an input of size 2",
    ),
    "unpadding all there is": (
        lambda: ndpool.unpad(X, ((2, 2), (6, 0))),
        lambda: ndpool.unpad(X, ((2, 3), (6, 0))),
        r"on axis 0, padding=\(2, 3\) is more than the input's 4",
    ),
    "an unpooled size of 0": (
        lambda: ndpool.max_unpool(X, X.astype(int) * 0 - 1, (1, 1), 1, ((0, 4), (0, 0))),
        lambda: ndpool.max_unpool(X, X.astype(int) * 0 - 1, (1, 1), 1, ((0, 5), (0, 0))),
        "on axis 0, the output would have -1 positions",
    ),
    "an output size of 0": (
        lambda: ndpool.max_unpool(X, X.astype(int) * 0 - 1, 1, output_size=(0, 6)),
        lambda: ndpool.max_unpool(X, X.astype(int) * 0 - 1, 1, output_size=(-1, 6)),
        "output_size=-1 is below 0",
    ),
    "one output size for each axis": (
        lambda: ndpool.max_unpool(X[None], X[None].astype(int), 1, output_size=(4, 6)),
        lambda: ndpool.max_unpool(X[None, None], X[None, None].astype(int), 1, output_size=(1, 4, 6)),
        r"output_size=\(1, 4, 6\) has 3 entries for 2 axes",
    ),
    "enough output sizes": (
        lambda: ndpool.max_unpool(X[None], X[None].astype(int), 1, output_size=(1, 4, 6)),
        lambda: ndpool.max_unpool(X[None], X[None].astype(int), 1, output_size=(24,)),
        r"output_size=\(24,\) has 1 entries for 2 axes",
    ),
    "the lowest index": (
        lambda: ndpool.max_unpool(np.array([1.0]), np.array([-1]), (2,)),
        lambda: ndpool.max_unpool(np.array([1.0]), np.array([-2]), (2,)),
        "indices holds -2, outside the 2 positions",
    ),
    "the highest index": (
        lambda: ndpool.max_unpool(np.array([1.0]), np.array([1]), (2,)),
        lambda: ndpool.max_unpool(np.array([1.0]), np.array([2]), (2,)),
        "indices holds 2, outside the 2 positions",
    ),
    "the lowest index in a list": (
        lambda: ndpool.max_unpool([1.0], [-1], (2,)),
        lambda: ndpool.max_unpool([1.0], [-2], (2,)),
        "indices holds -2, outside the 2 positions",
    ),
    "the highest index in a list": (
        lambda: ndpool.max_unpool([1.0], [1], (2,)),
        lambda: ndpool.max_unpool([1.0], [2], (2,)),
        "indices holds 2, outside the 2 positions",
    ),
    "no thread": (
        lambda: native.set_threads(0),
        lambda: native.set_threads(-1),
        "set_threads: n=-1 is not a number of threads",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_is_just_allowed_and_what_is_not(rule: str) -> None:
    allowed, beyond, words = RULES[rule]
    allowed()
    with pytest.raises(PoolError, match=words):
        beyond()


KINDS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "a size": (ndpool.MaxPool, (2, np.int8(2)), (True, 2.0, "2", None, 2 + 0j)),
    "a flag": (lambda v: ndpool.MaxPool(2, ceil_mode=v), (True, False), (1, 0, None, "yes")),
    "keepdims": (lambda v: ndpool.GlobalMaxPool(keepdims=v), (True, False), (1, 0, None)),
    "indices": (lambda v: ndpool.MaxPool(2, return_indices=v), (True, False), (1, 0, None)),
    "padding that counts": (lambda v: ndpool.AvgPool(2, count_include_pad=v), (True, False), (1, 0, None)),
    "beta": (lambda v: ndpool.SmoothMaxPool(2, beta=v), (1, 0.5, Fraction(1, 2)), (True, "1", b"1", 1j, None, [1])),
    "a norm": (lambda v: ndpool.LpPool(v, 2), (1, 2.5, Fraction(5, 2)), (True, "2", b"2", 2j, None, (2,))),
    "padding": (lambda v: ndpool.MaxPool(2, padding=v), (0, "same"), (0.5, None)),
    "unpadding": (lambda v: ndpool.unpad(X, v), (0, (1, 2)), ("same", 0.5)),
    "a law": (ndpool.GlobalPool, (maximum(), SUM), (None, "max", ndpool.MaxPool(2))),
}


@pytest.mark.parametrize("argument", KINDS)
def test_the_kind_of_an_argument(argument: str) -> None:
    call, right, wrong = KINDS[argument]
    for value in right:
        call(value)
    for value in wrong:
        with pytest.raises(PoolTypeError):
            call(value)


RULED = {
    "ties": lambda v: ndpool.MaxPool(2, ties=v),
    "nan": lambda v: ndpool.MaxPool(2, nan=v),
    "empty": lambda v: ndpool.MaxPool(2, empty=v),
    "duplicates": lambda v: ndpool.max_unpool([1], [0], (1,), duplicates=v),
}


@pytest.mark.parametrize("argument", RULED)
@pytest.mark.parametrize("value", ["", None, ["first"], 0, "First"], ids=repr)
def test_a_rule_is_one_of_the_words(argument: str, value: Any) -> None:
    with pytest.raises(PoolError, match=f"{argument}={value!r}".replace("[", r"\[") + " is not a rule; use one of"):
        RULED[argument](value)


def test_whole_norms_are_ints_and_others_stay() -> None:
    for given, kept in ((2.0, 2), (2.5, 2.5), (Fraction(4, 2), 2), (2.0**62, 2**62), (2.0**63, 2.0**63)):
        p = ndpool.LpPool(given, 2).norm_type
        assert (type(p), p) == (type(kept), kept)


# -- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "kernel", "stride", "dilation", "padding"),
    [
        (5, 2, 1, 1, (0, 1)),
        (5, 3, 1, 1, (1, 1)),
        (6, 3, 2, 1, (0, 1)),
        (5, 3, 1, 2, (2, 2)),
        (5, 2, 1, 3, (1, 2)),
        (7, 1, 3, 1, (0, 0)),
        (6, 2, 3, 1, (0, 0)),
        (4, 4, 2, 1, (1, 1)),
    ],
)
def test_same_padding_is_split_with_the_odd_one_after(
    n: int, kernel: int, stride: int, dilation: int, padding: Any
) -> None:
    """outputs = ceil(n / stride), with no more padding than that takes, and never less than none."""
    op = ndpool.MaxPool((kernel,), stride, "same", dilation=dilation)
    (axis,) = op.window((n,)).axes
    assert (axis.outputs, axis.lo) == (-(-n // stride), padding[0])
    assert op.window((n,)) == ndpool.MaxPool((kernel,), stride, (padding,), dilation=dilation).window((n,))
    if dilation == 1:
        assert ndpool.AvgPool((kernel,), stride, "same").window((n,)).axes[0].margin == padding


def test_unpadding_takes_off_each_side_what_it_has() -> None:
    for x in (X, X.tolist()):
        assert np.array_equal(ndpool.unpad(x, ((1, 2), (0, 3))), X[1:2, 0:3])
        assert np.array_equal(ndpool.unpad(x, (0, 1)), X[:, 1:5])
        assert np.array_equal(ndpool.unpad(x, ((2, 0),), axes=-1), X[:, 2:])
        assert np.asarray(ndpool.unpad(x, ((2, 2),), axes=0)).size == 0


def test_a_window_that_reads_nothing_has_no_length() -> None:
    """Far outside on either side the number of taps is 0, not less."""
    axis = sliding(3, 2, 1, (9, 9))
    first, length = axis.span(np.arange(axis.outputs))
    assert length.tolist() == [0] * 8 + [1, 2, 2, 1] + [0] * 8
    assert [axis.span(o)[1] for o in range(axis.outputs)] == length.tolist()
    assert min(axis.span(o, (2, 2))[1] for o in range(axis.outputs)) == 0
    assert len(first) == axis.outputs


def test_a_derivative_with_one_winner_is_the_cotangent_itself() -> None:
    """Not a quotient by 1, which would turn an int into a float."""
    for ties in ("first", "last", "all"):
        (dx,) = ndpool.MaxPool((1,), ties=ties).vjp([3], [7])
        assert (type(dx), dx) == (int, 7)
        (y,) = ndpool.MaxPool((2,), ties=ties)([Dual(3, 7), Dual(2, 5)])
        assert (type(y.tangent), y.tangent) == (int, 7)
    assert ndpool.MaxPool((2,), ties="split").vjp([Fraction(3), Fraction(3)], [7]) == [3.5, 3.5]


@pytest.mark.parametrize(
    ("p", "x", "want"),
    [
        (1, [math.inf, -2.0, 0.0], [1, -1, 0]),
        (1, [-math.inf, math.inf, 3.0], [-1, 1, 1]),
        (2, [math.inf, -2.0, 0.0], [1, 0, 0]),
        (3, [math.inf, -math.inf, 1.0], [2 ** (-2 / 3), -(2 ** (-2 / 3)), 0]),
        (4, [math.inf, math.inf, math.inf], [3 ** (-3 / 4)] * 3),
    ],
)
def test_infinite_taps_share_the_derivative_of_a_norm(p: float, x: list[float], want: list[float]) -> None:
    """Of p = 1 every tap has its sign; of any other p finite taps have nothing beside infinite ones."""
    op = ndpool.LpPool(p, (3,))
    assert op.vjp(x, [1.0]) == pytest.approx(want)
    assert op.vjp(np.array(x), np.ones(1)).tolist() == pytest.approx(want)
    with np.errstate(all="ignore"):
        got = portable.linearize(Window((whole(3),)), op.law, np.array(x)).vjp(np.ones(1))
    assert got.tolist() == pytest.approx(want)


def test_records_together_remember_so_many_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first, whichever record it belongs to."""
    monkeypatch.setattr(remembered, "MOST", 3)
    monkeypatch.setattr(remembered, "_order", deque())
    op, other = ndpool.MaxPool((1,)), ndpool.MinPool((1,))
    op._plans.clear()
    other._plans.clear()
    op(np.zeros(1))
    for n in (1, 2):
        other(np.zeros(n))
    assert (len(op._plans), len(other._plans)) == (1, 2)
    other(np.zeros(3))
    assert (len(op._plans), len(other._plans)) == (0, 3)
    op(np.zeros(1))
    assert (len(op._plans), len(other._plans)) == (1, 2)


def test_arrays_of_one_shape_that_lie_otherwise_are_not_taken_for_one_another() -> None:
    op = ndpool.MaxPool((2, 1), axes=(0, 1))
    x = np.arange(36.0).reshape(6, 6)
    for a in (x, x.T, x[::-1], x[:, ::-1], np.asfortranarray(x)):
        assert np.array_equal(op(a), np.maximum(a[::2], a[1::2]))
    whole_plane, y = ndpool.GlobalSumPool(keepdims=False), np.arange(96.0).reshape(2, 6, 8)
    dense = np.ascontiguousarray(y[:, 1:4, 1:5])  # first, so that its plan is the one that must not serve the others
    for a in (dense, y[:, :3, :4], y[:, ::2, ::2], y[:, 3:, 4:], y[::-1, 2::-1, :4]):
        assert np.array_equal(whole_plane(a), a.sum((1, 2)))


def test_places_are_numbered_in_the_order_of_the_axes_whatever_order_they_are_named_in() -> None:
    x = np.random.default_rng(0).permutation(60).reshape(3, 4, 5)
    for axes in ((0, 2), (2, 0), (-1, 0), (0, -1)):
        op = ndpool.MaxPool((2, 2), axes=axes, return_indices=True)
        assert op.pooled_axes(3) == (0, 2)
        y, places = op(x)
        assert np.array_equal(x.transpose(1, 0, 2).reshape(4, 15)[np.arange(4)[None, :, None], places], y)
        assert places.tolist() == op(x.tolist())[1]


def test_a_place_of_nothing_stays_nothing_beside_axes_that_no_window_joins() -> None:
    for ties in ("first", "last", "all", "split"):
        op = ndpool.MaxPool((1, 2), 1, ((0, 0), (3, 3)), return_indices=True, ties=ties)
        x = np.array([[5.0, 5.0, 1.0], [0.0, 2.0, 2.0]])
        y, places = op(x)
        assert (y.tolist(), places.tolist()) == op(x.tolist())
        assert places[:, [0, 1, -2, -1]].tolist() == [[-1] * 4] * 2
        assert places.max() == 5


def test_an_axis_whose_size_is_kept_may_be_empty() -> None:
    op = ndpool.AdaptiveMaxPool((None, 2))
    assert op(np.zeros((0, 4))).shape == (0, 2)
    assert op(np.ones((3, 4))).shape == (3, 2)
    assert op.window((3, 4)).axes[0] == each(3)


def test_a_scalar_of_numpy_is_an_array_without_axes() -> None:
    assert ndpool.GlobalMaxPool()(np.float32(3)).dtype == np.float32
    assert ndpool.GlobalSumPool(keepdims=False)(np.float64(2.5)) == 2.5


class Sub(np.ndarray):
    """An array of a class of its own."""


def test_subclasses_of_arrays_are_pooled_but_not_remembered() -> None:
    op, x = ndpool.MaxPool((2,)), np.arange(4.0)
    op._plans.clear()
    assert np.asarray(op(x.view(Sub))).tolist() == [1, 3]
    assert not op._plans
    assert op(x).tolist() == [1, 3]
    assert len(op._plans) == 1


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32", "float64", "complex64"])
@pytest.mark.parametrize("moved", ["bool", "int32", "float16", "float32", "float64", "complex64"])
def test_a_tangent_is_of_the_dtype_of_its_value_and_real_where_that_moves_in_steps(dtype: str, moved: str) -> None:
    op = ndpool.SumPool((2,)) if dtype == "complex64" else ndpool.MaxPool((2,))
    x, fits = np.array([1, 0]).astype(dtype), moved == dtype
    if dtype in ("bool", "int32", "uint8"):
        fits = moved.startswith("float")
    if fits:
        assert op.vjp(x, np.ones(1, moved)).dtype == moved
        assert op.jvp(x, np.ones(2, moved)).tolist() == ([2] if dtype == "complex64" else [1])
    else:
        for call in (lambda: op.vjp(x, np.ones(1, moved)), lambda: op.jvp(x, np.ones(2, moved))):
            with pytest.raises(PoolTypeError, match=f"has dtype {moved}, but"):
                call()


# -- integers --------------------------------------------------------------------------------------------------------


def exact_or_error(run: Callable[[], Any], want: int, dtype: np.dtype, note: Any) -> None:
    """The exact result where it fits, else an error."""
    info = np.iinfo(dtype)
    if info.min <= want <= info.max:
        assert run() == want, note
    else:
        with pytest.raises(PoolError, match="does not fit"):
            run()


def at_the_ends(dtype: np.dtype) -> list[list[int]]:
    """Pairs whose sums lie around the ends of the type, at most one beyond them or far beyond."""
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    pairs = [[high, 0], [high, 1], [high - 1, 1], [high, high], [high // 2, high - high // 2], [low, 0]]
    if low:
        pairs += [[low, -1], [low + 1, -1], [low, low], [low // 2, low - low // 2], [low, high], [high, -1]]
    return pairs


ENGINES: dict[str, Callable[..., Any]] = {
    "portable": portable.forward,
    "reference": reference.forward,
    "native": (native if native.available() else reference).forward,
}
LINEARIZED: dict[str, Callable[..., Any]] = {
    "portable": portable.linearize,
    "reference": reference.linearize,
    "native": (native if native.available() else reference).linearize,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_sums_at_both_ends_of_their_type(engine: str, dtype: np.dtype) -> None:
    window = Window((whole(2),))
    for pair in at_the_ends(dtype):
        x = np.array(pair, dtype)
        exact_or_error(lambda x=x: ENGINES[engine](window, SUM, x).item(), sum(pair), dtype, pair)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_means_at_both_ends_of_their_type(engine: str, dtype: np.dtype) -> None:
    """Rounded half to even, also where the sum does not fit and the mean does, and where a divisor makes it not fit."""
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    rows = [
        [high] * 4,
        [high, high, high, high - 2],
        [high, high, high - 1, high - 1],
        [low] * 4,
        [low, low, low, low + 2],
    ]
    rows += [[low, low, low + 1, low + 1], [high, low, 0, 1], [0, 0, 0, 2], [0, 0, 0, 6], [1, 1, 1, 2], [0, 0, 0, 1]]
    for row in rows:
        for divisor in (None, 1, 2, 3, 4, 2**31 - 1):
            x, want = np.array(row, dtype), round(Fraction(sum(row), divisor or 4))
            exact_or_error(
                lambda x=x, d=divisor: ENGINES[engine](Window((whole(4),)), mean(d), x).item(),
                want,
                dtype,
                (row, divisor),
            )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("dtype", "end"), [("int64", 2**63 - 1), ("uint64", 2**64 - 1)])
def test_a_mean_that_overflows_only_by_rounding_up(engine: str, dtype: str, end: int) -> None:
    """2 end + 1 over 2 is end and a half: down is the largest number, and half to even goes up to one too many."""
    x = np.array([end, end, 1], dtype)
    assert ENGINES[engine](Window((whole(3),)), mean(3), x) == round(Fraction(2 * end + 1, 3))
    with pytest.raises(PoolError, match=f"does not fit {dtype}"):
        ENGINES[engine](Window((whole(3),)), mean(2), x)
    x[2] = 0
    assert ENGINES[engine](Window((whole(3),)), mean(2), x) == end


def test_the_largest_divisor_of_an_exact_mean() -> None:
    x = np.array([2**62, -(2**62), 2**31 - 1, 0])
    for op in (ndpool.AvgPool((4,), divisor_override=2**31 - 1), ndpool.AvgPool((4,), divisor_override=2**31 - 2)):
        assert op(x).tolist() == [1]
        assert portable.forward(op.window(x.shape), op.law, x).tolist() == [1]
    with pytest.raises(PoolError, match="divisor_override=2147483648 is beyond 2\\*\\*31 - 1 for an exact mean"):
        ndpool.AvgPool((4,), divisor_override=2**31)(x)
    assert ndpool.AvgPool((4,), divisor_override=2**31)(x / 2**31).tolist() == [(2**31 - 1) / 2**62]


@pytest.mark.parametrize(("places", "named"), [([-2, 0], -2), ([0, 4], 4), ([-3, 5], 5), ([-1, 4], 4)])
def test_the_place_that_is_named_is_one_that_is_outside(places: list[int], named: int) -> None:
    with pytest.raises(PoolError, match=f"indices holds {named}, outside the 4 positions"):
        ndpool.max_unpool(np.array([1.0, 2.0]), np.array(places), (2,))


def test_arrays_of_objects_are_put_back_as_lists() -> None:
    with pytest.raises(PoolTypeError, match=r"y has dtype object, but .* pass y.tolist\(\)"):
        ndpool.max_unpool(np.array([Fraction(1)], dtype=object), np.array([0]), (2,))


def test_places_are_whole_numbers() -> None:
    for dtype in ("int8", "uint64"):
        assert ndpool.max_unpool(np.array([1.0]), np.array([1], dtype), (2,)).tolist() == [0, 1]
    for dtype in ("float64", "bool", "complex64"):
        with pytest.raises(PoolTypeError, match=f"indices has dtype {dtype}"):
            ndpool.max_unpool(np.array([1.0]), np.array([1], dtype), (2,))
    for y, places in ((np.ones(1), [1]), ([1.0], np.ones(1, int))):
        with pytest.raises(PoolTypeError, match="y and indices are of different kinds"):
            ndpool.max_unpool(y, places, (2,))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_values_that_meet_fit_their_type_on_both_sides(dtype: np.dtype) -> None:
    """What unpooling adds up; 64-bit sums are made in 64 bits, so only shorter ones are told apart there."""
    if dtype.itemsize == 8:
        return
    for pair in at_the_ends(dtype):
        y, info = np.array(pair, dtype), np.iinfo(dtype)
        if info.min <= sum(pair) <= info.max:
            assert ndpool.max_unpool(y, np.array([0, 0]), (1,)).tolist() == [sum(pair), 0], pair
        else:
            with pytest.raises(PoolError, match=f"values that meet add up beyond {dtype.name}"):
                ndpool.max_unpool(y, np.array([0, 0]), (1,))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_arrays_restored_from_exact_numbers_fit_on_both_sides(dtype: np.dtype) -> None:
    info, like = np.iinfo(dtype), np.zeros(0, dtype)
    ends = [Fraction(int(info.min)), Fraction(int(info.max))]
    assert_exact(reference.restore(ends, (2,), like), np.array([info.min, info.max], dtype))
    for beyond in (ends[0] - 1, ends[1] + 1):
        with pytest.raises(PoolError, match="a sum does not fit"):
            reference.restore([beyond], (1,), like)


# -- the passes of the portable engine -------------------------------------------------------------------------------


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 511, 512, 513, 514])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (3, 1), (1, 2), (600, 1)])
def test_passes_around_powers_of_two(taps: int, stride: int, dilation: int) -> None:
    """Sums of distinct powers of two would show a tap that is missing or read twice; here distinct digits do."""
    n = dilation * (taps - 1) + 1 + 2 * stride
    rng = np.random.default_rng(taps)
    digits, axis = rng.integers(1, 1000, n).astype(float), sliding(n, taps, stride, (1, 2), dilation)
    starts = [o * stride - 1 for o in range(axis.outputs)]
    reads = [[i for i in range(s, s + dilation * taps, dilation) if 0 <= i < n] for s in starts]
    rows = ((SUM, np.sum, digits), (maximum(), np.max, digits), (maximum(), np.max, -digits))  # padding is no 0
    for law, pooled, x in rows:
        window = Window((sliding(n, taps, stride, (1, 2), dilation, count_padding=False),))
        at = portable.linearize(window, law, x)
        assert at.y.tolist() == [pooled(x[r]) if r else 0 for r in reads]
        dy = rng.integers(1, 1000, axis.outputs).astype(float)
        dx = np.zeros(n)
        for r, g in zip(reads, dy, strict=True):
            if r:
                dx[r if law is SUM else r[int(np.argmax(x[r]))]] += g
        assert at.vjp(dy).tolist() == dx.tolist()
        assert at.jvp(x).tolist() == at.y.tolist()


@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 7, 8, 9])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 40])
def test_passes_over_bins(n: int, outputs: int) -> None:
    axis, x = adaptive(n, outputs), np.arange(1.0, n + 1)
    reads = [range(o * n // outputs, -(-(o + 1) * n // outputs)) for o in range(outputs)]
    for law, pooled in ((SUM, sum), (maximum(), max)):
        at = portable.linearize(Window((axis,)), law, x)
        assert at.y.tolist() == [pooled(x[list(r)]) for r in reads]
        dy = np.arange(1.0, outputs + 1)
        assert at.vjp(dy) @ x == pytest.approx(at.jvp(x) @ dy)


def test_what_an_output_does_not_read_cannot_reach_it() -> None:
    """A NaN or an infinity beside a window, in values and in tangents."""
    axes = (
        sliding(6, 2, 1, (1, 1)),
        sliding(6, 3, 2, (1, 1), count_padding=False),
        adaptive(6, 4),
        sliding(6, 5, 1, (4, 4)),
    )
    for axis in axes:
        for law in (SUM, maximum(), mean(), ndpool.spec.smooth_max(1.0), ndpool.spec.lp(2)):
            if law.name == "max" and any(axis.margin):
                axis = Axis(**{**vars(axis), "margin": (0, 0)})
            for bad in (math.nan, math.inf):
                for i in range(6):
                    t = np.ones(6)
                    t[i] = bad
                    with np.errstate(all="ignore"):
                        got = portable.linearize(Window((axis,)), law, np.arange(1.0, 7.0)).jvp(t)
                        value = portable.forward(Window((axis,)), law, t)
                    unread = [o for o in range(axis.outputs) if i not in axis.reads(o)]
                    assert np.isfinite(got[unread]).all()
                    assert np.isfinite(value[unread]).all()


def test_a_tap_that_did_not_win_cannot_reach_the_tangent() -> None:
    """Not even as 0 times NaN, one way or the other."""
    x = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0]])
    for engine in LINEARIZED:
        for ties in ("first", "last", "all", "split"):
            at = LINEARIZED[engine](Window((each(2), whole(3))), maximum(ties), x)
            with np.errstate(all="ignore"):
                for bad in (math.nan, math.inf):
                    assert at.jvp(np.where(x == 2, 5.0, bad)).tolist() == [[5], [5]], (engine, ties)
                    assert np.isfinite(at.vjp(np.array([[bad], [3.0]]))[0, [0, 2]]).all(), (engine, ties)


def test_counts_where_some_windows_count_nothing() -> None:
    x = np.full(3, 6.0)
    axis = sliding(3, 2, 1, (3, 3), count_padding=False)
    at = portable.linearize(Window((axis,)), mean(), x)
    assert at.y.tolist() == [0, 0, 6, 6, 6, 6, 0, 0]
    assert at.vjp(np.ones(8)).tolist() == [1.5, 1, 1.5]
    assert portable.forward(Window((each(2), whole(0))), mean(), np.zeros((2, 0))).tolist() == [[0], [0]]


def test_zeros_that_count_are_read_on_either_side() -> None:
    """A max with counted padding on one side alone is left to the spec."""
    for padding in ((0, 1), (1, 0), (1, 1)):
        assert not portable.supports(Window((sliding(3, 2, 1, padding),)), maximum(), np.ones(3))
        assert portable.supports(Window((sliding(3, 2, 1, padding, count_padding=False),)), maximum(), np.ones(3))
        assert portable.supports(Window((sliding(3, 2, 1, padding),)), SUM, np.ones(3))
    x = np.array([-1.0, -2.0, -3.0])
    for padding, want in ((((0, 1),), [-1, -2, 0]), (((1, 0),), [0, -1, -2])):
        assert ndpool.Pool(maximum(), (2,), 1, padding, count_include_pad=True)(x).tolist() == want


def test_uneven_margins_are_cut_off_where_they_were_put_on() -> None:
    """The vjp of a law that reads its padding, with more of it on one side."""
    x = np.array([1.0, 2.0, 3.0])
    for padding in ((0, 2), (2, 0), (1, 2)):
        window = Window((sliding(3, 2, 1, padding),))
        law = ndpool.spec.smooth_max(1.0)
        got, want = portable.linearize(window, law, x), reference.linearize(window, law, x)
        dy = np.arange(1.0, window.out_shape[0] + 1)
        np.testing.assert_allclose(got.y, want.y)
        np.testing.assert_allclose(got.vjp(dy), want.vjp(dy))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beta", [1000.0, -1000.0, 1e-3, -1e-3])
def test_a_smooth_max_overflows_for_no_beta(engine: str, beta: float) -> None:
    """Each term is relative to the largest: the largest tap, or the smallest where beta is below 0."""
    x = np.array([-1e4, 1e4, 0.0, 1e4, -1e4])
    extreme = max if beta > 0 else min
    y = ENGINES[engine](Window((whole(5),)), ndpool.spec.smooth_max(beta), x).item()
    spread = math.log(sum(math.exp(beta * (v - extreme(x))) for v in x)) / beta
    assert y == pytest.approx(extreme(x) + spread, rel=1e-12)


@pytest.mark.parametrize("engine", LINEARIZED)
@pytest.mark.parametrize(
    ("x", "y", "shares"),
    [
        ([math.inf, 1.0], math.inf, [1, 0]),
        ([math.inf, math.inf], math.inf, [0.5, 0.5]),
        ([-math.inf, 1.0], 1.0, [0, 1]),
        ([-math.inf, -math.inf], -math.inf, [0.5, 0.5]),
        ([-math.inf, math.inf], math.inf, [0, 1]),
    ],
)
def test_infinite_taps_of_a_smooth_max_share_alike(engine: str, x: list[float], y: float, shares: list[float]) -> None:
    with np.errstate(all="ignore"):
        at = LINEARIZED[engine](Window((whole(2),)), ndpool.spec.smooth_max(2.0), np.array(x))
        below = LINEARIZED[engine](Window((whole(2),)), ndpool.spec.smooth_max(-2.0), -np.array(x))
        assert (at.y.tolist(), below.y.tolist()) == (pytest.approx([y]), pytest.approx([-y]))
        assert at.vjp(np.ones(1)).tolist() == below.vjp(np.ones(1)).tolist() == pytest.approx(shares)


@pytest.mark.parametrize("engine", LINEARIZED)
@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_a_norm_of_zeros_is_zero_and_has_no_slope(engine: str, p: float) -> None:
    window = Window((each(2), whole(2)))
    with np.errstate(all="ignore"):
        at = LINEARIZED[engine](window, ndpool.spec.lp(p), np.array([[0.0, -0.0], [3.0, 0.0]]))
        assert at.y.tolist() == pytest.approx(np.array([[0], [3]]))
        assert at.vjp(np.ones((2, 1))).tolist() == [[0, 0], [1, 0]]
        assert at.jvp(np.ones((2, 2))).tolist() == [[0], [1]]


# -- choosing an engine ----------------------------------------------------------------------------------------------


def test_the_kinds_of_arrays_that_are_no_arrays() -> None:
    for x in (None, "12", b"12", {1: 2}, {1, 2}, np.ma.masked_array([1.0, 2.0])):
        with pytest.raises(PoolTypeError, match=r"^max_pool: x is a"):
            ndpool.max_pool(x, (1,))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([[1], [2, 3]], "ragged nested list"),
        ([1, [2]], "ragged nested list"),
        ([[[1]], [[2], [3]]], "ragged nested list"),
        ([np.ones(2), np.ones(2)], "a list of arrays"),
    ],
)
def test_lists_that_are_no_arrays(x: Any, words: str) -> None:
    for call in (lambda: ndpool.max_pool(x, (1,)), lambda: ndpool.unpad(x, 0)):
        with pytest.raises(PoolError, match=words):
            call()


@pytest.mark.parametrize("op", [ndpool.SmoothMaxPool((2,)), ndpool.LpPool(2, (2,))], ids=["smooth max", "lp"])
def test_laws_of_real_numbers_take_no_others(op: ndpool.Op) -> None:
    for dtype in ("int64", "uint8", "bool", "complex64"):
        with pytest.raises(PoolTypeError, match=f"x has dtype {dtype}, but"):
            op(np.ones(2, dtype))


def test_truth_values_are_chosen_and_not_summed() -> None:
    x = np.array([True, False])
    assert (ndpool.max_pool(x, (2,)).item(), ndpool.min_pool(x, (2,)).item()) == (True, False)
    for pool in (ndpool.sum_pool, ndpool.avg_pool):
        with pytest.raises(PoolTypeError, match="x has dtype bool"):
            pool(x, (2,))


def test_long_doubles_are_summed_as_they_are() -> None:
    one = np.longdouble(1)
    x = np.array([one, np.finfo(np.longdouble).eps, 0])
    assert ndpool.sum_pool(x, (3,)).dtype == np.longdouble
    assert ndpool.sum_pool(x, (3,))[0] > one


def test_the_largest_uint64_is_kept() -> None:
    x = np.array([2**64 - 1, 0], np.uint64)
    assert ndpool.sum_pool(x, (2,)).tolist() == [2**64 - 1]
    assert portable.forward(Window((whole(2),)), SUM, x).tolist() == [2**64 - 1]


def test_scalars_out_of_range_are_named() -> None:
    """exp overflows for a Decimal far below the largest."""
    with pytest.raises(PoolTypeError, match="avg_pool: these scalars cannot be pooled so"):
        ndpool.avg_pool([Decimal("inf"), Decimal("-inf")], (2,))


def test_levels_of_a_pass() -> None:
    """One by one as long as that is cheaper and short; then halves of halves."""
    assert passes._levels(1, 1, 1) == []
    assert passes._levels(2, 1, 1) == [0]
    assert passes._levels(passes.LONG, 10**6, 1) == [0] * (passes.LONG - 1)
    assert passes._levels(passes.LONG + 1, 10**6, 1) == list(range(9, -1, -1))
    assert passes._levels(9, 1, 1) == [0] * 8
    assert passes._levels(10, 1, 1) == passes._levels(16, 1, 1) == [3, 2, 1, 0]
    assert passes._levels(17, 1, 1) == [4, 3, 2, 1, 0]
    for longest in range(2, 70):
        levels = passes._levels(longest, 1, 1)
        assert sum(2**j for j in levels) >= longest - 1
