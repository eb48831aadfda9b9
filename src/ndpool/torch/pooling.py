"""`Pooling`: an op record as tensors meet it. Its text is what a traced graph holds, its plans are made once.

The text is the record's own repr with axes counted from the end, so it means the same under any number of batch axes.
It is read back as data, never evaluated: an exported graph may come from anywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch

from .. import ops
from ..errors import PoolError
from ..op import Op
from .gpu import Launched
from .kernels import Bound, Shape, dense, has_one_winner, is_linear

REMEMBERED = 256  # plans that one record keeps
BINDS: dict[str, Any] = {"cpu": Bound, "cuda": Launched}  # what runs on a device's tensors


class Pooling:
    """An op record for tensors, its plans, and what the ways through autograd ask of its law."""

    def __init__(self, op: Op):
        self.op, self.text = op, repr(op)
        self.law, self.params = op.law.name, op.law.params
        self.linear, self.one_winner = is_linear(op.law), has_one_winner(op.law)
        # positions are those of the first winner where ties share
        self.first = repr(replace(op, ties="first")) if hasattr(op, "ties") and not self.one_winner else self.text  # type: ignore[call-arg]
        assert isinstance(op.axes, tuple)
        self.axes = op.axes  # counted from the end, as the arguments list them
        self.rows = tuple(sorted(op.axes))  # as positions number them
        self.bounds: dict[Any, Bound | Launched] = {}

    def bind(self, shape: Shape, strides: Shape, dtype: torch.dtype, device: str) -> Bound | Launched:
        """The plan for tensors that lie so: a `Bound`, or whatever that kind of device has in its place."""
        key = (shape, strides, dtype, device)
        bound = self.bounds.get(key)
        if bound is None:
            if len(self.bounds) >= REMEMBERED:
                self.bounds.clear()
            bound = self.bounds[key] = BINDS[device](self.op, shape, strides, dtype)
        return bound

    def bind_dense(
        self, outputs: Sequence[int], sizes: Sequence[int], last: bool, dtype: torch.dtype, device: str
    ) -> Bound | Launched:
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


@lru_cache(maxsize=1024)
def of(op: Op, ndim: int) -> Pooling:
    """The record as tensors of `ndim` axes meet it."""
    plain = {"return_indices": False, "keepdims": True}
    own = {field.name for field in fields(op)}
    axes = tuple(a - ndim for a in op._pooled(ndim))
    changes: dict[str, Any] = {name: value for name, value in plain.items() if name in own}
    return read(repr(replace(op, axes=axes, **changes)))


@lru_cache(maxsize=1024)
def read(text: str) -> Pooling:
    """The pooling that `Pooling.text` stands for."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a call")
        record = RECORDS[call.func.id]
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return Pooling(record(**given))
    except (KeyError, SyntaxError, TypeError, ValueError) as error:
        raise PoolError(f"{text!r} is not an op of ndpool; was the graph made by another version?") from error


RECORDS: dict[str, type[Op]] = {
    name: record
    for name, record in vars(ops).items()
    if isinstance(record, type) and issubclass(record, Op) and hasattr(record, "law") and name.endswith("Pool")
}
