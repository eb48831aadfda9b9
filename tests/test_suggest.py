"""Misspelt names get a suggestion; a mistake in a law of the user's own is reported as theirs."""

from __future__ import annotations

import inspect
import traceback
from fractions import Fraction

import numpy as np
import pytest

import ndpool
from ndpool import Law, PoolError, PoolTypeError

X = np.ones((4, 4))

# -- functions and records


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("average_pool", "avg_pool"),
        ("mean_pool", "avg_pool"),
        ("AveragePool", "AvgPool"),
        ("MeanPool2d", "AvgPool2d"),
        ("MaxPooling2D", "MaxPool2d"),
        ("GlobalAveragePooling2D", "GlobalAvgPool2d"),
        ("global_average_pool", "global_avg_pool"),
        ("logsumexp_pool", "smooth_max_pool"),
        ("maxpool", "max_pool"),
        ("max_pol", "max_pool"),
        ("l2_pool", "lp_pool"),
        ("setthreads", "set_threads"),
    ],
)
def test_a_misspelt_name_of_the_module(typed, meant):
    with pytest.raises(AttributeError, match=rf"module 'ndpool' has no attribute '{typed}'; did you mean '{meant}'\?$"):
        getattr(ndpool, typed)
    assert getattr(ndpool, meant)


@pytest.mark.parametrize("typed", ["xyzzy", "_private", "__path_hook__"])
def test_a_name_like_no_other_gets_no_suggestion(typed):
    with pytest.raises(AttributeError, match=f"has no attribute '{typed}'$"):
        getattr(ndpool, typed)
    assert not hasattr(ndpool, typed)


# -- arguments


@pytest.mark.parametrize(
    ("name", "arguments", "typed", "meant"),
    [
        ("MaxPool", {"kernel_size": 2, "axis": 1}, "axis", "axes"),
        ("MaxPool", {"kernel_size": 2, "dim": 1}, "dim", "axes"),
        ("MaxPool", {"kernel_size": 2, "strides": 2}, "strides", "stride"),
        ("MaxPool", {"kernel_size": 2, "pad": 1}, "pad", "padding"),
        ("MaxPool", {"kernel_size": 2, "rate": 2}, "rate", "dilation"),
        ("AvgPool", {"pool_size": 2}, "pool_size", "kernel_size"),
        ("AvgPool", {"kernel": 2}, "kernel", "kernel_size"),
        ("AvgPool", {"kernel_size": 2, "count_includes_pad": False}, "count_includes_pad", "count_include_pad"),
        ("LpPool", {"p": 2, "kernel_size": 2}, "p", "norm_type"),
        ("AdaptiveMaxPool", {"size": 2}, "size", "output_size"),
        ("GlobalMaxPool", {"keepdim": False}, "keepdim", "keepdims"),
    ],
)
def test_a_misspelt_argument(name, arguments, typed, meant):
    """Of a record, of its function, and of both with a rank."""
    function = ndpool.op.function_name(name)
    words = rf"^{function}: got an unexpected keyword argument '{typed}'; did you mean {meant}\?$"
    calls = [(getattr(ndpool, name), ()), (getattr(ndpool, function), (X,))]
    if meant != "axes":
        calls += [(getattr(ndpool, f"{name}2d"), ()), (getattr(ndpool, f"{function}2d"), (X,))]
    for call, inputs in calls:
        with pytest.raises(PoolTypeError, match=words) as caught:
            call(*inputs, **arguments)
        assert "During handling" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("typed", ["axes", "axis", "dim"])
def test_a_name_with_a_rank_has_its_axes(typed):
    with pytest.raises(PoolTypeError, match=rf"max_pool2d: takes no {typed}, .* \(-2, -1\); use max_pool\(..., axes="):
        ndpool.max_pool2d(X, 2, **{typed: 1})
    with pytest.raises(PoolTypeError, match=rf"AvgPool1d: takes no {typed}, .* \(-1,\); use AvgPool\(..., axes="):
        ndpool.AvgPool1d(2, **{typed: 1})


def test_an_argument_like_no_other_gets_the_list():
    with pytest.raises(PoolTypeError, match=r"max_pool: .*'speed'; it takes kernel_size, stride, padding, axes, "):
        ndpool.max_pool(X, 2, speed=1)


def test_other_wrong_calls_are_python_errors():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'kernel_size'"):
        ndpool.max_pool(X)
    with pytest.raises(TypeError, match="positional arguments"):
        ndpool.MaxPool(3, 2, 1, 1)


def test_signatures_stay():
    parameters = inspect.signature(ndpool.MaxPool).parameters
    assert list(parameters)[:3] == ["kernel_size", "stride", "padding"]
    assert parameters["axes"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(ndpool.max_pool).parameters) == ["x", *parameters, "out"]
    assert "kernel_size" in str(inspect.signature(ndpool.MaxPool.__init__))


# -- laws

GOOD = {
    "lift": lambda x, t: x,
    "merge": lambda a, b: a + b,
    "finish": lambda s, n: (s, None),
    "weigh": lambda g, x, t, r: g,
}


def divides_by_zero(*args):
    return args[0] / 0


@pytest.mark.parametrize("x", [[1.0, 2.0, 3.0, 4.0], [Fraction(1)] * 4, np.ones(4)], ids=["floats", "exact", "array"])
@pytest.mark.parametrize("part", GOOD)
def test_a_mistake_in_a_law_is_its_owners(part, x):
    op = ndpool.Pool(Law(**GOOD | {part: divides_by_zero}), (2,))
    dy = x[:2]
    with pytest.raises(PoolError, match=f"^pool: in your law's {part}: ZeroDivisionError: ") as caught:
        op.vjp(x, dy)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "divides_by_zero" in [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)]
    if part != "weigh":
        with pytest.raises(PoolError, match=f"in your law's {part}: "):
            op(x)


@pytest.mark.parametrize(
    ("part", "wrong", "words"),
    [
        ("finish", lambda s, n: s, r"finish: it gave 3.0; give \(y, r\)"),
        ("finish", lambda s, n: None, r"finish: it gave None; give \(y, r\)"),
        ("weigh", lambda g, x, t, r: None, "weigh: it gave None; give the derivative"),
        ("merge", lambda a: a, "merge: TypeError: .* takes 1 positional argument but 2 were given"),
        ("lift", 3, "lift: TypeError: 'int' object is not callable"),
        ("weigh", lambda g, x, t, r: next(iter(())), "weigh: StopIteration"),
    ],
)
def test_what_a_part_of_a_law_must_give(part, wrong, words):
    op = ndpool.Pool(Law(**GOOD | {part: wrong}), (2,))
    with pytest.raises(PoolError, match=f"pool: in your law's {words}"):
        op.jvp([1.0, 2.0], [1.0, 1.0])


def test_a_mistake_in_the_scalars_of_our_laws_is_not_the_users_law():
    with pytest.raises(PoolTypeError, match="max_pool: this op is not defined on these scalars"):
        ndpool.max_pool([1j, 2j], (2,))
