"""The modes of an engine as JAX primitives: `forward`, `winners`, `jvp`, `vjp`, `jvp_by_winner` and `vjp_by_winner`.

They are closed under differentiation: the tangent of each is made of the others, and each is transposed to another, so
every order and every mixture of forward and reverse mode is there. Reading order: the primitives, their tangents, their
transposes, batches, and how a primitive runs: by XLA's call of the native engine on the CPU (`ffi`), by the Triton
engine's kernels on a GPU (`gpu`), in JAX's own operations elsewhere and where the kernels do not serve (`composed`).

Which tap won is a number without a derivative: `winners` gives it, and the modes by winner read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..errors import PoolTypeError
from . import composed, ffi, gpu
from .pooled import Pooled
from .sharded import by_parts

Array = Any
PRIMITIVES = {mode: Primitive(f"ndpool_{mode}") for mode in ffi.RESULTS}


def forward(one: Pooled, x: Array) -> Array:
    """The values of all outputs."""
    return _bind("forward", one, x)[0]


def winners(one: Pooled, x: Array) -> tuple[Array, Array]:
    """The values, and which tap won: a number per output."""
    y, residual = _bind("winners", one, x)
    return y, residual


def jvp(one: Pooled, x: Array, dx: Array) -> Array:
    """The tangents of all outputs at x, of a law that is not linear and has no one winner."""
    return _bind("jvp", one, x, dx)[0]


def vjp(one: Pooled, *kept_and_dy: Array) -> Array:
    """The transpose of `jvp` at x, or of `forward` for a linear law, which keeps nothing."""
    return _bind("vjp", one, *kept_and_dy)[0]


def jvp_by_winner(one: Pooled, residual: Array, dx: Array) -> Array:
    """The tangent of each output's winner."""
    return _bind("jvp_by_winner", one, residual, dx)[0]


def vjp_by_winner(one: Pooled, residual: Array, dy: Array) -> Array:
    """The transpose: each output's cotangent, added at its winner."""
    return _bind("vjp_by_winner", one, residual, dy)[0]


def _bind(mode: str, one: Pooled, *arrays: Array) -> Sequence[Array]:
    return PRIMITIVES[mode].bind(*composed.alike(arrays), one=one)  # type: ignore[no-any-return]


# -- tangents ----------------------------------------------------------------------------------------------------------
#
# Laws that are not linear and have no one winner are quasi-arithmetic, phi(y) = sum phi(x_t): with the weights
# w_t = phi'(x_t) / phi'(y),
#
#     jvp(x, v) = sum_t w_t v_t,    vjp(x, g) its transpose,    c = phi'' / phi'
#     d jvp(x, v) along u  =  jvp(x, c(x) u v) - c(y) jvp(x, u) jvp(x, v)
#     d vjp(x, g) along u  =  c(x) u vjp(x, g) - vjp(x, c(y) g jvp(x, u))
#
# c is beta for smooth max and (p - 1) / x for Lp. Shared winners do not move, and nor does c for them: it is None.


def _curvature(one: Pooled, x: Array) -> tuple[Array, Any, Any, Any] | None:
    """x, c(x), c(y), and 1 where there is a second derivative; x is nudged off 0: a weight cancels the pole of c."""
    c = one.law.curvature
    if c is None:
        return None
    if not one.law.pole_at_zero:
        return x, c(x), c(x), 1
    tiny = float(jnp.finfo(x.dtype).tiny) ** 0.5
    x = jnp.where(x == 0, jnp.asarray(tiny, x.dtype), x)
    y = forward(one, x)
    return x, c(x), c(y), (y > 1e3 * tiny).astype(y.dtype)  # there is a kink where y is 0


def _jvp_along(one: Pooled, x: Array, v: Array, u: Array) -> Array | None:
    """The derivative of jvp(x, v) in x along u."""
    found = _curvature(one, x)
    if found is None:
        return None
    x, cx, cy, there = found
    return (jvp(one, x, cx * u * v) - cy * jvp(one, x, u) * jvp(one, x, v)) * there


def _vjp_along(one: Pooled, x: Array, g: Array, u: Array) -> Array | None:
    """The derivative of vjp(x, g) in x along u."""
    found = _curvature(one, x)
    if found is None:
        return None
    x, cx, cy, there = found
    g = g * there
    return cx * u * vjp(one, x, g) - vjp(one, x, cy * g * jvp(one, x, u))


