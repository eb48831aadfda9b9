"""The native engine: the C++ kernels of the extension `ndpool._native`, for NumPy arrays on the CPU.

A plan holds every decision (which axes lie where in memory, what each output reads, the law, the dtype); it is made once
and kept. A run takes arrays of any strides. Reading order: `forward`, `linearize`, `winners`, then `Plan`.

What may not live here: arithmetic on elements, and geometry beyond asking `Axis.span`. The extension is built when the
package is installed, if a compiler is there; `available` and `reason` say if it is.
"""

from __future__ import annotations

import importlib
import math
import os
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ..errors import PoolError
from ..spec import Axis, Law, Window, each
from . import portable
from .dtypes import kind, name
from .dual import DualArray
from .linear import Linear

Array = np.ndarray[Any, Any]

LAWS = {"max": 0, "min": 0, "sum": 1, "mean": 1, "smooth_max": 2, "lp": 3}
TIES = {"first": 0, "last": 1, "all": 2, "split": 3}
FORWARD, WINNERS, PUSH, PULL, PICK, SPREAD, POSITIONS = range(7)
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
TYPES = {dtype: i for i, dtype in enumerate((*TYPES, "uint64"))} | {"bool": TYPES.index("uint8")}
MOST_AXES = 30


# -- is it there -------------------------------------------------------------------------------------------------------


@cache
def _load() -> tuple[Any, str]:
    """The extension and "", or None and why there is none."""
    try:
        return importlib.import_module("ndpool._native"), ""
    except ModuleNotFoundError:
        return None, (
            "the extension was not built when ndpool was installed; install GCC or Clang, "
            "then install ndpool again with NDPOOL_NATIVE=1, which shows what stops the build"
        )
    except ImportError as error:
        return None, f"the extension does not load ({error}); install ndpool again on this machine"


def reason() -> str:
    """Why this engine is not in use and what to do about it, in one sentence; empty if it is."""
    if os.environ.get("NDPOOL_ENGINE") == "portable":
        return "NDPOOL_ENGINE=portable asks for the portable engine; unset it to use this one"
    return _load()[1]


def available() -> bool:
    """Whether this engine is in use."""
    return not reason()


def isa() -> str:
    """The instruction set in use."""
    return str(_load()[0].isa())


def isas() -> tuple[str, ...]:
    """The instruction sets built in that this processor has, best first."""
    return tuple(reversed(_load()[0].isas()))


def use(isa: str) -> None:
    """Run on another instruction set of `isas()`. The results have the same bits."""
    _load()[0].use(isa)


_threads = 0


