"""What the tests of `ndpool.jax` share: a table of functions beside the same in JAX's own operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import ndpool
import ndpool.jax as npx

Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """A function on (C, H, W) or (N, C, H, W), and the same in JAX's own words, on inputs without ties."""

    ours: Run
    theirs: Run
    linear: bool = False
    pools_channels: bool = False


def windows(x: Any, kernel: int, stride: int, padding: int = 0, fill: float = 0) -> Any:
    """What each output reads, on a new last axis: the last two axes are pooled."""
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(padding, padding)] * 2, constant_values=fill)
    n, m = ((size - kernel) // stride + 1 for size in x.shape[-2:])
    taps = [
        x[..., i : i + (n - 1) * stride + 1 : stride, j : j + (m - 1) * stride + 1 : stride]
        for i in range(kernel)
        for j in range(kernel)
    ]
    return jnp.stack(taps, -1)


def bins(x: Any, rows: int, columns: int, fold: Callable[[Any], Any]) -> Any:
    """Each bin of the last two axes, folded."""
    axes = ndpool.AdaptiveMaxPool((rows, columns)).window(x.shape[-2:]).axes

    def part(i: int, j: int) -> Any:
        (top, height), (left, width) = (axis.span(o) for axis, o in zip(axes, (i, j), strict=True))
        return fold(x[..., top : top + height, left : left + width])

    return jnp.stack([jnp.stack([part(i, j) for j in range(columns)], -1) for i in range(rows)], -2)


def wins(x: Any) -> Any:
    """How many 2 x 2 windows each input wins, by moving each window's choice back to where its taps lie."""
    taps = windows(x, 2, 1)
    won = jax.nn.one_hot(taps.argmax(-1), 4, dtype=x.dtype)
    back = [[(0, 0)] * (x.ndim - 2) + [(i, 1 - i), (j, 1 - j)] for i in range(2) for j in range(2)]
    return jax.lax.stop_gradient(sum(jnp.pad(won[..., t], pads) for t, pads in enumerate(back)))


def unpooled(x: Any, duplicates: str) -> Any:
    """Winners of overlapping windows, back where they were."""
    y, places = npx.max_pool(x, 2, 1, return_indices=True)
    return npx.max_unpool(y, places, 2, 1, duplicates=duplicates)


def beta(x: Any) -> Any:
    """One for each channel."""
    return (jnp.arange(1, x.shape[-3] + 1).astype(x.dtype) * 0.7)[:, None, None]


CASES: dict[str, Case] = {
    "max": Case(lambda x: npx.max_pool(x, 3, 1, 1), lambda x: windows(x, 3, 1, 1, -jnp.inf).max(-1)),
    "smooth max": Case(
        lambda x: npx.smooth_max_pool(x, 3, 1, beta=-2.0),
        lambda x: jax.nn.logsumexp(-2 * windows(x, 3, 1), -1) / -2,
    ),
    "lp": Case(lambda x: npx.lp_pool(x, 4, 2), lambda x: (windows(x, 2, 2) ** 4).sum(-1) ** 0.25),
    "avg": Case(lambda x: npx.avg_pool(x, 3, 2, 1), lambda x: windows(x, 3, 2, 1).mean(-1), linear=True),
    "max, shared ties": Case(lambda x: npx.max_pool(x, 2, 1, ties="split"), lambda x: windows(x, 2, 1).max(-1)),
    "max with indices": Case(
        lambda x: npx.max_pool(x, 2, return_indices=True)[0], lambda x: windows(x, 2, 2).max(-1)
    ),
    "min": Case(lambda x: npx.min_pool(x, 2, 1), lambda x: windows(x, 2, 1).min(-1)),
    "sum": Case(lambda x: npx.sum_pool(x, 2, 1), lambda x: windows(x, 2, 1).sum(-1), linear=True),
    "smooth max, beta an array": Case(
        lambda x: npx.smooth_max_pool(x, 2, 2, beta=beta(x)),
        lambda x: jax.nn.logsumexp(beta(x)[..., None] * windows(x, 2, 2), -1) / beta(x),
    ),
    "lp, norm_type an array": Case(
        lambda x: npx.lp_pool(x, jnp.asarray(2.5), 2), lambda x: (jnp.abs(windows(x, 2, 2)) ** 2.5).sum(-1) ** 0.4
    ),
    "adaptive max": Case(
        lambda x: npx.adaptive_max_pool(x, (3, 2)), lambda x: bins(x, 3, 2, lambda b: b.max((-2, -1)))
    ),
    "adaptive avg": Case(
        lambda x: npx.adaptive_avg_pool(x, (3, 1)), lambda x: bins(x, 3, 1, lambda b: b.mean((-2, -1))), linear=True
    ),
    "global max": Case(lambda x: npx.global_max_pool(x, keepdims=False), lambda x: x.max((-2, -1))),
    "global avg": Case(npx.global_avg_pool, lambda x: x.mean((-2, -1), keepdims=True), linear=True),
    "unpool": Case(lambda x: unpooled(x, "sum"), lambda x: wins(x) * x),
    "unpool, the last stays": Case(lambda x: unpooled(x, "last"), lambda x: (wins(x) > 0) * x),
    "steps over an axis": Case(
        lambda x: npx.smooth_max_pool(x, 2, axes=(-3, -1)),
        lambda x: jax.nn.logsumexp(
            jnp.stack([x[..., i : i + 1, :, j::2] for i in range(2) for j in range(2)], -1), -1
        ),
        pools_channels=True,
    ),
}  # fmt: skip
FEW = ("max", "smooth max", "lp", "avg")
