"""Where tensors lie: channels in their place or last, strides, and element types that arrays share with tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engines.dtypes import name
from ..spec import Axis

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # residuals by size; torch computes with none


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


def residual_dtype(axes: Sequence[Axis]) -> torch.dtype:
    """The type that names a tap of the window. Sizes may be a tracer's symbols: only bounds are asked where they do."""
    least: Any = 1
    most: Any = 1
    for axis in axes:
        low, high = axis.tap_bounds
        least, most = least * low, most * high
    for size, dtype in WORDS.items():
        if most <= 1 << 8 * size:
            return dtype
        if least <= 1 << 8 * size:
            break
    return WORDS[np.min_scalar_type(math.prod(axis.taps for axis in axes) - 1).itemsize]


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


def bfloat16() -> np.dtype[Any]:
    """NumPy's bfloat16, which a library brings along; it is loaded when the first such tensor comes."""
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def array(t: Tensor) -> Array:
    """The memory of a tensor."""
    t = t.detach() if t.requires_grad else t
    return (t.view(torch.int16) if t.dtype is torch.bfloat16 else t).numpy()
