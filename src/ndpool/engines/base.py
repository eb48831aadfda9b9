"""What an engine is, and what it is asked: read this before any engine.

An engine is a module that runs laws over windows on arrays of one kind:

    NAME                        as `ndpool doctor` calls it
    supports(window, law, x)    whether it runs that law over that window on arrays like x: answered from its own tables
    bind(window, law, x)        a `Plan`: every decision made, for x and all arrays with its signature

`engines.ENGINES` lists them in order of preference. What one declines falls to the next, so an engine is free to be
fast at a few things; the last, the reference, is the spec itself. No engine imports another.

    plan = engine.bind(window, law, x)
    y = plan.forward(x)
    at = plan.linearize(x)      # at.y, at.jvp(dx), at.vjp(dy)
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import PoolTypeError
from ..spec import Law, Window


@dataclass(frozen=True)
class Linear:
    """A value and the linear map at it, both ways: <jvp(dx), dy> = <dx, vjp(dy)>."""

    y: Any
    jvp: Callable[..., Any]
    vjp: Callable[..., Any]


class Plan(ABC):
    """One law over one window, for arrays of one signature. Immutable, so that threads may share it."""

    differentiates: bool = True  # whether it has derivatives; where not, another engine's plan has them
    one_pass: bool = False  # whether `value_and_jvp` is cheaper than `linearize`

    @abstractmethod
    def forward(self, x: Any) -> Any:
        """The values of all outputs, in x's dtype."""

    @abstractmethod
    def linearize(self, x: Any) -> Linear:
        """The values, and jvp and vjp at x; x may change afterwards."""

    @abstractmethod
    def winners(self, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
        """The values and where each was taken from: flat row-major positions within `axes`; -1 where nothing is read.

        Only of laws that choose a tap; among equals that share it, the first."""

    def value_and_jvp(self, x: Any, dx: Any) -> tuple[Any, Any]:
        """The values at x, and their tangents for the tangent dx of x."""
        at = self.linearize(x)
        return at.y, at.jvp(dx)

    def write(self, x: Any, out: Any) -> None:
        """The values of all outputs, put into `out`, an array of their shape and dtype."""
        out[...] = self.forward(x)

    def reshape(self, a: Any, shape: tuple[int, ...]) -> Any:
        """A result, or a cotangent of one, in another shape."""
        return a.__array_namespace__().reshape(a, shape)


class Engine(Protocol):
    """The three names above; a module that has them is an engine."""

    NAME: str

    def supports(self, window: Window, law: Law, x: Any) -> bool: ...

    def bind(self, window: Window, law: Law, x: Any) -> Plan: ...


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


def signature(x: Any) -> Any:
    """What decides which engine runs on an array, and how: None for anything but a NumPy array."""
    return (x.shape, x.strides, x.dtype) if type(x) is np.ndarray else None
