"""The native engine on tensors: plans that read and write the tensors' own memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from .memory import WORDS, Array, Shape, Word, array, bfloat16, dense, word

# elements up to which NumPy's memory with a tensor around it is cheaper than a tensor with an array around it
SMALL = 4096


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
            item = bfloat16() if self.word.viewed else self.word.numpy
            self.key = window, op.law, item, tuple(s * item.itemsize for s in strides)
            self.plan = native.Plan(*self.key)
            self.layout, order = self.plan.layout, self.plan.layout.order
            self.tap = word(WORDS[self.plan.residual.itemsize])
            self.kernels = partial(self.plan.native.run, self.plan.handle)
        self.inputs, self.outputs = (Side.of(s, self.last, order) for s in (shape, self.window.out_shape))
        # whether the extension can run it on tensors: it writes results where they lie, and reads x where it lies
        self.direct = not self.empty and self.inputs.direct and self.outputs.direct and not self.layout.copies

    @property
    def reads_any(self) -> bool:
        """Whether cotangents of any strides can be read where they lie: no two of their axes are walked as one."""
        return all(sum(self.outputs.shape[i] > 1 for i in group) <= 1 for group in self.layout.one)

    def does_not_fit(self) -> PoolError:
        """What is raised where an integer sum overflows."""
        return self.plan.does_not_fit()

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
            self._write(side, native.MODES[mode], read, None if moved is None else self._laid(moved), out, tap)
        return (y,) if residual is None else (y, residual)

    def _write(self, side: Side, mode: int, x: Any, a: Any, out: Array, tap: Array | None) -> None:
        """Run the kernels. What does not lie as the plan writes it is written elsewhere first."""
        if side.direct:
            if not self.kernels(mode, self.code, x, a, out, tap, threads()):
                raise self.does_not_fit()
            return
        order = self.layout.order
        outs = [None if o is None else np.empty([side.shape[i] for i in order], o.dtype) for o in (out, tap)]
        self.plan.run(mode, self.code, x, a, outs[0], outs[1], threads())
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


def _with_work(window: Window) -> Window:
    """The window, such that a plan sees an axis to pool: where every output reads itself alone, any step will do."""
    axes = window.axes
    if not all(axis.is_identity for axis in axes):
        return window
    return Window((*axes[:-1], replace(axes[-1], dilation=2)))


def threads() -> int:
    """As many as torch has been given (one in a DataLoader's worker), unless ndpool has been given fewer."""
    return min(torch.get_num_threads(), native.threads())
