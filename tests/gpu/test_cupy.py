"""CuPy's arrays through the front door: lent to the Triton engine, without a copy either way."""

from __future__ import annotations

import numpy as np
import pytest

import ndpool

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_arrays_of_cupy_s_give_what_numpy_s_give(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 100, (2, 3, 20, 17)).astype(dtype)
    for op in (ndpool.MaxPool(3, 2, 1), ndpool.AdaptiveMaxPool(5), ndpool.SumPool(2)):
        if op.name == "sum_pool" and dtype == "uint8":
            continue  # sums that do not fit
        y = op(cupy.asarray(x))
        assert isinstance(y, cupy.ndarray)
        assert np.array_equal(cupy.asnumpy(y), op(x))


def test_derivatives_and_indices() -> None:
    rng = np.random.default_rng(0)
    x, dx = rng.standard_normal((2, 2, 3, 20, 17)).astype(np.float32)
    op = ndpool.MaxPool(3, 2, 1)
    dy = rng.standard_normal(op.out_shape(x.shape)).astype(np.float32)
    a, b, c = map(cupy.asarray, (x, dx, dy))
    assert np.array_equal(cupy.asnumpy(op.jvp(a, b)), op.jvp(x, dx))
    np.testing.assert_allclose(cupy.asnumpy(op.vjp(a, c)), op.vjp(x, dy), 1e-5, 1e-5)
    y, where = ndpool.max_pool(a, 3, 2, 1, return_indices=True)
    want, there = ndpool.max_pool(x, 3, 2, 1, return_indices=True)
    assert np.array_equal(cupy.asnumpy(y), want)
    assert np.array_equal(cupy.asnumpy(where), there)
