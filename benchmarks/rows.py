"""What is measured: workloads as data, their goals and their arrays. Nothing here is timed or imports a peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

import ndpool

Phase = Literal["forward", "vjp", "pull", "jvp"]
PHASES: tuple[Phase, ...] = ("forward", "vjp", "pull", "jvp")


@dataclass(frozen=True)
class Goals:
    """How many times as fast as the best peer each phase should be; None is no goal.

    `floor` is the fraction of the floor's speed that forward should reach. With `opencv` the forward goal has two
    parts: `opencv` over OpenCV, whose large windows cost as little as small ones, and `forward` over all others.
    """

    forward: float | None = None
    floor: float | None = None
    vjp: float | None = None
    jvp: float | None = None
    opencv: float | None = None

    def of(self, phase: Phase) -> float | None:
        """The goal over the best peer; `pull` has none, because peers pay for it in their forward pass."""
        return {"forward": self.forward, "vjp": self.vjp, "pull": None, "jvp": self.jvp}[phase]


@dataclass(frozen=True)
class Row:
    """One workload.

    `times` applies the op that often in a row, and all outputs count. `channels_last` gives everyone the array with its
    second axis innermost in memory. With `call`, what is timed is the whole Python call with those arguments,
    `ndpool.max_pool(x, *call)`, and not a record made beforehand.
    """

    name: str
    op: ndpool.Op
    shape: tuple[int, ...]
    goals: Goals = Goals()
    dtype: str = "float32"
    phases: tuple[Phase, ...] = PHASES
    times: int = 1
    channels_last: bool = False
    call: tuple[Any, ...] | None = None


BATCH = (8, 64, 112, 112)
VOLUME = (2, 32, 32, 64, 64)
PLANES = (1, 8, 256, 256)
MAX2 = ndpool.MaxPool(2, 2)
MAX3 = ndpool.MaxPool(3, 2, 1)

ROWS = (
    Row("max 2x2 s2", MAX2, BATCH, Goals(1.8, 0.85, 3, 5)),
    Row("max 3x3 s2 p1", MAX3, BATCH, Goals(1.8, 0.8, 2.5, 6)),
    Row("max 2x2 s2 channels-last", MAX2, BATCH, channels_last=True),
    Row("max 3x3 s2 p1 channels-last", MAX3, BATCH, channels_last=True),
    Row("avg 2x2 s2", ndpool.AvgPool(2, 2), BATCH, Goals(1.3, 0.85, 2.5, 5)),
    Row("avg 3x3 s1 p1", ndpool.AvgPool(3, 1, 1), (8, 64, 56, 56), Goals(2.5, 0.5, 4, 10)),
    Row("global avg 7x7", ndpool.GlobalAvgPool(), (8, 2048, 7, 7), Goals(1.5, 0.85, 2, 3)),
    Row("global avg 112x112", ndpool.GlobalAvgPool(), BATCH, Goals(1.0, 0.85, 1.4, 3)),
    Row("max3d 2 s2", ndpool.MaxPool((2, 2, 2), 2), VOLUME, Goals(1.6, 0.85, 6, 10)),
    Row("max3d 3 s1 p1", ndpool.MaxPool((3, 3, 3), 1, 1), VOLUME, Goals(2.5, 0.5, 5, 50)),
    Row("max 31x31 s1 p15", ndpool.MaxPool(31, 1, 15), PLANES, Goals(15, None, 30, 300, opencv=2)),
    Row("avg 31x31 s1 p15", ndpool.AvgPool(31, 1, 15), PLANES, Goals(15, None, 30, 300, opencv=1.5)),
    Row("max1d k5 s1 p2", ndpool.MaxPool((5,), 1, 2), (16, 256, 4096), Goals(2.5, 0.85, 4, 8)),
    Row("adaptive avg 224->7", ndpool.AdaptiveAvgPool(7), (8, 64, 224, 224), Goals(1.2, None, 8, 3)),
    Row("adaptive avg 13->6", ndpool.AdaptiveAvgPool(6), (8, 512, 13, 13), Goals(1.0, None, 8, 8)),
    Row("smooth max 3x3 s2 p1", ndpool.SmoothMaxPool(3, 2, 1, beta=5.0), BATCH, Goals(3.5, None, 8, 5)),
    Row("SPPF 5x5 s1 p2, 3 times", ndpool.MaxPool(5, 1, 2), (1, 256, 20, 20), Goals(2.5, None, 4, 10), times=3),
    Row("max 2x2 s2 uint8", MAX2, BATCH, Goals(50), "uint8", ("forward",)),
    Row("max 2x2 s2 float16", MAX2, BATCH, Goals(2), "float16", ("forward",)),
    Row("max 2x2 s2 bfloat16", MAX2, BATCH, Goals(2), "bfloat16", ("forward",)),
    Row("tiny 2x2, whole call", ndpool.MaxPool(2), (1, 3, 8, 8), Goals(1, None, 1, 3), call=(2,)),
)


@dataclass(frozen=True)
class Slide:
    """Kernel, stride and symmetric padding, one an axis of the pooled ones (the last)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def keeps_size(self) -> bool:
        """Centred windows at every position: what image filters do."""
        return set(self.stride) == {1} and all(k == 2 * p + 1 for k, p in zip(self.kernel, self.padding, strict=True))

    @property
    def tiles(self) -> bool:
        return self.kernel == self.stride and not any(self.padding)


