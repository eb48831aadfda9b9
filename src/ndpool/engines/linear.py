"""What every engine's `linearize` gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Linear:
    """A value and the linear map at it, both ways: <jvp(dx), dy> = <dx, vjp(dy)>."""

    y: Any
    jvp: Callable[..., Any]
    vjp: Callable[..., Any]
