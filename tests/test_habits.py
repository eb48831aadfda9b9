"""What people's fingers do: letters for layouts, channels last by mistake, `dtype=`, `out=`, `python -m ndpool`."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from fractions import Fraction as F
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError, PoolTypeError, PoolWarning, errors
from ndpool.arrays import converted
from ndpool.engines import native
from ndpool.ops import RECORDS as CLASSES

from . import cases, examples

X = np.arange(2.0 * 8 * 6 * 3).reshape(2, 8, 6, 3) % 17


@pytest.fixture(autouse=True)
def _told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())


LABELS = tuple(map(type, cases.LABELLED.values()))

# -- layout ------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(st.permutations("NCBHWDT"), st.integers(1, 6), st.sampled_from(CLASSES))
def test_layout_is_another_way_to_say_axes(letters: list[str], count: int, record: Any) -> None:
    layout = "".join(letters[:count])
    axes = tuple(i for i, letter in enumerate(layout) if letter not in "NCB")
    given = {"kernel_size": 2, "output_size": 2, "norm_type": 2, "law": cases.ENERGY}
    own = {name: value for name, value in given.items() if name in record.__dataclass_fields__}
    if not axes:
        with pytest.raises(PoolError, match=f"layout='{layout}' pools nothing"):
            record(**own, layout=layout)
        return
    x = np.random.default_rng(0).normal(size=(3, 2, 4, 2, 3, 2)[:count])
    x = x if record not in LABELS else (2 * x).astype(int)
    assert np.array_equal(record(**own, layout=layout)(x), record(**own, axes=axes)(x))
    assert record(**own, layout=layout).pooled_axes(count) == axes


def test_layout_in_the_other_functions() -> None:
    y, where = ndpool.max_pool(X, 2, layout="NHWC", return_indices=True)
    want = ndpool.max_unpool(y, where, 2, axes=(1, 2))
    assert np.array_equal(ndpool.max_unpool(y, where, 2, layout="NHWC"), want)
    assert np.array_equal(ndpool.unpad(X, 1, layout="NHWC"), X[:, 1:-1, 1:-1])
    assert ndpool.global_avg_pool([[[1, 2], [3, 4]]], layout="HWC", keepdims=False) == [2.0, 3.0]
    for call in (
        lambda: ndpool.unpad(X, 1, axes=0, layout="NHWC"),
        lambda: ndpool.max_unpool(y, where, 2, layout="HWC"),
    ):
        with pytest.raises(PoolError, match=r"give one|has 3 letters, but x has 4 axes"):
            call()
    with pytest.raises(PoolTypeError, match=r"^max_pool: .*'data_format'; did you mean layout\?"):
        ndpool.max_pool(X, 2, data_format="NHWC")


def test_layout_in_records_that_travel() -> None:
    op = ndpool.MaxPool((2, 3), layout="HCW")
    assert repr(op) == "MaxPool(kernel_size=(2, 3), layout='HCW')"
    assert eval(repr(op), vars(ndpool).copy()) == op
    g = ndpool.Graph()
    program = g.build(g.global_sum_pool(g.max_pool(g.input((4, 2, 6)), (2, 3), layout="HCW"), layout="HCW"))
    x = np.arange(96.0).reshape(2, 4, 2, 6)
    assert np.array_equal(program.batched(2)(x), np.stack([program(x[0]), program(x[1])]))
    assert ndpool.Program.from_json(program.to_json())(x[0]).tolist() == program(x[0]).tolist()
    assert "(9, 1, 14)" in op._repr_svg_() or op._repr_svg_().startswith("<svg")


# -- channels last by mistake ------------------------------------------------------------------------------------------


def test_an_int_kernel_that_would_blend_channels_warns_once_at_the_callers_line() -> None:
    with pytest.warns(
        PoolWarning, match=r"^avg_pool: kernel_size=2 pools .* of 6 and 3 entries.* layout='NHWC'"
    ) as told:
        ndpool.avg_pool(X, 2)
    assert told[0].filename == __file__
    ndpool.avg_pool(X[:1], 2)  # warnings are errors in these tests
    with pytest.warns(PoolWarning, match=r"^sum_pool: .*layout='HWC', and if not, axes=\(-2, -1\)"):
        ndpool.SumPool(2).linearize(X[0])
    with pytest.warns(PoolWarning, match=r"^max_pool: .*axes=\(-5, -4, -3, -2\)"):
        ndpool.max_pool(X[None, None], 2)
    torch = pytest.importorskip("torch", reason="tensors come through another door")
    with pytest.warns(PoolWarning, match="^min_pool: kernel_size=2"):
        ndpool.min_pool(torch.ones(9, 4), 2)


def test_it_warns_of_jax_arrays_and_tracers_too() -> None:
    jax = pytest.importorskip("jax", reason="JAX arrays come through another door")
    image = jax.numpy.ones((9, 9, 3))
    with pytest.warns(PoolWarning, match="^avg_pool: kernel_size=2 pools .* of 9 and 3 entries.* layout='HWC'") as told:
        ndpool.avg_pool(image, 2)
    assert told[0].filename == __file__
    with pytest.warns(PoolWarning, match="^sum_pool: kernel_size=2"):
        jax.eval_shape(lambda x: ndpool.sum_pool(x, 2), image)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ndpool.max_pool(X, (2, 2)),
        lambda: ndpool.max_pool(X, 2, axes=(-2, -1)),
        lambda: ndpool.max_pool(X, 2, layout="NHWC"),
        lambda: ndpool.max_pool(X, 2, stride=(1, 1)),
        lambda: ndpool.max_pool2d(X, 2),
        lambda: ndpool.max_pool(X[..., :2, :], 2),  # 2 and 3 entries
        lambda: ndpool.max_pool(X[0, 0, 0], 2),
        lambda: ndpool.max_pool(np.ones((3, 8, 5)), 2),
        lambda: ndpool.MaxPool(2).out_shape(X.shape),
    ],
)
def test_no_warning_where_there_is_no_doubt(call: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()


@pytest.mark.parametrize("record", [r for r in CLASSES if r.__name__.startswith("Global")])
def test_a_global_op_on_many_axes_must_be_told(record: Any) -> None:
    own = {"norm_type": 2, "law": cases.ENERGY}
    op = record(**{name: value for name, value in own.items() if name in record.__dataclass_fields__})
    for rank, words in ((5, "use layout='NCDHW' or axes=(-3, -2, -1)"), (6, "use axes=(-4, -3, -2, -1) for all but")):
        x = np.ones((1, 2, 2, 2, 1, 2)[:rank], cases.usual(op.law))
        calls = [lambda: op(x), lambda: op.linearize(x), lambda: op.out_shape(x.shape), lambda: op(x.tolist())]  # noqa: B023
        for call in calls[:1] + calls[2:] if op.law.no_derivative else calls:
            with pytest.raises(PoolError) as raised:
                call()
            assert f"{op.name}: x has {rank} axes, and nothing says which are pooled; {words}" in str(raised.value)
    assert replace(op, axes=(-2, -1))(x).shape == (1, 2, 2, 2, 1, 1)
    assert op(x[0, 0]).shape == (2, 2, 1, 1)
    g = ndpool.Graph()
    with pytest.raises(PoolError, match=f"{op.name} 1 .*nothing says which are pooled"):
        g.push(op, g.input((1, 2, 3, 4, 5)))


# -- dtype -------------------------------------------------------------------------------------------------------------


def test_sums_are_kept_in_the_dtype_that_is_asked_for() -> None:
    x = np.full((4, 6), 255, np.uint8)
    y = ndpool.sum_pool(x, 2, dtype="uint16")
    assert y.dtype == np.uint16
    assert (y == 1020).all()
    half = np.full((64, 64), 60000, np.float16)
    assert ndpool.global_sum_pool(half, dtype=np.float32).item() == 64 * 64 * 59999.0 + 64 * 64
    share = ndpool.adaptive_avg_pool(np.eye(4, dtype=bool), 2, dtype=float)
    assert share.tolist() == [[0.5, 0.0], [0.0, 0.5]]
    assert ndpool.avg_pool(x, 2, dtype=cases.BFLOAT16).dtype == cases.BFLOAT16
    assert ndpool.max_pool(x, 2, dtype="float32", return_indices=True)[0].dtype == np.float32


PARTED = {
    op.name: op
    for op in (
        ndpool.MaxPool((3, 2), (2, 1), 1, return_indices=True),
        ndpool.AvgPool(3, 2, 1, ceil_mode=True, count_include_pad=False, axes=(0, -1)),
        ndpool.SumPool(2, dilation=3, stride=1, axes=-1),
        ndpool.SmoothMaxPool(5, 3, axes=(0, 1)),
        ndpool.AdaptiveMinPool((7, None), return_indices=True),
        ndpool.AdaptiveLpPool(2, 9, axes=0),
        ndpool.GlobalAvgPool(axes=(0, 2), keepdims=False),
        ndpool.GlobalMaxPool(axes=1, keepdims=False, return_indices=True),
    )
}


@pytest.mark.parametrize("op", PARTED.values(), ids=PARTED)
@pytest.mark.parametrize("order", ["C", "F"])
def test_converting_in_parts_changes_no_bit(op: Any, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted, "PART", 200)
    x = np.random.default_rng(0).integers(0, 250, (31, 20, 29)).astype(np.uint8, order=order)[:, ::-1]
    assert len(list(converted.boxes(op.window(x.shape).axes, x.strides))) > 5
    for dtype in ("float32", "int32"):
        if dtype == "int32" and "integer" not in op.law.kinds:
            continue
        got, want = replace(op, dtype=dtype)(x), op(x.astype(dtype))
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()


def test_a_dtype_takes_no_copy_of_a_large_array() -> None:
    x = np.ones((64, 128, 512), np.uint8)
    tracemalloc.start()
    try:
        ndpool.global_sum_pool(x, axes=(1, 2), dtype="uint32")
        ndpool.max_pool(x, (8, 8), dtype="float32")
        assert tracemalloc.get_traced_memory()[1] < x.nbytes
    finally:
        tracemalloc.stop()


def test_derivatives_through_a_dtype() -> None:
    op, plain = ndpool.AvgPool(2, dtype="float64"), ndpool.AvgPool(2)
    x, dy = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(6.0).reshape(2, 3)
    at = op.linearize(x)
    assert at.y.dtype == at.jvp(x).dtype == np.float64
    assert at.vjp(dy).dtype == np.float32
    assert np.array_equal(at.vjp(dy), plain.vjp(x.astype(float), dy))
    assert np.array_equal(op.jacobian(x), plain.jacobian(x.astype(float)))
    whole = op.linearize(x.astype(np.int16))  # an integer moves by numbers of the dtype
    assert np.array_equal(whole.vjp(dy), plain.vjp(x.astype(float), dy))
    assert whole.jvp(x.astype(float)).dtype == np.float64
    x += 1
    bent = ndpool.LpPool(2, 2, dtype="float64").hvp(x, x, dy)
    assert bent.dtype == np.float32
    np.testing.assert_allclose(bent, ndpool.LpPool(2, 2).hvp(x.astype(float), x.astype(float), dy), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ndpool.sum_pool(X, 1, dtype=int, axes=0), "dtype='int64' cannot hold x's float64; use a real dtype"),
        (lambda: ndpool.sum_pool(np.ones((2, 2), int), 1, dtype="int32"), "dtype='int32' cannot hold all of x's int64"),
        (lambda: ndpool.sum_pool(np.ones((2, 2), np.int8), 1, dtype="uint64"), "dtype='uint64' cannot hold all of x's"),
        (lambda: ndpool.sum_pool([[1, 2]], 1, dtype="int32"), "dtype='int32' has no meaning for nested lists"),
        (
            lambda: ndpool.SumPool(1, dtype="float64").jvp(X[0, 0].astype("f4"), X[0, 0]),
            "dx is not an array of float32",
        ),
    ],
)
def test_what_a_dtype_cannot_hold(call: Any, words: str) -> None:
    with pytest.raises(PoolError, match=f"^sum_pool: {words}"):
        call()


# -- out ---------------------------------------------------------------------------------------------------------------


def arrays_for(shape: tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
    """Results to be: dense, in Fortran's order, and with gaps."""
    yield np.empty(shape, dtype)
    yield np.empty(shape, dtype, order="F")
    yield np.empty((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    yield np.empty(shape[::-1], dtype)[::-1].T


@pytest.mark.parametrize("op", cases.RECORDS.values(), ids=cases.RECORDS)
def test_out_takes_the_result(op: Any) -> None:
    x = np.random.default_rng(0).normal(size=cases.SHAPE)
    want = op(x)
    for array in (x, np.asfortranarray(x), x[::-1]):
        want = op(array)
        for out in arrays_for(want.shape, want.dtype):
            out[...] = np.nan
            assert op(array, out=out) is out
            assert np.array_equal(out, want)
    function = getattr(ndpool, op.name)
    arguments = {name: getattr(op, name) for name in (field.name for field in fields(op))}
    out = np.empty(want.shape)
    assert function(x, out=out, **arguments) is out
    assert np.array_equal(out, op(x))


def test_out_may_be_the_input() -> None:
    x = np.random.default_rng(0).permutation(64 * 64).reshape(64, 64)
    op = ndpool.MaxPool(3, 1, 1)
    want = op(x)
    op(x, out=x)
    assert np.array_equal(x, want)


def test_out_of_other_results() -> None:
    x = np.arange(24, dtype=np.uint8).reshape(4, 6)
    out = np.empty((2, 3), np.uint8), np.empty((2, 3), np.int64)
    assert ndpool.max_pool(x, 2, return_indices=True, out=out) is out
    assert out[0].tolist() == [[7, 9, 11], [19, 21, 23]] == out[1].tolist()
    wide = np.empty((2, 3), np.int32)
    assert ndpool.sum_pool(x, 2, dtype="int32", out=wide).tolist() == ndpool.sum_pool(x, 2).tolist()
    swapped = np.empty((2, 3), ">f4")
    assert ndpool.max_pool(x.astype(">f4"), 2, out=swapped).tolist() == [[7, 9, 11], [19, 21, 23]]


@pytest.mark.skipif(not native.available(), reason="the portable engine makes a result and copies it")
def test_out_is_written_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    out, x = np.empty((2, 4, 3, 3)), X
    monkeypatch.setattr(native, "_empty", None)
    assert ndpool.max_pool(x, 2, axes=(1, 2), out=out) is out


@pytest.mark.parametrize(
    ("x", "out", "words"),
    [
        (X, np.empty((2, 4, 3)), r"out is float64 of shape \(2, 4, 3\), but the result .* numpy.empty\(\(2, 4, 3, 3\)"),
        (X, np.empty((2, 4, 3, 3), "f4"), "out is float32 of shape .* but the result is float64"),
        (X, [[1.0]], r"out is a list, not an array; use numpy.empty\(\(2, 4, 3, 3\), 'float64'\)"),
        (X.tolist(), np.empty((2, 4, 3, 3)), "out is for results that are NumPy arrays, and this is a list"),
        (X, np.broadcast_to(0.0, (2, 4, 3, 3)), "out is read-only"),
    ],
)
def test_bad_out(x: Any, out: Any, words: str) -> None:
    for call in (lambda: ndpool.max_pool(x, 2, axes=(1, 2), out=out), lambda: ndpool.MaxPool(2, axes=(1, 2))(x, out)):
        with pytest.raises(PoolError, match=f"^max_pool: {words}"):
            call()
    with pytest.raises(PoolTypeError, match=r"^max_pool: out is not two arrays, but return_indices=True gives two"):
        ndpool.max_pool(X, (2, 2), return_indices=True, out=np.empty((2, 4, 3, 3)))


# -- jacobian and hvp --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", cases.RECORDS.values(), ids=cases.RECORDS)
def test_the_jacobian_is_all_of_jvp_and_vjp(op: Any) -> None:
    rng = np.random.default_rng(0)
    x, dx = rng.normal(size=cases.SHAPE), rng.normal(size=cases.SHAPE)
    y = op(x)
    jacobian = op.jacobian(x)
    assert jacobian.shape == (*y.shape, *x.shape)
    flat = jacobian.reshape(y.size, x.size)
    np.testing.assert_allclose(flat @ dx.ravel(), op.jvp(x, dx).ravel(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(y.ravel() @ flat, op.vjp(x, y).ravel(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n, op in cases.RECORDS.items() if op.law is not cases.ENERGY])
def test_hvp_is_the_tangent_of_vjp(name: str) -> None:
    op, rng, h = cases.RECORDS[name], np.random.default_rng(1), 1e-5
    x, dx = rng.normal(size=cases.SHAPE), rng.normal(size=cases.SHAPE)
    dy = rng.normal(size=op.out_shape(cases.SHAPE))
    want = (op.vjp(x + h * dx, dy) - op.vjp(x - h * dx, dy)) / (2 * h)
    np.testing.assert_allclose(op.hvp(x, dx, dy), want, rtol=1e-5, atol=1e-5)


def test_second_order_of_exact_numbers_and_bad_input() -> None:
    op = ndpool.AvgPool((2,))
    assert op.jacobian([F(1), F(2)]) == [[F(1, 2), F(1, 2)]]
    assert ndpool.MaxPool((2,)).hvp([F(1), F(2)], [F(1), F(0)], [F(1)]) == [0, 0]
    assert ndpool.MaxPool((2,), return_indices=True).jacobian(np.array([1.0, 2.0])).tolist() == [[0.0, 1.0]]
    for call, words in (
        (lambda: op.hvp(np.ones(2), np.ones(3), np.ones(1)), r"avg_pool: .*tangent of x has shape \(3,\)"),
        (lambda: op.hvp(np.ones(2), np.ones(2), np.ones(2)), r"avg_pool: .*input dy has shape \(2,\)"),
        (lambda: op.jacobian(np.ones(1)), "avg_pool: .*kernel_size=2 is larger than the padded input"),
    ):
        with pytest.raises(PoolError, match=words):
            call()


# -- python -m ndpool --------------------------------------------------------------------------------------------------


def test_the_module_is_the_command() -> None:
    run = [sys.executable, "-m", "ndpool"]
    done = subprocess.run([*run, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ndpool {ndpool.__version__}\n"
    assert subprocess.run([*run, "nonsense"], check=False, capture_output=True).returncode == 2
