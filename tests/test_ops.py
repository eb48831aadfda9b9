"""Op records and functions: values that compare, print and pickle, and run the same however they are called."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import ndpool
from ndpool import Dual, Law, spec
from ndpool.op import Op, function_name

from . import cases
from .cases import EVERY, RECORDS, SHAPE

every_record = pytest.mark.parametrize("op", EVERY.values(), ids=EVERY)
each_record = pytest.mark.parametrize("op", RECORDS.values(), ids=RECORDS)  # those that have derivatives
SHIPPED = {name: op for name, op in RECORDS.items() if op.law is not cases.ENERGY}
shipped_record = pytest.mark.parametrize("op", SHIPPED.values(), ids=SHIPPED)
FUNCTIONS = [function_name(name) for name in RECORDS]


def arguments(op: Op) -> dict[str, Any]:
    return {field.name: getattr(op, field.name) for field in fields(op)}


def function(op: Op) -> Any:
    return getattr(ndpool, op.name)


def sample(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Distinct values, so that every op is smooth there."""
    rng = np.random.default_rng(seed)
    return (rng.permutation(int(np.prod(shape))) / 7 - 3).reshape(shape)


def sample_for(op: Op) -> np.ndarray:
    """The same, or labels where the record takes no others."""
    return sample() if "real" in op.law.kinds else cases.values(np.random.default_rng(0), SHAPE, "int16")


