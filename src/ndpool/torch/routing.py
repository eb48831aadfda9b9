"""Which way a tensor goes: straight to a plan, through the operators, or through torch's own operations.

    plain tensor, no transform or mode about          the plan itself; with a gradient wanted, one autograd.Function
    CPU, CUDA or meta tensor                          the operators, which every transform and tracer sees through
    any other device, dtype or tensor subclass        `composite`

Plain tensors and operators need an engine: the native one on the CPU, Triton's on a GPU.

A `Call` is a function with its arguments read; `eager` and `traced` run it on a tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, strided
from torch.autograd import forward_ad
from torch.nn import Parameter

from ..arrays.converted import allows
from ..engines import native
from ..engines.dtypes import check, name
from ..errors import PoolError, PoolTypeError
from ..op import Op
from ..remembered import plans_of
from . import composite, direct, operators, private
from .gpu import reaches
from .pooling import Pooling, of
from .private import dispatch_modes, is_zerotensor, tracing_state, transforms_active

DIRECT = direct.AVAILABLE

DTYPES = tuple(d for d in vars(torch).values() if isinstance(d, torch.dtype))
NATIVE = tuple(d for d in DTYPES if name(d) in native.TYPES)


class PoolRuntimeError(PoolError, RuntimeError):
    """A `PoolError` where torch raises a RuntimeError."""


class PoolUnsupportedError(PoolTypeError, NotImplementedError):
    """A `PoolTypeError` where torch raises a NotImplementedError, which is a RuntimeError."""


class Call:
    """A function with its arguments read: the record, the rank that torch's rules ask for (None: our own rules hold),
    whether the result is negated, and the plans for tensors it has seen, which need no more questions."""

    def __init__(self, op: Op, rank: int | None = None, negated: bool = False):
        self.dtype: torch.dtype | None = (
            None if op.dtype is None else getattr(torch, op.dtype)
        )  # what tensors are converted to first
        self.op, self.rank, self.negated = op if op.dtype is None else replace(op, dtype=None), rank, negated
        self.indices = bool(getattr(op, "return_indices", False))
        self.keeps = bool(getattr(op, "keepdims", True))
        self.plans = plans_of(Call, self.op, rank, negated)

    def pooling(self, ndim: int) -> Pooling:
        return of(self.op, ndim)

    def converts(self, given: torch.dtype) -> torch.dtype | None:
        """The dtype that the record asks for instead of the one given; None if it asks for no other."""
        if self.dtype is None or given is self.dtype:
            return None
        allows(given, name(self.dtype))
        return self.dtype

    def taken(self, x: Any) -> Any:
        """x in the dtype that the record asks for."""
        dtype = self.converts(x.dtype) if isinstance(x, Tensor) else None
        return x if dtype is None else x.to(dtype)

    def accept(self, x: Any) -> None:
        """Raise for what is not a tensor of numbers that the law takes."""
        if not isinstance(x, Tensor):
            raise PoolTypeError(f"input is a {type(x).__name__}, not a torch.Tensor; use torch.as_tensor(input)")
        if x.layout is not strided or x.is_quantized:
            raise PoolUnsupportedError(f"input is {'quantized' if x.is_quantized else x.layout}; use input.to_dense()")
        self.accept_kind(x.dtype, x.ndim)

    def accept_kind(self, dtype: torch.dtype, ndim: int) -> None:
        """Raise unless the law takes such elements, and torch's rules such a shape."""
        try:
            check(self.op.law.kinds, self.op.law.name, dtype, "input")
        except PoolTypeError as error:
            raise PoolUnsupportedError(str(error)) from None
        if self.rank is not None and ndim not in (self.rank + 1, self.rank + 2):
            raise PoolRuntimeError(
                f"input has {ndim} axes; give it {self.rank + 1} (channels and {self.rank} to pool) or one more for "
                "the batch, or use the function without a rank in its name"
            )


def eager(call: Call, x: Tensor) -> Any:
    """The result, and where it was taken from if the record says so."""
    if DIRECT and (y := direct.pool(call.plans, x)) is not None:
        return y
    if DIRECT and is_plain(x):
        key = (x.shape, x.stride(), x.dtype, x.device.type)
        bound = call.plans.get(key)
        if bound is None:
            call.accept(x)
            pooling = call.pooling(x.ndim)
            if call.indices or call.negated or not call.keeps or not served(x, pooling):
                return traced(call, pooling, x)
            bound = pooling.bind(*key)
            return direct.first(call.plans, key, x, bound)
        return direct.run(x, bound)
    call.accept(x)
    return traced(call, call.pooling(x.ndim), x)


def traced(call: Call, pooling: Pooling, x: Tensor) -> Any:
    """The same in operations that transforms and tracers see."""
    through = _operators if served(x, pooling) else _composite
    y = through(pooling, x, call.indices)
    if call.negated:
        y = -y
    if call.keeps:
        return y
    return tuple(t.squeeze(pooling.axes) for t in y) if call.indices else y.squeeze(pooling.axes)


def served(x: Tensor, pooling: Pooling) -> bool:
    """Whether the operators take x under that law. Of tensor subclasses they know the tracers' own."""
    kind = x.device.type
    return (
        operators.usable()
        and (type(x) in (Tensor, Parameter) or type(x).__module__.startswith(private.TRACERS))
        and (_constant_gpu(x.device.index) if kind == "cuda" else kind in CPU)
        and x.dtype in pooling.dtypes[kind]
    )


CPU = ("cpu", "meta") if native.available() else ("meta",)


@private.constant
def _constant_gpu(index: int | None) -> bool:
    """Whether that GPU runs the engine: asked once, and not traced."""
    if index not in _GPUS:
        _GPUS[index] = reaches(index)
    return _GPUS[index]


_GPUS: dict[int | None, bool] = {}


def _operators(pooling: Pooling, x: Tensor, indices: bool) -> Any:
    if not indices:
        return operators.winners(x, pooling.text)[0] if pooling.one_winner else operators.forward(x, pooling.text)
    y, residual = operators.winners(x, pooling.first)
    places = operators.positions(residual, *operators.back(x, pooling.first, pooling.axes))
    return (y if pooling.one_winner else operators.forward(x, pooling.text)), places


def _composite(pooling: Pooling, x: Tensor, indices: bool) -> Any:
    if not indices:
        return composite.pool(x, pooling.text)
    y, places = composite.winners(x, pooling.first)
    return (y if pooling.one_winner else composite.pool(x, pooling.text)), places


# -- which tensors are plain -----------------------------------------------------------------------------------------


def _is_plain(x: Any) -> bool:
    """Whether x is memory and nothing else, and nobody is watching."""
    kind = type(x)
    return (
        (kind is Tensor or kind is Parameter)
        and (x.is_cpu or x.is_cuda)
        and not transforms_active()
        and not dispatch_modes()
        and forward_ad._current_level < 0
        and tracing_state() is None
        and not x.is_neg()
        and not is_zerotensor(x)
        and x.layout is strided
    )


is_plain = (lambda x: False) if private.MISSING or private.MISSING_PLAIN else _is_plain
