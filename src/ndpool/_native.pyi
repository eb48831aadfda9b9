"""The C++ extension: `plan` once, `run` many times; see native/module.cpp."""

from collections.abc import Sequence
from typing import Any

def plan(
    law: int,
    ties: int,
    ignore_nan: bool,
    flip: bool,
    mean: bool,
    type: int,
    parameter: float,
    divisor: int,
    lanes: int,
    order: Sequence[int],
    lead_sizes: Sequence[int],
    folds: Sequence[int],
    tap_steps: Sequence[int],
    position_steps: Sequence[int],
    axes: Sequence[tuple[int, ...]],
    /,
) -> object: ...
def run(plan: object, mode: int, moved: int, x: Any, a: Any, y: Any, b: Any, threads: int, /) -> bool: ...
def axis(axis: tuple[int, ...], back: bool, outputs: Sequence[int], /) -> dict[str, Any]: ...
def unpool(
    values: Any,
    places: Any,
    out: Any,
    type: int,
    meet: int,
    rows: int,
    columns: int,
    size: int,
    threads: int,
    /,
) -> int: ...
def in_order(plan: object, /) -> bool: ...

class Block: ...  # memory with a buffer

def block(size: int, /) -> Block: ...
def keep(limit: int, /) -> None: ...
def kept() -> int: ...
def workers() -> int: ...
def stream(read: Any, write: Any, threads: int, /) -> None: ...
def use_torch(
    exchange: object,
    tensor: type[Any],
    parameter: type[Any],
    transforms: Any,
    modes: Any,
    tracing: Any,
    gradients: Any,
    forward_mode: dict[str, Any],
    negated: Any,
    threads: Any,
    otherwise: Any,
    /,
) -> bool: ...

class TensorPlan:
    bound: Any

def tensor_plan(
    x: Any,
    bound: Any,
    plan: object,
    type: int,
    input_strides: Sequence[int],
    output_shape: Sequence[int],
    output_strides: Sequence[int],
    one_winner: bool,
    any_strides: bool,
    differentiable: Any,
    /,
) -> TensorPlan: ...
def tensor_key(x: Any, /) -> bytes | None: ...
def pool(plans: dict[Any, Any], x: Any, /) -> Any: ...
def linearize(ctx: Any, x: Any, plan: TensorPlan, /) -> Any: ...
def backward(ctx: Any, dy: Any, /) -> tuple[Any, None]: ...
def apply_of(type: type[Any], /) -> Any: ...
def isa() -> str: ...
def isas() -> tuple[str, ...]: ...
def use(isa: str, /) -> None: ...
