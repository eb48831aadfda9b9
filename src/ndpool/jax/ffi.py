"""The native engine as XLA calls it: plans as numbers in a program, run by the handler of native/xla.cpp.

XLA's programs outlive a process (jax.export, the cache on disk), so nothing of this process is in them: the attribute
of a call is the numbers from which the handler makes the plan, and remembers it. Sizes of axes that are not pooled are
not among them, so they may be symbols.

What may not live here: arithmetic on elements, and geometry beyond asking `native.formula`.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engines import native
from ..engines.dtypes import kind
from ..engines.native import LAWS
from ..spec import Axis, Window, each, whole
from .pooled import Pooled

TARGET = "ndpool.run"  # what programs call
FORMAT = 1  # of the numbers; native/xla.cpp has it, too
UNPOOL = 6  # a mode, behind those of plans
PER_AXIS = 8
LIMIT = 1 << 31  # of the numbers of an axis

# the side of the window on which each argument lies, and the results: as inputs ("size"), or as "outputs"
ARGUMENTS = {
    "forward": ("size",),
    "winners": ("size",),
    "jvp": ("size", "size"),
    "vjp": ("size", "outputs"),
    "jvp_by_winner": ("outputs", "size"),
    "vjp_by_winner": ("outputs", "outputs"),
}
RESULTS = {mode: "size" if mode in ("vjp", "vjp_by_winner") else "outputs" for mode in native.MODES}


@cache
def reason() -> str:
    """Why XLA does not call the native engine, in one sentence; empty if it does."""
    if not native.available():
        return native.reason()
    extension, _ = native.load()
    try:
        jax.ffi.register_ffi_target(TARGET, extension.xla_handler(), platform="cpu")
    except Exception as error:  # of another version: XLA has its own kinds
        return f"this jaxlib does not take the handler ({type(error).__name__}: {error}); use another release of JAX"
    return ""


def available() -> bool:
    """Whether XLA calls the native engine on the CPU."""
    return not reason()


def serves(one: Pooled, mode: str, dtype: Any) -> bool:
    """Whether it runs that mode on such elements."""
    if not available() or not native.serves(_sized(one.window), one.law, dtype):
        return False
    if any(abs(n) > LIMIT for i in one.pooled_axes for n in native.formula(one.window.axes[i]) or ()):
        return False
    differentiates = mode in ("forward", "winners") or kind(dtype) == "real"
    return differentiates and len(one.pooled_axes) < native.MOST_AXES - 2


def run(one: Pooled, mode: str, *arrays: Any) -> Any:
    """That mode, as one call of the handler. Arrays are seen as [lead, pooled axes, lanes]."""
    window, pooled = one.window, one.pooled_axes
    first, last = pooled[0], pooled[-1]
    order = list(range(len(window.axes)))
    if last - first >= len(pooled):  # a window that steps over an axis: that axis moves out
        order = [*(i for i in order if i not in pooled and i < last), *pooled, *range(last + 1, len(window.axes))]
        first = order.index(pooled[0])
    axes = [window.axes[i] for i in order]
    lead, lanes = axes[:first], axes[first + len(pooled) :]
    folded = merged(axes[first : first + len(pooled)])

    moved = order != sorted(order)

    def flat(side: str) -> tuple[Any, ...]:
        n, m = (math.prod(axis.size for axis in part) for part in (lead, lanes))
        return (n, *(getattr(axis, side) for axis in folded), m)

    def seen(a: Any, side: str) -> Any:
        return jnp.reshape(jnp.transpose(a, order) if moved else a, flat(side))

    def shown(a: Any, side: str) -> Any:
        a = jnp.reshape(a, [getattr(axis, side) for axis in axes])
        return jnp.transpose(a, [order.index(i) for i in range(len(order))]) if moved else a

    to = RESULTS[mode]
    dtypes = [arrays[-1].dtype, *([one.residual] if mode == "winners" else [])]
    results = [jax.ShapeDtypeStruct(flat(to), dtype) for dtype in dtypes]
    given = [seen(a, side) for a, side in zip(arrays, ARGUMENTS[mode][-len(arrays) :], strict=True)]
    plan = np.array(numbers(one, mode, tuple(folded)), np.int64)
    return [shown(a, to) for a in jax.ffi.ffi_call(TARGET, results)(*given, plan=plan)]


@lru_cache(maxsize=1024)
def numbers(one: Pooled, mode: str, folded: tuple[Axis, ...]) -> tuple[int, ...]:
    """The plan, as native/xla.cpp reads it."""
    to = LAWS[one.law.name](*one.law.params)
    bits = int(np.float64(to.parameter).view(np.int64))
    law = (to.code, to.ties, to.ignore_nan, to.flip, to.mean, bits, to.divisor)
    head = (FORMAT, native.MODES[mode], *law, len(folded))
    found = list(map(int, head))
    for axis in folded:
        formula = native.formula(axis)
        assert formula is not None
        found += [*formula, *[0] * (PER_AXIS - len(formula))]
    return tuple(found)


def merged(axes: list[Axis]) -> list[Axis]:
    """Neighbours that are pooled whole, as one: the window alone says so, as in `layout.Layout`."""
    found: list[Axis] = []
    for axis in axes:
        if found and found[-1].is_whole and axis.is_whole:
            found[-1] = whole(found[-1].size * axis.size)
        else:
            found.append(axis)
    return found


def _sized(window: Window) -> Window:
    """The window with a number in the place of each symbol."""
    return Window(tuple(axis if isinstance(axis.size, int) else each(1) for axis in window.axes))
