"""The Triton engine on tensors: `Launched` is to a GPU what `kernels.Bound` is to the CPU, with the same modes.

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
from .kernels import Shape, dense, has_one_winner, is_linear, lies_last, residual_dtype


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


class Launched:
    """A record's plan for tensors of one shape, strides and dtype, on a GPU."""

    def __init__(self, op: Op, shape: Shape, strides: Shape, dtype: torch.dtype):
        self.op, self.window, self.dtype = op, op.window(shape), dtype
        self.last = last = lies_last(shape, strides)
        self.linear, self.one_winner = is_linear(op.law), has_one_winner(op.law)
        self.empty = 0 in shape or 0 in self.window.out_shape
        self.tap = residual_dtype(list(self.window.axes))
        # taps are numbered in the order of the axes: channels that are pooled, too, are read in their place
        folded = last and 1 not in op.pooled_axes(len(shape))
        self.inputs, self.outputs = (Side(s, last, folded) for s in (shape, self.window.out_shape))
        if not self.empty:
            order = (0, *range(2, len(shape)), 1) if folded else tuple(range(len(shape)))
            try:
                self.plan = triton.bind(self.window, op.law, dtype, order, op.pooled_axes(len(shape)))
            except triton.NotCompiledError as error:
                self.plan = self._composed(error)

    def kept(self, x: Tensor) -> tuple[Tensor, Any]:
        """y, and what `back` asks for: which tap won, nothing for a sum, x for other laws."""
        return self.winners(x) if self.one_winner else (self.forward(x), None if self.linear else x)

    def back(self, kept: Any, dy: Tensor) -> Tensor:
        """The vjp, from what `kept` kept."""
        return self.vjp_by_winner(kept, dy) if self.one_winner else self.vjp(kept, dy)

    def forward(self, x: Tensor) -> Tensor:
        return self._run("forward", self.outputs, x, self.inputs.laid(x))

    def winners(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, and which tap won: a byte an output for up to 256 taps."""
        residual = self.outputs.fresh(self.tap, x.device)
        y = self._run("winners", self.outputs, x, self.inputs.laid(x), residual)
        return y, self.outputs.shown(residual.zero_() if self.empty else residual)

    def jvp(self, x: Tensor, dx: Tensor) -> Tensor:
        return self._run("jvp", self.outputs, dx, self.inputs.laid(x), self.inputs.laid(dx))

    def vjp(self, x: Tensor | None, dy: Tensor) -> Tensor:
        return self._run("vjp", self.inputs, dy, None if x is None else self.inputs.laid(x), self.outputs.laid(dy))

    def jvp_by_winner(self, residual: Tensor, dx: Tensor) -> Tensor:
        return self._run("jvp_by_winner", self.outputs, dx, self.outputs.laid(residual), self.inputs.laid(dx))

    def vjp_by_winner(self, residual: Tensor, dy: Tensor) -> Tensor:
        return self._run("vjp_by_winner", self.inputs, dy, self.outputs.laid(residual), self.outputs.laid(dy))

    def positions(self, residual: Tensor) -> Tensor:
        """Flat row-major positions among the pooled axes; -1 where nothing is read."""
        if self.empty:
            return self.outputs.shown(self.outputs.fresh(torch.int64, residual.device).fill_(-1))
        places = self.outputs.fresh(torch.int64, residual.device)
        return self._run("positions", self.outputs, places, self.outputs.laid(residual))

    def _run(self, mode: str, side: Side, like: Tensor, *given: Tensor | None) -> Tensor:
        """A fresh result on that side, of that dtype, launched where the tensors are."""
        device = like.device
        out = side.fresh(like.dtype, device)
        if self.empty:
            return side.shown(out.zero_())
        elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
        with torch.cuda.device(device) if elsewhere else nullcontext():
            try:
                getattr(self.plan, mode)(*map(_numbers, given), _numbers(out))
            except triton.NotCompiledError as error:
                self.plan = self._composed(error)
                getattr(self.plan, mode)(*map(_numbers, given), _numbers(out))
        return side.shown(out)

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
