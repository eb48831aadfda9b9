"""Arrays in parts on the devices of an explicit mesh: results are those of whole arrays, and lie as the arrays do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec, reshard

import ndpool
import ndpool.jax as npx
from ndpool import PoolError

X = np.random.default_rng(0).normal(size=(4, 2, 6, 6))
BETA = jnp.arange(1.0, 3)[:, None, None]


def unpooled(x: Any) -> Any:
    return npx.max_unpool(*npx.max_pool(x, 2, return_indices=True), 2)


def smooth(x: Any) -> Any:
    return npx.smooth_max_pool(x, 2)


FUNCTIONS: dict[str, Any] = {
    "max": lambda x: npx.max_pool(x, 3, 2, 1),
    "indices": lambda x: npx.max_pool(x, 2, return_indices=True),
    "without axes": lambda x: npx.global_avg_pool(x, keepdims=False),
    "at the front door": lambda x: ndpool.lp_pool(x, 3, 2),
    "learnt": lambda x: npx.smooth_max_pool(x, 2, beta=BETA.astype(x.dtype)),
    "reduce_window": lambda x: npx.reduce_window(x, 0.0, jax.lax.add, (1, 1, 2, 2), padding="SAME"),
    "unpool": unpooled,
    "grad": jax.grad(lambda x: (npx.max_pool(x, 2) ** 2).sum()),
    "hvp": lambda x: jax.jvp(jax.grad(lambda x: (smooth(x) ** 2).sum()), (x,), (x,))[1],
    "vmap": jax.vmap(smooth),
    "vmap of grad": jax.vmap(jax.grad(lambda x: (npx.max_pool(x, 2) ** 2).sum())),
    "vmap over cotangents": lambda x: jax.vmap(lambda g: jax.vjp(smooth, jnp.asarray(X[0]))[1](g)[0])(smooth(x)),
    "vmap of unpool": jax.vmap(unpooled),
}  # fmt: skip
FEW = ("indices", "unpool", "vmap over cotangents")


def check(name: str) -> None:
    """On as many devices as there are, over the batch and (where JAX can tell how these lie) over channels."""
    f, n = FUNCTIONS[name], jax.device_count()
    mesh = jax.make_mesh((n,), ("devices",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        for spec in (PartitionSpec("devices"), PartitionSpec(None, "devices"))[: 1 if "over" in name else 2]:
            x = jax.device_put(jnp.asarray(X), jax.NamedSharding(mesh, spec))
            for got, want in zip(map(jax.tree.leaves, (jax.jit(f)(x), f(x))), [jax.tree.leaves(f(X))] * 2, strict=True):
                for a, b in zip(got, want, strict=True):
                    assert jax.typeof(a).sharding.spec[: len(spec)] == (*spec,)
                    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
            assert "all-gather" not in jax.jit(f).lower(x).compile().as_text()


@pytest.mark.parametrize("name", FEW)
def test_one_device(name: str) -> None:
    check(name)


@pytest.mark.parametrize("names", [FEW, pytest.param(tuple(FUNCTIONS), marks=pytest.mark.long)])
def test_two_devices(names: tuple[str, ...]) -> None:
    code = (
        "import jax; jax.config.update('jax_enable_x64', True); assert jax.device_count() == 2\n"
        f"from tests.jax.test_sharded import check; [check(name) for name in {names}]"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_pooled_axis_in_parts_is_an_error_that_says_what_to_do() -> None:
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.asarray(X), jax.NamedSharding(mesh, PartitionSpec(None, None, None, "devices")))
        with pytest.raises(PoolError, match=r"^max_pool: axis 3 is pooled, but its parts are on other devices .*"):
            npx.max_pool(x, 2)
        whole = reshard(x, PartitionSpec(None, None, None, None))
        np.testing.assert_array_equal(npx.max_pool(whole, 2), ndpool.max_pool(X, 2))
