"""`Pooling`: an op record as tensors meet it, and its plans.

Its axes are counted from the end, so it means the same under any number of batch axes. A traced graph holds it as text
(`record_text`); eager calls read none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch

from .. import record_text
from ..engines import native, triton
from ..op import Op
from ..remembered import plans_of, remember
from ..spec import Law
from . import cpu, gpu
from .bound import Bound
from .memory import Shape, dense

BINDS: dict[str, Any] = {"cpu": cpu.OnCPU, "cuda": gpu.OnGPU}  # what runs on a device's tensors


class Pooling:
    """An op record for tensors, its plans, and what the ways through autograd ask of its law."""

    def __init__(self, op: Op):
        self.op, self.law = op, op.law
        self.one_winner = op.law.one_winner
        self.text = record_text.write(op)
        # that of the record whose positions are wanted: the first winner's where ties share
        self.first = record_text.write(replace(op, ties="first")) if op.law.first else self.text  # type: ignore[call-arg]
        self.dtypes = _dtypes(op.law)
        assert isinstance(op.axes, tuple)
        self.axes = op.axes  # counted from the end, as the arguments list them
        self.rows = tuple(sorted(op.axes))  # as positions number them
        self.plans = plans_of(Pooling, op)

    def bind(self, shape: Shape, strides: Shape, dtype: torch.dtype, device: str) -> Bound:
        """The plan for tensors that lie so."""
        key = (shape, strides, dtype, device)
        bound = self.plans.get(key)
        if bound is None:
            bound = BINDS[device](self.op, shape, strides, dtype)
            remember(self.plans, key, bound)
        return bound  # type: ignore[no-any-return]

    def bind_dense(
        self, outputs: Sequence[int], sizes: Sequence[int], last: bool, dtype: torch.dtype, device: str
    ) -> Bound:
        """The plan for inputs without gaps, of whose shape the outputs and the sizes of the pooled axes are known."""
        shape = self.inputs(outputs, sizes)
        return self.bind(shape, dense(shape, last), dtype, device)

    def inputs(self, outputs: Any, sizes: Any) -> tuple[Any, ...]:
        """The shape of an input, from the outputs' and the sizes of the pooled axes."""
        shape = list(outputs)
        for a, n in zip(self.axes, sizes, strict=True):
            shape[a] = n
        return tuple(shape)

    def outputs(self, shape: Any) -> tuple[Any, ...]:
        """The shape of the outputs; sizes may be a tracer's symbols."""
        return tuple(axis.outputs for axis in self.op.axes_over(tuple(shape)))


@lru_cache
def _dtypes(law: Law) -> dict[str, tuple[torch.dtype, ...]]:
    """The elements that the engine of each device takes: told in advance, because tracers do not look into tables."""
    every = [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]
    on_cpu, on_gpu = (tuple(d for d in every if engine.takes(law, d)) for engine in (native, triton))
    return {"cpu": on_cpu, "meta": on_cpu, "cuda": on_gpu}


@lru_cache(maxsize=1024)
def of(op: Op, ndim: int) -> Pooling:
    """The record as tensors of `ndim` axes meet it."""
    plain = {"return_indices": False, "keepdims": True}
    own = {field.name for field in fields(op)}
    axes = tuple(a - ndim for a in op._pooled(ndim))
    changes: dict[str, Any] = {name: value for name, value in plain.items() if name in own}
    return Pooling(replace(op, axes=axes, layout=None, **changes))


@lru_cache(maxsize=1024)
def read(text: str) -> Pooling:
    """The pooling that `Pooling.text` stands for."""
    return Pooling(record_text.read(text))