def close(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(np.array(got, float), np.array(want, float), rtol=tolerance, atol=tolerance)


# -- records are values ----------------------------------------------------------------------------------------------


def test_there_are_24_records_and_each_is_public() -> None:
    assert len(EVERY) == 24
    public = {name for name in ndpool.__all__ if name.endswith("Pool")}
    assert public == set(EVERY)


@every_record
def test_records_are_frozen(op: Op) -> None:
    for field in fields(op):
        with pytest.raises(FrozenInstanceError):
            setattr(op, field.name, 1)


@every_record
def test_records_equal_and_hash_by_value(op: Op) -> None:
    twin = type(op)(**arguments(op))
    assert twin is not op
    assert twin == op
    assert hash(twin) == hash(op)
    assert {op: "found"}[twin] == "found"
    assert op != ndpool.MaxPool(7)
    assert op != type(op)(**{**arguments(op), "empty": "error"})


def test_arguments_are_normalised_so_that_spelling_does_not_matter() -> None:
    assert ndpool.MaxPool([2, 3], padding=[[1, 0], [0, 1]]) == ndpool.MaxPool((2, 3), padding=((1, 0), (0, 1)))
    assert ndpool.AvgPool(np.int64(2), axes=-1) == ndpool.AvgPool(2, axes=(-1,))
    assert ndpool.AdaptiveMaxPool([2, None]) == ndpool.AdaptiveMaxPool((2, None))
    assert ndpool.LpPool(2.0, 3) == ndpool.LpPool(2, 3)
    assert ndpool.MaxPool(2) != ndpool.MinPool(2)


@every_record
def test_records_pickle(op: Op) -> None:
    copy = pickle.loads(pickle.dumps(op))
    assert copy == op
    x = sample_for(op)
    assert np.array_equal(copy(x), op(x))


REPRS = {
    "MaxPool(kernel_size=3)": ndpool.MaxPool(3),
    "MaxPool(kernel_size=3, stride=2, padding=1)": ndpool.MaxPool(3, 2, 1),
    "MaxPool(kernel_size=(2, 3), axes=(0, 1), ties='split')": ndpool.MaxPool((2, 3), ties="split", axes=(0, 1)),
    "AvgPool(kernel_size=2, count_include_pad=False)": ndpool.AvgPool(2, count_include_pad=False),
    "LpPool(norm_type=2, kernel_size=3)": ndpool.LpPool(2.0, 3),
    "AdaptiveAvgPool(output_size=(4, None))": ndpool.AdaptiveAvgPool((4, None)),
    "AdaptiveAvgPool(output_size=None)": ndpool.AdaptiveAvgPool(None),
    "GlobalMaxPool()": ndpool.GlobalMaxPool(),
    "GlobalMaxPool(ties='first')": ndpool.GlobalMaxPool(ties="first"),
    "GlobalSmoothMaxPool(beta=3, keepdims=False)": ndpool.GlobalSmoothMaxPool(beta=3, keepdims=False),
}


@pytest.mark.parametrize("text", REPRS)
def test_repr_shows_what_is_not_default(text: str) -> None:
    assert repr(REPRS[text]) == text


@shipped_record
def test_repr_reads_back(op: Op) -> None:
    assert eval(repr(op), vars(ndpool).copy()) == op


# -- the ways to run an op -------------------------------------------------------------------------------------------


@each_record
def test_linearize_is_value_jvp_and_vjp_in_one(op: Op) -> None:
    x, dx = sample(1), sample(2)
    at = op.linearize(x)
    dy = sample(3, at.y.shape)
    assert at.y.shape == at.jvp(dx).shape == op.out_shape(SHAPE)
    assert np.array_equal(at.y, op(x))
    assert np.array_equal(at.jvp(dx), op.jvp(x, dx))
    assert np.array_equal(at.vjp(dy), op.vjp(x, dy))
    assert at.vjp(dy).shape == SHAPE


@each_record
def test_a_linearization_keeps_what_it_saw(op: Op) -> None:
    x = sample(1)
    at = op.linearize(x)
    before = at.jvp(x.copy())
    x[...] = 0
    assert np.array_equal(at.jvp(sample(1)), before)


@each_record
def test_jvp_is_the_derivative_of_the_value(op: Op) -> None:
    x, dx, h = sample(4), sample(5) / 10, 1e-4
    close(op.jvp(x, dx), (op(x + h * dx) - op(x - h * dx)) / (2 * h), 1e-5)


@each_record
def test_vjp_is_the_adjoint_of_jvp(op: Op) -> None:
    x, dx = sample(6), sample(7)
    at = op.linearize(x)
    dy = sample(8, at.y.shape)
    close(np.vdot(at.jvp(dx), dy), np.vdot(dx, at.vjp(dy)))


@each_record
def test_lists_and_arrays_agree(op: Op) -> None:
    x, dx = sample(9), sample(10)
    at, listed = op.linearize(x), op.linearize(x.tolist())
    dy = sample(11, at.y.shape)
    assert type(listed.y) is (list if at.y.shape else float)
    close(listed.y, at.y)
    close(listed.jvp(dx.tolist()), at.jvp(dx))
    close(listed.vjp(dy.tolist()), at.vjp(dy))


@every_record
def test_functions_are_records_called(op: Op) -> None:
    x = sample_for(op)
    assert np.array_equal(function(op)(x, **arguments(op)), op(x))


@every_record
def test_signatures_show_x_the_record_and_out(op: Op) -> None:
    shown = inspect.signature(function(op)).parameters
    own = inspect.signature(type(op)).parameters
    assert list(shown) == ["x", *own, "out"]
    assert all(shown[name] == own[name] for name in own)
    assert function(op).__name__ == op.name
    assert type(op).__name__ in function(op).__doc__


@pytest.mark.parametrize(
    ("name", "positional"),
    [
        ("max_pool", ["x", "kernel_size", "stride", "padding"]),
        ("avg_pool", ["x", "kernel_size", "stride", "padding"]),
        ("lp_pool", ["x", "norm_type", "kernel_size", "stride", "padding"]),
        ("adaptive_avg_pool", ["x", "output_size"]),
        ("global_max_pool", ["x"]),
        ("pool", ["x", "law", "kernel_size", "stride", "padding"]),
    ],
)
def test_positional_arguments_are_pytorchs_and_the_rest_go_by_name(name: str, positional: list[str]) -> None:
    parameters = inspect.signature(getattr(ndpool, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY] == positional


# -- 1d, 2d, 3d ------------------------------------------------------------------------------------------------------

SHORT = {
    "": {"kernel_size": 2, "stride": 1},
    "Adaptive": {"output_size": 2},
    "Global": {},
}


def minimal(name: str) -> dict[str, Any]:
    """The least arguments that the record takes."""
    form = next(form for form in ("Adaptive", "Global", "") if name.startswith(form))
    own = {"law": cases.ENERGY} if name.removeprefix(form) == "Pool" else {}
    return SHORT[form] | ({"norm_type": 2} if "Lp" in name else {}) | own


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", RECORDS)
def test_ranked_spellings_fix_the_axes(name: str, rank: int) -> None:
    given, axes, x = minimal(name), tuple(range(-rank, 0)), sample(12, (2, 3, 4, 5))
    op = getattr(ndpool, f"{name}{rank}d")(**given)
    assert op == getattr(ndpool, name)(**given, axes=axes)
    assert op.pooled_axes(4) == tuple(range(4 - rank, 4))
    spelled = getattr(ndpool, f"{op.name}{rank}d")
    assert spelled.__name__ == f"{op.name}{rank}d"
    assert np.array_equal(spelled(x, **given), op(x))
    assert {f"{name}{rank}d", f"{op.name}{rank}d"} <= set(dir(ndpool))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ranked_unpool_is_the_inverse_of_ranked_pool(rank: int) -> None:
    x = sample(13, (2, 2, 4, 4))
    y, indices = getattr(ndpool, f"max_pool{rank}d")(x, 2, return_indices=True)
    back = getattr(ndpool, f"max_unpool{rank}d")(y, indices, 2)
    assert np.array_equal(back, np.where(np.isin(x, y), x, 0))


@pytest.mark.parametrize("name", ["max_pool4d", "max_pool0d", "MaxPool2D", "unpad2d", "nothing2d", "maxpool"])
def test_there_are_no_other_spellings(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(ndpool, name)


# -- nested lists of any scalar --------------------------------------------------------------------------------------


def test_fractions_stay_exact() -> None:
    x = [[Fraction(1, 3), Fraction(1, 2)], [Fraction(1, 7), Fraction(5, 6)]]
    assert ndpool.avg_pool(x, 2) == [[(Fraction(1, 3) + Fraction(1, 2) + Fraction(1, 7) + Fraction(5, 6)) / 4]]
    assert ndpool.max_pool(x, 2) == [[Fraction(5, 6)]]
    assert ndpool.min_pool(x, (1, 2)) == [[Fraction(1, 3)], [Fraction(1, 7)]]
    assert ndpool.lp_pool(x, 1, (2, 1)) == [[Fraction(10, 21), Fraction(4, 3)]]
    third = ndpool.MaxPool((3,), ties="split").vjp([Fraction(2)] * 3, [Fraction(1)])
    assert third == [Fraction(1, 3)] * 3


def test_decimals_stay_decimals() -> None:
    x = [Decimal("0.1"), Decimal("0.2")]
    assert ndpool.sum_pool(x, (2,)) == [Decimal("0.3")]
    assert ndpool.avg_pool(x, (2,)) == [Decimal("0.15")]
    (norm,) = ndpool.lp_pool([Decimal(3), Decimal(-4)], 2, (2,))
    (smooth,) = ndpool.smooth_max_pool([Decimal(0), Decimal(0)], (2,))
    assert abs(norm - 5) < Decimal("1e-25")
    assert abs(smooth - Decimal(2).ln()) < Decimal("1e-25")


def test_sympy_expressions_stay_expressions() -> None:
    sympy = pytest.importorskip("sympy", reason="sympy expressions are one of the scalars")
    a, b = sympy.symbols("a b", real=True)
    assert ndpool.sum_pool([a, b], (2,)) == [a + b]
    assert sympy.simplify(ndpool.avg_pool([a, b], (2,))[0] - (a + b) / 2) == 0
    (smooth,) = ndpool.smooth_max_pool([a, b], (2,), beta=2)
    assert sympy.simplify(smooth - sympy.log(sympy.exp(2 * a) + sympy.exp(2 * b)) / 2) == 0
    assert ndpool.max_pool([sympy.sqrt(2), sympy.Rational(7, 5)], (2,)) == [sympy.sqrt(2)]


@shipped_record
def test_dual_numbers_carry_the_jvp(op: Op) -> None:
    x, dx = sample(14), sample(15)
    duals = [Dual(v, t) for v, t in zip(x.flat, dx.flat, strict=True)]
    y = cases.flat(op(np.array(duals, dtype=object).reshape(SHAPE).tolist()))
    close([v.value for v in y], op(x).reshape(-1))
    close([v.tangent for v in y], op.jvp(x, dx).reshape(-1), 1e-10)


@every_record
def test_tuples_are_nested_lists_too(op: Op) -> None:
    rows = sample(16).tolist()
    assert op(tuple(tuple(tuple(row) for row in plane) for plane in rows)) == op(rows)


def test_bare_scalars_have_no_axis() -> None:
    assert ndpool.max_pool(3, 2) == 3
    assert ndpool.global_avg_pool(Fraction(1, 3)) == Fraction(1, 3)


# -- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(1, 2), (0, 1), (0, 3), (-3, -1), (2, 0)])
@pytest.mark.parametrize("name", RECORDS)
def test_pooling_any_axes_is_pooling_the_last_of_the_transpose(name: str, axes: tuple[int, int]) -> None:
    x = sample(17, (4, 3, 5, 4))
    found = tuple(a % 4 for a in axes)
    given = minimal(name)
    got = getattr(ndpool, name)(**given, axes=axes)(x)
    want = getattr(ndpool, name)(**given)(np.moveaxis(x, sorted(found), (-2, -1)))
    np.testing.assert_array_equal(got, np.moveaxis(want, (-2, -1), sorted(found)))


def test_channels_last_indices_equal_channels_first_ones() -> None:
    x = sample(18, (2, 3, 5, 6))
    _, first = ndpool.max_pool(x, 3, 2, return_indices=True)
    _, last = ndpool.max_pool(np.moveaxis(x, 1, -1), 3, 2, axes=(1, 2), return_indices=True)
    assert np.array_equal(np.moveaxis(last, -1, 1), first)


def test_entries_follow_the_order_of_axes() -> None:
    x = sample(19, (4, 6))
    swapped = ndpool.MaxPool((2, 3), (1, 2), ((1, 0), (0, 1)), dilation=(1, 2), axes=(1, 0), return_indices=True)
    straight = ndpool.MaxPool((3, 2), (2, 1), ((0, 1), (1, 0)), dilation=(2, 1), axes=(0, 1), return_indices=True)
    assert np.array_equal(swapped(x), straight(x))
    assert swapped.out_shape((4, 6)) == straight.out_shape((4, 6))
    assert ndpool.adaptive_avg_pool(x, (2, 3), axes=(1, 0)).shape == (3, 2)


def test_keepdims() -> None:
    x = sample(20, (2, 3, 4, 5))
    assert ndpool.global_max_pool(x).shape == (2, 3, 1, 1)
    assert ndpool.global_max_pool(x, keepdims=False).shape == (2, 3)
    assert ndpool.global_max_pool(x, axes=(0, 2), keepdims=False).shape == (3, 5)
    assert np.array_equal(ndpool.global_max_pool(x, keepdims=False), x.max((2, 3)))
    y, indices = ndpool.global_max_pool(x, keepdims=False, return_indices=True)
    assert indices.shape == y.shape
    assert np.array_equal(x.reshape(2, 3, -1).argmax(-1), indices)
    assert ndpool.global_sum_pool([[1, 2], [3, 4]], keepdims=False) == 10


# -- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [((2, 0), (0, 1)), ((0, 3), (1, 1)), (1, 2), 2])
@pytest.mark.parametrize(
    ("record", "fill"),
    [("MaxPool", -np.inf), ("MinPool", np.inf), ("SumPool", 0), ("AvgPool", 0), ("SmoothMaxPool", 0)],
)
def test_padding_is_pooling_a_padded_array(record: str, fill: float, padding: Any) -> None:
    sides = [p if isinstance(p, tuple) else (p, p) for p in (padding if isinstance(padding, tuple) else (padding,) * 2)]
    x = sample(21, (2, 5, 6))
    padded = np.pad(x, [(0, 0), *sides], constant_values=fill)
    close(getattr(ndpool, record)((4, 3), 2, padding)(x), getattr(ndpool, record)((4, 3), 2)(padded))


@pytest.mark.parametrize("n", range(1, 12))
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3)])
def test_same_padding(n: int, stride: int, kernel: int, dilation: int) -> None:
    """outputs = ceil(n / stride), the padding split evenly, an odd one after the end."""
    op = ndpool.MaxPool((kernel,), stride, "same", dilation=dilation)
    outputs = -(-n // stride)
    total = max(0, (outputs - 1) * stride + dilation * (kernel - 1) + 1 - n)
    x = sample(22, (n,))
    explicit = ndpool.MaxPool((kernel,), stride, ((total // 2, total - total // 2),), dilation=dilation)
    assert op.out_shape((n,)) == (outputs,)
    assert np.array_equal(op(x), explicit(x))


def test_same_padding_keeps_the_size_at_stride_1() -> None:
    assert ndpool.avg_pool(sample(23), (2, 5), 1, "same").shape == SHAPE
    assert ndpool.max_pool([3, 1, 2, 5], (2,), 1, "same") == [3, 2, 5, 5]  # the odd one after the end


# -- a law of the user's own -----------------------------------------------------------------------------------------


def spread() -> Law:
    """max - min, of two laws that are there already."""
    high, low = spec.maximum(), spec.minimum()

    def finish(state: Any, count: int) -> Any:
        (top, r), (bottom, q) = high.finish(state[0], count), low.finish(state[1], count)
        return top - bottom, (r, q)

    return Law(
        lift=lambda x, t: (high.lift(x, t), low.lift(x, t)),
        merge=lambda a, b: (high.merge(a[0], b[0]), low.merge(a[1], b[1])),
        finish=finish,
        weigh=lambda g, x, t, r: high.weigh(g, x, t, r[0]) - low.weigh(g, x, t, r[1]),
    )


@pytest.mark.parametrize("form", ["Pool", "AdaptivePool", "GlobalPool"])
def test_a_law_of_the_users_own(form: str) -> None:
    given = {"Pool": {"kernel_size": (2, 3), "stride": 1}, "AdaptivePool": {"output_size": (2, 4)}, "GlobalPool": {}}
    prefix = form.removesuffix("Pool")
    op = getattr(ndpool, form)(spread(), **given[form])
    highest, lowest = (getattr(ndpool, f"{prefix}{law}Pool")(**given[form]) for law in ("Max", "Min"))
    x, dx = sample(24), sample(25)
    assert np.array_equal(op(x), highest(x) - lowest(x))
    assert np.array_equal(op.jvp(x, dx), highest.jvp(x, dx) - lowest.jvp(x, dx))
    dy = sample(26, op.out_shape(SHAPE))
    close(op.vjp(x, dy), highest.vjp(x, dy) - lowest.vjp(x, dy))
    close(op(x.tolist()), op(x))
    close(op.vjp(x.tolist(), dy.tolist()), op.vjp(x, dy))


def test_a_law_of_the_users_own_equals_numpy() -> None:
    x = sample(27, (7, 8)).astype(np.float32)
    got = ndpool.pool(x, spread(), (3, 4), 1)
    assert got.dtype == np.float32
    assert np.array_equal(got, np.ptp(sliding_window_view(x, (3, 4)), axis=(2, 3)))


def test_a_law_of_the_users_own_reads_padding_only_if_told() -> None:
    assert ndpool.pool([5, 7, 6], spread(), (2,), 1, 1) == [0, 2, 1, 0]
    assert ndpool.pool([5, 7, 6], spread(), (2,), 1, 1, count_include_pad=True) == [5, 2, 1, 6]


# -- smooth max in beta ----------------------------------------------------------------------------------------------

SMOOTH = {
    "sliding": lambda beta: ndpool.SmoothMaxPool((2, 3), 2, 1, beta=beta),
    "padding left out": lambda beta: ndpool.SmoothMaxPool(2, 3, 1, beta=beta, count_include_pad=False),
    "no tap": lambda beta: ndpool.SmoothMaxPool(1, 1, 1, beta=beta, count_include_pad=False),
    "adaptive": lambda beta: ndpool.AdaptiveSmoothMaxPool((2, 3), beta=beta),
    "global": lambda beta: ndpool.GlobalSmoothMaxPool(beta=beta, keepdims=False),
}


@pytest.mark.parametrize("beta", [2.5, 0.3, -1.5])
@pytest.mark.parametrize("form", SMOOTH)
def test_beta_derivative(form: str, beta: float) -> None:
    make, x, h = SMOOTH[form], sample(28) / 4, 1e-5
    got = make(beta).beta_derivative(x)
    close(got, (make(beta + h)(x) - make(beta - h)(x)) / (2 * h), 1e-6)
    listed = make(beta).beta_derivative(x.tolist())
    assert isinstance(listed, list)
    close(listed, got, 1e-9)
    assert make(beta).beta_derivative(x.astype(np.float32)).dtype == np.float32


# -- layouts ---------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "Fortran order": np.asfortranarray,
    "negative strides": lambda x: x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1],
    "every other": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "big-endian": lambda x: x.astype(">f8"),
    "read-only": lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@each_record
def test_layout_does_not_matter(op: Op, layout: str) -> None:
    x = LAYOUTS[layout](sample(29))
    plain = np.array(x, dtype=np.float64, order="C")
    dy = sample(30, op.out_shape(SHAPE))
    assert op(x).dtype == x.dtype
    np.testing.assert_array_equal(op(x), op(plain))
    np.testing.assert_array_equal(op.vjp(x, dy.astype(x.dtype)), op.vjp(plain, dy))


def test_byte_order_is_not_a_difference_of_dtype() -> None:
    x = sample(31)
    assert np.array_equal(ndpool.MaxPool(2).jvp(x.astype(">f8"), x), ndpool.MaxPool(2).jvp(x, x))


@pytest.mark.parametrize("x", [np.float64(-2.5), np.array(-2.5), np.float32(-2.5)], ids=["scalar", "0-d", "float32"])
@pytest.mark.parametrize("name", RECORDS)
def test_numpy_scalars_have_no_axis(name: str, x: Any) -> None:
    op = getattr(ndpool, name)(**minimal(name))
    want = {"lp": 2.5, "custom": 6.25}.get(op.law.name, -2.5)
    at = op.linearize(x)
    for result in (op(x), at.y, at.jvp(x), at.vjp(x)):
        assert np.shape(result) == ()
        assert result.dtype == x.dtype
    assert op(x) == want


# -- imports ---------------------------------------------------------------------------------------------------------


def test_import_brings_no_framework() -> None:
    frameworks = {
        "torch",
        "jax",
        "sympy",
        "dask",
        "onnx",
        "matplotlib",
        "array_api_compat",
        "array_api_strict",
        "scipy",
    }
    code = (
        "import sys, ndpool; ndpool.max_pool2d([[1, 2], [3, 4]], 2); print(*{m.partition('.')[0] for m in sys.modules})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "ndpool" in loaded
    assert not frameworks & loaded
