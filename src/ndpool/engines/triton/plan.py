"""Plans: a window, a law, a dtype and an order of memory with every decision made, run on arrays that lie so.

A plan holds no array and no device. Its methods take dense arrays and write into dense arrays. Whose arrays these are,
only its `Runner` knows: it launches kernels, and makes memory that one launch writes and the next reads. So the same
plans run on torch's tensors (`tensors.py`) and in JAX's programs (`jax/gpu.py`). `tiles` is the one table of launch
shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import triton.language as tl

from ...spec import SUM, Axis, Law, Window, each, whole
from ..dtypes import name
from ..layout import folded
from . import gather, scatter

Array = Any
Fields = tuple[int, ...]  # an axis as `geometry.FIELDS` has it

UNROLLED = 64  # taps, or readers, up to which loops are unrolled
ACCUMULATORS = {"float64": tl.float64, "float32": tl.float32, "float16": tl.float32, "bfloat16": tl.float32}
INTEGERS = {"uint8": tl.uint8, "int8": tl.int8, "int16": tl.int16, "int32": tl.int32, "int64": tl.int64}
SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
WIDE = {tl.float64: "float64", tl.float32: "float32", tl.int64: "int64"}
TAPS = {1: "uint8", 2: "int16", 4: "int32"}  # torch has no unsigned words beyond a byte
NARROW = 2**31 - 2**16  # elements that 32-bit indices reach, with room for a block and for taps beyond the ends


@dataclass(frozen=True)
class KernelLaw:
    """A law as `laws.py` has it."""

    name: str

    ties: str = ""
    ignore_nan: bool = False
    parameter: float = 0.0  # beta < 0 is beta > 0 of the flipped input
    divisor: int = 0  # 0: what each output counts


LAWS: dict[str, Callable[..., KernelLaw]] = {
    "max": lambda ties, nan: KernelLaw("max", ties, nan == "ignore"),
    "min": lambda ties, nan: KernelLaw("min", ties, nan == "ignore"),
    "sum": lambda: KernelLaw("sum"),
    "mean": lambda divisor: KernelLaw("mean", divisor=divisor or 0),
    "smooth_max": lambda beta: KernelLaw("smooth_max", parameter=float(beta)),
    "lp": lambda p: KernelLaw("lp", parameter=float(p)),
}


class Runner(Protocol):
    """What a plan asks of those whose arrays it runs on."""

    def launch(
        self,
        kernel: Any,
        programs: int,
        warps: int,
        inputs: tuple[Array | None, ...],
        total: int,
        outputs: tuple[Array | None, ...],
        constants: dict[str, Any],
    ) -> None:
        """Run kernel(*inputs, total, *outputs, **constants) in so many programs. What the kernel does not look at in
        this mode is None: any array will do in its place."""

    def made(self, n: int, dtype: str | None, like: Array) -> Array:
        """Memory for n elements, of like's type where none is said, where `like` is."""


