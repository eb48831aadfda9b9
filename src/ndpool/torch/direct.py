"""Straight to a plan: what runs for plain tensors, and the one autograd.Function around it where a gradient is wanted.

Where torch has DLPack's functions in C (2.10 and later), the extension does all of a call on a CPU tensor that it has a
plan for: it looks at the tensor, finds the plan, makes the result and runs (`native/tensors.cpp`). `pool` is that. All
other calls run a `Bound`. What may not live here: which tensors are plain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.nn import Parameter

from .. import record_text
from ..engines import native
from ..remembered import remember
from . import operators, private
from .bound import Bound
from .cpu import OnCPU, threads
from .private import Function, dispatch_keys, dispatch_modes, tracing_state, transforms_active

AVAILABLE = operators.AVAILABLE and not private.MISSING_PLAIN


def run(x: Tensor, bound: Bound) -> Tensor:
    """The plan on a plain tensor; differentiable if a gradient is wanted."""
    return _by_bound(x, bound) if x.requires_grad and is_grad_enabled() else bound.forward(x)


def first(plans: Any, key: Any, x: Tensor, bound: Bound) -> Any:
    """The same for the first of the tensors that lie as x does. The plan is remembered: as the extension's, under the
    extension's key, where it can be one."""
    y = None
    if in_extension and isinstance(bound, OnCPU) and bound.direct and (own := _native.tensor_key(x)):
        remember(plans, own, _plan(x, bound))
        y = pool(plans, x)  # None if another thread has dropped the plan already
    else:
        remember(plans, key, bound)
    return run(x, bound) if y is None else y


def _plan(x: Tensor, bound: OnCPU) -> Any:
    """The plan as the extension runs it. A law that keeps x is differentiated here."""
    differentiable = _by_plan if bound.linear or bound.one_winner else lambda x, plan: _by_bound(x, plan.bound)
    return _native.tensor_plan(
        x, bound, bound.plan.handle, bound.code, bound.inputs.strides, bound.outputs.shape, bound.outputs.strides,
        bound.one_winner, bound.reads_any, differentiable,
    )  # fmt: skip


# -- derivatives -------------------------------------------------------------------------------------------------------


@cache
def _plain_keys(device: torch.device) -> Any:
    """The dispatch keys of a tensor there that is memory and nothing else."""
    return dispatch_keys(torch.empty(0, device=device))


def _back(bound: Bound, kept: Any, g: Tensor) -> Tensor:
    """The cotangent of x. Higher orders, and whatever else is not plain, take the operators."""
    # the keys tell wrappers of every kind, autograd's own batches of gradients too (is_grads_batched)
    watched = is_grad_enabled() or transforms_active() or dispatch_modes() or forward_ad._current_level >= 0
    if not watched and dispatch_keys(g) == _plain_keys(g.device):
        return bound.back(kept, g)
    axes: Any = bound.op.axes
    text, sizes = record_text.write(bound.op), [bound.window.shape[a] for a in axes]
    through = operators.vjp_by_winner if bound.one_winner else operators.vjp
    return through(kept, g, text, sizes, bound.last)  # type: ignore[no-any-return]


class _ByBound(Function):  # type: ignore[misc]
    """A plan between two plain tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: Bound) -> Tensor:
        y, kept = bound.kept(x)
        if kept is not None:
            ctx.save_for_backward(kept)
        ctx.bound = bound
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _back(ctx.bound, None if ctx.bound.linear else ctx.saved_tensors[0], g), None


class _ByPlan(Function):  # type: ignore[misc]
    """The same by the extension, which comes back to `_back` with what it cannot do."""

    # the base's own: autograd looks for them by name in each call, and the first place is here
    setup_context = staticmethod(Function.setup_context)
    clear_saved_tensors_on_access = getattr(Function, "clear_saved_tensors_on_access", False)
    boxed_grads_call = getattr(Function, "boxed_grads_call", False)


_by_bound: Any = _ByBound.apply
_by_plan: Any = _ByPlan.apply


# -- the extension -----------------------------------------------------------------------------------------------------


def _none(plans: Any, x: Any) -> None:
    """`pool` of an extension that has no plans."""


def _meet_torch() -> bool:
    """Tell the extension where what it asks of torch is, and autograd what the extension does. Whether all is there."""
    exchange = vars(Tensor).get("__dlpack_c_exchange_api__")
    if exchange is None or not _native.use_torch(
        exchange, Tensor, Parameter, transforms_active, dispatch_modes, tracing_state, is_grad_enabled,
        vars(forward_ad), Tensor.is_neg, threads, _back,
    ):  # fmt: skip
        return False
    _ByPlan.forward, _ByPlan.backward = staticmethod(_native.linearize), staticmethod(_native.backward)
    private.shorten(_ByPlan, _native.apply_of)
    return True


in_extension = False
pool: Callable[[Any, Any], Any] = _none  # (plans, x) -> y; None if x is not a plain tensor, or has no plan yet
if AVAILABLE and native.available():
    from .. import _native

    in_extension = _meet_torch()
    pool = _native.pool if in_extension else _none