def _forward_tangent(one: Pooled, primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    if type(dx) is ad.Zero:
        return forward(one, x), None
    if one.law.linear:
        return forward(one, x), forward(one, dx)
    if one.law.one_winner:
        y, residual = winners(one, x)
        return y, jvp_by_winner(one, residual, dx)
    return forward(one, x), jvp(one, x, dx)


def _winners_tangent(one: Pooled, primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    y, residual = winners(one, x)
    return (y, residual), None if type(dx) is ad.Zero else jvp_by_winner(one, residual, dx)


def _linear_tangent(run: Callable[..., Array], along: Callable[..., Array | None] | None) -> Callable[..., Any]:
    """Of a mode that is linear in its last argument; `along` is its derivative in the one before."""

    def tangent(one: Pooled, primals: Any, tangents: Any) -> Any:
        *kept, moved = primals
        found = None
        if along is not None and kept and type(tangents[0]) is not ad.Zero:
            found = along(one, *kept, moved, tangents[0])
        if type(tangents[-1]) is not ad.Zero:
            straight = run(one, *kept, tangents[-1])
            found = straight if found is None else found + straight
        return run(one, *primals), found

    return tangent


TANGENTS: dict[str, Callable[..., Any]] = {
    "forward": _forward_tangent,
    "winners": _winners_tangent,
    "jvp": _linear_tangent(jvp, _jvp_along),
    "vjp": _linear_tangent(vjp, _vjp_along),
    "jvp_by_winner": _linear_tangent(jvp_by_winner, None),
    "vjp_by_winner": _linear_tangent(vjp_by_winner, None),
}


def _jvp_rule(mode: str, primals: Any, tangents: Any, *, one: Pooled) -> Any:
    """A tangent that is None is zero, and so is that of which tap won."""
    y, dy = TANGENTS[mode](one, primals, tangents)
    ys = y if isinstance(y, tuple) else (y,)
    zeros = [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in ys]
    return ys, [zeros[0] if dy is None else dy, *zeros[1:]]


# -- transposes --------------------------------------------------------------------------------------------------------

TRANSPOSES: dict[str, Callable[..., Array]] = {  # of a mode in its last argument
    "forward": vjp,
    "jvp": vjp,
    "vjp": lambda one, *kept_and_dx: (jvp if len(kept_and_dx) > 1 else forward)(one, *kept_and_dx),
    "jvp_by_winner": vjp_by_winner,
    "vjp_by_winner": jvp_by_winner,
}


def _transpose_rule(mode: str, cotangents: Any, *arguments: Any, one: Pooled) -> Any:
    (ct,), (*kept, moved) = cotangents, arguments
    if not kept and not one.law.linear:  # a forward pass, whose derivative is another primitive
        raise PoolTypeError(f"{one.law.name} is not linear, so it has no transpose; use jax.vjp")
    if type(ct) is ad.Zero:
        return [*[None] * len(kept), ad.Zero(moved.aval)]
    return [*[None] * len(kept), TRANSPOSES[mode](one, *kept, ct)]


# -- batches -----------------------------------------------------------------------------------------------------------


def _batch_rule(mode: str, arrays: Any, dims: Any, *, one: Pooled) -> Any:
    """One more axis that no window joins, where it lies in the first array that has it."""
    at, size = next((d, a.shape[d]) for a, d in zip(arrays, dims, strict=True) if d is not None)
    placed = [
        a if d == at else jnp.moveaxis(a, d, at) if d is not None
        else jnp.broadcast_to(jnp.expand_dims(a, at), (*a.shape[:at], size, *a.shape[at:]))
        for a, d in zip(arrays, dims, strict=True)
    ]  # fmt: skip

    def run(*parts: Array) -> Sequence[Array]:
        return _bind(mode, one.with_axis(at, parts[0].shape[at]), *parts)

    found = by_parts(run, tuple(i + (i >= at) for i in one.pooled_axes), (), *placed)
    return found, [at] * len(found)


# -- shapes, and how a primitive runs ----------------------------------------------------------------------------------


def _abstract(mode: str, *arrays: Any, one: Pooled) -> Any:
    """Sharding, mesh axes and memory are those of the arrays: the result has as many axes."""
    last = arrays[-1]
    side = ffi.RESULTS[mode]
    shape = tuple(getattr(axis, side) for axis in one.window.axes)
    y = last.update(shape=shape, dtype=last.dtype, weak_type=False)
    return [y, y.update(dtype=one.residual)] if mode == "winners" else [y]


@lru_cache(maxsize=2048)
def _compiled(mode: str, one: Pooled) -> Callable[..., Any]:
    run: Callable[..., Any] = jax.jit(partial(PRIMITIVES[mode].bind, one=one))
    return run


def _eagerly(mode: str, *arrays: Any, one: Pooled) -> Any:
    if jax.config.jax_disable_jit:  # or this would come back here
        with jax.disable_jit(False):
            return _compiled(mode, one)(*arrays)
    return _compiled(mode, one)(*arrays)


def _on_cpu(mode: str, context: Any, *operands: Any, one: Pooled) -> Any:
    by_engine = ffi.serves(one, mode, context.avals_in[-1].dtype)
    run = partial(ffi.run if by_engine else composed.run, one, mode)
    return mlir.lower_fun(run, multiple_results=True)(context, *operands)


def _on_gpu(mode: str, context: Any, *operands: Any, one: Pooled) -> Any:
    by_kernels = gpu.serves(one, context.avals_in[-1].dtype)
    run = partial(gpu.run if by_kernels else composed.run, one, mode)
    return mlir.lower_fun(run, multiple_results=True)(context, *operands)


def _elsewhere(mode: str, context: Any, *operands: Any, one: Pooled) -> Any:
    return mlir.lower_fun(partial(composed.run, one, mode), multiple_results=True)(context, *operands)


for _mode, _primitive in PRIMITIVES.items():
    _primitive.multiple_results = True
    _primitive.def_impl(partial(_eagerly, _mode))
    _primitive.def_abstract_eval(partial(_abstract, _mode))
    ad.primitive_jvps[_primitive] = partial(_jvp_rule, _mode)
    if _mode in TRANSPOSES:
        ad.primitive_transposes[_primitive] = partial(_transpose_rule, _mode)
    batching.primitive_batchers[_primitive] = partial(_batch_rule, _mode)
    mlir.register_lowering(_primitive, partial(_elsewhere, _mode))
    mlir.register_lowering(_primitive, partial(_on_cpu, _mode), platform="cpu")
    mlir.register_lowering(_primitive, partial(_on_gpu, _mode), platform="cuda")

ffi.available()  # XLA learns of the handler now: a program that was exported asks for no primitive
