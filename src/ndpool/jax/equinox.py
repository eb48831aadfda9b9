"""equinox.nn's pooling modules, with their arguments: one sample of shape (channels, dim_1, ..., dim_N), no batch.

A module is a frozen value without arrays, and a pytree without leaves, so it may stand in equinox.nn.Sequential.
Adaptive pooling cuts an axis as equinox does: into pieces side by side, the longer ones first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .. import ops
from ..arguments import named
from ..errors import PoolError, PoolTypeError
from ..op import Op
from .functional import apply, array
from .lax import MAX, mean, read, reduce_window

Array = Any
Entries = int | Sequence[int]
Pads = int | Sequence[int] | Sequence[tuple[int, int]]


def _entries(name: str, value: Any, rank: int) -> tuple[Any, ...]:
    if isinstance(value, str):
        raise PoolTypeError(f"{name}={value!r} is not a number; give one, or one per axis")
    found = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(found) != rank:
        raise PoolError(f"{name}={value!r} has {len(found)} entries for {rank} axes; give one, or one per axis")
    return found


@dataclass(frozen=True)
class _Module:
    _rank: ClassVar[int]

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _sample(self, x: Array) -> Array:
        x = array(x)
        if x.ndim != self._rank + 1:
            raise PoolError(
                f"x has shape {x.shape}; give it channels and {self._rank} axes to pool, and jax.vmap for a batch"
            )
        return x


@dataclass(frozen=True)
class _Sliding(_Module):
    kernel_size: Entries
    stride: Entries = 1
    padding: Pads = 0
    use_ceil: bool = False

    def __call__(self, x: Array, *, key: Any = None) -> Array:
        """The pooled sample; `key` is not used."""
        with named(self._name):
            x = self._sample(x)
            rank = self._rank
            dims, strides = _entries("kernel_size", self.kernel_size, rank), _entries("stride", self.stride, rank)
            pads = [p if isinstance(p, Sequence) else (p, p) for p in _entries("padding", self.padding, rank)]
            if self.use_ceil:  # a last window that hangs over
                whole = [
                    (n + lo + hi - k) % s == 0
                    for n, (lo, hi), k, s in zip(x.shape[1:], pads, dims, strides, strict=True)
                ]
                pads = [(lo, hi if fits else hi + s) for (lo, hi), s, fits in zip(pads, strides, whole, strict=True)]
            return self._pool(x, (1, *dims), (1, *strides), ((0, 0), *pads))

    def _pool(self, x: Array, dims: Any, strides: Any, pads: Any) -> Array:
        raise NotImplementedError


class _Max(_Sliding):
    def _pool(self, x: Array, dims: Any, strides: Any, pads: Any) -> Array:
        return reduce_window(x, MAX.neutral(x.dtype), MAX.function, dims, strides, pads)


class _Avg(_Sliding):
    def _pool(self, x: Array, dims: Any, strides: Any, pads: Any) -> Array:
        windows, _ = read(x.shape, dims, strides, pads)
        return mean(windows.record(ops.AvgPool, divisor_override=math.prod(dims)), x)


@dataclass(frozen=True)
class _Adaptive(_Module):
    target_shape: Entries
    _record: ClassVar[type[Op]]
    _run: ClassVar[Callable[[Op, Array], Array]]

    def __call__(self, x: Array, *, key: Any = None) -> Array:
        """The pooled sample; `key` is not used."""
        with named(self._name):
            x = self._sample(x)
            for axis, outputs in enumerate(_entries("target_shape", self.target_shape, self._rank), 1):
                x = _pieces(self._record, type(self)._run, x, axis, operator.index(outputs))
            return x


def _pieces(record: Callable[..., Op], run: Callable[[Op, Array], Array], x: Array, axis: int, outputs: int) -> Array:
    """The axis in `outputs` pieces, of which the first n % outputs are longer by one."""
    n = x.shape[axis]
    if not 1 <= outputs <= n:
        raise PoolError(f"target_shape asks for {outputs} pieces of an axis of {n}; use 1 to {n}")
    size, longer = divmod(n, outputs)
    ends = longer * (size + 1)
    pool = partial(record, axes=(axis,))
    parts = [(0, ends, size + 1), (ends, n, size)]
    pooled = [
        run(pool((k,)), jax.lax.slice_in_dim(x, start, stop, axis=axis)) for start, stop, k in parts if start < stop
    ]
    return jnp.concatenate(pooled, axis=axis)


def _module(base: type[_Module], name: str, rank: int, doc: str, **fields: Any) -> type[Any]:
    made = type(name, (base,), {"__doc__": doc, "_rank": rank, "__module__": __name__, **fields})
    jax.tree_util.register_static(made)
    return made


for _n in (1, 2, 3):
    for _name, _base, _doc, _fields in (
        ("MaxPool", _Max, "The largest value under each window.", {}),
        ("AvgPool", _Avg, "The sum under each window over the size of the window.", {}),
        ("AdaptiveMaxPool", _Adaptive, "The largest value of each piece.", {"_record": ops.MaxPool, "_run": apply}),
        ("AdaptiveAvgPool", _Adaptive, "The mean of each piece.", {"_record": ops.AvgPool, "_run": mean}),
    ):
        globals()[f"{_name}{_n}d"] = _module(_base, f"{_name}{_n}d", _n, _doc, **_fields)
