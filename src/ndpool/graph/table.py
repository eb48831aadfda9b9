"""The ops by name: what `Graph.<name>(...)` builds and what a file may hold, pooling and glue alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..api import rank_in
from ..op import function_name
from ..ops import RECORDS
from .conv import Conv
from .elementwise import TABLE, Elementwise
from .glue import (
    Add,
    Concat,
    Detach,
    Div,
    Flatten,
    MatMul,
    Mean,
    Mul,
    Reduce,
    Reshape,
    SoftmaxCrossEntropy,
    Sub,
)
from .node import GraphError

GLUE = (
    Add, Sub, Mul, Div, Detach, Reduce, Mean, Reshape, Flatten, Concat, MatMul, Conv, SoftmaxCrossEntropy,
)  # fmt: skip

OPS: dict[str, Callable[..., Any]] = {
    **{op.name: op for op in GLUE},
    **{name: partial(Elementwise, name) for name in TABLE},
    **{function_name(record.__name__): record for record in RECORDS},
}


def register(name: str, op: Callable[..., Any]) -> None:
    """Let `Graph.<name>(*vars, *arguments)` push `op(*arguments)`; files can hold a dataclass of literals."""
    if name in OPS or not name.isidentifier() or name in ("input", "parameter", "const", "push", "build", "nodes"):
        raise GraphError(f"register: {name!r} is taken or not a name; choose another")
    OPS[name] = op


def find(name: str) -> Callable[..., Any] | None:
    """The op of that name, 1d, 2d and 3d spellings included."""
    if name in OPS:
        return OPS[name]
    stem, axes = rank_in(name) or ("", ())
    return partial(OPS[stem], axes=axes) if stem in OPS else None
