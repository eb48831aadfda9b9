"""What the adapter asks of torch beyond its public names: looked up here and nowhere else, and said when it fails.

`OPERATORS` are the names that the operators are made of, `PLAIN` those by which plain tensors are told from others.
docs/torch.md lists each with its reason, and what public name would replace it.

Without one of the first all tensors take `composite`, without one of the second plain tensors take the operators.
`tell` gives one warning for all that fails here, and keeps every sentence for `ndpool doctor`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import Any, TypeVar

import torch

C = TypeVar("C", bound=Callable[..., Any])

# our name: torch's module and what to look up in it
OPERATORS = {
    "transforms_active": "torch._C:_are_functorch_transforms_active",
    "below_autograd": "torch._C:_AutoDispatchBelowAutograd",
    "forward_mode_enabled": "torch._C:_is_fwd_grad_enabled",
    "set_forward_mode": "torch.autograd.forward_ad:_set_fwd_grad_enabled",
    "single_level": "torch._functorch.utils:enable_single_level_autograd_function",
    "Function": "torch.autograd.function:_SingleLevelFunction",
}
PLAIN = {
    "dispatch_keys": "torch._C:_dispatch_keys",
    "dispatch_modes": "torch._C:_len_torch_dispatch_stack",
    "tracing_state": "torch._C:_get_tracing_state",
    "is_zerotensor": "torch._C:TensorBase._is_zerotensor",
    "forward_level": "torch.autograd.forward_ad:_current_level",
}
TRACERS = "torch._subclasses."  # where the classes of a tracer's tensors are defined
CONSTANT = "_dynamo_marked_constant"  # marks a function that torch.compile calls as it traces
NODES = "_backward_cls"  # the type of an autograd.Function's nodes

transforms_active: Any
below_autograd: Any
forward_mode_enabled: Any
set_forward_mode: Any
single_level: Any
Function: Any
dispatch_keys: Any
dispatch_modes: Any
tracing_state: Any
is_zerotensor: Any

PROBLEMS: list[str] = []  # what failed in this process, a sentence each


def versions() -> str:
    try:
        return f"torch {torch.__version__} with Triton {version('triton')}"
    except PackageNotFoundError:
        return f"torch {torch.__version__} without Triton"


def tell(problem: str) -> None:
    """Keep the sentence; the first is a warning, too."""
    if not PROBLEMS:
        text = f"ndpool on {versions()}: {problem}; `ndpool doctor` says more, and a newer ndpool may help"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    PROBLEMS.append(problem)


def _look_up(places: dict[str, str]) -> list[str]:
    """Make those names ours, and give the places where nothing is."""
    missing = []
    for name, place in places.items():
        module, _, attribute = place.partition(":")
        try:
            globals()[name] = attrgetter(attribute)(import_module(module))
        except (ImportError, AttributeError):
            globals()[name] = None
            missing.append(place.replace(":", "."))
    return missing


def constant(function: C) -> C:
    """Let torch.compile call the function as it traces, and keep what it gives. This is what
    torch.compiler.assume_constant_result sets; calling that would import the compiler, a second, for everyone."""
    vars(function)[CONSTANT] = True
    return function


def shorten(function: Any, apply_of: Callable[[type[Any]], Any]) -> None:
    """Let autograd call a backward itself: its nodes' own `apply` is Python, which takes a microsecond to find it."""
    nodes = getattr(function, NODES, None)
    if isinstance(nodes, type):
        nodes.apply = apply_of(nodes)  # type: ignore[attr-defined]


MISSING, MISSING_PLAIN = _look_up(OPERATORS), _look_up(PLAIN)
globals()["Function"] = globals()["Function"] or torch.autograd.Function  # a base, for classes that nobody calls then
if MISSING:
    tell(f"{', '.join(MISSING)} is not there, so torch's own operations pool")
elif MISSING_PLAIN:
    tell(f"{', '.join(MISSING_PLAIN)} is not there, so small calls take longer")
