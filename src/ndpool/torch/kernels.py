"""The native engine on tensors: where results lie, and plans that read and write the tensors' own memory.

`Bound` is a record's plan for tensors of one shape, strides and dtype; its methods are the engine's modes. It takes
plain tensors (CPU memory of any strides, no gradient wanted, no wrapper) and knows nothing of autograd. Another
device's engine would be a second class like it, chosen in `pooling.Pooling.bind`.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from ..engines import native
from ..engines.dtypes import name
from ..errors import PoolError
from ..op import Op
from ..spec import Axis, Law, Window, each

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
    return WORDS[np.min_scalar_type(math.prod(axis.taps for axis in axes) - 1).itemsize]


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
    return Side(shape, strides, direct, direct and not last and math.prod(shape) <= SMALL)


@dataclass(frozen=True, slots=True)
class Word:
    """An element type: torch's, and that of arrays that share its memory (bfloat16, which NumPy lacks, as its bits)."""

    torch: torch.dtype
    numpy: np.dtype[Any]
    viewed: bool


@lru_cache
def word(dtype: torch.dtype) -> Word:
    viewed = dtype is torch.bfloat16
    return Word(dtype, np.dtype("int16" if viewed else name(dtype)), viewed)


def array(t: Tensor) -> Array:
    """The memory of a tensor."""
    t = t.detach() if t.requires_grad else t
    return (t.view(torch.int16) if t.dtype is torch.bfloat16 else t).numpy()


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
        self.op, self.word, self.window = op, word(dtype), op.window(shape)
        self.last = last = lies_last(shape, strides)
        self.linear, self.one_winner = is_linear(op.law), has_one_winner(op.law)
        self.code, self.tap = native.TYPES[name(dtype)], word(torch.uint8)
        self.empty = 0 in shape or 0 in self.window.out_shape
        order: Sequence[int] = range(len(shape))
        if not self.empty:
            if not native.serves(_with_work(self.window), op.law, dtype):
                raise PoolError(f"{op} of {name(dtype)} is beyond the C++ engine; convert input to float64")
            item = np.dtype(ml_dtypes.bfloat16) if self.word.viewed else self.word.numpy
            self.key = _with_work(self.window), op.law, item, tuple(s * item.itemsize for s in strides)
            self.plan = plan = native.Plan(*self.key)
            self.layout, order = plan.layout, plan.layout.order
            self.tap = word(WORDS[plan.residual.itemsize])
            self.in_order = plan.back is None
            self.kernels = partial(plan.native.run, plan.handle)
        self.inputs, self.outputs = (_side(s, last, order) for s in (shape, self.window.out_shape))
        plain = not self.empty and not self.word.viewed and not self.layout.one and strides == self.inputs.strides
        if plain and self.inputs.small and self.outputs.small:
            _hasten(self)

    def kept(self, x: Tensor) -> tuple[Tensor, Any]:
        """y, and what `back` asks for: which tap won, nothing for a sum, x for other laws."""
        return self.winners(x) if self.one_winner else (self.forward(x), None if self.linear else x)

    def back(self, kept: Any, dy: Tensor) -> Tensor:
        """The vjp, from what `kept` kept."""
        return self.vjp_by_winner(kept, dy) if self.one_winner else self.vjp(kept, dy)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(native.FORWARD, self._laid(x), None, self.outputs)

    def winners(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, and which tap won: a byte an output for up to 256 taps."""
        residual = _fresh(self.outputs, self.tap)
        if self.empty:
            residual[1].zero_()
        return self._run(native.WINNERS, self._laid(x), None, self.outputs, residual[0]), residual[1]

    def jvp(self, x: Tensor, dx: Tensor) -> Tensor:
        return self._run(native.JVP, self._laid(x), self._laid(dx), self.outputs)

    def vjp(self, x: Tensor | None, dy: Tensor) -> Tensor:
        return self._run(native.VJP, None if x is None else self._laid(x), self._laid(dy), self.inputs)

    def jvp_by_winner(self, residual: Tensor, dx: Tensor) -> Tensor:
        return self._run(native.JVP_BY_WINNER, self._ordered(residual), self._laid(dx), self.outputs)

    def vjp_by_winner(self, residual: Tensor, dy: Tensor) -> Tensor:
        return self._run(native.VJP_BY_WINNER, self._ordered(residual), self._laid(dy), self.inputs)

    def positions(self, residual: Tensor) -> Tensor:
        """Flat row-major positions among the pooled axes; -1 where nothing is read."""
        out, y = _fresh(self.outputs, word(torch.int64))
        if self.empty:
            out.fill(-1)
        else:
            numbering = native.Plan(*self.key, self.op.pooled_axes(len(self.inputs.shape)))
            out[...] = numbering.positions(np.ascontiguousarray(array(residual).transpose(numbering.layout.order)))
        return y

    def _laid(self, t: Tensor) -> Any:
        if self.empty:
            return None
        a = array(t)
        return self.layout.laid(a) if self.layout.one else a

    def _ordered(self, residual: Tensor) -> Any:
        """A residual is read dense, in the order of the plan."""
        if self.empty:
            return None
        a = array(residual)
        return np.ascontiguousarray(a if self.in_order else a.transpose(self.layout.order))

    def _run(self, mode: int, x: Any, a: Any, side: Side, b: Any = None) -> Tensor:
        """A fresh result on that side, and b. What does not lie as the plan writes it is written elsewhere first."""
        out, tensor = _fresh(side, self.word)
        if self.empty:
            tensor.zero_()
        elif side.direct:
            if not self.kernels(mode, self.code, x, a, out, b, _threads()):
                raise self.plan.does_not_fit()
        else:
            order = self.layout.order
            outs = [None if o is None else np.empty([side.shape[i] for i in order], o.dtype) for o in (out, b)]
            self.plan.run(mode, self.code, x, a, outs[0], outs[1], _threads())
            for o, written in zip((out, b), outs, strict=True):
                if o is not None:
                    o.transpose(order)[...] = written
        return tensor


def _hasten(bound: Bound) -> None:
    """Small calls without their questions, look-ups and wrappers, which take longer than the kernels: tensors without
    gaps are read by address, results are NumPy's memory, and which tap won is an array."""
    run, code, kind, tap = bound.kernels, bound.code, bound.word.numpy, bound.tap.numpy
    inputs, outputs = bound.inputs.shape, bound.outputs.shape
    x_at, y_at = (_at(shape, kind.itemsize) for shape in (inputs, outputs))
    empty, tensor, back = np.empty, torch.from_numpy, native.VJP_BY_WINNER if bound.one_winner else native.VJP

    def forward(x: Tensor) -> Tensor:
        y = empty(outputs, kind)
        if run(native.FORWARD, code, memoryview(x_at(x.data_ptr())), None, y, None, 1):
            return tensor(y)
        raise bound.plan.does_not_fit()

    def winners(x: Tensor) -> tuple[Tensor, Array]:
        y, residual = empty(outputs, kind), empty(outputs, tap)
        run(native.WINNERS, code, memoryview(x_at(x.data_ptr())), None, y, residual, 1)
        return tensor(y), residual

    def pulled(kept: Any, dy: Tensor) -> Tensor:
        dx = empty(inputs, kind)
        run(back, code, kept, memoryview(y_at(dy.data_ptr())) if dy.is_contiguous() else dy.numpy(), dx, None, 1)
        return tensor(dx)

    swift: dict[str, Any] = {"forward": forward}
    if bound.one_winner:
        swift |= {"kept": winners, "back": pulled}
    elif bound.linear:
        swift |= {"kept": lambda x: (forward(x), None), "back": pulled}
    vars(bound).update(swift)


def _with_work(window: Window) -> Window:
    """The window, such that a plan sees an axis to pool: where every output reads itself alone, any step will do."""
    axes = window.axes
    if any(axis != each(axis.size) for axis in axes):
        return window
    return Window((*axes[:-1], replace(axes[-1], dilation=2)))


def _threads() -> int:
    """As many as torch has been given (one in a DataLoader's worker), unless ndpool has been given fewer."""
    return min(torch.get_num_threads(), native.threads())


def _at(shape: Shape, size: int) -> Callable[[int], Any]:
    """What makes a buffer of the memory at an address; a memoryview of it knows its strides."""
    kind: Any = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[size]
    return reduce(operator.mul, reversed(shape), kind).from_address  # type: ignore[no-any-return]


def _fresh(side: Side, kind: Word) -> tuple[Array, Tensor]:
    """New memory, as an array and as a tensor."""
    if side.small and not kind.viewed:
        out = np.empty(side.shape, kind.numpy)
        return out, torch.from_numpy(out)
    tensor = torch.empty_strided(side.shape, side.strides, dtype=kind.torch, device="cpu")
    return array(tensor), tensor
