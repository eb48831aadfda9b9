"""Max-unpooling in torch's own operations: differentiable both ways, traceable, and defined where values meet."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..api import unpooled_shape
from ..arguments import choice, entries, sizes
from ..errors import PoolTypeError
from .kernels import lies_last
from .ways import PoolRuntimeError, is_plain


def max_unpool(
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
    *,
    axes: Any = None,
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
    out, pooled = unpooled_shape(tuple(input.shape), kernel_size, stride, padding, output_size, axes)
    size, last = math.prod([out[a] for a in pooled]), tuple(range(-len(pooled), 0))
    y, at = (t.movedim(pooled, last).flatten(-len(last)) for t in (input, indices))
    if not torch.compiler.is_compiling() and is_plain(at) and at.numel() and not at.is_meta:
        low, high = (int(n) for n in at.aminmax())
        if low < -1 or high >= size:
            raise PoolRuntimeError(
                f"indices holds {high if high >= size else low}, outside the {size} positions of the output; "
                "give a larger output_size"
            )
    there, at = at >= 0, at.clamp(min=0)
    if size == 0 or y.shape[-1] == 0:
        x = y.new_zeros((*y.shape[:-1], size))
    elif duplicates == "sum":
        x = y.new_zeros((*y.shape[:-1], size)).scatter_add(-1, at, torch.where(there, y, 0))
    else:
        # which value comes last is found first: a scatter of values that meet would be anyone's guess on a GPU
        column = torch.where(there, torch.arange(y.shape[-1], device=y.device), -1)
        which = at.new_full((*y.shape[:-1], size), -1).scatter_reduce(-1, at, column, "amax")
        x = torch.where(which < 0, 0, y.gather(-1, which.clamp(min=0)))
    x = x.reshape(*x.shape[:-1], *[out[a] for a in pooled]).movedim(last, pooled)
    # as torch lays it: channels stay last in 4-D, and all else is contiguous
    keeps = input.ndim == 4 and lies_last(input.shape, input.stride())
    return x.contiguous(memory_format=torch.channels_last if keeps else torch.contiguous_format)


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
