"""What an element type means to a law: its kind, whether the law takes it, and the type that sums are kept in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import PoolTypeError

# element type -> its kind. Others (int4, float8_e5m2, ...) are refused by name: no engine is tested with them
NAMES = {
    "bool": "bool",
    **{f"{sign}int{bits}": "integer" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64", "float96", "float128", "longdouble"), "real"),
    **dict.fromkeys(("complex64", "complex128", "complex192", "complex256", "clongdouble"), "complex"),
}
NEAREST = {"int": "int8", "uint": "uint8", "float": "float32", "complex": "complex64", "bcomplex": "complex64"}


@lru_cache(typed=True)
def name(dtype: Any) -> str:
    """`float32` for NumPy's, torch's, JAX's and any other library's float32."""
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


@lru_cache(typed=True)
def kind(dtype: Any) -> str:
    """bool, integer, real or complex; the type's own name where it is none of them."""
    return NAMES.get(name(dtype), name(dtype))


def typed(dtype: Any) -> str:
    """The name of an element type given as one, as a Python or NumPy type, or as any library's dtype.

    >>> typed("float32"), typed(float), typed(np.uint8)
    ('float32', 'float64', 'uint8')
    """
    try:
        found = dtype if isinstance(dtype, str) and dtype in NAMES else np.dtype(dtype).name
    except TypeError:
        found = name(dtype)  # another library's, or nobody's
    if NAMES.get(found) is None:
        raise PoolTypeError(f"dtype={dtype!r} is not an element type that ndpool takes; use one like 'float32'")
    return found


def check(kinds: Sequence[str], law: str, dtype: Any, of: str = "x") -> None:
    """Raise unless `dtype` is one of the `kinds` that a law takes; errors call the law `law` and the array `of`."""
    got, real = kind(dtype), "real" in kinds
    if got not in kinds:
        usual = "float32" if real else "int32"
        stem = re.match("[a-z]*", got)[0]  # type: ignore[index]
        if stem in NEAREST and got not in NAMES.values():
            near = NEAREST[stem] if NAMES[NEAREST[stem]] in kinds else usual
            raise PoolTypeError(f"{of} has dtype {got}, which ndpool does not take; convert {of} to {near}")
        fix = f"convert {of} to {usual}"
        if got == "object":
            fix = f"pass {of}.tolist() to pool any scalar exactly"
        elif got == "complex" and real:
            fix = f"pool {of}.real or abs({of})"
        raise PoolTypeError(f"{of} has dtype {name(dtype)}, but {law} takes {' or '.join(kinds)} elements; {fix}")


def wide(xp: Any, dtype: Any) -> Any:
    """The type in which values of `dtype` are summed: float32 for shorter floats, 64 bits for integers."""
    full = name(dtype)
    if kind(dtype) == "integer":
        return xp.uint64 if full == "uint64" else xp.int64
    short = kind(dtype) == "real" and full not in ("float32", "float64", "float128", "longdouble")
    return xp.float32 if short else dtype
