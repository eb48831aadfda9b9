"""What Triton's releases name or do differently, from 3.4 to 3.9."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any

import triton
import triton.language as tl


def _of_constants(function: Callable[..., Any]) -> Callable[..., Any]:
    """`triton.constexpr_function` for Triton 3.4, whose own gives other functions of constants no plain values."""

    @wraps(function)
    def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        unwrap = tl.core._unwrap_if_constexpr
        found = function(*map(unwrap, args), **{name: unwrap(value) for name, value in kwargs.items()})
        return found if _semantic is None else tl.constexpr(found)

    call.__module__ = "triton.language.core"  # a kernel may call Triton's own functions alone
    vars(call)["__triton_builtin__"] = True
    return call


def _keyed(function: Any) -> Any:
    """Triton 3.4 cannot hash a function that calls itself, and leaves functions of constants out of what it hashes to
    find a kernel on disk: there, all the engine's sources are that function's hash."""
    function.hash = sha256(
        b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    ).hexdigest()
    return function


if hasattr(triton, "constexpr_function"):
    constexpr_function, keyed = triton.constexpr_function, lambda function: function
else:
    constexpr_function, keyed = _of_constants, _keyed
