"""The native engine on tensors: where results lie, and plans that read and write the tensors' own memory.

`Bound` is a record's plan for tensors of one shape, strides and dtype; its methods are the engine's modes. It takes
plain tensors (CPU memory of any strides, no gradient wanted, no wrapper) and knows nothing of autograd. Another
device's engine would be a second class like it, chosen in `pooling.Pooling.bind`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from ..engines import native
from ..engines.dtypes import name
from ..op import Op
from ..spec import Axis, Law

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]

SMALL = (
    4096  # elements up to which NumPy's memory with a tensor around it is cheaper than a tensor with an array around
)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # residuals by size; torch computes with none


# -- where results lie -------------------------------------------------------------------------------------------------


def lies_last(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether channels lie last, by torch's rule; where the strides leave it open they do not."""
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least: Any = 0
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * (shape[d] if shape[d] > 1 else 1)
    return True


def dense(shape: Sequence[Any], last: bool) -> tuple[Any, ...]:
    """The strides of a tensor without gaps, channels in their place or last."""
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for d in (1, *range(len(shape) - 1, 1, -1), 0) if last else reversed(range(len(shape))):
        strides[d] = step
        step = step * (shape[d] if shape[d] > 1 else 1)
    return tuple(strides)


def residual_dtype(axes: list[Axis]) -> torch.dtype:
    """The type that names a tap of the window. Sizes may be a tracer's symbols: only bounds are asked where they do."""
    least: Any = 1
    most: Any = 1
    for axis in axes:
        taps = -(-axis.extent // (axis.dilation if axis.per == 1 else axis.per))
        least, most = least * taps, most * (taps if axis.per == 1 or axis.size % axis.per == 0 else taps + 1)
    for size, dtype in WORDS.items():
        if most <= 1 << 8 * size:
            return dtype
        if least <= 1 << 8 * size:
            break
    return WORDS[np.min_scalar_type(math.prod(map(native.longest, axes)) - 1).itemsize]


@dataclass(frozen=True, slots=True)
class Side:
    """Tensors on one side of a window: the inputs, or the outputs. `direct`: a plan can write them where they lie."""

    shape: Shape
    strides: Shape
    direct: bool
    small: bool


def _side(shape: Shape, last: bool, order: Sequence[int]) -> Side:
    strides, step, direct = dense(shape, last), 1, True
    for i in reversed(order):
        direct = direct and (shape[i] == 1 or strides[i] == step)
        step *= shape[i]
    return Side(shape, strides, direct, not last and math.prod(shape) <= SMALL)


# -- what a law's derivative is made of -------------------------------------------------------------------------------


def is_linear(law: Law) -> bool:
    """Whether the derivative is the law itself."""
    return law.name in ("sum", "mean")


def has_one_winner(law: Law) -> bool:
    """Whether the derivative is which tap won."""
    return law.name in ("max", "min") and law.params[0] in ("first", "last")


# -- plans on tensors --------------------------------------------------------------------------------------------------


class Bound:
    """A record's plan for tensors of one shape, strides and dtype."""

    def __init__(self, op: Op, shape: Shape, strides: Shape, dtype: torch.dtype):
        self.op, self.dtype, self.window = op, dtype, op.window(shape)
        self.last = last = lies_last(shape, strides)
        self.linear, self.one_winner = is_linear(op.law), has_one_winner(op.law)
        self.code, self.word = native.TYPES[name(dtype)], _numpy(dtype)
        self.empty = 0 in shape or 0 in self.window.out_shape
        order: Sequence[int] = range(len(shape))
        if not self.empty:
            item = np.dtype(ml_dtypes.bfloat16) if dtype is torch.bfloat16 else self.word
            self.key = self.window, op.law, item, tuple(s * item.itemsize for s in strides)
            self.plan = native.plan(*self.key)
            self.layout, order = self.plan.layout, self.plan.layout.order
        self.inputs, self.outputs = (_side(s, last, order) for s in (shape, self.window.out_shape))

    def kept(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """y, and what `back` asks for: which tap won, nothing for a sum, x for other laws."""
        return self.winners(x) if self.one_winner else (self.forward(x), None if self.linear else x)

    def back(self, kept: Tensor | None, dy: Tensor) -> Tensor:
        """The vjp, from what `kept` kept."""
        return self.pull(kept, dy) if kept is None or not self.one_winner else self.spread(kept, dy)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(native.FORWARD, self._laid(x), None, self.outputs, self.dtype)[0]

    def winners(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, and which tap won: a byte an output for up to 256 taps."""
        kinds = self.dtype, torch.uint8 if self.empty else WORDS[self.plan.residual.itemsize]
        y, residual = self._run(native.WINNERS, self._laid(x), None, self.outputs, *kinds)
        return y, residual

    def push(self, x: Tensor, dx: Tensor) -> Tensor:
        return self._run(native.PUSH, self._laid(x), self._laid(dx), self.outputs, self.dtype)[0]

    def pull(self, x: Tensor | None, dy: Tensor) -> Tensor:
        seen = None if x is None else self._laid(x)
        return self._run(native.PULL, seen, self._laid(dy), self.inputs, self.dtype)[0]

    def pick(self, residual: Tensor, dx: Tensor) -> Tensor:
        return self._run(native.PICK, self._ordered(residual), self._laid(dx), self.outputs, self.dtype)[0]

    def spread(self, residual: Tensor, dy: Tensor) -> Tensor:
        return self._run(native.SPREAD, self._ordered(residual), self._laid(dy), self.inputs, self.dtype)[0]

    def positions(self, residual: Tensor) -> Tensor:
        """Flat row-major positions among the pooled axes; -1 where nothing is read."""
        if self.empty:
            return torch.empty(self.outputs.shape, dtype=torch.int64)
        numbering = native.plan(*self.key, self.op.pooled_axes(len(self.inputs.shape)))
        order = numbering.layout.order
        places = numbering.positions(np.ascontiguousarray(_array(residual).transpose(order)))
        y = torch.empty_strided(self.outputs.shape, self.outputs.strides, dtype=torch.int64)
        y.numpy()[...] = places
        return y

    def _laid(self, t: Tensor) -> Any:
        return None if self.empty else self.layout.laid(_array(t))

    def _ordered(self, residual: Tensor) -> Any:
        """A residual is read dense, in the order of the plan."""
        return None if self.empty else np.ascontiguousarray(_array(residual).transpose(self.layout.order))

    def _run(self, mode: int, x: Any, a: Any, side: Side, *dtypes: torch.dtype) -> list[Tensor]:
        """Fresh results on that side; those that do not lie as the plan writes are written elsewhere first."""
        if self.empty:
            return [torch.zeros(side.shape, dtype=dtype).as_strided(side.shape, side.strides) for dtype in dtypes]
        made = [_fresh(side, dtype) for dtype in dtypes]
        outs = [array for array, _ in made]
        if not side.direct:
            outs = [np.empty([side.shape[i] for i in self.layout.order], array.dtype) for array in outs]
        y, b = outs if len(outs) > 1 else (outs[0], None)
        self.plan.run(mode, self.code, x, a, y, b, torch.get_num_threads())
        if not side.direct:
            for (array, _), out in zip(made, outs, strict=True):
                array.transpose(self.layout.order)[...] = out
        return [tensor for _, tensor in made]


def _numpy(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype of arrays that share memory with such tensors; bfloat16, which NumPy lacks, as its bits."""
    return np.dtype("int16" if dtype is torch.bfloat16 else name(dtype))


def _array(t: Tensor) -> Array:
    """The memory of a tensor."""
    t = t.detach() if t.requires_grad else t
    return (t.view(torch.int16) if t.dtype is torch.bfloat16 else t).numpy()


def _fresh(side: Side, dtype: torch.dtype) -> tuple[Array, Tensor]:
    """New memory, as an array and as a tensor."""
    if side.small and dtype is not torch.bfloat16:
        array = np.empty(side.shape, _numpy(dtype))
        return array, torch.from_numpy(array)
    tensor = torch.empty_strided(side.shape, side.strides, dtype=dtype)
    return _array(tensor), tensor
