"""`Bound`: a record's plan for tensors of one shape, strides and dtype. Its methods are the modes of an engine.

It takes plain tensors (memory of any strides, no gradient wanted, no wrapper) and knows nothing of autograd. What
differs between devices is one method: `cpu.OnCPU` and `gpu.OnGPU` say how a mode runs on their tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..op import Op
from .memory import Shape, lies_last

BACK = ("vjp", "vjp_by_winner")  # modes whose result lies where inputs do
BY_WINNER = ("jvp_by_winner", "vjp_by_winner", "positions")  # modes that read which tap won instead of x


class Bound(ABC):
    """A record on tensors that lie alike."""

    def __init__(self, op: Op, shape: Shape, strides: Shape, dtype: torch.dtype):
        self.op, self.dtype, self.window = op, dtype, op.window(shape)
        self.last = lies_last(shape, strides)
        self.linear, self.one_winner = op.law.linear, op.law.one_winner
        self.empty = 0 in shape or 0 in self.window.out_shape

    @abstractmethod
    def _run(self, mode: str, x: Tensor | None, moved: Tensor | None = None) -> tuple[Tensor, ...]:
        """The fresh result of that mode; of `winners`, also which tap won. x is a residual in modes by winner, and
        `moved` the tangent or the cotangent. Nothing is launched where there are no elements."""

    def forward(self, x: Tensor) -> Tensor:
        return self._run("forward", x)[0]

    def winners(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, and which tap won: a byte per output for up to 256 taps."""
        y, residual = self._run("winners", x)
        return y, residual

    def jvp(self, x: Tensor, dx: Tensor) -> Tensor:
        return self._run("jvp", x, dx)[0]

    def vjp(self, x: Tensor | None, dy: Tensor) -> Tensor:
        return self._run("vjp", x, dy)[0]

    def jvp_by_winner(self, residual: Tensor, dx: Tensor) -> Tensor:
        return self._run("jvp_by_winner", residual, dx)[0]

    def vjp_by_winner(self, residual: Tensor, dy: Tensor) -> Tensor:
        return self._run("vjp_by_winner", residual, dy)[0]

    def positions(self, residual: Tensor) -> Tensor:
        """Flat row-major positions among the pooled axes; -1 where nothing is read."""
        return self._run("positions", residual)[0]

    # -- what autograd asks for

    def kept(self, x: Tensor) -> tuple[Tensor, Any]:
        """y, and what `back` asks for: which tap won, nothing for a sum, x for other laws."""
        return self.winners(x) if self.one_winner else (self.forward(x), None if self.linear else x)

    def back(self, kept: Any, dy: Tensor) -> Tensor:
        """The vjp, from what `kept` kept."""
        return self.vjp_by_winner(kept, dy) if self.one_winner else self.vjp(kept, dy)
