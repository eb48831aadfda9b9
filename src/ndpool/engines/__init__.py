"""Engines run a law over a window; `base` says what an engine is, `choose` picks one.

`native` is C++ for NumPy arrays, `portable` array operations of any library, `reference` the spec itself. `triton`, for
tensors on a GPU, is bound to tensors by `ndpool.torch` alone. Nothing is imported for an array library that is not in
use.
"""

from __future__ import annotations

from typing import Any

from ..errors import PoolTypeError
from ..spec import Law, Window
from . import native, portable, reference
from .base import Engine, Linear, Plan, namespace, signature

__all__ = ["ENGINES", "Engine", "Linear", "Plan", "choose", "namespace", "shape_of", "signature"]

ENGINES: tuple[Engine, ...] = (native, portable, reference)  # in order of preference

# Now, not in a first call: a child that is forked while another thread imports something would wait for that for ever.
native.load()


def choose(window: Window, law: Law, x: Any, derivative: bool = False) -> Plan:
    """The plan of the first engine that runs `law` over `window` on x, or that has its derivatives."""
    for engine in ENGINES:
        if engine.supports(window, law, x):
            plan = engine.bind(window, law, x)
            if plan.differentiates or not derivative:
                return plan
    raise PoolTypeError(f"a law of your own runs on NumPy arrays and nested lists, not on {type(x).__qualname__}")


def shape_of(x: Any, name: str = "x") -> tuple[int, ...]:
    """The shape of an array or of a nested list; errors call it `name`."""
    return tuple(x.shape) if namespace(x, name) else reference.flatten(x, name)[1]
