"""Which way a tensor goes: straight to a plan, through the operators, or through torch's own operations.

    plain CPU tensor, no transform or mode about      the plan itself; with a gradient wanted, one autograd.Function
    CPU or meta tensor                                the operators, which every transform and tracer sees through
    any other device, dtype or tensor subclass        `composite`

A `Call` is a function with its arguments read; `eager` and `traced` run it on a tensor.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import Parameter

from ..engines import native
from ..engines.dtypes import check, name
from ..errors import PoolError, PoolTypeError
from ..op import Op
from . import composite, operators
from .kernels import Bound
from .pooling import Pooling, of

try:
    from torch._C import _are_functorch_transforms_active as transforms_active
    from torch._C import _dispatch_keys as dispatch_keys
    from torch._C import _get_tracing_state as tracing_state
    from torch._C import _len_torch_dispatch_stack as dispatch_modes

    _ = forward_ad._current_level
    DIRECT = operators.AVAILABLE
except (ImportError, AttributeError):  # pragma: no cover  # another version of torch
    DIRECT = False

PLAIN = dispatch_keys(torch.empty(0)) if DIRECT else None
DEVICES = ("cpu", "meta")
NATIVE = tuple(d for d in vars(torch).values() if isinstance(d, torch.dtype) and name(d) in native.TYPES)


class PoolRuntimeError(PoolError, RuntimeError):
    """A `PoolError` where torch raises a RuntimeError."""


class PoolDtypeError(PoolTypeError, NotImplementedError):
    """A `PoolTypeError` where torch raises a NotImplementedError, which is a RuntimeError."""


class Call:
    """A function with its arguments read: the record, the rank that torch's rules ask for (None: our own rules hold),
    and the plans for tensors it has seen, which need no more questions."""

    def __init__(self, op: Op, rank: int | None = None):
        self.op, self.rank = op, rank
        self.indices = bool(getattr(op, "return_indices", False))
        self.keeps = bool(getattr(op, "keepdims", True))
        self.bounds: dict[Any, tuple[Bound, Pooling]] = {}

    def pooling(self, ndim: int) -> Pooling:
        return of(self.op, ndim)

    def accept(self, x: Any) -> None:
        """Raise for what is not a tensor of numbers that the law takes."""
        if not isinstance(x, Tensor):
            raise PoolTypeError(f"input is a {type(x).__name__}, not a torch.Tensor; use torch.as_tensor(input)")
        if x.layout is not torch.strided or x.is_quantized:
            raise PoolRuntimeError(f"input is {'quantized' if x.is_quantized else x.layout}; use a dense tensor")
        self.accept_kind(x.dtype, x.ndim)

    def accept_kind(self, dtype: torch.dtype, ndim: int) -> None:
        """Raise unless the law takes such elements, and torch's rules such a shape."""
        try:
            check(self.op.law.name, dtype, "input")
        except PoolTypeError as error:
            raise PoolDtypeError(str(error)) from None
        if self.rank is not None and ndim not in (self.rank + 1, self.rank + 2):
            raise PoolRuntimeError(
                f"input has {ndim} axes; give it {self.rank + 1} (channels and {self.rank} to pool) or one more for "
                "the batch, or use the function without a rank in its name"
            )


def eager(call: Call, x: Tensor) -> Any:
    """The result, and where it was taken from if the record says so."""
    if DIRECT and is_plain(x) and x.is_cpu and x.layout is torch.strided:
        key = (x.shape, x.stride(), x.dtype)
        seen = call.bounds.get(key)
        if seen is not None:
            return _direct(x, *seen) if x.requires_grad and torch.is_grad_enabled() else seen[0].forward(x)
        call.accept(x)
        pooling = call.pooling(x.ndim)
        if call.keeps and not call.indices and served(pooling, x):
            call.bounds[key] = pooling.bind(*key), pooling
            return eager(call, x)
    call.accept(x)
    return traced(call, call.pooling(x.ndim), x)


def traced(call: Call, pooling: Pooling, x: Tensor) -> Any:
    """The same in operations that transforms and tracers see."""
    through = _operators if served(pooling, x) else _composite
    y = through(pooling, x, call.indices)
    if call.keeps:
        return y
    return tuple(t.squeeze(pooling.axes) for t in y) if call.indices else y.squeeze(pooling.axes)


def served(pooling: Pooling, x: Tensor) -> bool:
    """Whether the operators take x. Of tensor subclasses they know the tracers' own."""
    return (
        operators.AVAILABLE
        and not pooling.copies
        and x.device.type in DEVICES
        and x.dtype in NATIVE
        and (type(x) in (Tensor, Parameter) or type(x).__module__.startswith("torch._subclasses."))
    )


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


# -- straight to a plan ---------------------------------------------------------------------------------------------


def is_plain(x: Any) -> bool:
    """Whether x is memory and nothing else, and nobody is watching."""
    return (
        (type(x) is Tensor or type(x) is Parameter)
        and not transforms_active()
        and not dispatch_modes()
        and forward_ad._current_level < 0
        and tracing_state() is None
        and not x.is_neg()
    )


class _Direct(Function):
    """A plan between two plain tensors. Higher orders, and whatever else is not plain, take the operators."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: Bound, pooling: Pooling) -> Tensor:
        y, kept = bound.kept(x)
        ctx.save_for_backward(kept)
        ctx.bound, ctx.pooling = bound, pooling
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (kept,), bound = ctx.saved_tensors, ctx.bound
        # autograd's own batches of gradients (is_grads_batched) show in nothing but their keys
        if not torch.is_grad_enabled() and is_plain(g) and dispatch_keys(g) == PLAIN:
            return bound.back(kept, g), None, None
        transpose = operators.spread if ctx.pooling.one_winner else operators.pull
        sizes = [bound.inputs.shape[a] for a in ctx.pooling.axes]
        return transpose(kept, g, ctx.pooling.text, sizes, bound.last), None, None


_direct: Any = super(Function, _Direct).apply if DIRECT else partial(_Direct.apply)  # not through functorch
