"""`ndpool.jax` on a GPU gives what records give NumPy arrays, by the Triton engine's kernels."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import ndpool

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
if find_spec("jax_triton") is None:  # not imported here: by itself it leaves torch's Triton without a cache
    pytest.skip("jax-triton is not installed", allow_module_level=True)

import ndpool.jax as npx  # noqa: E402
from ndpool.jax import gpu  # noqa: E402

OPS = {
    "max": ndpool.MaxPool(3, 2, 1),
    "max, tiles": ndpool.MaxPool(2),
    "max, large": ndpool.MaxPool(15, 1, 7),
    "max, lines": ndpool.MaxPool((31,), 1, 15),
    "max, volumes": ndpool.MaxPool((3, 3, 3), 1, 1),
    "max, shared": ndpool.MaxPool(3, 2, 1, ties="split"),
    "max, channels last": ndpool.MaxPool(3, 2, 1, axes=(1, 2)),
    "min": ndpool.MinPool(3, 1),
    "avg": ndpool.AvgPool(3, 1, 1),
    "avg, large": ndpool.AvgPool(15, 1, 7),
    "sum": ndpool.SumPool(5, 2),
    "adaptive avg": ndpool.AdaptiveAvgPool((7, 3)),
    "adaptive max": ndpool.AdaptiveMaxPool(5),
    "global avg": ndpool.GlobalAvgPool(axes=(-2, -1)),
    "global max": ndpool.GlobalMaxPool(axes=(-2, -1), ties="first"),
    "smooth max": ndpool.SmoothMaxPool((3, 3), 2, 1, beta=2.0),
    "lp": ndpool.LpPool(3, (3, 3), 2),
}
SHAPE = (2, 12, 40, 37)
TOLERANCE = {"float32": 2e-5, "float16": 6e-3, "bfloat16": 5e-2}
pytestmark = pytest.mark.skipif(bool(gpu.reason()), reason=f"the kernels are not in use: {gpu.reason()}")


def arrays(op: Any, dtype: str) -> list[np.ndarray]:
    """x with many ties, a tangent, and a cotangent."""
    rng = np.random.default_rng(0)
    shapes = (SHAPE, SHAPE, op.out_shape(SHAPE))
    return [(rng.integers(-12, 12, shape) / 4).astype(jnp.dtype(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("op", OPS)
def test_values_and_derivatives_are_those_of_arrays(op: str, dtype: str) -> None:
    record = OPS[op]
    x, dx, dy = arrays(record, dtype)
    at = record.linearize(x.astype(np.float64))
    wants = [at.y, at.jvp(dx.astype(np.float64)), at.vjp(dy.astype(np.float64))]

    @jax.jit
    def every(x: Any, dx: Any, dy: Any) -> Any:
        y, back = jax.vjp(partial(npx.apply, record), x)
        return y, jax.jvp(partial(npx.apply, record), (x,), (dx,))[1], back(dy)[0]

    assert "triton" in every.lower(x, dx, dy).as_text()
    found = every(x, dx, dy)
    again = every(x, dx, dy)
    for got, same, want in zip(found, again, wants, strict=True):
        assert got.dtype == jnp.dtype(dtype)
        scale = max(1.0, np.abs(want).max())
        assert np.abs(np.asarray(got, np.float64) - want).max() <= TOLERANCE[dtype] * scale
        assert np.asarray(got).tobytes() == np.asarray(same).tobytes()  # no atomics


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_integers(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 100, SHAPE).astype(dtype)
    for record in (OPS["max"], OPS["max, large"]):
        assert np.array_equal(np.asarray(npx.apply(record, jnp.asarray(x))), record(x))
    if dtype != "uint8" and dtype != "int8":
        assert np.array_equal(np.asarray(npx.apply(OPS["sum"], jnp.asarray(x))), OPS["sum"](x))


def test_second_order_batches_and_scans() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 10, 11)).astype(np.float32)
    smooth = partial(npx.apply, OPS["smooth max"])
    here = jax.hessian(lambda v: (smooth(v.reshape(1, 1, 6, 6)) ** 2).sum())(x[0, 0, :6, :6].reshape(-1))
    with jax.default_device(jax.devices("cpu")[0]):
        there = jax.hessian(lambda v: (smooth(v.reshape(1, 1, 6, 6)) ** 2).sum())(x[0, 0, :6, :6].reshape(-1))
    np.testing.assert_allclose(np.asarray(here), np.asarray(there), 2e-4, 2e-5)
    mapped = jax.vmap(partial(npx.apply, OPS["max"]), in_axes=-1, out_axes=-1)(jnp.asarray(x[..., None].repeat(2, -1)))
    assert np.array_equal(np.asarray(mapped[..., 1]), OPS["max"](x))
    _, scanned = jax.lax.scan(lambda c, v: (c, npx.apply(OPS["max"], v)), 0, jnp.asarray(x))
    assert np.array_equal(np.asarray(scanned), OPS["max"](x))


def test_what_the_kernels_do_not_take_runs_in_jax_s_operations() -> None:
    x = np.random.default_rng(0).integers(0, 2, SHAPE).astype(bool)
    assert np.array_equal(np.asarray(npx.apply(OPS["max"], jnp.asarray(x))), OPS["max"](x))
    empty = jnp.zeros((0, 3, 8, 8))
    assert npx.apply(OPS["max, tiles"], empty).shape == (0, 3, 4, 4)
