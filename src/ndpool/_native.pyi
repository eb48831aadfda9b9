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
def isa() -> str: ...
def isas() -> tuple[str, ...]: ...
def use(isa: str, /) -> None: ...
