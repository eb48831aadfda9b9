"""The native engine on tensors: plans that read and write the tensors' own memory."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from ..engines import native
from ..engines.dtypes import name
from ..errors import PoolError
from ..lazy import lazy
from ..op import Op
from ..spec import Window
from .bound import BACK, BY_WINNER, Bound
from .memory import WORDS, Array, Shape, Word, array, dense, word

# elements up to which NumPy's memory with a tensor around it is cheaper than a tensor with an array around it
SMALL = 4096

MODES = {
    "forward": native.FORWARD,
    "winners": native.WINNERS,
    "jvp": native.JVP,
    "vjp": native.VJP,
    "jvp_by_winner": native.JVP_BY_WINNER,
    "vjp_by_winner": native.VJP_BY_WINNER,
}


@dataclass(frozen=True, slots=True)
class Side:
    """Tensors on one side of a window: the inputs, or the outputs. `direct`: a plan can write them where they lie."""

    shape: Shape
    strides: Shape
    direct: bool
    small: bool

    @classmethod
    def of(cls, shape: Shape, last: bool, order: Sequence[int]) -> Side:
        """`order`: that of the axes as a plan writes them."""
        strides, step, direct = dense(shape, last), 1, True
        for i in reversed(order):
            direct = direct and (shape[i] == 1 or strides[i] == step)
            step *= shape[i]
        return cls(shape, strides, direct, direct and not last and math.prod(shape) <= SMALL)

    def fresh(self, kind: Word) -> tuple[Array, Tensor]:
        """New memory, as an array and as a tensor."""
        if self.small and not kind.viewed:
            out = np.empty(self.shape, kind.numpy)
            return out, torch.from_numpy(out)
        tensor = torch.empty_strided(self.shape, self.strides, dtype=kind.torch, device="cpu")
        return array(tensor), tensor


class OnCPU(Bound):
    """A record's native plan for tensors in CPU memory."""

    def __init__(self, op: Op, shape: Shape, strides: Shape, dtype: torch.dtype):
        super().__init__(op, shape, strides, dtype)
        self.word, self.tap = word(dtype), word(torch.uint8)
        self.code = native.TYPES[name(dtype)]
        order: Sequence[int] = range(len(shape))
        if not self.empty:
            window = _with_work(self.window)
            if not native.serves(window, op.law, dtype):
                raise PoolError(f"{op} of {name(dtype)} is beyond the C++ engine; convert input to float64")
            item = np.dtype(ml_dtypes.bfloat16) if self.word.viewed else self.word.numpy
            self.key = window, op.law, item, tuple(s * item.itemsize for s in strides)
            self.plan = native.Plan(*self.key)
            self.layout, order = self.plan.layout, self.plan.layout.order
            self.tap = word(WORDS[self.plan.residual.itemsize])
            self.kernels = partial(self.plan.native.run, self.plan.handle)
        self.inputs, self.outputs = (Side.of(s, self.last, order) for s in (shape, self.window.out_shape))
        plain = not self.empty and not self.word.viewed and not self.layout.one and strides == self.inputs.strides
        self.is_small = plain and self.inputs.small and self.outputs.small

    def _run(self, mode: str, x: Tensor | None, moved: Tensor | None = None) -> tuple[Tensor, ...]:
        if mode == "positions":
            return (self._positions(x),)
        side = self.inputs if mode in BACK else self.outputs
        out, y = side.fresh(self.word)
        tap, residual = self.outputs.fresh(self.tap) if mode == "winners" else (None, None)
        if self.empty:
            y.zero_()
            if residual is not None:
                residual.zero_()
        else:
            read = None if x is None else self._ordered(x) if mode in BY_WINNER else self._laid(x)
            self._write(side, MODES[mode], read, None if moved is None else self._laid(moved), out, tap)
        return (y,) if residual is None else (y, residual)

    def _write(self, side: Side, mode: int, x: Any, a: Any, out: Array, tap: Array | None) -> None:
        """Run the kernels. What does not lie as the plan writes it is written elsewhere first."""
        if side.direct:
            if not self.kernels(mode, self.code, x, a, out, tap, _threads()):
                raise self.plan.does_not_fit()
            return
        order = self.layout.order
        outs = [None if o is None else np.empty([side.shape[i] for i in order], o.dtype) for o in (out, tap)]
        self.plan.run(mode, self.code, x, a, outs[0], outs[1], _threads())
        for o, written in zip((out, tap), outs, strict=True):
            if o is not None:
                o.transpose(order)[...] = written

    def _positions(self, residual: Any) -> Tensor:
        out, y = self.outputs.fresh(word(torch.int64))
        if self.empty:
            out.fill(-1)
        else:
            order = self._numbering.layout.order
            out[...] = self._numbering.positions(np.ascontiguousarray(array(residual).transpose(order)))
        return y

    @lazy
    def _numbering(self) -> native.Plan:
        """The plan that knows positions."""
        return native.Plan(*self.key, self.op.pooled_axes(len(self.inputs.shape)))

    def _laid(self, t: Tensor) -> Array:
        a = array(t)
        return self.layout.laid(a) if self.layout.one else a

    def _ordered(self, residual: Tensor) -> Array:
        """A residual is read dense, in the order of the plan."""
        a = array(residual)
        return np.ascontiguousarray(a if self.plan.back is None else a.transpose(self.layout.order))


