"""The functions and modules in the spelling of flax, haiku and equinox, beside what these libraries make of
jax.lax.reduce_window."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ndpool import PoolError, PoolTypeError
from ndpool.jax import equinox, flax, haiku

X = np.random.default_rng(0).normal(size=(2, 7, 6, 3))  # batch, height, width, channels
WINDOWS = [((2, 2), None, "VALID"), ((3, 2), (2, 1), "SAME"), ((2, 3), (1, 2), ((1, 0), (0, 2)))]


def reduced(x: Any, init: float, function: Any, window: Any, strides: Any, padding: Any) -> Any:
    """flax's `pool`."""
    batch = x.ndim - len(window) - 1
    strides = strides or (1,) * len(window)
    pads = padding if isinstance(padding, str) else ((0, 0),) * batch + padding + ((0, 0),)
    dims, strides = (1,) * batch + window + (1,), (1,) * batch + strides + (1,)
    return lax.reduce_window(x, init, function, dims, strides, pads)


@pytest.mark.parametrize(("window", "strides", "padding"), WINDOWS)
def test_flax(window: Any, strides: Any, padding: Any) -> None:
    where = window, strides, padding
    total, ones = reduced(X, 0.0, lax.add, *where), reduced(np.ones_like(X), 0.0, lax.add, *where)
    for got, want in (
        (flax.max_pool(X, *where), reduced(X, -np.inf, lax.max, *where)),
        (flax.min_pool(X, *where), reduced(X, np.inf, lax.min, *where)),
        (flax.avg_pool(X, *where), total / np.prod(window)),
        (flax.avg_pool(X, *where, count_include_pad=False), total / ones),
        (flax.max_pool(X[0], *where), reduced(X, -np.inf, lax.max, *where)[0]),  # no batch
        (flax.max_pool(X[None], *where), reduced(X, -np.inf, lax.max, *where)[None]),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_flax_counts_what_it_was_given() -> None:
    with pytest.raises(PoolError, match=r"^max_pool: window_shape=\(2, 2\) has 2 entries for inputs of 2 axes"):
        flax.max_pool(X[0, 0], (2, 2))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("window", "axis", "dims"),
    [((3, 2, 1), -1, (1, 3, 2, 1)), ((1, 2, 2, 1), -1, (1, 2, 2, 1)), (2, -1, (1, 2, 2, 1)), (2, 1, (1, 1, 2, 2)),
     (2, None, (1, 2, 2, 2))],
)  # fmt: skip
def test_haiku(window: Any, axis: Any, dims: Any, padding: str) -> None:
    strides = (1, 2, 1, 1)
    total, ones = (lax.reduce_window(x, 0.0, lax.add, dims, strides, padding) for x in (X, np.ones_like(X)))
    want = lax.reduce_window(X, -np.inf, lax.max, dims, strides, padding)
    np.testing.assert_array_equal(haiku.max_pool(X, window, strides, padding, axis), want)
    np.testing.assert_allclose(haiku.avg_pool(X, window, strides, padding, axis), total / ones, rtol=1e-12)


def test_haiku_errors() -> None:
    with pytest.raises(PoolError, match=r"^max_pool: padding='FULL' is not a rule"):
        haiku.max_pool(X, 2, 2, "FULL")
    with pytest.raises(PoolError, match=r"^avg_pool: channel_axis=4 is no axis of a value of 4"):
        haiku.avg_pool(X, 2, 2, "SAME", 4)


SAMPLE = np.moveaxis(X[0], -1, 0)  # channels, height, width


@pytest.mark.parametrize(
    ("arguments", "pads"),
    [
        ({"kernel_size": 3}, ((0, 0), (0, 0))),
        ({"kernel_size": (3, 2), "stride": 2, "padding": 1}, ((1, 1), (1, 1))),
        ({"kernel_size": 2, "stride": (2, 3), "padding": ((0, 1), (1, 0))}, ((0, 1), (1, 0))),
        ({"kernel_size": 2, "stride": 4, "use_ceil": True}, ((0, 4), (0, 0))),
    ],
)
def test_equinox(arguments: dict[str, Any], pads: Any) -> None:
    kernel, stride = (
        (n, n) if isinstance(n, int) else n for n in (arguments["kernel_size"], arguments.get("stride", 1))
    )
    where = (1, *kernel), (1, *stride), ((0, 0), *pads)
    want = lax.reduce_window(SAMPLE, -np.inf, lax.max, *where)
    np.testing.assert_array_equal(equinox.MaxPool2d(**arguments)(SAMPLE), want)
    want = lax.reduce_window(SAMPLE, 0.0, lax.add, *where) / np.prod(kernel)
    np.testing.assert_allclose(equinox.AvgPool2d(**arguments)(SAMPLE, key=None), want, rtol=1e-12)


@pytest.mark.parametrize("target", [(3, 4), 2, (7, 6)])
def test_equinox_adaptive(target: Any) -> None:
    rows, columns = (target, target) if isinstance(target, int) else target
    parts = [np.array_split(row, columns, -1) for row in np.array_split(SAMPLE, rows, -2)]
    for module, fold in ((equinox.AdaptiveMaxPool2d, np.max), (equinox.AdaptiveAvgPool2d, np.mean)):
        want = np.stack([np.stack([fold(part, (-2, -1)) for part in row], -1) for row in parts], -2)
        np.testing.assert_allclose(module(target)(SAMPLE), want, rtol=1e-12)
    with pytest.raises(PoolError, match=r"^AdaptiveMaxPool1d: target_shape asks for 9 pieces of an axis of 6"):
        equinox.AdaptiveMaxPool1d(9)(SAMPLE[:, 0])


def test_equinox_modules_are_pytrees_without_leaves() -> None:
    pool = equinox.MaxPool3d(2, 2)
    assert jax.tree.leaves(pool) == []
    assert pool == equinox.MaxPool3d(2, 2)
    x = jnp.ones((2, 4, 4, 4))
    assert jax.jit(lambda pool, x: pool(x))(pool, x).shape == (2, 2, 2, 2)
    with pytest.raises(PoolError, match=r"^MaxPool3d: x has shape \(4, 4, 4\); give it channels and 3 axes"):
        pool(x[0])
    with pytest.raises(PoolError, match=r"^AvgPool2d: stride=\(1, 2, 3\) has 3 entries for 2 axes"):
        equinox.AvgPool2d(2, (1, 2, 3))(SAMPLE)
    with pytest.raises(PoolTypeError, match=r"^MaxPool2d: padding='SAME' is not a number; give one, or one per axis"):
        equinox.MaxPool2d(2, padding="SAME")(SAMPLE)


@pytest.mark.narrow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_means_of_whole_numbers_are_not_rounded(dtype: str) -> None:
    """As in these libraries, which divide a sum; ours does not wrap around."""
    x = jnp.array([[127, 126], [126, 126]], dtype)
    image = x[None, ..., None]
    for y in (
        flax.avg_pool(image, (2, 2)),
        flax.avg_pool(image, (2, 2), count_include_pad=False),
        haiku.avg_pool(image, 2, 2, "SAME"),
        equinox.AvgPool2d(2)(x[None]),
        equinox.AdaptiveAvgPool2d(1)(x[None]),
    ):
        assert (y.dtype, y.ravel().tolist()) == (jnp.float32, [126.25])
    assert flax.avg_pool(image, (1, 1)).dtype == jnp.float32
