"""The Triton engine on tensors.

Results lie as on the CPU. Launches go to the tensor's device and to its current stream; nothing waits for them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..engines import triton
from ..op import Op
from . import private
from .bound import BACK, BY_WINNER, Bound
from .memory import Shape, dense, residual_dtype


class Side:
    """Tensors on one side of a window: the inputs, or the outputs. `written` is how the plan writes them."""

    def __init__(self, shape: Shape, last: bool, folded: bool):
        self.shape, self.strides = shape, dense(shape, last)
        self.written = self.strides if folded else dense(shape, False)
        self.matters = [i for i, n in enumerate(shape) if n > 1]  # an axis of one element lies anywhere

    def laid(self, t: Tensor) -> Tensor:
        """The tensor as a plan reads it: itself, or a copy where it lies otherwise."""
        strides = t.stride()
        if strides == self.written or all(strides[i] == self.written[i] for i in self.matters):
            return t
        return torch.empty_strided(self.shape, self.written, dtype=t.dtype, device=t.device).copy_(t)

    def fresh(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty_strided(self.shape, self.written, dtype=dtype, device=device)

    def shown(self, t: Tensor) -> Tensor:
        if self.written == self.strides:
            return t
        return torch.empty_strided(self.shape, self.strides, dtype=t.dtype, device=t.device).copy_(t)


class OnGPU(Bound):
    """A record's Triton plan for tensors on a GPU."""

    def __init__(self, op: Op, shape: Shape, strides: Shape, dtype: torch.dtype):
        super().__init__(op, shape, strides, dtype)
        self.tap = residual_dtype(self.window.axes)
        # taps are numbered in the order of the axes: channels that are pooled, too, are read in their place
        folded = self.last and 1 not in op.pooled_axes(len(shape))
        self.inputs, self.outputs = (Side(s, self.last, folded) for s in (shape, self.window.out_shape))
        if not self.empty:
            order = (0, *range(2, len(shape)), 1) if folded else tuple(range(len(shape)))
            try:
                self.plan = triton.bind(self.window, op.law, dtype, order, op.pooled_axes(len(shape)))
            except triton.NotCompiledError as error:
                self.plan = self._composed(error)

    def _run(self, mode: str, x: Tensor | None, moved: Tensor | None = None) -> tuple[Tensor, ...]:
        like = moved if x is None else x
        assert like is not None
        side, other = (self.inputs, self.outputs) if mode in BACK else (self.outputs, self.inputs)
        y = side.fresh(torch.int64 if mode == "positions" else self.dtype, like.device)
        residual = [self.outputs.fresh(self.tap, like.device)] if mode == "winners" else []
        if self.empty:
            y.fill_(-1 if mode == "positions" else 0)
            for tap in residual:
                tap.zero_()
        else:
            given = [None if x is None else (self.outputs if mode in BY_WINNER else self.inputs).laid(x)]
            given += [other.laid(moved)] if moved is not None else []
            self._launch(mode, [*map(_numbers, (*given, *residual, y))], like.device)
        return side.shown(y), *map(self.outputs.shown, residual)

    def _launch(self, mode: str, tensors: list[Tensor | None], device: torch.device) -> None:
        """Where the tensors are."""
        elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
        with torch.cuda.device(device) if elsewhere else nullcontext():
            try:
                getattr(self.plan, mode)(*tensors)
            except triton.NotCompiledError as error:
                self.plan = self._composed(error)
                getattr(self.plan, mode)(*tensors)

    def _composed(self, error: Exception) -> Any:
        """What pools where this release of Triton does not compile a kernel."""
        from .composed import Composed

        private.tell(f"{str(error)[:500]}, so torch's own operations pool there")
        return Composed(self.op, self.inputs.shape)


def _numbers(t: Tensor | None) -> Tensor | None:
    """Truth values as the bytes they are."""
    return t.view(torch.uint8) if t is not None and t.dtype is torch.bool else t


def reaches(device: int | None) -> bool:
    """Whether that GPU runs the engine."""
    return triton.available() and torch.cuda.get_device_capability(device) >= triton.LEAST
