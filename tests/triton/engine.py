"""The Triton engine as the tests see it: `forward`, `linearize` and `winners` of arrays, on a device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ndpool.engines import triton
from ndpool.engines.base import Linear
from ndpool.spec import Law, Window

from ..cases import BFLOAT16

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def tensor(x: np.ndarray, device: str = "cpu") -> torch.Tensor:
    if x.dtype == BFLOAT16:
        return torch.tensor(x.astype(np.float32)).to(torch.bfloat16).to(device)
    return torch.tensor(np.ascontiguousarray(x)).to(device)


def array(x: torch.Tensor) -> np.ndarray:
    x = x.cpu()
    return x.float().numpy().astype(BFLOAT16) if x.dtype == torch.bfloat16 else x.numpy()


class Engine:
    """One law over one window, on tensors that lie dense in `order`."""

    def __init__(self, window: Window, law: Law, dtype: Any, order: tuple[int, ...] | None = None, device: str = "cpu"):
        self.window, self.law, self.device = window, law, device
        self.order = tuple(range(len(window.axes))) if order is None else order
        self.dtype = dtype
        self.plan = triton.bind(window, law, dtype, self.order)

    def _in(self, x: np.ndarray) -> torch.Tensor:
        return tensor(x.transpose(self.order), self.device)

    def _out(self, t: torch.Tensor) -> np.ndarray:
        return array(t).transpose(np.argsort(self.order))

    def _made(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty([shape[i] for i in self.order], dtype=dtype, device=self.device)
        return made.fill_(77)  # what is not written shows

    def forward(self, x: np.ndarray) -> np.ndarray:
        a = self._in(x)
        y = self._made(self.window.out_shape, a.dtype)
        self.plan.forward(a, y)
        return self._out(y)

    def winners(self, x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        y, residual = self._winners(self._in(x))
        places = self._made(self.window.out_shape, torch.int64)
        triton.bind(self.window, self.law, self.dtype, self.order, axes).positions(residual, places)
        return self._out(y), self._out(places)

    def _winners(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size = np.min_scalar_type(math.prod(axis.taps for axis in self.window.axes) - 1).itemsize
        y, residual = (self._made(self.window.out_shape, dtype) for dtype in (a.dtype, WORDS[size]))
        self.plan.winners(a, residual, y)
        return y, residual

    def linearize(self, x: np.ndarray) -> Linear:
        a = self._in(x)
        if self.law.name in ("max", "min") and self.law.params[0] in ("first", "last"):
            y, residual = self._winners(a)
            ahead, back = self.plan.jvp_by_winner, self.plan.vjp_by_winner
            kept: Any = residual
        else:
            y = self._made(self.window.out_shape, a.dtype)
            self.plan.forward(a, y)
            ahead, back, kept = self.plan.jvp, self.plan.vjp, a

        def jvp(dx: np.ndarray) -> np.ndarray:
            t = self._in(dx)
            dy = self._made(self.window.out_shape, t.dtype)
            ahead(kept, t, dy)
            return self._out(dy)

        def vjp(dy: np.ndarray) -> np.ndarray:
            g = self._in(dy)
            dx = self._made(self.window.shape, g.dtype)
            back(kept, g, dx)
            return self._out(dx)

        return Linear(self._out(y), jvp, vjp)
