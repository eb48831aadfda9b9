"""Max-unpooling: by the native engine's kernel on plain CPU tensors, else in torch's own operations, which are
traceable and differentiable both ways. Defined where values meet."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..arguments import choice, entries, sizes
from ..engines import native
from ..errors import PoolTypeError
from ..unpool import unpooled_shape
from .memory import WORDS, bfloat16, lies_last
from .routing import NATIVE, PoolRuntimeError, is_plain


def max_unpool(
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
    *,
    axes: Any = None,
    layout: str | None = None,
    duplicates: str = "last",
) -> Tensor:
    """Put each value back where `max_pool(..., return_indices=True)` found it; zeros elsewhere.

    Where two windows had one winner their values are equal, and "last" keeps one; `duplicates="sum"` adds them, which
    is max pooling's vjp. An index of -1 puts nothing. Other arguments as in `ndpool.max_unpool`.
    """
    for name, given in (("input", input), ("indices", indices)):
        if not isinstance(given, Tensor):
            raise PoolTypeError(f"{name} is a {type(given).__name__}, not a torch.Tensor; use torch.as_tensor({name})")
    if indices.dtype is not torch.int64:
        raise PoolRuntimeError(f"indices has dtype {str(indices.dtype)[6:]}; give the int64 of return_indices=True")
    if indices.shape != input.shape:
        raise PoolRuntimeError(f"indices has shape {tuple(indices.shape)}, but input has {tuple(input.shape)}")
    choice("duplicates", duplicates, ("last", "sum"))
    out, pooled = unpooled_shape(tuple(input.shape), kernel_size, stride, padding, output_size, axes, layout)
    size, last = math.prod([out[a] for a in pooled]), tuple(range(-len(pooled), 0))
    y, at = (t.movedim(pooled, last).flatten(-len(last)) for t in (input, indices))
    seen = not torch.compiler.is_compiling() and is_plain(at) and not at.is_meta
    if seen and is_plain(y) and y.is_cpu and at.is_cpu and y.dtype in NATIVE and native.available():
        x: Tensor = _Put.apply(y, at, size, duplicates)
    else:
        if seen:
            _check_places(at, size)
        x = _scatter(y, at, size, duplicates)
    x = x.reshape(*x.shape[:-1], *[out[a] for a in pooled]).movedim(last, pooled)
    # as torch lays it: channels stay last in 4-D, and all else is contiguous
    keeps = input.ndim == 4 and lies_last(input.shape, input.stride())
    return x.contiguous(memory_format=torch.channels_last if keeps else torch.contiguous_format)


def _check_places(at: Tensor, size: int) -> None:
    low, high = (int(n) for n in at.aminmax()) if at.numel() else (-1, -1)
    if low < -1 or high >= size:
        raise PoolRuntimeError(
            f"indices holds {high if high >= size else low}, outside the {size} positions of the output; "
            "give a larger output_size"
        )


def _last(at: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Each value's column; and for each place, and one more that stands for nowhere, the last column there, or -1."""
    column = torch.arange(at.shape[-1], device=at.device).expand(at.shape)
    none = at.new_full((*at.shape[:-1], size + 1), -1)
    return column, none.scatter_reduce(-1, torch.where(at < 0, size, at), column, "amax")


def _scatter(y: Tensor, at: Tensor, size: int, duplicates: str) -> Any:
    """Rows of `size`, each value at its place, in torch's own operations."""
    if duplicates == "sum":
        places = torch.where(at < 0, size, at)  # a place that is cut off
        x = y.new_zeros((*y.shape[:-1], size + 1)).scatter_add(-1, places, y)
    else:
        # which value comes last is found first: a scatter of values that meet would be anyone's guess on a GPU
        _, which = _last(at, size)
        x = torch.where(which < 0, 0, y.gather(-1, which.clamp(min=0))) if y.shape[-1] else y.new_zeros(which.shape)
    return x[..., :size]


class _Put(Function):
    """The same by the native engine's kernel. Its derivative is in torch's operations: values are taken from places."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, at: Tensor, size: int, duplicates: str) -> Tensor:
        ctx.save_for_backward(at)
        ctx.last = duplicates == "last"
        x = y.new_empty((*y.shape[:-1], size))
        moved = WORDS[y.element_size()] if ctx.last else None  # what is only moved keeps its bits
        to, values = (_rows(t if moved is None else t.view(moved)) for t in (x, y))
        if native.unpool_into(to, values, _rows(at), duplicates) == native.OUTSIDE:
            _check_places(at, size)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (at,) = ctx.saved_tensors
        size = g.shape[-1]
        places = torch.where(at < 0, size, at)
        dy = torch.cat([g, g.new_zeros((*g.shape[:-1], 1))], -1).gather(-1, places)
        if ctx.last:
            column, which = _last(at, size)
            dy = torch.where(which.gather(-1, places) == column, dy, 0)
        return dy, None, None, None


def _rows(t: Tensor) -> Any:
    """A tensor's rows as an array; what is written there is the tensor's if it is dense."""
    rows = t.detach().reshape(math.prod(t.shape[:-1]), t.shape[-1])
    return rows.view(torch.int16).numpy().view(bfloat16()) if t.dtype is torch.bfloat16 else rows.numpy()


def check_output_size(
    shape: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, output_size: Any, rank: int
) -> None:
    """Torch's rule: less than a stride away from the size that the other arguments give."""
    axes = tuple(range(-rank, 0))
    got, _ = unpooled_shape(shape, kernel_size, stride, padding, output_size, axes)
    usual, _ = unpooled_shape(shape, kernel_size, stride, padding, None, axes)
    steps = entries("stride", sizes("stride", kernel_size if stride is None else stride, 1), rank)
    for a, step in zip(axes, steps, strict=True):
        if abs(got[a] - usual[a]) >= step:
            raise PoolRuntimeError(
                f"output_size={output_size} has {got[a]} on axis {a}; use {usual[a] - step + 1} to "
                f"{usual[a] + step - 1}, or max_unpool, which takes any"
            )
