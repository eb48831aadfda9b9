"""ndpool in code that was written for torch: `convert` changes a model's modules, `patched` torch.nn.functional."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from ..errors import PoolError
from ..spec import sliding
from . import functional, private
from .calls import FoundCall, found_calls
from .functional import RANKS
from .nn import TORCH


@dataclass(frozen=True)
class Conversion:
    """What `convert` did: (name, module) of what it replaced, (name, module, reason) of what it left; and the calls of
    torch's pooling functions that it found in the model's code, which it cannot change."""

    replaced: tuple[tuple[str, str], ...]
    left: tuple[tuple[str, str, str], ...]
    called: tuple[FoundCall, ...] = ()

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)} pooling modules, left {len(self.left)}"]
        lines += [f"  {name or '(the model)'}: {module}" for name, module in self.replaced]
        lines += [f"  left {name or '(the model)'}: {module}, because {reason}" for name, module, reason in self.left]
        return "\n".join([*lines, *(f"  left {call}" for call in self.called)])


def convert(model: Module) -> Conversion:
    """Let every torch.nn pooling module of `model` pool with ndpool, in place; say which did not, and what its code
    calls beside them.

    A module changes its class and nothing else: hooks, names, state, training mode and shared references stay.
    """
    replaced, left = [], []
    for name, module in model.named_modules():
        ours = TORCH.get(type(module))
        if ours is not None:
            reason = _differs(module)
            if reason:
                left.append((name, repr(module), reason))
            else:
                module.__class__ = ours
                replaced.append((name, repr(module)))
        elif isinstance(module, (torch.nn.FractionalMaxPool2d, torch.nn.FractionalMaxPool3d)):
            left.append((name, repr(module), "ndpool has no fractional pooling"))
        elif type(module) not in TORCH.values() and isinstance(module, tuple(TORCH)):
            left.append((name, repr(module), f"{type(module).__qualname__} is a subclass, which may do otherwise"))
    return Conversion(tuple(replaced), tuple(left), found_calls(model, frozenset(_routes())))


def _differs(module: Any) -> str:
    """Why ndpool would give something else; empty if it would not."""
    if isinstance(module, (torch.nn.LPPool1d, torch.nn.LPPool2d, torch.nn.LPPool3d)):
        return _lp_differs(module.norm_type, module.ceil_mode)
    if isinstance(module, (torch.nn.MaxPool1d, torch.nn.MaxPool2d, torch.nn.MaxPool3d)):
        return _max_differs(*[functional.fixed(getattr(module, name)) for name in functional.ORDER["max_pool"][:5]])
    return ""


@private.constant
def _max_differs(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> str:
    """A window that reads padding alone gives -inf there and an error here. Only short inputs have such windows, and
    only where taps lie apart: as many sizes are tried as a window spans."""
    each = [v if isinstance(v, tuple) else (v,) for v in (kernel_size, stride or kernel_size, padding, dilation)]
    rank = max(map(len, each))
    for k, s, p, d in zip(*(v * rank if len(v) == 1 else v for v in each), strict=True):
        for n in range(1, d * (k - 1) + 1 if d > 1 and p > 0 else 1):
            try:
                axis = sliding(n, k, s, (p, p), d, ceil_mode)
            except PoolError:
                continue
            if not all(map(axis.reads, range(axis.outputs))):
                return f"on an axis of size {n} a window reads padding alone, where torch gives -inf"
    return ""


def _lp_differs(norm_type: float, ceil_mode: bool) -> str:
    if norm_type % 2:
        return "torch sums x^p, and for this p that is not |x|^p"
    return "torch scales the last window of ceil_mode" if ceil_mode else ""


# -- torch.nn.functional --------------------------------------------------------------------------------------------


@contextmanager
def patched() -> Iterator[None]:
    """Within it, torch.nn.functional's pooling functions are ndpool's, for code that cannot be edited.

    Modules of torch.nn pool through those functions, so they follow. A function that was imported by name before is not
    reached. The change is the process's, not the thread's.
    """
    with ExitStack() as stack:
        for name, function in _routes().items():
            stack.enter_context(mock.patch.object(F, name, function))
        yield


def _routes() -> dict[str, Callable[..., Any]]:
    routes: dict[str, Callable[..., Any]] = {}
    for rank in RANKS:
        for stem in ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "max_unpool", "lp_pool"):
            name = f"{stem}{rank}d"
            ours = getattr(functional, name)
            routes[name] = _routed(ours, getattr(F, name))
            if f"{name}_with_indices" in vars(F):
                routes[f"{name}_with_indices"] = _routed(_with_indices(ours), getattr(F, f"{name}_with_indices"))
    return routes


def _with_indices(ours: Callable[..., Any]) -> Callable[..., Any]:
    """torch's private twin of a function, which gives indices whether asked or not."""

    def call(*args: Any, return_indices: bool = True, **kwargs: Any) -> Any:
        return ours(*args, return_indices=True, **kwargs)

    return call


def _routed(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """ndpool's function where it gives what torch's does; torch's for what it alone takes."""
    is_lp, is_max = (theirs.__name__.startswith(stem) for stem in ("lp_pool", "max_pool"))

    @wraps(theirs)
    def call(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if input.layout is not torch.strided or input.is_quantized or input.is_nested:
            return theirs(input, *args, **kwargs)
        if is_lp and _lp_differs(*_lp_arguments(*args, **kwargs)):
            return theirs(input, *args, **kwargs)
        if is_max and _max_differs(*functional.fixed(args), **{k: functional.fixed(v) for k, v in kwargs.items()}):
            return theirs(input, *args, **kwargs)
        return ours(input, *args, **kwargs)

    return call


def _lp_arguments(
    norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> tuple[float, bool]:
    return norm_type, ceil_mode