class Plan:
    """Runs on arrays of `window.shape` that lie dense in the order of axes given."""

    def __init__(
        self,
        window: Window,
        law: Law,
        dtype: Any,
        order: tuple[int, ...],
        axes: tuple[int, ...] = (),
        runner: Runner | None = None,
    ):
        self.runner = runner or _on_tensors()
        if law.zero_is_neutral and not law.divides:  # zeros that count change nothing
            window = Window(tuple(replace(axis, margin=(0, 0)) for axis in window.axes))
        self.lead, self.lanes, self.axes, members = folded([window.axes[i] for i in order])
        sizes = window.shape
        steps = {a: math.prod(sizes[b] for b in axes[i + 1 :]) for i, a in enumerate(axes)}
        self.steps = tuple(steps.get(order[group[-1]], 0) if group else 0 for group in members)
        to = LAWS[law.name](*law.params)
        self.linear, self.flip = law.linear, to.parameter < 0
        self.key = (to.name, to.ties, to.ignore_nan, abs(to.parameter))
        full = "uint8" if name(dtype) == "bool" else name(dtype)
        self.acc = ACCUMULATORS.get(full) or (INTEGERS[full] if law.winners else tl.int64)
        counts = [axis.span(np.arange(axis.outputs), axis.margin)[1] for axis in self.axes]
        self.divisor = 1
        if law.divides:
            even = all(len(n) and (n == n[0]).all() and n[0] for n in counts)
            self.divisor = to.divisor or (math.prod(int(n[0]) for n in counts) if even else 0)
        self.empty = not law.linear and not all(n.all() for n in counts)
        self.fields = tuple(map(_fields, self.axes))
        self.inputs, self.outputs = (
            self.lead * self.lanes * math.prod(getattr(axis, side) for axis in self.axes)
            for side in ("size", "outputs")
        )
        self.taps = math.prod(axis.taps for axis in self.axes)
        self.readers = math.prod(axis.most_readers for axis in self.axes)
        self.wide = max(self.inputs, self.outputs) > NARROW
        self.itemsize = SIZES[full]
        # large windows that hardly overlap: taps side by side
        self.collects = self.readers <= 4 and (self.axes[-1].taps >= 16 or self.taps > UNROLLED)
        # step by step along the first axis, where windows of rank 3 and up slide along it
        first = self.axes[0]
        self.marches = len(self.axes) > 2 and _slides(first) and first.stride == 1
        # few taps for each input: what a vjp needs of an output is made anew
        strides = math.prod(axis.stride for axis in self.axes)
        self.remakes = self.taps <= min(27, 3 * strides) and all(a.per == 1 and a.stride <= 4 for a in self.axes)
        # long windows along one axis: what an input won lies side by side
        self.runs = len(self.axes) == 1 and _slides(first) and first.most_readers > 8 and 4 * first.extent <= 2048
        # windows that lie one after another, but not on multiples of a vector: loaded at once
        self.flat = self.collects and self.lanes == 1 and self.axes == [whole(self.taps)] and self.taps <= 128
        self.flat = self.flat and self.taps % 4 != 0

    # -- what engines run

    def forward(self, x: Array, y: Array) -> None:
        self._gather("forward", x, None, y, None)

    def winners(self, x: Array, residual: Array, y: Array, earlier: Array | None = None, inner: int = 0) -> None:
        """The value, and which tap won; in a later pass, `earlier` says which of `inner` taps won before."""
        self._gather("winners", x, earlier, y, residual, inner)

    def jvp(self, x: Array, dx: Array, dy: Array) -> None:
        if self.linear:
            self.forward(dx, dy)
        else:
            self._gather("jvp", x, dx, dy, None)

    def vjp(self, x: Array | None, dy: Array, dx: Array) -> None:
        if x is None or self.linear:
            self._scatter("linear", None, dy, None, None, None, dx)
            return
        if self.remakes:
            t = tiles(self, "vjp")
            total = self._cells("size", t.cells)
            constants = {
                "LAW": self.key, "AXES": self.fields, "LANES": self.lanes, "FLIP": self.flip, "EMPTY": self.empty,
                "ACC": self.acc, "CELLS": t.cells, "VECTOR": t.vector, "BLOCK": t.block, "WIDE": self.wide,
            }  # fmt: skip
            self._launch(scatter.vjp, t, (x, dy), total, (dx,), constants)
            return
        wide = "float64" if self.acc is tl.float64 else "float32"
        m, share = (self.runner.made(self.outputs, wide, dy) for _ in range(2))
        self._gather("turn", x, dy, m, share)
        self._scatter("turned", x, share, m, None, None, dx)

    def jvp_by_winner(self, residual: Array, dx: Array, dy: Array) -> None:
        self._jvp_by_winner(residual, dx, dy, None)

    def vjp_by_winner(
        self, residual: Array, dy: Array, dx: Array, earlier: Array | None = None, inner: int = 0
    ) -> None:
        """The cotangent; in a later pass, `earlier` gets which of `inner` taps won before."""
        if self.runs:
            self._runs(residual, dy, dx, earlier, inner or 1)
            return
        self._scatter("vjp_by_winner", None, dy, None, residual, earlier, dx, inner)

    def positions(self, residual: Array, places: Array) -> None:
        """Flat row-major positions within the plan's `axes`; -1 where nothing is read."""
        self._jvp_by_winner(residual, None, places, self.steps)

    # -- launches

    def _gather(self, mode: str, x: Array, dx: Array | None, y: Array, beside: Array | None, inner: int = 0) -> None:
        t = tiles(self, mode)
        constants = {
            "LAW": self.key, "MODE": mode, "AXES": self.fields, "LANES": self.lanes, "FLIP": self.flip,
            "DIVISOR": self.divisor, "EMPTY": self.empty, "ACC": self.acc, "BLOCK": t.block, "WIDE": self.wide,
        }  # fmt: skip
        if self.collects:
            kernel, total = gather.collect, self.outputs
            constants |= {"SIDE": t.side, "FLAT": self.flat}
        else:
            kernel, total = gather.gather, self._cells("outputs", t.cells)
            constants |= {
                "INNER": inner, "CELLS": t.cells, "VECTOR": t.vector, "MARCH": t.march, "UNROLL": self.taps <= UNROLLED,
            }  # fmt: skip
        self._launch(kernel, t, (x, dx), total, (y, beside), constants)

    def _scatter(
        self,
        mode: str,
        x: Array | None,
        dy: Array,
        m: Array | None,
        residual: Array | None,
        earlier: Array | None,
        dx: Array,
        inner: int = 0,
    ) -> None:
        if self.flat and mode != "turned":
            t = tiles(self, "lay")
            total = self.inputs // t.vector
            constants = {
                "MODE": mode, "N": self.taps, "DIVISOR": self.divisor, "ACC": self.acc, "VECTOR": t.vector,
                "BLOCK": t.block, "WIDE": self.wide,
            }  # fmt: skip
            self._launch(scatter.lay, t, (dy, residual), total, (dx,), constants)
            return
        t = tiles(self, mode)
        total = self._cells("size", t.cells)
        constants = {
            "LAW": self.key, "MODE": mode, "AXES": self.fields, "LANES": self.lanes, "FLIP": self.flip,
            "DIVISOR": self.divisor, "INNER": inner, "ACC": self.acc, "CELLS": t.cells, "VECTOR": t.vector,
            "MARCH": t.march, "UNROLL": self.readers <= UNROLLED, "BLOCK": t.block, "WIDE": self.wide,
        }  # fmt: skip
        self._launch(scatter.scatter, t, (x, dy, m, residual), total, (earlier, dx), constants)

    def _runs(self, residual: Array, dy: Array, dx: Array, earlier: Array | None, inner: int) -> None:
        axis = self.axes[0]
        t = tiles(self, "runs")
        whole = self.lanes == 1 and axis.outputs <= t.side
        stretch = axis.size if whole else (t.side - 2) * axis.stride - axis.extent + 2
        stretches = -(-axis.size // stretch)
        stretch = -(-axis.size // stretches)
        lines = self.lead * self.lanes
        kernel = scatter.walk if self.lanes > 1 else scatter.runs
        constants = {
            "AXES": self.fields, "LANES": self.lanes, "INNER": inner, "ACC": self.acc,
            "KEY": tl.int64 if axis.size * inner >= 2**31 else tl.int32, "STRETCH": stretch, "LONG": t.side,
            "BLOCK": t.block, "WIDE": self.wide,
        }  # fmt: skip
        self._launch(kernel, t, (dy, residual), lines, (earlier, dx), constants, stretches)

    def _jvp_by_winner(self, residual: Array, dx: Array | None, y: Array, steps: tuple[int, ...] | None) -> None:
        t = tiles(self, "jvp_by_winner")
        total = self._cells("outputs", t.cells)
        constants = {
            "STEPS": steps, "AXES": self.fields, "LANES": self.lanes, "EMPTY": self.empty, "CELLS": t.cells,
            "BLOCK": t.block, "WIDE": self.wide,
        }  # fmt: skip
        self._launch(gather.jvp_by_winner, t, (residual, dx), total, (y,), constants)

    def _launch(
        self, kernel: Any, t: Tile, inputs: Any, total: int, outputs: Any, constants: dict[str, Any], each: int = 1
    ) -> None:
        """In programs that take a block of `total` each, and `each` of them the same block."""
        self.runner.launch(kernel, -(-total // t.block) * each, t.warps, inputs, total, outputs, constants)

    def _cells(self, side: str, cells: tuple[int, ...]) -> int:
        """How many cells that side of the window has."""
        n = self.lead * self.lanes
        for axis, cell in zip(self.axes, cells, strict=True):
            n *= -(-getattr(axis, side) // (cell or 1))
        return n


class Chain:
    """A large window as passes, one axis each, the last axis first; the same modes as a plan's.

    max, sum, log-sum-exp and norm over a product of axes are those over one axis of those over the others, and the
    first winner in row-major order is the first line's first. So are their derivatives, by the chain rule.
    """

    def __init__(self, law: Law, dtype: Any, whole: Plan):
        self.whole, self.law, self.dtype = whole, law, dtype
        self.stages: list[Plan] = []
        self.sizes: list[int] = []  # elements that go into each stage, and at the end those that come out
        sizes = [axis.size for axis in whole.axes]
        pooled = [a for a, axis in enumerate(whole.axes) if axis.taps > 1 or not axis.is_identity]
        for a in reversed(pooled):
            axis = whole.axes[a]
            lead = whole.lead * math.prod(sizes[:a])
            lanes = whole.lanes * math.prod(sizes[a + 1 :])
            self.sizes.append(lead * lanes * axis.size)
            stage = law
            if LAWS[law.name](*law.params).divisor and a != pooled[0]:  # one of them divides for all
                stage = SUM
            window = Window((each(lead), axis, each(lanes)))
            self.stages.append(Plan(window, stage, dtype, (0, 1, 2), runner=whole.runner))
            sizes[a] = axis.outputs
        self.sizes.append(whole.outputs)
        taps = [stage.taps for stage in self.stages]
        self.inner = [math.prod(taps[:i]) for i in range(len(taps) + 1)]  # taps of the stages before each

    def _between(self, i: int, like: Array) -> Array:
        """Memory between stages: sums are kept wide."""
        return self.whole.runner.made(self.sizes[i], None if self.law.winners else WIDE[self.whole.acc], like)

    def _taps(self, i: int, like: Array) -> Array:
        """Memory for which of the taps of the first i stages won."""
        size = np.min_scalar_type(self.inner[i] - 1).itemsize
        return self.whole.runner.made(self.sizes[i], TAPS[size], like)

    def _values(self, x: Array) -> list[Array]:
        """What goes into each stage."""
        values = [x]
        for i, stage in enumerate(self.stages[:-1]):
            values.append(self._between(i + 1, x))
            stage.forward(values[i], values[i + 1])
        return values

    def forward(self, x: Array, y: Array) -> None:
        self.stages[-1].forward(self._values(x)[-1], y)

    def winners(self, x: Array, residual: Array, y: Array) -> None:
        earlier = None
        for i, stage in enumerate(self.stages):
            final = i == len(self.stages) - 1
            out, tap = (y, residual) if final else (self._between(i + 1, x), self._taps(i + 1, x))
            stage.winners(x, tap, out, earlier, self.inner[i] if i else 0)
            x, earlier = out, tap

    def jvp(self, x: Array, dx: Array, dy: Array) -> None:
        if self.law.linear:
            self.forward(dx, dy)
            return
        for i, (stage, value) in enumerate(zip(self.stages, self._values(x), strict=True)):
            out = dy if i == len(self.stages) - 1 else self._between(i + 1, dx)
            stage.jvp(value, dx, out)
            dx = out

    def vjp(self, x: Array | None, dy: Array, dx: Array) -> None:
        linear = x is None or self.law.linear
        values: list[Any] = [None] * len(self.stages) if linear else self._values(x)
        for i in reversed(range(len(self.stages))):
            out = self._between(i, dy) if i else dx
            self.stages[i].vjp(values[i], dy, out)
            dy = out

    def jvp_by_winner(self, residual: Array, dx: Array, dy: Array) -> None:
        self.whole.jvp_by_winner(residual, dx, dy)

    def vjp_by_winner(self, residual: Array, dy: Array, dx: Array) -> None:
        for i in reversed(range(len(self.stages))):
            out, earlier = (self._between(i, dy), self._taps(i, dy)) if i else (dx, None)
            self.stages[i].vjp_by_winner(residual, dy, out, earlier, self.inner[i] if i else 0)
            residual, dy = earlier if earlier is not None else residual, out

    def positions(self, residual: Array, places: Array) -> None:
        self.whole.positions(residual, places)


def planned(
    window: Window,
    law: Law,
    dtype: Any,
    order: tuple[int, ...],
    axes: tuple[int, ...],
    runner: Runner | None = None,
) -> Plan | Chain:
    """A plan in one launch a mode, or in passes; for torch's tensors unless there is another runner."""
    plan = Plan(window, law, dtype, order, axes, runner)
    joins = sum(axis.taps > 1 for axis in plan.axes)
    zeros = not law.zero_is_neutral and any(any(axis.margin) for axis in plan.axes)
    splits = law.winners == "split"
    if joins < 2 or plan.collects or max(plan.taps, plan.readers) <= UNROLLED or zeros or splits:
        return plan
    return Chain(law, dtype, plan)


@dataclass(frozen=True)
class Tile:
    """What one program takes: how many neighbours of each axis a thread, how many of the last at once, whether step by
    step along the first, how many taps side by side; its block, its warps."""

    cells: tuple[int, ...] = ()
    vector: int = 1
    march: bool = False
    side: int = 1
    block: int = 512
    warps: int = 4


def usual_tiles(plan: Plan, mode: str) -> Tile:
    """The launch shape of a mode, by the kind of window; measured by `benchmarks/gpu.py --sweep`."""
    last = plan.axes[-1]
    width = math.gcd(last.size, 16 // plan.itemsize) if plan.lanes == 1 and last.per == 1 else 1
    lanes = math.gcd(plan.lanes, 16 // plan.itemsize)  # beside one another: the compiler loads them at once
    one = (1,) * len(plan.axes)
    joined = [a for a, axis in enumerate(plan.axes[:-1]) if _overlaps(axis)]
    if mode == "jvp_by_winner":
        across = 4 if plan.lanes == 1 and last.per == 1 and last.outputs % 4 == 0 else 1
        return Tile((*one[:-1], across), block=512 // across)
    if mode == "lay":
        return Tile(vector=math.gcd(plan.inputs, 16 // plan.itemsize), block=256)
    if mode == "vjp":
        cells = [axis.stride for axis in plan.axes]
        width = min(width, 4)
        cells[-1] = math.lcm(width, last.stride)
        if len(cells) == 2 and plan.lanes == 1:
            cells[0] *= 2
        before = (last.extent - 1 - last.lo) // last.stride * last.stride  # of the cell, where its first reader is
        return Tile(tuple(cells), width if before % width == 0 else 1, block=128 * (lanes if plan.lanes > 1 else 1))
    if mode == "runs":
        long = 1 << (4 * last.extent // last.stride - 1).bit_length()
        if plan.lanes > 1:
            return Tile(side=max(32, long), block=128)
        long = min(1 << (last.outputs - 1).bit_length(), max(512, long))
        return Tile(side=long, block=max(1, 2048 // long), warps=8)
    if mode in ("forward", "winners", "jvp", "turn"):
        if plan.collects:
            side = 1 << (plan.taps - 1).bit_length()
            if not plan.flat:
                side = min(side, 512 // plan.itemsize)
            return Tile(side=side, block=max(1, (8192 if plan.flat else 2048) // (side * plan.itemsize)))
        if plan.taps > UNROLLED:
            return Tile(one)
        least = width // math.gcd(width, last.stride)
        across = 2 if plan.lanes > 1 and _overlaps(last) else least
        if len(plan.axes) == 1 and _slides(last) and last.extent > 8 * last.stride:
            across, lanes = 16, min(lanes, 4) if mode == "forward" else 1
        across = min(across, _power(last.outputs))
        cells = [*one[:-1], across]
        whole = width if least <= across else 1
        if plan.marches:
            cells[0] = min(32, plan.axes[0].outputs)
            if 1 in joined:
                cells[1] = 4 if plan.itemsize > 2 else 2
        elif joined == [0] and len(plan.axes) == 2:
            cells[0] = 2 if plan.lanes > 1 or plan.axes[0].stride > 1 else 4
        return Tile(tuple(cells), whole, plan.marches, block=128 * lanes)
    if plan.readers > UNROLLED:
        return Tile((0,) * len(plan.axes))
    cells = [0] * len(plan.axes)
    if last.per == 1 and last.stride <= 4:
        cells[-1] = math.lcm(width, last.stride)
        if plan.lanes > 1 and _overlaps(last):
            long = last.extent > 8 and len(plan.axes) == 1
            cells[-1] = (8 if long else 2) // last.stride * last.stride or last.stride
            lanes = lanes if mode == "linear" or not long else 1
    elif _shares(last, width):
        cells[-1] = width
    march = plan.marches and mode != "turned"
    rows = 4 if plan.lanes == 1 and len(plan.axes) == 2 else 2
    for a, axis in enumerate(plan.axes[:-1]):
        if axis.per == 1 and axis.stride <= 4:
            if a not in joined[1:] or march:  # every reader that is known is code
                cells[a] = rows if a in joined and axis.stride == 1 else axis.stride
        elif _shares(axis, 4):
            cells[a] = 4
    if march:
        cells[0] = min(16, plan.axes[0].size)
    strides = cells[-1] // last.stride if plan.lanes == 1 else 0  # in a cell
    vector = math.gcd(strides, last.outputs) if strides else 1
    return Tile(tuple(cells), vector & -vector, march, block=128 * lanes if any(cells) else 512)


tiles = usual_tiles  # replaced by a benchmark's sweep


def _overlaps(axis: Axis) -> bool:
    return axis.per == 1 and axis.stride < axis.extent and axis.outputs > 1


def _shares(axis: Axis, cell: int) -> bool:
    """Whether so many neighbouring positions have one reader, all of them or none."""
    apart = axis.per == axis.dilation == 1 and axis.stride >= axis.extent and cell > 1
    return apart and not any(n % cell for n in (axis.size, axis.stride, axis.extent, axis.lo))


def _slides(axis: Axis) -> bool:
    """Whether neighbouring outputs read neighbouring positions, many of them together."""
    return _overlaps(axis) and axis.dilation == 1


def _power(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def _on_tensors() -> Runner:
    from .tensors import ON_TENSORS

    return ON_TENSORS


# -- geometry ----------------------------------------------------------------------------------------------------------


def _fields(axis: Axis) -> Fields:
    taps = axis.taps
    _, length = axis.span(np.arange(axis.outputs))
    return (
        axis.size, axis.outputs, axis.stride, axis.per, taps, axis.dilation, axis.lo, axis.extent, *axis.margin,
        axis.most_readers, int(not (length == taps).all()),
    )  # fmt: skip
