"""The modes of a plan in JAX's own operations: the portable engine's passes, traced. What runs on a GPU or TPU, and on
the CPU where the kernels do not serve.

Which tap won is told as the engines do: row-major among the taps of a window before clipping.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engines.along import along
from ..engines.base import Plan
from ..engines.dtypes import kind, wide
from ..engines.portable import plan_of
from ..spec import Axis
from .pooled import Pooled

Array = Any


def run(one: Pooled, mode: str, *arrays: Array) -> list[Array]:
    """That mode; the arguments and results of its primitive."""
    return MODES[mode](one, *arrays)


def alike(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """The arrays, as arrays that vary over the same axes of a mesh: what a primitive of two asks under shard_map."""
    over = [frozenset(getattr(jax.typeof(a), "vma", ())) for a in arrays]
    every = frozenset().union(*over)
    if all(own == every for own in over):
        return arrays
    return tuple(
        jax.lax.pcast(a, tuple(every - own), to="varying") if every - own else a
        for a, own in zip(arrays, over, strict=True)
    )


def _portable(one: Pooled) -> Plan:
    return plan_of(jnp, one.window, one.law)


def _forward(one: Pooled, x: Array) -> list[Array]:
    # whole numbers are summed in 64 bits, also where JAX as the user has it knows none
    with jax.enable_x64(True) if one.law.linear and kind(x.dtype) == "integer" else nullcontext():
        return [_portable(one).forward(x)]


def _winners(one: Pooled, x: Array) -> list[Array]:
    y, places = _portable(one).winners(x, one.pooled_axes)
    tap = jnp.zeros_like(places)
    rest = places
    step = 1
    for i in reversed(one.pooled_axes):
        axis = one.window.axes[i]
        tap = tap + (rest % axis.size - _starts(axis, i, places.ndim)) // axis.dilation * step
        rest, step = rest // axis.size, step * axis.taps
    return [y, jnp.where(places < 0, 0, tap).astype(one.residual)]


def _jvp(one: Pooled, x: Array, dx: Array) -> list[Array]:
    return [_portable(one).linearize(x).jvp(dx)]


def _vjp(one: Pooled, *kept_and_dy: Array) -> list[Array]:
    *kept, dy = kept_and_dy
    x = kept[0] if kept else jnp.zeros(one.window.shape, dy.dtype)
    return [_portable(one).linearize(x).vjp(dy)]


def _jvp_by_winner(one: Pooled, residual: Array, dx: Array) -> list[Array]:
    flat, shown = _lines(one)
    places = positions(one, residual)
    found = jnp.take_along_axis(flat(dx), jnp.maximum(flat(places), 0), axis=1)
    return [jnp.where(places < 0, 0, shown(found, places.shape)).astype(dx.dtype)]


def _vjp_by_winner(one: Pooled, residual: Array, dy: Array) -> list[Array]:
    flat, shown = _lines(one)
    places = positions(one, residual)
    given = jnp.where(places < 0, 0, dy).astype(wide(jnp, dy.dtype))
    size = int(np.prod([one.window.axes[i].size for i in one.pooled_axes], dtype=int))

    def scattered(at: Array, values: Array) -> Array:
        return jnp.zeros(size, values.dtype).at[jnp.maximum(at, 0)].add(values)

    return [shown(jax.vmap(scattered)(flat(places), flat(given)), one.window.shape).astype(dy.dtype)]


MODES: dict[str, Callable[..., list[Array]]] = {
    "forward": _forward,
    "winners": _winners,
    "jvp": _jvp,
    "vjp": _vjp,
    "jvp_by_winner": _jvp_by_winner,
    "vjp_by_winner": _vjp_by_winner,
}


# -- taps and positions ------------------------------------------------------------------------------------------------


def positions(one: Pooled, residual: Array, axes: tuple[int, ...] | None = None) -> Array:
    """Flat row-major positions among `axes` (the pooled ones) of which tap won; -1 where nothing is read."""
    axes = one.pooled_axes if axes is None else axes
    tap = residual.astype(jax.dtypes.canonicalize_dtype(np.int64))
    places, step = jnp.zeros_like(tap), 1
    reads = np.ones((1,) * tap.ndim, bool)
    for i in reversed(axes):
        axis = one.window.axes[i]
        at = _starts(axis, i, tap.ndim) + tap % axis.taps * axis.dilation
        places, tap, step = places + at * step, tap // axis.taps, step * axis.size
        reads = reads & along(axis.span(np.arange(axis.outputs))[1] > 0, i, tap.ndim)
    return places if reads.all() else jnp.where(reads, places, -1)


def _starts(axis: Axis, i: int, ndim: int) -> Any:
    """Where each output's window starts on that axis, before clipping."""
    return along(axis.start(np.arange(axis.outputs)), i, ndim)


def _lines(one: Pooled) -> tuple[Callable[[Array], Array], Callable[[Array, Any], Array]]:
    """Arrays as [all other axes, pooled axes], and back."""
    pooled = one.pooled_axes
    others = [i for i in range(len(one.window.axes)) if i not in pooled]
    order = [*others, *pooled]

    def flat(a: Array) -> Array:
        a = jnp.transpose(a, order)
        lead, rest = a.shape[: len(others)], a.shape[len(others) :]
        n = 1
        for size in lead:
            n = n * size
        return jnp.reshape(a, (n, int(np.prod(rest, dtype=int))))

    def shown(a: Array, shape: Any) -> Array:
        return jnp.transpose(jnp.reshape(a, [shape[i] for i in order]), [order.index(i) for i in range(len(order))])

    return flat, shown
