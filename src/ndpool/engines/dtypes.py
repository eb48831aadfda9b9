"""What an element type means to a law: its kind, which laws take it, and the type that sums are kept in."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import PoolTypeError

# law -> kinds of elements it is defined on; a law of the user's own takes all
KINDS = {
    "max": ("bool", "integer", "real"),
    "min": ("bool", "integer", "real"),
    "sum": ("integer", "real", "complex"),
    "mean": ("integer", "real", "complex"),
    "smooth_max": ("real",),
    "lp": ("real",),
}


@lru_cache(typed=True)
def name(dtype: Any) -> str:
    """`float32` for NumPy's, torch's, JAX's and any other library's float32."""
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


@lru_cache(typed=True)
def kind(dtype: Any) -> str:
    """bool, integer, real or complex; the type's own name where it is none of them."""
    full = name(dtype)
    for prefix, meaning in {"bool": "bool", "int": "integer", "uint": "integer", "complex": "complex"}.items():
        if full.startswith(prefix):
            return meaning
    return "real" if full.startswith(("float", "bfloat", "longdouble")) else full


def check(law: str, dtype: Any, of: str = "x") -> None:
    """Raise unless `law` is defined on arrays of `dtype`; errors call the array `of`."""
    got = kind(dtype)
    kinds = KINDS.get(law, ("bool", "integer", "real", "complex"))
    if got not in kinds:
        fix = "convert x to float32" if "real" in kinds else "convert x"
        if got in ("object", "complex"):
            fix = {"object": f"pass {of}.tolist() to pool any scalar exactly", "complex": "pool x.real or abs(x)"}[got]
        raise PoolTypeError(f"{of} has dtype {name(dtype)}, but {law} takes {' or '.join(kinds)} elements; {fix}")


def wide(xp: Any, dtype: Any) -> Any:
    """The type in which values of `dtype` are summed: float32 for shorter floats, 64 bits for integers."""
    full = name(dtype)
    if kind(dtype) == "integer":
        return xp.uint64 if full == "uint64" else xp.int64
    short = kind(dtype) == "real" and full not in ("float32", "float64", "float128", "longdouble")
    return xp.float32 if short else dtype