def threads() -> int:
    """The most threads a run uses."""
    if _threads:
        return _threads
    given = os.environ.get("NDPOOL_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(n: int) -> None:
    """Let a run use up to `n` threads; 0 for one a core. The results have the same bits whatever the number."""
    global _threads
    _threads = n


# -- running -----------------------------------------------------------------------------------------------------------


def supports(window: Window, law: Law, x: Any) -> bool:
    """Whether the kernels run `law` over `window` on x; what they leave is empty, complex, or longer than 64 bits."""
    return (
        type(x) is np.ndarray
        and x.dtype.isnative
        and name(x.dtype) in TYPES
        and portable.supports(window, law)
        and 0 not in window.shape
        and 0 not in window.out_shape
        and len(window.axes) <= MOST_AXES
        and any(axis != each(axis.size) for axis in window.axes)
        and available()
    )


def forward(window: Window, law: Law, x: Array) -> Array:
    """The values of all outputs, in x's dtype."""
    plan = _plan(window, law, x)
    y = plan.outputs(x.dtype)
    plan.run(FORWARD, x, x, None, y)
    return plan.shown(y)


def winners(window: Window, law: Law, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """The values and where each was taken from: flat row-major positions within `axes`; -1 where nothing is read."""
    plan = _plan(window, law, x, axes)
    y, residual, places = plan.outputs(x.dtype), plan.outputs(plan.residual), plan.outputs(np.dtype(np.int64))
    plan.run(WINNERS, x, x, None, y, residual)
    plan.run(POSITIONS, x, residual, None, places)
    shown = plan.shown(places)
    steps = _steps(axes, window)
    for i in set(steps) - set(plan.pooled):  # no window joins these: the output's own index
        own = np.arange(window.axes[i].size).reshape((-1,) + (1,) * (len(window.axes) - i - 1)) * steps[i]
        shown = np.where(shown < 0, shown, shown + own)
    return plan.shown(y), shown


def linearize(window: Window, law: Law, x: Array) -> Linear:
    """The values, and jvp and vjp at x. A max keeps which tap won, in a byte for up to 256 taps; other laws keep x."""
    if law.name in ("max", "min"):
        if law.params[0] in ("first", "last"):
            return _from_winners(window, law, x)
        if kind(x.dtype) != "real":
            return portable.linearize(np, window, law, x)
    if law.name in ("sum", "mean"):
        return Linear(
            forward(window, law, x),
            _each_part(lambda dx: forward(window, law, dx)),
            _each_part(lambda dy: _back(_moving_plan(window, law, dy), PULL, None, dy)),
        )
    plan = _plan(window, law, x)
    return Linear(
        forward(window, law, x),
        _each_part(lambda dx: _ahead(plan, PUSH, x, dx)),
        _each_part(lambda dy: _back(plan, PULL, x, dy)),
    )


def _from_winners(window: Window, law: Law, x: Array) -> Linear:
    plan = _plan(window, law, x)
    y, residual = plan.outputs(x.dtype), plan.outputs(plan.residual)
    plan.run(WINNERS, x, x, None, y, residual)
    return Linear(
        plan.shown(y),
        _each_part(lambda dx: _ahead(plan, PICK, residual, dx)),
        _each_part(lambda dy: _back(plan, SPREAD, residual, dy)),
    )


def _ahead(plan: Plan, mode: int, x: Array, dx: Array) -> Array:
    dy = plan.outputs(dx.dtype)
    plan.run(mode, dx, x, plan.laid(dx), dy)
    return plan.shown(dy)


def _back(plan: Plan, mode: int, x: Array | None, dy: Array) -> Array:
    dx = plan.inputs(dy.dtype)
    plan.run(mode, dy, x, plan.laid(dy), dx)
    return plan.shown(dx)


def _each_part(run: Any) -> Any:
    """`run`, which is linear, on the parts of a dual array too."""

    def call(a: Any) -> Any:
        return DualArray(call(a.value), call(a.tangent)) if isinstance(a, DualArray) else run(a)

    return call


# -- plans -------------------------------------------------------------------------------------------------------------


class Plan:
    """Where the axes of an array lie and what the extension makes of them.

    Axes are put in the order of memory: lead axes (a tile for each index), then the pooled ones, then the lanes (axes
    inside all pooled ones: elements side by side that no window joins). Neighbours that can be walked as one become one.
    """

    def __init__(self, window: Window, law: Law, dtype: str, strides: tuple[int, ...], axes: tuple[int, ...] | None):
        self.native, _ = _load()
        sizes = window.shape
        by_stride = sorted(range(len(sizes)), key=lambda i: -abs(strides[i]) if sizes[i] > 1 else -math.inf)
        self.pooled = [i for i in by_stride if window.axes[i] != each(sizes[i])]
        innermost = by_stride.index(self.pooled[-1])
        lanes = [i for i in by_stride[innermost + 1 :] if sizes[i] > 1]
        lead = [i for i in by_stride if i not in lanes and i not in self.pooled]
        self.order = [*lead, *self.pooled, *lanes]
        back = sorted(range(len(sizes)), key=self.order.__getitem__)
        self.back = None if back == list(range(len(sizes))) else back
        self.in_shape, self.out_shape = (tuple(shape[i] for i in self.order) for shape in (sizes, window.out_shape))

        self.lane_groups = _groups(lanes, sizes, strides, [True] * len(lanes))
        if len(self.lane_groups) > 1:  # lanes with gaps between them: only the innermost are lanes
            kept = self.lane_groups[-1]
            lead = [*lead, *(i for i in lanes if i not in kept)]
            self.lane_groups = [kept]
            self._reorder(lead, self.pooled, kept, window)
        global_ = [_is_whole(window.axes[i]) for i in self.pooled]
        self.pooled_groups = _groups(self.pooled, sizes, strides, global_)
        folded = [_merged([window.axes[i] for i in group]) for group in self.pooled_groups]
        taps = [_taps(axis) for axis in folded]
        rows = sorted(range(len(folded)), key=lambda g: self.pooled_groups[g][-1])  # row-major, as the caller has it
        tap_steps = [0] * len(folded)
        for at, g in enumerate(rows):
            tap_steps[g] = math.prod(taps[h] for h in rows[at + 1 :])
        steps = _steps(axes or (), window)
        every = math.prod(taps)
        self.residual = np.dtype(np.min_scalar_type(max(every - 1, 0)))
        parameter, flip, divisor, ties, ignore = 0.0, law.name == "min", 1, 0, False
        if law.name in ("max", "min"):
            ties, ignore = TIES[law.params[0]], law.params[1] == "ignore"
        elif law.name == "mean":
            divisor = law.params[0] or 0
        elif law.params:
            parameter = float(law.params[0])
            parameter, flip = abs(parameter), parameter < 0
        self.type = dtype
        self.handle = self.native.plan(
            LAWS[law.name], ties, ignore, flip, law.name == "mean", TYPES[dtype], parameter, divisor,
            math.prod(sizes[i] for group in self.lane_groups for i in group),
            [*lead, *(group[-1] for group in self.pooled_groups), *(group[-1] for group in self.lane_groups)],
            [sizes[i] for i in lead], list(reversed(rows)), tap_steps,
            [steps.get(group[-1], 0) for group in self.pooled_groups],
            [_packed(axis) for axis in folded],
        )  # fmt: skip

    def _reorder(self, lead: list[int], pooled: list[int], lanes: list[int], window: Window) -> None:
        self.order = [*lead, *pooled, *lanes]
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        self.back = None if back == list(range(len(self.order))) else back
        self.in_shape, self.out_shape = (
            tuple(shape[i] for i in self.order) for shape in (window.shape, window.out_shape)
        )

    def outputs(self, dtype: np.dtype[Any]) -> Array:
        """A fresh array of the outputs, dense in the plan's order of axes."""
        return np.empty(self.out_shape, dtype)

    def inputs(self, dtype: np.dtype[Any]) -> Array:
        return np.empty(self.in_shape, dtype)

    def shown(self, a: Array) -> Array:
        """Such an array in the caller's order of axes."""
        return a if self.back is None else a.transpose(self.back)

    def laid(self, a: Array) -> Array:
        """An array that can be walked as the plan walks x: itself, or a copy where its axes lie otherwise."""
        groups = [g for g in (*self.pooled_groups, *self.lane_groups) if len(g) > 1]
        if all(_one(list(g), a.shape, a.strides) for g in groups):
            return a
        dense = np.ascontiguousarray(a.transpose(self.order))
        return self.shown(dense)

    def run(self, mode: int, moved: Array, x: Array | None, a: Array | None, y: Array, b: Array | None = None) -> None:
        """`moved` has the dtype of tangents; x, a as `kernels.h` has them; y and b are dense results."""
        fits = self.native.run(
            self.handle, mode, TYPES.get(name(moved.dtype), 0), _bytes(x), _bytes(a), _bytes(y), _bytes(b), threads()
        )
        if not fits:
            raise PoolError(f"a sum does not fit {self.type}; convert x to a wider type first")


def _plan(window: Window, law: Law, x: Array, axes: tuple[int, ...] | None = None) -> Plan:
    return _cached(window, law, name(x.dtype), x.strides, axes)


def _moving_plan(window: Window, law: Law, dy: Array) -> Plan:
    """A plan for cotangents alone: inputs that nobody has seen lie in row-major order."""
    strides = [dy.itemsize * math.prod(window.shape[i + 1 :]) for i in range(len(window.axes))]
    return _cached(window, law, name(dy.dtype), tuple(strides), None)


_cached = lru_cache(maxsize=1024)(Plan)


def _bytes(a: Array | None) -> Array | None:
    """The array as one that has a buffer: bfloat16 has none."""
    return a.view(np.uint16) if a is not None and a.dtype.kind == "V" else a


def _is_whole(axis: Axis) -> bool:
    return axis.outputs == 1 and axis.span(0) == (0, axis.size) and axis.margin == (0, 0) and axis.dilation == 1


def _one(group: list[int], sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether neighbouring axes can be walked as one, whose stride is that of the last."""
    return all(strides[i] == strides[j] * sizes[j] for i, j in zip(group, group[1:], strict=False))


def _groups(axes: list[int], sizes: tuple[int, ...], strides: tuple[int, ...], may: list[bool]) -> list[list[int]]:
    """Runs of axes that can be walked as one."""
    groups: list[list[int]] = []
    for i, allowed in zip(axes, may, strict=True):
        if groups and allowed and joined and i == groups[-1][-1] + 1 and _one([groups[-1][-1], i], sizes, strides):
            groups[-1].append(i)
        else:
            groups.append([i])
        joined = allowed
    return groups


def _merged(axes: list[Axis]) -> Axis:
    if len(axes) == 1:
        return axes[0]
    n = math.prod(axis.size for axis in axes)
    return Axis(n, 1, stride=n, extent=n)


def _taps(axis: Axis) -> int:
    """Taps of the longest window before clipping."""
    if axis.per == 1:
        return -(-axis.extent // axis.dilation)
    return int(np.max(axis.span(np.arange(axis.outputs))[1], initial=1))


def _packed(axis: Axis) -> tuple[int, int, int, bytes]:
    """What each output reads, as the extension takes it: first, length, start, count, taps (start, taps: not clipped)."""
    o = np.arange(axis.outputs)
    first, length = axis.span(o)
    start = o * axis.stride // axis.per - axis.lo
    taps = np.full_like(length, -(-axis.extent // axis.dilation)) if axis.per == 1 else length
    vectors = np.stack([np.where(length > 0, first, 0), length, start, axis.span(o, axis.margin)[1], taps])
    return axis.size, axis.outputs, axis.dilation, vectors.astype(np.int64).tobytes()


def _steps(axes: tuple[int, ...], window: Window) -> dict[int, int]:
    """Row-major steps of flat positions within `axes`."""
    return {a: math.prod(window.axes[b].size for b in axes[i + 1 :]) for i, a in enumerate(axes)}
