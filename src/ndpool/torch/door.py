"""How `ndpool.max_pool(tensor)` and the records come here: ndpool's functions on tensors, autograd and all.

`ADAPTER` runs records; `Compiler` runs functions and records while torch.compile traces, which sees through neither the
caches of plans nor the table of adapters.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import arrays
from ..arrays import Adapter
from ..arrays.adapter import values_alone
from ..engines import Linear
from ..errors import PoolError, PoolTypeError
from ..op import Op, function_name
from ..record_text import NAMED
from . import functional
from .routing import Call, eager

OWN_LAW = "a law of your own runs on NumPy arrays and nested lists, not on tensors; use x.numpy()"


@lru_cache(maxsize=256)
def _call(op: Op) -> Call:
    if type(op).__name__ not in NAMED:
        raise PoolTypeError(OWN_LAW)
    return Call(op)


class Tensors(Adapter):
    """A record on tensors: as `ndpool.torch.functional` runs it, by ndpool's rules."""

    def pool(self, op: Op, x: Tensor) -> Any:
        call = _call(op)
        op.consider(tuple(x.shape))
        return eager(call, call.taken(x))

    def linearize(self, op: Op, x: Tensor) -> Linear:
        at = self._at(op)
        y, vjp, *_ = torch.func.vjp(at, x)

        def jvp(dx: Any) -> Any:
            _check(op, "dx", dx, x)
            return torch.func.jvp(at, (x,), (dx,))[1]

        def pulled(dy: Any) -> Any:
            _check(op, "dy", dy, y)
            return vjp(dy)[0]

        return Linear(y, jvp, pulled)

    def value_and_jvp(self, op: Op, x: Tensor, dx: Any) -> tuple[Any, Any]:
        _check(op, "dx", dx, x)
        y, dy, *_ = torch.func.jvp(self._at(op), (x,), (dx,))
        return y, dy

    def jacobian(self, op: Op, x: Tensor) -> Any:
        return torch.func.jacrev(self._at(op))(x)

    def hvp(self, op: Op, x: Tensor, dx: Any, dy: Any) -> Any:
        at = self._at(op)
        _check(op, "dx", dx, x)
        _check(op, "dy", dy, at(x))
        return torch.func.jvp(lambda p: torch.func.vjp(at, p)[1](dy)[0], (x,), (dx,))[1]

    def unpool(self, y: Tensor, indices: Any, arguments: dict[str, Any]) -> Any:
        return functional.max_unpool(y, indices, **arguments)

    def _at(self, op: Op) -> Any:
        """The function whose derivatives are wanted."""
        op = values_alone(op)
        return lambda x: self.pool(op, x)


def _check(op: Op, name: str, t: Any, like: Tensor) -> None:
    """Raise unless `t` is a tensor like the one it moves."""
    of = "x" if name == "dx" else "y"
    if not isinstance(t, Tensor):
        raise PoolTypeError(f"{op.name}: {name} is a {type(t).__name__}, but x is a Tensor; use the same kind for both")
    if t.shape != like.shape:
        raise PoolError(f"{op.name}: {name} has shape {tuple(t.shape)}, but {of} has {tuple(like.shape)}; use {of}'s")
    if t.dtype != like.dtype:
        have, got = (str(d).removeprefix("torch.") for d in (like.dtype, t.dtype))
        raise PoolTypeError(f"{op.name}: {name} has dtype {got}, but {of} has {have}; convert {name} to {have}")


class Compiler:
    """Functions and records as calls of `ndpool.torch.functional`, which torch.compile traces."""

    is_tracing = staticmethod(torch.compiler.is_dynamo_compiling)

    @staticmethod
    def takes(x: Any) -> bool:
        """Whether x is a tensor."""
        return isinstance(x, Tensor)

    @staticmethod
    def call(name: str, x: Tensor, out: Any, *args: Any, **kwargs: Any) -> Any:
        """The function of that name."""
        if out is not None:
            raise PoolTypeError(f"{name}: out is for results that are NumPy arrays, and this is a Tensor; leave it out")
        return getattr(functional, name)(x, *args, **kwargs)

    @staticmethod
    def run(op: Op, x: Tensor, out: Any) -> Any:
        """The record: its arguments, to the function."""
        name = NAMES.get(type(op))
        if name is None:
            raise PoolTypeError(OWN_LAW)
        given = {field.name: getattr(op, field.name) for field in fields(op)}
        return Compiler.call(name, x, out, **given)


NAMES = {record: function_name(name) for name, record in NAMED.items()}
ADAPTER = Tensors()
arrays.compiler = Compiler()
