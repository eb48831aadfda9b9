"""The two ways in which a primitive runs, and the adapter as a row of the agreement table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ndpool.jax import ffi, functional, primitives, unpooling
from ndpool.jax.pooled import pooled

from .. import cases


def forget() -> None:
    """Drop what was compiled: it is of one way."""
    primitives._compiled.cache_clear()
    unpooling._compiled.cache_clear()
    jax.clear_caches()


@contextmanager
def use(way: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run primitives that way."""
    if way == "handler":
        if not ffi.available():
            pytest.skip(f"XLA does not call the native engine: {ffi.reason()}")
        yield
        return
    with patch.context() as composed:
        composed.setattr(ffi, "serves", lambda *_: False)
        composed.setattr(unpooling, "serves", lambda *_: False)
        forget()
        yield
    forget()


def forward(window: Any, law: Any, x: Any) -> Any:
    with jax.enable_x64(True):
        return np.asarray(primitives.forward(pooled(law, window), jnp.asarray(x)))


def linearize(window: Any, law: Any, x: Any) -> Any:
    """The values, and both maps, by JAX's own transforms; of integers, which have none here, the values."""
    one = pooled(law, window)

    def run(x: Any) -> Any:
        return primitives.forward(one, x)

    def jvp(dx: Any) -> Any:
        with jax.enable_x64(True):
            return np.asarray(jax.jvp(run, (jnp.asarray(x),), (jnp.asarray(dx),))[1])

    def vjp(dy: Any) -> Any:
        with jax.enable_x64(True):
            return np.asarray(jax.vjp(run, jnp.asarray(x))[1](jnp.asarray(dy))[0])

    return SimpleNamespace(y=forward(window, law, x), jvp=jvp, vjp=vjp)


def winners(window: Any, law: Any, x: Any, axes: tuple[int, ...]) -> Any:
    with jax.enable_x64(True):
        return tuple(map(np.asarray, functional._with_indices(pooled(law, window), axes, jnp.asarray(x))))


DTYPES = cases.DTYPES
