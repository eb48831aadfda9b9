"""`max_unpool` on JAX arrays: what it gives NumPy arrays, on either way; its batches, its transpose, and its errors.
Other transforms are two rows of the table in `test_transforms`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import ndpool
import ndpool.jax as npx
from ndpool import PoolError, PoolTypeError
from ndpool.jax import ffi

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "bfloat16", "float32", "float64"]
PLACES = ["int32", "int64", "int8", "uint16"]
REFUSED = (ValueError, jax.errors.JaxRuntimeError)  # JAX has either, by when it hears of a program's error
DUPLICATES = pytest.mark.parametrize("duplicates", ["sum", "last"])
Y, AT = np.array([[[1.0, 2, 3]], [[4, 5, 6]]]), np.array([[[0, 3, 3]], [[-1, 1, 1]]])


@DUPLICATES
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_gives_what_it_gives_numpy(way: str, dtype: str, duplicates: str) -> None:
    rng = np.random.default_rng(len(dtype))
    for case in range(len(PLACES)):
        rank = int(rng.integers(1, 5))
        shape, out = (tuple(int(n) for n in rng.integers(1, 5, rank)) for _ in range(2))
        axes = tuple(int(a) for a in rng.permutation(rank)[: rng.integers(1, rank + 1)])
        places = PLACES[case % len(PLACES)]
        low = 0 if places.startswith("u") else -1
        y = rng.integers(0, 4, shape).astype(jnp.dtype(dtype))
        at = rng.integers(low, int(np.prod([out[a] for a in axes])), shape).astype(places)
        options: Any = {"axes": axes, "output_size": tuple(out[a] for a in axes), "duplicates": duplicates}
        got = npx.max_unpool(jnp.asarray(y), jnp.asarray(at), 1, **options)
        want = ndpool.max_unpool(y, at, 1, **options)
        assert got.dtype == y.dtype
        np.testing.assert_array_equal(got, want, err_msg=str((shape, options, places)))


@pytest.mark.narrow
def test_without_wide_numbers(way: str) -> None:
    y, at = npx.max_pool(jnp.arange(16.0).reshape(1, 4, 4), 2, return_indices=True)
    assert at.dtype == jnp.int32
    back = npx.max_unpool(y, at, 2)
    np.testing.assert_array_equal(npx.max_pool(back, 2), y)
    np.testing.assert_array_equal(npx.max_unpool(y, at.astype("uint32"), 2), back)


def test_other_spellings() -> None:
    y, at = ndpool.max_pool(np.arange(48.0).reshape(1, 4, 4, 3), 2, layout="NHWC", return_indices=True)
    want = ndpool.max_unpool(y, at, 2, layout="NHWC")
    np.testing.assert_array_equal(npx.max_unpool(y, at, 2, layout="NHWC"), want)
    np.testing.assert_array_equal(jax.jit(lambda y: ndpool.max_unpool(y, at, 2, layout="NHWC"))(y), want)
    np.testing.assert_array_equal(npx.max_unpool2d(Y, AT, (1, 2)), npx.max_unpool(Y, AT, (1, 2), axes=(-2, -1)))
    assert npx.max_unpool(Y[:0], AT[:0], 2).shape == (0, 2, 6)


@DUPLICATES
def test_batches_of_either_argument(way: str, duplicates: str) -> None:
    def put(y: Any, at: Any) -> Any:
        return npx.max_unpool(y, at, (1, 2), duplicates=duplicates)

    for axes in ((0, None), (None, 0), (0, 0), (2, 0)):
        y, at = (np.stack([a, a[::-1]], 2 if axis == 2 else 0) if axis is not None else a
                 for a, axis in zip((Y, AT), axes, strict=True))  # fmt: skip
        got = jax.vmap(put, in_axes=axes)(y, at)
        for i in range(2):
            one = [a if axis is None else np.take(a, i, axis) for a, axis in zip((y, at), axes, strict=True)]
            np.testing.assert_array_equal(got[i], put(*one))


@DUPLICATES
def test_the_transpose_is_the_adjoint(way: str, duplicates: str) -> None:
    def put(y: Any) -> Any:
        return npx.max_unpool(y, AT, (1, 2), duplicates=duplicates)

    g = np.random.default_rng(0).normal(size=put(Y).shape)
    (back,) = jax.linear_transpose(put, Y)(g)
    np.testing.assert_allclose((back * Y).sum(), (g * put(Y)).sum())
    np.testing.assert_array_equal(jax.linear_transpose(lambda g: jax.linear_transpose(put, Y)(g)[0], g)(Y)[0], put(Y))
    assert not back[AT < 0].any()


def test_places_have_no_derivative() -> None:
    _, moved = jax.jvp(lambda at: npx.max_unpool(Y, at, (1, 2)), (AT,), (np.zeros(AT.shape, jax.dtypes.float0),))
    assert not moved.any()


@pytest.mark.skipif(not ffi.available(), reason="XLA does not call the native engine")
def test_what_a_program_refuses() -> None:
    """On the CPU; elsewhere a program cannot raise."""
    for at in (AT + 9, AT - 9):
        with pytest.raises(REFUSED, match="indices has a place outside the output; give a larger output_size"):
            jax.block_until_ready(npx.max_unpool(Y, at, (1, 2)))
    y, at = jnp.full((1, 2), 100, "int8"), jnp.zeros((1, 2), int)
    with pytest.raises(REFUSED, match="values that meet add up beyond the integers of y; convert y to a wider"):
        jax.block_until_ready(npx.max_unpool(y, at, 1))
    assert npx.max_unpool(y, at, 1, duplicates="last").tolist() == [[100, 0]]


def test_outside_puts_nothing_where_a_program_cannot_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    from .ways import use

    with use("composed", monkeypatch):
        assert not npx.max_unpool(Y, AT * 0 + 99, (1, 2)).any()
        assert not jax.grad(lambda y: npx.max_unpool(y, AT * 0 + 99, (1, 2)).sum())(Y).any()


TRACED = jax.ShapeDtypeStruct((), jnp.int64)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: npx.max_unpool([[1.0]], AT, 2), PoolTypeError, "y is a list, not a JAX array; use jax.numpy.asarray"),
        (lambda: npx.max_unpool(Y, AT.tolist(), 2), PoolTypeError, "indices is a list, not a JAX array"),
        (lambda: npx.max_unpool(Y, AT[0], 2), PoolError, r"indices has shape \(1, 3\), but y has \(2, 1, 3\)"),
        (lambda: npx.max_unpool(Y, AT * 1.0, 2), PoolTypeError, "indices has dtype float64; give the integers"),
        (lambda: npx.max_unpool(Y, AT, 2, duplicates="first"), PoolError, "duplicates='first' is not a rule"),
        (lambda: npx.max_unpool(Y, AT, 2, padding=9), PoolError, "on axis 1, the output would have -16 positions"),
        (lambda: jax.eval_shape(lambda k: npx.max_unpool(Y, AT, k), TRACED), PoolTypeError,
         "kernel_size is a traced value, but a window is fixed when a program is traced"),
        (lambda: jax.eval_shape(lambda n: npx.max_unpool(Y, AT, 2, output_size=(n, 6)), TRACED), PoolTypeError,
         "output_size is a traced value"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^max_unpool: {message}"):
        call()


def test_symbolic_sizes() -> None:
    b, n = export.symbolic_shape("b, n")

    def exported(*shape: Any) -> Any:
        shapes = (jax.ShapeDtypeStruct(shape, Y.dtype), jax.ShapeDtypeStruct(shape, AT.dtype))
        allowed = [export.DisabledSafetyCheck.custom_call(ffi.TARGET)]
        return export.export(jax.jit(lambda y, at: npx.max_unpool(y, at, 2)), disabled_checks=allowed)(*shapes)

    np.testing.assert_array_equal(exported(b, 1, 3).call(Y, AT), ndpool.max_unpool(Y, AT, 2))
    with pytest.raises(PoolError, match="max_unpool: axis 1 is pooled and has the symbolic size n; give pooled axes"):
        exported(2, n, 3)
