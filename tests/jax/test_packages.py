"""The spellings of flax, haiku and equinox beside these libraries themselves, on random arguments: signatures, values
and gradients. Left out, by name, where one is not installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from ndpool.jax import equinox, flax, haiku

from .. import examples

CASES = examples(5)
EQUINOX = [f"{form}{rank}d" for form in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
           for rank in (1, 2, 3)]  # fmt: skip


def needed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is what is compared with")


def compared(ours: Callable[..., Any], theirs: Callable[..., Any], x: Any, note: Any) -> None:
    """Values, and gradients; of arguments that theirs takes."""
    try:
        want = jax.eval_shape(theirs, x)
    except (TypeError, ValueError, AssertionError, RuntimeError):
        return

    def both(f: Callable[..., Any]) -> Any:
        def run(x: Any) -> Any:
            y, pull = jax.vjp(f, x)
            return y, pull(2 * y)[0]

        return jax.jit(run if want.size else f)(x)

    for got, wanted in zip(jax.tree.leaves(both(ours)), jax.tree.leaves(both(theirs)), strict=True):
        if np.isfinite(wanted).all():
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12, err_msg=str(note))


def sample(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return jax.numpy.asarray(rng.permutation(int(np.prod(shape))).reshape(shape) / 7 - 3)


def names(function: Any) -> list[tuple[str, Any]]:
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


def some(rng: np.random.Generator, low: int, high: int, rank: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(low, high + 1, rank))


@pytest.mark.parametrize("function", ["max_pool", "min_pool", "avg_pool"])
def test_flax(function: str) -> None:
    theirs, ours = getattr(needed("flax.linen.pooling"), function), getattr(flax, function)
    assert names(ours) == names(theirs)
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        pads = [(int(a), int(b)) for a, b in rng.integers(0, 2, (rank, 2))]
        given: dict[str, Any] = {
            "window_shape": some(rng, 1, 3, rank),
            "strides": some(rng, 1, 3, rank) if rng.random() < 0.7 else None,
            "padding": ("SAME", "VALID", pads)[seed % 3],
        }
        if function == "avg_pool" and given["padding"] != pads:  # flax divides 0 by 0 where nothing is read
            given["count_include_pad"] = bool(rng.integers(2))
        x = sample(rng, (*some(rng, 1, 2, int(rng.integers(0, 3))), *some(rng, 3, 6, rank), 2))
        compared(lambda x, g=given: ours(x, **g), lambda x, g=given: theirs(x, **g), x, (x.shape, given))


@pytest.mark.parametrize("function", ["max_pool", "avg_pool"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:haiku")
def test_haiku(function: str) -> None:
    theirs, ours = getattr(needed("haiku"), function), getattr(haiku, function)
    assert names(ours) == names(theirs)
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        ndim = int(rng.integers(3, 6))
        one = rng.random() < 0.5
        given = {
            "window_shape": int(rng.integers(1, 4)) if one else some(rng, 1, 3, int(rng.integers(2, ndim + 1))),
            "strides": int(rng.integers(1, 4)) if rng.random() < 0.5 else some(rng, 1, 3, ndim),
            "padding": ("SAME", "VALID")[seed % 2],
            "channel_axis": (-1, 1, None)[int(rng.integers(3))],
        }
        x = sample(rng, some(rng, 3, 5, ndim))
        compared(lambda x, g=given: ours(x, **g), lambda x, g=given: theirs(x, **g), x, (x.shape, given))


@pytest.mark.parametrize("module", EQUINOX)
def test_equinox(module: str) -> None:
    theirs, ours = getattr(needed("equinox").nn, module), getattr(equinox, module)
    assert names(ours) == names(theirs)
    assert names(ours.__call__) == names(theirs.__call__)
    rank = int(module[-2])
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        shape = some(rng, 4, 7, rank)
        if module.startswith("Adaptive"):
            target = tuple(int(rng.integers(1, n + 1)) for n in shape)
            given: dict[str, Any] = {"target_shape": target if rng.random() < 0.7 else min(target)}
        else:
            kernel = some(rng, 1, 4, rank)
            given = {
                "kernel_size": kernel if rng.random() < 0.7 else min(kernel),
                "stride": some(rng, 1, 4, rank) if rng.random() < 0.7 else 1,
                "padding": (0, 1, tuple((int(a), int(b)) for a, b in rng.integers(0, 2, (rank, 2))))[seed % 3],
                "use_ceil": bool(rng.integers(2)),
            }
        x = sample(rng, (2, *shape))
        compared(lambda x, g=given: ours(**g)(x), lambda x, g=given: theirs(**g)(x), x, (x.shape, given))
