"""The functions: each record, what they refuse, parameters that learn, and elements of every kind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ndpool
import ndpool.jax as npx
from ndpool import PoolError, PoolTypeError
from ndpool.jax import ffi

from .. import cases

X = np.random.default_rng(0).normal(size=cases.SHAPE)
OWN = [name for name, op in cases.RECORDS.items() if op.law.built_in]


@pytest.mark.parametrize("name", OWN)
def test_each_record_gives_what_it_gives_numpy(name: str) -> None:
    op = cases.RECORDS[name]
    got, want = npx.apply(op, X), op(X)
    assert isinstance(got, jax.Array)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_the_functions_are_the_records() -> None:
    assert {name for name in npx.__all__ if name.endswith("_pool")} == set(npx.functional.NAMES)
    np.testing.assert_array_equal(npx.max_pool(X, (3, 2), padding=1), ndpool.max_pool(X, (3, 2), padding=1))
    np.testing.assert_array_equal(npx.max_pool(X, [3, 2]), ndpool.max_pool(X, (3, 2)))  # a list has no hash
    np.testing.assert_array_equal(npx.avg_pool1d(X, 2), ndpool.avg_pool1d(X, 2))
    assert npx.lp_pool3d(X[None], 2, 2).shape == (1, 1, 2, 3)
    assert "kernel_size" in str(npx.max_pool.__signature__)
    with pytest.raises(AttributeError, match=r"module 'ndpool.jax' has no attribute 'max_pool4d'"):
        npx.max_pool4d  # noqa: B018


@pytest.mark.parametrize("form", [npx.max_pool, npx.min_pool])
def test_indices_are_numpys(form: Any) -> None:
    function = getattr(ndpool, form.__name__)
    for given in ({"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (2, 2, 2), "ties": "split"}):
        got, want = form(X, **given, return_indices=True), function(X, **given, return_indices=True)
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
    y, places = npx.global_max_pool(X, keepdims=False, return_indices=True)
    assert y.shape == places.shape == X.shape[:1]


@pytest.mark.narrow
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32"])
def test_without_wide_numbers(dtype: str, way: str) -> None:
    """JAX as it comes: no 64-bit numbers, whole numbers of 32 bits as indices."""
    x = jnp.asarray(np.random.default_rng(1).integers(-3 if "u" not in dtype else 0, 4, cases.SHAPE)).astype(dtype)
    host = np.asarray(x)
    y, places = npx.max_pool(x, 2, 1, 1, return_indices=True)
    want, where = ndpool.max_pool(host, 2, 1, 1, return_indices=True)
    assert (y.dtype, places.dtype) == (x.dtype, jnp.int32)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(places, where)
    if dtype in ("bool", "int32"):
        return
    np.testing.assert_allclose(
        np.asarray(npx.avg_pool(x, 2)).astype(float), ndpool.avg_pool(host, 2).astype(float), rtol=1e-2
    )
    if "float" in dtype:
        g = jax.grad(lambda x: npx.smooth_max_pool(x, 2).astype("float32").sum())(x)
        assert g.dtype == x.dtype
        want = ndpool.SmoothMaxPool(2).vjp(host, np.ones_like(ndpool.max_pool(host, 2)))
        np.testing.assert_allclose(np.asarray(g).astype(float), want.astype(float), rtol=2e-2)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_sums_of_64_bits(way: str, dtype: str) -> None:
    x = np.array([[np.iinfo(dtype).max - 1, 1, 5, 7]], dtype)
    for function in ("sum_pool", "avg_pool"):
        want = getattr(ndpool, function)(x, (2,))
        np.testing.assert_array_equal(getattr(npx, function)(jnp.asarray(x), (2,)), want)


@pytest.mark.skipif(not ffi.available(), reason="XLA does not call the native engine")
def test_a_sum_that_does_not_fit_is_an_error() -> None:
    x = jnp.full((4, 4), 100, jnp.int8)
    assert npx.sum_pool(x, 1).dtype == jnp.int8
    with pytest.raises(jax.errors.JaxRuntimeError, match="a sum does not fit the integers of x; convert x to a wider"):
        jax.block_until_ready(jax.jit(lambda x: npx.sum_pool(x, 2))(x))


def test_learnable_beta_and_norm() -> None:
    """Values and first derivatives are those of the record with that number; the second by differences."""
    smooth, p = ndpool.SmoothMaxPool(2, beta=1.5), 2.5

    def of_beta(beta: Any) -> Any:
        return npx.smooth_max_pool(X, 2, beta=beta).sum()

    def of_p(p: Any) -> Any:
        return npx.lp_pool(X, p, 2).sum()

    np.testing.assert_allclose(of_beta(jnp.asarray(1.5)), smooth(X).sum(), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(of_beta)(1.5), smooth.beta_derivative(X).sum(), rtol=1e-10)
    np.testing.assert_allclose(of_p(jnp.asarray(p)), ndpool.lp_pool(X, p, 2).sum(), rtol=1e-12)
    for f, at in ((of_beta, 1.5), (of_p, p)):
        first, second = jax.jit(jax.grad(f)), jax.jit(jax.grad(jax.grad(f)))
        h = 1e-5
        np.testing.assert_allclose(first(at), (f(at + h) - f(at - h)) / (2 * h), rtol=1e-6)
        np.testing.assert_allclose(second(at), (first(at + h) - first(at - h)) / (2 * h), rtol=1e-5)


def test_no_type_is_promoted_in_secret() -> None:
    with jax.numpy_dtype_promotion("strict"):
        for dtype in ("float64", "float16"):
            x, p = jnp.asarray(X, dtype), jnp.float32(2.5)
            assert jax.grad(lambda x, p=p: npx.lp_pool(x, p, 2).sum())(x).dtype == dtype
            assert jax.hessian(lambda x: npx.lp_pool(x, 3, 2).sum())(x[0]).dtype == dtype
            assert npx.smooth_max_pool(x, 2, beta=p).dtype == npx.avg_pool(x, 2, padding=1).dtype == dtype
            assert npx.max_unpool(*npx.max_pool(x, 2, return_indices=True), 2).dtype == dtype


def test_learnable_parameters_in_every_form() -> None:
    beta = jnp.arange(1.0, 3)[:, None, None]
    held = np.asarray(beta)
    np.testing.assert_array_equal(npx.smooth_max_pool(X, 2, beta=held), npx.smooth_max_pool(X, 2, beta=beta))
    each = [ndpool.global_smooth_max_pool(X[i], beta=float(beta[i, 0, 0]), keepdims=False) for i in range(2)]
    np.testing.assert_allclose(npx.global_smooth_max_pool(X, beta=beta, keepdims=False), each, rtol=1e-12)
    np.testing.assert_allclose(
        npx.adaptive_lp_pool(X, jnp.asarray(3.0), (3, 4)), ndpool.adaptive_lp_pool(X, 3, (3, 4)), rtol=1e-12
    )
    zeros = jnp.zeros((2, 4, 4))
    y, g = jax.value_and_grad(lambda x: npx.lp_pool(x, jnp.asarray(2.5), 2).sum())(zeros)
    assert y == 0
    assert not g.any()
    assert jax.grad(lambda p: npx.lp_pool(zeros, p, 2).sum())(2.5) == 0


TRACED = jax.ShapeDtypeStruct((), jnp.int64)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: npx.max_pool([[1.0]], 1), PoolTypeError, "max_pool: x is a list, not a JAX array; use jax.numpy"),
        (lambda: npx.max_pool(X, 9), PoolError, "max_pool: on axis 1, kernel_size=9 is larger than the padded input"),
        (lambda: npx.max_pool(X, 2, strid=1), PoolTypeError, "max_pool: .*did you mean stride"),
        (lambda: npx.max_pool2d(X, 2, axes=1), PoolTypeError, "max_pool2d: takes no axes, because it pools axes"),
        (lambda: npx.lp_pool(X.astype(int), 2, 2), PoolTypeError, "lp_pool: x has dtype int64, but lp takes real"),
        (lambda: npx.apply(ndpool.Pool(cases.ENERGY, 2), X), PoolTypeError, "pool: a law of your own runs on NumPy"),
        (lambda: jax.eval_shape(lambda k: npx.max_pool(X, k), TRACED), PoolTypeError,
         "max_pool: kernel_size is a traced value, but a window is fixed when a program is traced; .* static_argnames"),
        (lambda: jax.eval_shape(lambda k: npx.max_pool(X, (2, k)), TRACED), PoolTypeError,
         "max_pool: kernel_size is a traced value"),
        (lambda: jax.eval_shape(lambda s: npx.smooth_max_pool(X, 2, s, beta=jnp.ones(())), TRACED), PoolTypeError,
         "smooth_max_pool: stride is a traced value"),
        (lambda: jax.eval_shape(lambda k: ndpool.max_pool(X, 2, padding=((0, 1), (k, 0))), TRACED), PoolTypeError,
         "max_pool: padding is a traced value, but a window is fixed"),
        (lambda: jax.eval_shape(lambda a: ndpool.MaxPool(2, axes=(a, 2))(X), TRACED), PoolTypeError,
         "max_pool: axes is a traced value"),
        (lambda: jax.grad(lambda b: ndpool.smooth_max_pool(X, 2, beta=b).sum())(1.0), PoolTypeError,
         "smooth_max_pool: beta=.* is not a real number; use a float, or to learn beta the functions of ndpool.jax"),
        (lambda: jax.eval_shape(lambda y, k: npx.max_unpool(y, y.astype(int), k), X, TRACED), PoolTypeError,
         "max_unpool: kernel_size is a traced value"),
        (lambda: jax.linear_transpose(lambda x: npx.max_pool(x, 1, 1, 0), X)(X), PoolTypeError,
         "max is not linear, so it has no transpose; use jax.vjp"),
        (lambda: npx.smooth_max_pool(X, 2, beta=jnp.ones((2, 5, 1))), PoolError,
         r"smooth_max_pool: beta has shape \(2, 5, 1\), so it varies in a window; give it size 1 on axes \(1, 2\)"),
        (lambda: npx.smooth_max_pool(X, 2, beta=jnp.ones((), int)), PoolTypeError, "beta has dtype int64; convert"),
        (lambda: npx.max_pool(X, 5, 1, 9, empty="error"), PoolError, "max_pool: .*reads nothing"),
        (lambda: jax.jvp(lambda x: npx.max_pool(x, 2), (X,), (X[0],)), ValueError, "shape"),
        (lambda: jax.vjp(lambda x: npx.max_pool(x, 2), X)[1](X), ValueError, "shape"),
        (lambda: jax.jvp(lambda x: npx.max_pool(x, 2), (X,), (X.astype("float32"),)), TypeError, "dtype"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_pooled_axes_have_numbers() -> None:
    from jax import export

    (n,) = export.symbolic_shape("n")
    with pytest.raises(PoolError, match="max_pool: axis 1 is pooled and has the symbolic size n; give pooled axes"):
        export.export(jax.jit(lambda x: npx.max_pool(x, 2)))(jax.ShapeDtypeStruct((2, n, 4), jnp.float32))


def test_records_on_arrays_run_here() -> None:
    """Arrays and tracers alike, and their derivatives: of second order too, where the spec has a kink on one side."""
    assert type(ndpool.arrays.find(jnp.ones(2))).__module__ == "ndpool.arrays.jax"
    jax.jit(lambda x: None if ndpool.arrays.find(x) is ndpool.arrays.find(jnp.ones(2)) else 1 / 0)(1.0)
    op, x, dx, dy = ndpool.LpPool(2, (2,)), [0.0, 4.0], [1.0, 0.0], [1.0]
    got = op.hvp(*map(jnp.array, (x, dx, dy)))
    np.testing.assert_allclose(got, op.hvp(x, dx, dy), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(op.jacobian(jnp.array([3.0, 4.0])), [[0.6, 0.8]], rtol=1e-12)


REAL = jnp.ones((4, 4), "float32")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda op: op.jvp(REAL, REAL[0]), PoolError, r"dx has shape \(4,\), but x has \(4, 4\); give it x's shape"),
        (lambda op: op.vjp(REAL, REAL), PoolError, r"dy has shape \(4, 4\), but y has \(2, 2\); give it y's shape"),
        (lambda op: op.linearize(REAL).jvp(REAL.astype("float16")), PoolTypeError, "dx has dtype float16, but x has"),
        (lambda op: op.hvp(REAL, REAL, REAL), PoolError, "dy has shape"),
        (lambda op: op.hvp(REAL, [1.0], REAL), PoolTypeError, "dx is a list, not a JAX array; use jax.numpy.asarray"),
        (lambda op: op.jacobian(REAL.astype(int)), PoolTypeError, "x has dtype int64, in which JAX has no derivatives"),
        (lambda op: op(REAL, out=np.zeros((2, 2))), PoolTypeError, "out is for results that are NumPy arrays"),
    ],
)
def test_errors_at_the_front_door(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^max_pool: {message}"):
        call(ndpool.MaxPool(2))


def test_a_dtype_on_jax_arrays() -> None:
    x = jnp.full((4, 4), 200, "uint8")
    traced = jax.jit(ndpool.sum_pool, static_argnums=1, static_argnames="dtype")
    for run in (ndpool.sum_pool, npx.sum_pool, traced):
        y = run(x, 2, dtype="uint32")
        assert (y.dtype, y.tolist()) == (jnp.uint32, [[800, 800], [800, 800]])
    with pytest.raises(PoolTypeError, match="sum_pool: dtype='int32' cannot hold x's float32"):
        ndpool.sum_pool(REAL, 2, dtype="int32")


def test_ndpool_does_not_import_jax() -> None:
    code = "import sys, ndpool; ndpool.max_pool([[1.0]], 1); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
