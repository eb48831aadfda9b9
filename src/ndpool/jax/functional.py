"""ndpool's functions, `max_pool(x, kernel_size, ...)` and the others, on JAX arrays and tracers.

A function is a record: `apply` runs one; but `max_unpool`. Only `beta` and `norm_type` may be traced values: then they
have derivatives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api import rank_in
from ..arguments import choice, named
from ..arrays.converted import allows
from ..engines import dtypes
from ..errors import PoolError, PoolTypeError
from ..op import Op, function_name
from ..record_text import NAMED
from ..spec.law import KINDS
from ..unpool import pooled_axes, unpooled_shape
from . import composed, learnable, primitives, unpooling
from .pooled import Pooled, check_numbers, first_winner, of
from .sharded import by_parts

NAMES = list(map(function_name, NAMED))  # of the functions: the records whose law is ndpool's


def apply(op: Op, x: Any) -> Any:
    """A record of ndpool on a JAX array: the pooled values; with `return_indices`, and where each was taken from.

    >>> import jax.numpy as jnp, ndpool
    >>> apply(ndpool.MaxPool(2), jnp.array([[1.0, 5.0], [4.0, 3.0]]))
    Array([[5.]], dtype=float32)
    """
    with named(op.name):
        x, law = array(x), op.law
        if op.dtype is not None:
            allows(x.dtype, op.dtype)
            x = x.astype(op.dtype)
        dtypes.check(law.kinds, law.name, x.dtype)
        axes = op.pooled_axes(x.ndim)
        dropped = axes if not getattr(op, "keepdims", True) else ()
        return by_parts(partial(_run, op, axes, dropped), axes, dropped, x)


def _run(op: Op, axes: tuple[int, ...], dropped: tuple[int, ...], x: Any) -> Any:
    one = of(op, x.shape)
    if not getattr(op, "return_indices", False):
        return _shown(primitives.forward(one, x), dropped)
    return tuple(_shown(a, dropped) for a in _with_indices(one, axes, x))


def array(x: Any, name: str = "x") -> Any:
    """x, if it is an array that JAX takes as it is."""
    if isinstance(x, jax.Array):
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        return jnp.asarray(x)
    raise PoolTypeError(f"{name} is a {type(x).__name__}, not a JAX array; use jax.numpy.asarray({name})")


def _shown(y: Any, dropped: tuple[int, ...]) -> Any:
    return jnp.squeeze(y, dropped) if dropped else y


def _with_indices(one: Pooled, axes: tuple[int, ...], x: Any) -> tuple[Any, Any]:
    """The values, and flat row-major positions among `axes` of the winners; -1 where nothing is read."""
    first = first_winner(one)
    y, residual = primitives.winners(first, x)
    if one is not first:
        y = primitives.forward(one, x)
    return y, composed.positions(first, residual, axes)


def _function(record: type[Op]) -> Callable[..., Any]:
    """`function(x, *args)` is `record(*args)` on a JAX array."""
    name = function_name(record.__name__)
    own = inspect.signature(record)
    made = lru_cache(maxsize=1024, typed=True)(record)
    learns = next((learnt for learnt in learnable.LEARNT if learnt in own.parameters), None)

    def call(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return apply(made(*args, **kwargs), x)
        except TypeError as error:
            if isinstance(error, PoolTypeError) or not str(error).startswith("unhashable"):
                raise
        given = _named(own, args, kwargs)  # an argument without a hash: a list, or a JAX array
        if not learns or not isinstance(given.get(learns), (jax.Array, np.ndarray)):
            return apply(record(*args, **kwargs), x)
        with named(name):
            parameter = jnp.asarray(given.pop(learns))
            return learnable.LEARNT[learns](record, given, array(x), parameter, apply)

    first = inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY, annotation=Any)
    call.__signature__ = own.replace(parameters=[first, *own.parameters.values()], return_annotation=Any)  # type: ignore[attr-defined]
    call.__doc__ = f"`ndpool.{name}` on a JAX array: {str(record.__doc__).partition('>>>')[0].strip()}"
    call.__name__ = call.__qualname__ = name
    call.__module__ = __name__
    return call


def _named(own: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; those that do not fit are told by the record itself."""
    try:
        return dict(own.bind_partial(*args, **kwargs).arguments)
    except TypeError:
        return dict(kwargs)


globals().update({function_name(record.__name__): _function(record) for record in NAMED.values()})


def max_unpool(
    y: Any,
    indices: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    output_size: tuple[int, ...] | None = None,
    axes: Any = None,
    layout: str | None = None,
    duplicates: str = "sum",
) -> Any:
    """Put each value of `y` back where `max_pool(..., return_indices=True)` found it; zeros elsewhere.

    Arguments as in `ndpool.max_unpool`. A place outside the output is an error on the CPU; elsewhere it puts nothing.

    >>> import jax.numpy as jnp
    >>> max_unpool(jnp.array([[5.0, 9.0]]), jnp.array([[1, 7]]), 2)
    Array([[0., 5., 0., 0.],
           [0., 0., 0., 9.]], dtype=float32)
    """
    sizes = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "output_size": output_size}
    with named("max_unpool"):
        y, indices = array(y, "y"), array(indices, "indices")
        dtypes.check(KINDS, "max_unpool", y.dtype, "y")
        if dtypes.kind(indices.dtype) != "integer":
            raise PoolTypeError(f"indices has dtype {indices.dtype}; give the integers of return_indices=True")
        if indices.shape != y.shape:
            raise PoolError(f"indices has shape {indices.shape}, but y has {y.shape}; give both the same")
        choice("duplicates", duplicates, ("sum", "last"))
        check_numbers(pooled_axes({**sizes, "axes": axes, "layout": layout}, y.ndim), y.shape)
        out, pooled = unpooled_shape(y.shape, **sizes, axes=axes, layout=layout)
        run = partial(unpooling.unpool, sizes=[out[a] for a in pooled], axes=pooled, last=duplicates == "last")
        return by_parts(run, pooled, (), y, indices)


def ranked(name: str) -> Any:
    """`max_pool2d` is `max_pool` on the last two axes. None for other names."""
    stem, axes = rank_in(name) or ("", ())
    if stem not in (*NAMES, "max_unpool"):
        return None
    function = globals()[stem]

    def spelled(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        if "axes" in kwargs:
            raise PoolTypeError(f"{name}: takes no axes, because it pools axes {axes}; use {stem}(..., axes=...)")
        return function(x, *args, axes=axes, **kwargs)

    spelled.__name__ = spelled.__qualname__ = name
    spelled.__doc__ = f"`{stem}` with axes={axes}. {function.__doc__}"
    spelled.__module__ = __name__
    return spelled


if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Any]: ...