def slide(op: ndpool.Op, shape: tuple[int, ...]) -> Slide | None:
    """The op as a sliding window, as which adaptive and global pooling count where their bins are equal; else None."""
    rank = len(op.pooled_axes(len(shape)))

    def each(size: Any) -> tuple[int, ...]:
        return tuple(size) if isinstance(size, tuple) else (size,) * rank

    if isinstance(op, ndpool.forms.Sliding):
        return Slide(each(op.kernel_size), each(op.stride or op.kernel_size), each(op.padding))
    sizes, outs = shape[-rank:], op.window(shape).out_shape[-rank:]
    if any(n % o for n, o in zip(sizes, outs, strict=True)):
        return None
    kernel = tuple(n // o for n, o in zip(sizes, outs, strict=True))
    return Slide(kernel, kernel, (0,) * rank)


@dataclass(frozen=True)
class Case:
    """A row and its data: x, a tangent of x (x itself where no phase reads one), and a cotangent for each output."""

    row: Row
    x: Any
    dx: Any
    dys: tuple[Any, ...]

    @property
    def rank(self) -> int:
        return len(self.row.op.pooled_axes(self.x.ndim))

    @property
    def law(self) -> str:
        return str(self.row.op.law.name)

    @property
    def slide(self) -> Slide | None:
        return slide(self.row.op, self.row.shape)

    def moved(self, phase: Phase) -> tuple[int, int]:
        """The bytes that a phase reads at least and writes at least: the floor moves as many."""
        x, y = self.x.nbytes, sum(dy.nbytes for dy in self.dys)
        return {"forward": (x, y), "vjp": (x + y, y + x), "pull": (y, x), "jvp": (2 * x, 2 * y)}[phase]


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Normal numbers, or any integers of an integer dtype; the same for the same seed."""
    rng = np.random.default_rng(seed)
    if dtype == "uint8":
        return rng.integers(0, 256, shape, np.uint8)
    return rng.standard_normal(shape, np.float32).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)), copy=False)


def channels_innermost(a: Any) -> Any:
    """The same array with its second axis innermost in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)


def case_of(row: Row, data: str) -> Case:
    """The row with its data; `constant` data makes every window a tie."""
    place = channels_innermost if row.channels_last else np.ascontiguousarray
    x = random(row.shape, row.dtype, 0)
    if data == "constant":
        x = np.full_like(x, 7)
    x = place(x)
    dx = place(random(row.shape, row.dtype, 1)) if "jvp" in row.phases else x
    out = row.op.out_shape(row.shape)
    return Case(row, x, dx, tuple(place(random(out, row.dtype, 2 + i)) for i in range(row.times)))
