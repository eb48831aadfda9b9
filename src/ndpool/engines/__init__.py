"""Engines run a law over a window: `reference` is the spec itself, `portable` is array operations, `native` is C++,
`triton` is for tensors on a GPU, which reach it through `ndpool.torch` alone.

`choose` is the one place that decides which: nested lists and laws of the user's own run on the reference, NumPy arrays
on the native engine where it is built, other arrays on the portable engine of their own namespace. Nothing is imported
for an array library that is not in use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..errors import PoolTypeError
from ..spec import Law, Window
from . import native, portable, reference
from .linear import Linear

__all__ = ["Engine", "Linear", "choose", "namespace", "shape_of", "signature"]

# Now, not in a first call: a child that is forked while another thread imports something would wait for that for ever.
native.load()


@dataclass(frozen=True)
class Engine:
    """What runs one law over one window: `forward(x)`, `linearize(x)`, `winners(x, axes)`, and `reshape` of results.

    `value_and_jvp(x, dx)`, if there is one, gives the values and their tangents in one pass.
    """

    name: str
    forward: Callable[[Any], Any]
    linearize: Callable[[Any], Linear]
    winners: Callable[[Any, tuple[int, ...]], tuple[Any, Any]]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    value_and_jvp: Callable[[Any, Any], tuple[Any, Any]] | None = None


def _quietly(run: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy warns about inf - inf and the like inside formulas that handle them; other libraries do not."""

    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(*args)

    return call


def _quiet_linear(*args: Any) -> Linear:
    linear = _quietly(portable.linearize)(*args)
    return Linear(linear.y, _quietly(linear.jvp), _quietly(linear.vjp))


def _reshape(a: Any, shape: tuple[int, ...]) -> Any:
    return a.__array_namespace__().reshape(a, shape)


def _renest(x: Any, shape: tuple[int, ...]) -> Any:
    return reference.nest(reference.flatten(x)[0], shape)


def namespace(x: Any, name: str = "x") -> Any:
    """The array library of x, or None for nested lists and bare scalars; errors call it `name`."""
    if type(x) is np.ndarray:
        return np
    # NumPy imports np.ma when it is first asked for; who has a masked array has done so
    if isinstance(x, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise PoolTypeError(f"{name} is a masked array, whose mask would be lost; fill it first: {name}.filled(value)")
    if isinstance(x, (np.ndarray, np.generic)):
        return np
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    if hasattr(x, "__array__") or isinstance(x, (str, bytes, dict, set)) or x is None:
        home = "" if type(x).__module__ == "builtins" else type(x).__module__.partition(".")[0] + "."
        raise PoolTypeError(
            f"{name} is a {home}{type(x).__qualname__}, not a NumPy or array-API array or a nested list; "
            f"try numpy.asarray({name})"
        )
    return None


def shape_of(x: Any, name: str = "x") -> tuple[int, ...]:
    """The shape of an array or of a nested list; errors call it `name`."""
    return tuple(x.shape) if namespace(x, name) else reference.flatten(x, name)[1]


def signature(x: Any) -> Any:
    """What decides which engine runs on an array, and how: None for anything but a NumPy array."""
    return (x.shape, x.strides, x.dtype) if type(x) is np.ndarray else None


def choose(x: Any, window: Window, law: Law) -> Engine:
    """The engine that runs `law` over `window` on x and on every array with its signature."""
    xp = namespace(x)
    if xp is np and native.supports(window, law, x):
        plan = native.bind(window, law, x)
        value_and_jvp = plan.value_and_jvp if plan.has_value_and_jvp else None
        return Engine("native", plan.forward, plan.linearize, plan.winners, _reshape, value_and_jvp)
    if xp is not None and portable.supports(window, law):
        forward, winners = (partial(_quietly(f), xp, window, law) for f in (portable.forward, portable.winners))
        return Engine("portable", forward, partial(_quiet_linear, xp, window, law), winners, _reshape)
    if xp is None or xp is np:
        return Engine(
            "reference",
            partial(reference.forward, window, law),
            partial(reference.linearize, window, law),
            partial(reference.winners, window, law),
            _renest if xp is None else np.reshape,
        )
    raise PoolTypeError(f"a law of your own runs on NumPy arrays and nested lists, not on {type(x).__qualname__}")