class SmallOnCPU(OnCPU):
    """The same for small tensors without gaps, without the questions, look-ups and wrappers that take longer than the
    kernels: tensors are read by address, results are NumPy's memory, and which tap won is an array."""

    def __init__(self, same: OnCPU):
        vars(self).update(vars(same))
        self.x_at, self.y_at = (_at(side.shape, self.word.numpy.itemsize) for side in (self.inputs, self.outputs))
        self.back_mode = native.VJP_BY_WINNER if self.one_winner else native.VJP

    def forward(self, x: Tensor) -> Tensor:
        y = np.empty(self.outputs.shape, self.word.numpy)
        if self.kernels(native.FORWARD, self.code, memoryview(self.x_at(x.data_ptr())), None, y, None, 1):
            return torch.from_numpy(y)
        raise self.plan.does_not_fit()

    def kept(self, x: Tensor) -> tuple[Tensor, Any]:
        if not self.one_winner:
            return super().kept(x)
        y, residual = np.empty(self.outputs.shape, self.word.numpy), np.empty(self.outputs.shape, self.tap.numpy)
        self.kernels(native.WINNERS, self.code, memoryview(self.x_at(x.data_ptr())), None, y, residual, 1)
        return torch.from_numpy(y), residual

    def back(self, kept: Any, dy: Tensor) -> Tensor:
        if not self.one_winner and not self.linear:
            return super().back(kept, dy)
        dx = np.empty(self.inputs.shape, self.word.numpy)
        a = memoryview(self.y_at(dy.data_ptr())) if dy.is_contiguous() else dy.numpy()
        self.kernels(self.back_mode, self.code, kept, a, dx, None, 1)
        return torch.from_numpy(dx)


def bind(op: Op, shape: Shape, strides: Shape, dtype: torch.dtype) -> Bound:
    """The plan for tensors that lie so."""
    bound = OnCPU(op, shape, strides, dtype)
    return SmallOnCPU(bound) if bound.is_small else bound


def _with_work(window: Window) -> Window:
    """The window, such that a plan sees an axis to pool: where every output reads itself alone, any step will do."""
    axes = window.axes
    if not all(axis.is_identity for axis in axes):
        return window
    return Window((*axes[:-1], replace(axes[-1], dilation=2)))


def _threads() -> int:
    """As many as torch has been given (one in a DataLoader's worker), unless ndpool has been given fewer."""
    return min(torch.get_num_threads(), native.threads())


def _at(shape: Shape, size: int) -> Callable[[int], Any]:
    """What makes a buffer of the memory at an address; a memoryview of it knows its strides."""
    kind: Any = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[size]
    return reduce(operator.mul, reversed(shape), kind).from_address  # type: ignore[no-any-return]
