"""Bad input: one clear error that names function, argument, value and a fix; good input is never modified."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ndpool
from ndpool import PoolError, PoolTypeError

from .cases import INTEGERS, RECORDS, SHAPE

X = np.ones((2, 4, 6))
INDICES = np.zeros((2, 4, 6), int)
FIX = r"; (use|give|pass|convert|name|fill|try|make|pool)\b"


def assert_says(call: Callable[[], Any], function: str, exception: type[PoolError], words: tuple[str, ...]) -> None:
    """`call` raises that, with a message "function: ... words ...; fix"."""
    with pytest.raises(exception) as error:
        call()
    message = str(error.value)
    assert message.startswith(f"{function}: "), message
    assert message.count(f"{function}: ") == 1, message
    assert re.search(FIX, message), message
    for word in words:
        assert word in message, (word, message)


# -- arguments: a record, its arguments, the exception, and words of the message -------------------------------------

ARGUMENTS: list[tuple[str, dict[str, Any], type[PoolError], tuple[str, ...]]] = [
    # the kernel is larger than the padded input: axis, sizes and fix
    ("MaxPool", {"kernel_size": 5}, PoolError, ("kernel_size=5", "axis 1", "4 + 0 + 0", "kernel_size <= 4")),
    ("AvgPool", {"kernel_size": (2, 9), "padding": 1}, PoolError, ("kernel_size=9", "axis 2", "6 + 1 + 1", "<= 8")),
    ("MinPool", {"kernel_size": 3, "axes": 0}, PoolError, ("kernel_size=3", "axis 0", "2 + 0 + 0", "padding")),
    ("SumPool", {"kernel_size": 3, "dilation": 3}, PoolError, ("kernel_size=3", "dilation=3", "spans 7", "axis 1")),
    ("MaxPool", {"kernel_size": 9, "stride": 2, "ceil_mode": True}, PoolError, ("kernel_size=9", "axis 1")),
    # zero and negative sizes
    ("MaxPool", {"kernel_size": 0}, PoolError, ("kernel_size=0", "kernel_size >= 1")),
    ("MaxPool", {"kernel_size": (2, -1)}, PoolError, ("kernel_size=-1", "kernel_size >= 1")),
    ("AvgPool", {"kernel_size": 2, "stride": 0}, PoolError, ("stride=0", "stride >= 1")),
    ("AvgPool", {"kernel_size": 2, "stride": (-2, 1)}, PoolError, ("stride=-2", "stride >= 1")),
    ("SumPool", {"kernel_size": 2, "dilation": 0}, PoolError, ("dilation=0", "dilation >= 1")),
    ("SumPool", {"kernel_size": 2, "dilation": -3}, PoolError, ("dilation=-3", "dilation >= 1")),
    ("MaxPool", {"kernel_size": 2, "padding": -1}, PoolError, ("padding=-1", "padding >= 0")),
    ("SmoothMaxPool", {"kernel_size": 2, "padding": ((0, 0), (1, -2))}, PoolError, ("padding=-2", "padding >= 0")),
    ("AvgPool", {"kernel_size": 2, "divisor_override": 0}, PoolError, ("divisor_override=0", ">= 1")),
    ("AdaptiveAvgPool", {"output_size": 0}, PoolError, ("output_size=0", "output_size >= 1")),
    ("AdaptiveMaxPool", {"output_size": (2, -1)}, PoolError, ("output_size=-1", "output_size >= 1")),
    # sizes that are no whole numbers
    ("MaxPool", {"kernel_size": 2.5}, PoolTypeError, ("kernel_size=2.5", "int")),
    ("MaxPool", {"kernel_size": 2.0}, PoolTypeError, ("kernel_size=2.0", "int")),
    ("MaxPool", {"kernel_size": "3"}, PoolTypeError, ("kernel_size='3'", "int")),
    ("MaxPool", {"kernel_size": None}, PoolTypeError, ("kernel_size=None", "int")),
    ("MaxPool", {"kernel_size": True}, PoolTypeError, ("kernel_size=True", "int")),
    ("MaxPool", {"kernel_size": math.nan}, PoolTypeError, ("kernel_size=nan", "int")),
    ("MinPool", {"kernel_size": 2, "stride": (1, 0.5)}, PoolTypeError, ("stride=0.5", "int")),
    ("AvgPool", {"kernel_size": 2, "padding": 0.5}, PoolTypeError, ("padding=0.5", "int")),
    ("AvgPool", {"kernel_size": 2, "divisor_override": 1.5}, PoolTypeError, ("divisor_override=1.5", "int")),
    ("SumPool", {"kernel_size": 2, "dilation": 1.0}, PoolTypeError, ("dilation=1.0", "int")),
    ("AdaptiveSumPool", {"output_size": 2.5}, PoolTypeError, ("output_size=2.5", "int")),
    ("MaxPool", {"kernel_size": 2, "axes": (0.5, 1)}, PoolTypeError, ("axes=0.5", "int")),
    ("GlobalAvgPool", {"axes": "h"}, PoolTypeError, ("axes=('h',) are names", "x has none", "use numbers")),
    ("GlobalAvgPool", {"axes": ("h", 1)}, PoolTypeError, ("axes='h'", "int")),
    ("MaxPool", {"kernel_size": 2, "axes": ("h", "h")}, PoolError, ("axes=('h', 'h')", "twice")),
    # layouts
    ("MaxPool", {"kernel_size": 2, "layout": "NHWC"}, PoolError, ("layout='NHWC'", "4 letters", "3 axes")),
    ("MaxPool", {"kernel_size": 2, "layout": "HHW"}, PoolError, ("layout='HHW'", "twice")),
    ("MaxPool", {"kernel_size": 2, "layout": "hwc"}, PoolError, ("layout='hwc'", "capital", "'NHWC'")),
    ("MaxPool", {"kernel_size": 2, "layout": "channels_last"}, PoolError, ("layout='channels_last'", "'NHWC'")),
    ("GlobalMaxPool", {"layout": "BNC"}, PoolError, ("layout='BNC' pools nothing", "H and W")),
    ("GlobalMaxPool", {"layout": 3}, PoolTypeError, ("layout=3", "'NHWC'")),
    ("AvgPool", {"kernel_size": 2, "layout": "HWC", "axes": 0}, PoolError, ("axes=(0,)", "layout='HWC'", "give one")),
    ("AvgPool", {"kernel_size": (2, 2, 2), "layout": "HWC"}, PoolError, ("kernel_size=(2, 2, 2)", "layout=('H', 'W')")),
    # element types
    ("AvgPool", {"kernel_size": 2, "dtype": "quad"}, PoolTypeError, ("dtype='quad'", "'float32'")),
    ("AvgPool", {"kernel_size": 2, "dtype": "datetime64"}, PoolTypeError, ("dtype='datetime64'", "'float32'")),
    ("MaxPool", {"kernel_size": 2, "dtype": "complex64"}, PoolTypeError, ("the result has dtype complex64",)),
    ("SumPool", {"kernel_size": 2, "dtype": bool}, PoolTypeError, ("the result has dtype bool", "sum takes")),
    # wrong numbers of entries, wrong rank
    ("MaxPool", {"kernel_size": (2, 2), "stride": (1,)}, PoolError, ("kernel_size=(2, 2)", "stride=(1,)")),
    ("MaxPool", {"kernel_size": 2, "padding": (1,), "axes": (1, 2)}, PoolError, ("padding=(1,)", "axes=(1, 2)")),
    ("AvgPool", {"kernel_size": (2, 2, 2, 2)}, PoolError, ("4", "3", "x")),
    ("AdaptiveAvgPool", {"output_size": (1, 1, 1, 1)}, PoolError, ("4", "3", "x")),
    ("AdaptiveAvgPool", {"output_size": (1, 1), "axes": 0}, PoolError, ("output_size=(1, 1)", "axes=(0,)")),
    ("MaxPool", {"kernel_size": 2, "padding": ((1, 0), 1)}, PoolError, ("padding=((1, 0), 1)", "(before, after)")),
    # axes
    ("MaxPool", {"kernel_size": 2, "axes": (1, 1)}, PoolError, ("axes=(1, 1)", "twice")),
    ("GlobalMaxPool", {"axes": (2, -1)}, PoolError, ("axes=(2, -1)", "twice")),
    ("MaxPool", {"kernel_size": 1, "axes": 3}, PoolError, ("axes=(3,)", "axis 3", "3 axes", "-3 to 2")),
    ("GlobalSumPool", {"axes": -4}, PoolError, ("axes=(-4,)", "axis -4", "3 axes")),
    # laws
    ("SmoothMaxPool", {"kernel_size": 2, "beta": 0}, PoolError, ("beta=0", "beta > 0")),
    ("SmoothMaxPool", {"kernel_size": 2, "beta": -0.0}, PoolError, ("beta=-0.0", "beta > 0")),
    ("SmoothMaxPool", {"kernel_size": 2, "beta": math.nan}, PoolError, ("beta=nan", "beta > 0")),
    ("GlobalSmoothMaxPool", {"beta": math.inf}, PoolError, ("beta=inf", "beta > 0")),
    ("AdaptiveSmoothMaxPool", {"output_size": 1, "beta": "1"}, PoolTypeError, ("beta='1'", "float")),
    ("SmoothMaxPool", {"kernel_size": 2, "beta": None}, PoolTypeError, ("beta=None", "float")),
    ("LpPool", {"norm_type": 0.5, "kernel_size": 2}, PoolError, ("norm_type=0.5", ">= 1")),
    ("LpPool", {"norm_type": math.inf, "kernel_size": 2}, PoolError, ("norm_type=inf", ">= 1")),
    ("GlobalLpPool", {"norm_type": math.nan}, PoolError, ("norm_type=nan", ">= 1")),
    ("AdaptiveLpPool", {"norm_type": "2", "output_size": 2}, PoolTypeError, ("norm_type='2'",)),
    ("MaxPool", {"kernel_size": 2, "ties": "random"}, PoolError, ("ties='random'", "'first'", "'split'")),
    ("GlobalMinPool", {"nan": "omit"}, PoolError, ("nan='omit'", "'propagate'", "'ignore'")),
    ("AvgPool", {"kernel_size": 2, "empty": "nan"}, PoolError, ("empty='nan'", "'zero'", "'error'")),
    ("Pool", {"law": max, "kernel_size": 2}, PoolTypeError, ("law=", "Law(lift, merge, finish, weigh)")),
    ("AdaptivePool", {"law": "max", "output_size": 2}, PoolTypeError, ("law='max'", "Law")),
    ("GlobalPool", {"law": None}, PoolTypeError, ("law=None", "Law")),
    # rules and flags
    ("MaxPool", {"kernel_size": 2, "padding": "valid"}, PoolError, ("padding='valid'", '"same"')),
    ("MaxPool", {"kernel_size": 2, "ceil_mode": 1}, PoolTypeError, ("ceil_mode=1", "True or False")),
    ("MaxPool", {"kernel_size": 2, "return_indices": "yes"}, PoolTypeError, ("return_indices='yes'", "True or False")),
    ("AvgPool", {"kernel_size": 2, "count_include_pad": None}, PoolTypeError, ("count_include_pad=None", "True")),
    ("GlobalAvgPool", {"keepdims": 0}, PoolTypeError, ("keepdims=0", "True or False")),
    # empty="error"
    ("MaxPool", {"kernel_size": 1, "padding": 1, "empty": "error"}, PoolError, ("axis 1", "output 0", "empty='zero'")),
    # sizes beyond 2**63
    ("MaxPool", {"kernel_size": 2**63}, PoolError, (f"kernel_size={2**63}", "2**63")),
    ("SumPool", {"kernel_size": 2**62, "dilation": 4}, PoolError, ("kernel", str(4 * (2**62 - 1) + 1), "2**63")),
    ("MaxPool", {"kernel_size": 2, "padding": 2**63 - 1}, PoolError, ("padded size", "2**63")),
    ("AdaptiveAvgPool", {"output_size": (2**32, 2**32)}, PoolError, ("outputs", str(2**65), "2**63")),
]  # fmt: skip


@pytest.mark.parametrize(("record", "arguments", "exception", "words"), ARGUMENTS)
def test_bad_arguments(record: str, arguments: dict[str, Any], exception: type[PoolError], words: Any) -> None:
    """Whichever way it is called: function, record, linearize, out_shape; on arrays and on nested lists."""
    make = getattr(ndpool, record)
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", record).lower()
    function = getattr(ndpool, name)
    for call in (
        lambda: function(X, **arguments),
        lambda: function(X.tolist(), **arguments),
        lambda: make(**arguments)(X),
        lambda: make(**arguments).linearize(X),
        lambda: make(**arguments).out_shape(X.shape),
    ):
        assert_says(call, name, exception, words)


def test_errors_are_value_errors_and_those_of_kind_are_type_errors() -> None:
    assert issubclass(PoolError, ValueError)
    assert issubclass(PoolTypeError, PoolError)
    assert issubclass(PoolTypeError, TypeError)


@pytest.mark.parametrize("shape", [(2**32, 2**31), (2**62, 2, 2)])
def test_shapes_whose_product_overflows(shape: tuple[int, ...]) -> None:
    assert_says(lambda: ndpool.MaxPool(1).out_shape(shape), "max_pool", PoolError, (str(math.prod(shape)), "2**63"))


# -- x ---------------------------------------------------------------------------------------------------------------

MASKED = np.ma.masked_array(X, X > 2)
INPUTS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("max_pool", X.astype(object), ("x has dtype object", "x.tolist()")),
    ("avg_pool", X.astype(object), ("x has dtype object", "x.tolist()")),
    ("max_pool", MASKED, ("x is a masked array", "mask would be lost", "filled")),
    ("sum_pool", MASKED, ("x is a masked array", "filled")),
    ("max_pool", X.astype(complex), ("x has dtype complex128", "max")),
    ("smooth_max_pool", X.astype(int), ("x has dtype int64", "smooth_max", "float32")),
    ("smooth_max_pool", X.astype(complex), ("x has dtype complex128", "smooth_max")),
    ("sum_pool", X.astype(bool), ("x has dtype bool", "sum")),
    ("avg_pool", X.astype(bool), ("x has dtype bool", "mean")),
    ("max_pool", X.astype(str), ("x has dtype str", "max")),
    ("max_pool", X.astype("datetime64[s]"), ("x has dtype datetime64", "max")),
    ("max_pool", None, ("x is a NoneType", "numpy.asarray")),
    ("max_pool", "abc", ("x is a str", "numpy.asarray")),
    ("max_pool", {"a": 1}, ("x is a dict", "list(x.values())")),
    ("max_pool", {1, 2}, ("x is a set", "list(x)")),
    ("max_pool", range(3), ("x is a range", "list(x)")),
    ("max_pool", b"abc", ("x is a bytes", "memoryview(x)")),
    ("max_pool", [[1, 2], [3]], ("ragged", "(1,)", "(2,)")),
    ("max_pool", [[1, 2], 3], ("ragged", "()", "(2,)")),
]


@pytest.mark.parametrize(("name", "x", "words"), INPUTS)
def test_bad_x(name: str, x: Any, words: tuple[str, ...]) -> None:
    record = getattr(ndpool, "".join(part.capitalize() for part in name.split("_")))
    assert_says(lambda: getattr(ndpool, name)(x, 1), name, PoolError, words)
    assert_says(lambda: record(1)(x), name, PoolError, words)
    assert_says(lambda: record(1).linearize(x), name, PoolError, words)


@pytest.mark.parametrize("scalars", [[None, None], [1j, 2j], [object(), object()]])
def test_scalars_that_have_no_order(scalars: list[Any]) -> None:
    with pytest.raises(PoolTypeError, match=r"^max_pool: .*scalars"):
        ndpool.max_pool(scalars, (2,))


def test_own_law_on_another_library() -> None:
    xp = pytest.importorskip("array_api_strict", reason="array_api_strict is an array library other than NumPy")
    with pytest.raises(PoolTypeError, match=r"^pool: a law of your own runs on NumPy arrays and nested lists"):
        RECORDS["Pool"](xp.ones(SHAPE))


# -- tangents and cotangents -----------------------------------------------------------------------------------------

OP = ndpool.MaxPool(2)
DY = np.ones((2, 2, 3))
TANGENTS: list[tuple[Callable[[], Any], type[PoolError], tuple[str, ...]]] = [
    (lambda: OP.jvp(X, X[:1]), PoolError, ("dx has shape (1, 4, 6)", "x has (2, 4, 6)")),
    (lambda: OP.jvp(X, np.ones(())), PoolError, ("dx has shape ()", "x has (2, 4, 6)")),
    (lambda: OP.vjp(X, X), PoolError, ("dy has shape (2, 4, 6)", "y has (2, 2, 3)")),
    (lambda: OP.vjp(X, DY[:, :1]), PoolError, ("dy has shape (2, 1, 3)", "y has (2, 2, 3)")),
    (lambda: OP.vjp(X.tolist(), [1.0]), PoolError, ("dy has shape (1,)", "y has (2, 2, 3)")),
    (lambda: OP.jvp(X, X.astype(np.float32)), PoolTypeError, ("dx has dtype float32", "x has float64")),
    (lambda: OP.vjp(X, DY.astype(int)), PoolTypeError, ("dy has dtype int64", "x has float64")),
    (lambda: OP.vjp(X, DY.astype(complex)), PoolTypeError, ("dy has dtype complex128", "x has float64")),
    (lambda: OP.jvp(X, X.astype(object)), PoolTypeError, ("dx has dtype object", "x has float64")),
    (lambda: OP.jvp(X.astype(int), X.astype(int)), PoolTypeError, ("dx has dtype int64", "a real dtype")),
    (lambda: OP.jvp(X, X.tolist()), PoolTypeError, ("dx is a list", "numpy")),
    (lambda: OP.vjp(X.tolist(), DY), PoolTypeError, ("dy is a ndarray", "nested list")),
    (lambda: OP.vjp(X, None), PoolTypeError, ("dy is a NoneType",)),
    (lambda: OP.jvp(X, MASKED), PoolTypeError, ("dx is a masked array", "filled")),
    (lambda: OP.vjp(X, np.ma.masked_array(DY)), PoolTypeError, ("dy is a masked array", "filled")),
    (lambda: OP.vjp(X.tolist(), [[1.0], [1.0, 2.0]]), PoolError, ("dy", "ragged")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "exception", "words"), TANGENTS)
def test_bad_tangents(call: Callable[[], Any], exception: type[PoolError], words: tuple[str, ...]) -> None:
    assert_says(call, "max_pool", exception, words)


def test_the_shape_of_a_cotangent_is_that_of_the_value_shown() -> None:
    op = ndpool.GlobalAvgPool(keepdims=False)
    assert op.vjp(X, np.ones(2)).shape == X.shape
    words = ("dy has shape (2, 1, 1)", "y has (2,)")
    assert_says(lambda: op.vjp(X, np.ones((2, 1, 1))), "global_avg_pool", PoolError, words)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_rounded_mean_has_no_derivative(dtype: Any) -> None:
    words = (f"mean of {dtype.name}", "rounded", "float32")
    for record in (ndpool.AvgPool(2), ndpool.AdaptiveAvgPool(2), ndpool.GlobalAvgPool()):
        assert_says(lambda: record.linearize(X.astype(dtype)), record.name, PoolTypeError, words)  # noqa: B023


# -- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_sum_that_does_not_fit_is_an_error(dtype: Any) -> None:
    info = np.iinfo(dtype)
    words = ("sum", dtype.name)
    assert_says(lambda: ndpool.sum_pool(np.array([info.max, 1], dtype), (2,)), "sum_pool", PoolError, words)
    assert_says(lambda: ndpool.global_sum_pool(np.full(9, info.max, dtype)), "global_sum_pool", PoolError, words)
    if info.min < 0:
        assert_says(lambda: ndpool.sum_pool(np.array([info.min, -1], dtype), (2,)), "sum_pool", PoolError, words)
    overridden = np.array([info.max, info.max, 1], dtype)
    divided = {"kernel_size": (3,), "divisor_override": 2}  # (2 max + 1) / 2 is max + 1/2, which rounds to max + 1
    assert_says(lambda: ndpool.avg_pool(overridden, **divided), "avg_pool", PoolError, words)


# -- max_unpool and unpad --------------------------------------------------------------------------------------------

UNPOOLING: list[tuple[tuple[Any, ...], dict[str, Any], type[PoolError], tuple[str, ...]]] = [
    ((X, INDICES[:1], 2), {}, PoolError, ("indices has shape (1, 4, 6)", "(2, 4, 6)")),
    ((X, INDICES + 96, 2), {}, PoolError, ("indices holds 96", "96 positions", "output_size")),
    ((X, INDICES - 2, 2), {}, PoolError, ("indices holds -2", "96 positions")),
    (([1, 2], [0, 9], (2,)), {}, PoolError, ("indices holds 9", "4 positions")),
    ((X, INDICES * 1.0, 2), {}, PoolTypeError, ("indices has dtype float64", "integers")),
    ((X, INDICES.tolist(), 2), {}, PoolTypeError, ("y", "indices", "two arrays")),
    ((X, INDICES, 2), {"duplicates": "max"}, PoolError, ("duplicates='max'", "'sum'", "'last'")),
    ((X, INDICES, 0), {}, PoolError, ("kernel_size=0",)),
    ((X, INDICES, 2, 0), {}, PoolError, ("stride=0",)),
    ((X, INDICES, 2), {"padding": -1}, PoolError, ("padding=-1",)),
    ((X, INDICES, 2), {"padding": "same"}, PoolError, ("padding='same'",)),
    ((X[:, :1, :1], INDICES[:, :1, :1], 2), {"padding": 2}, PoolError, ("padding", "output_size")),
    ((X, INDICES, 2), {"axes": (1, 1)}, PoolError, ("axes=(1, 1)", "twice")),
    ((X, INDICES, 2), {"axes": (0.5, 1)}, PoolTypeError, ("axes=0.5",)),
    ((X, INDICES, (2,) * 4), {}, PoolError, ("4", "3")),
    ((X, INDICES, 2), {"output_size": (8.0, 12)}, PoolTypeError, ("output_size=8.0",)),
    ((X, INDICES, 2), {"output_size": 2.5}, PoolTypeError, ("output_size=2.5",)),
    ((X, INDICES, 2), {"output_size": (8,)}, PoolError, ("output_size=(8,)", "2 axes")),
    ((MASKED, INDICES, 2), {}, PoolTypeError, ("y is a masked array", "filled")),
    ((X, np.ma.masked_array(INDICES), 2), {}, PoolTypeError, ("indices is a masked array",)),
    ((X.astype(object), INDICES, 2), {}, PoolTypeError, ("y has dtype object",)),
]


@pytest.mark.parametrize(("arguments", "options", "exception", "words"), UNPOOLING)
def test_bad_unpooling(arguments: Any, options: Any, exception: type[PoolError], words: tuple[str, ...]) -> None:
    assert_says(lambda: ndpool.max_unpool(*arguments, **options), "max_unpool", exception, words)


UNPADDING: list[tuple[Any, Any, tuple[str, ...]]] = [
    (3, None, ("padding=3", "axis 1", "4")),
    (-1, None, ("padding=-1", "padding >= 0")),
    ("same", None, ("padding='same'",)),
    (1, (0, 0), ("axes=(0, 0)", "twice")),
    ((1, 1), (0,), ("padding=(1, 1)", "axes=(0,)")),
]


@pytest.mark.parametrize(("padding", "axes", "words"), UNPADDING)
def test_bad_unpadding(padding: Any, axes: Any, words: tuple[str, ...]) -> None:
    assert_says(lambda: ndpool.unpad(X, padding, axes=axes), "unpad", PoolError, words)


# -- good input ------------------------------------------------------------------------------------------------------


def frozen(a: np.ndarray) -> tuple[np.ndarray, bytes]:
    a.flags.writeable = False
    return a, a.tobytes()


@pytest.mark.parametrize("op", RECORDS.values(), ids=RECORDS)
def test_inputs_are_never_modified(op: Any) -> None:
    rng = np.random.default_rng(0)
    x, x_bytes = frozen(rng.normal(size=SHAPE))
    dx, dx_bytes = frozen(rng.normal(size=SHAPE))
    at = op.linearize(x)
    dy, dy_bytes = frozen(rng.normal(size=at.y.shape))
    for result in (op(x), at.y, at.jvp(dx), at.vjp(dy)):
        assert not any(np.shares_memory(result, given) for given in (x, dx, dy))
        assert result.flags.writeable
    assert (x.tobytes(), dx.tobytes(), dy.tobytes()) == (x_bytes, dx_bytes, dy_bytes)


@pytest.mark.parametrize("op", [ndpool.MaxPool(1), ndpool.SumPool(2, axes=()), ndpool.AvgPool(1), ndpool.LpPool(2, 1)])
def test_even_where_nothing_is_pooled(op: Any) -> None:
    x = np.ones((2, 3))
    for result in (op(x), op.jvp(x, x), op.vjp(x, x)):
        assert not np.shares_memory(result, x)
    assert np.array_equal(op(x), x)


@pytest.mark.parametrize("op", RECORDS.values(), ids=RECORDS)
def test_nested_lists_are_never_modified(op: Any) -> None:
    x = np.arange(60.0).reshape(SHAPE).tolist()
    before = repr(x)
    at = op.linearize(x)
    at.jvp(x)
    at.vjp(at.y)
    assert repr(x) == before


def test_max_unpool_modifies_nothing() -> None:
    y, y_bytes = frozen(np.arange(6.0).reshape(2, 3))
    indices, indices_bytes = frozen(np.array([[0, 1, 1], [2, 5, -1]]))
    ndpool.max_unpool(y, indices, (2,))
    ndpool.max_unpool(y, indices, (2,), duplicates="last")
    assert (y.tobytes(), indices.tobytes()) == (y_bytes, indices_bytes)


# Records that pool the last two axes, whatever is before them.
PLANAR = [name for name, op in RECORDS.items() if op.axes is None and len(op.pooled_axes(4)) <= 2]


@pytest.mark.parametrize("shape", [(0, 3, 5, 6), (2, 0, 5, 6), (0, 0, 5, 6)])
@pytest.mark.parametrize("name", PLANAR)
def test_empty_batch_and_channel_axes_work(name: str, shape: tuple[int, ...]) -> None:
    op, x = RECORDS[name], np.zeros(shape)
    want = op.out_shape(shape)
    at = op.linearize(x)
    assert op(x).shape == at.y.shape == at.jvp(x).shape == want
    assert at.vjp(at.y).shape == shape
    assert 0 in want


def test_empty_batch_of_max_unpool_works() -> None:
    y, indices = ndpool.max_pool(np.zeros((0, 4, 6)), 2, return_indices=True)
    assert ndpool.max_unpool(y, indices, 2).shape == (0, 4, 6)
