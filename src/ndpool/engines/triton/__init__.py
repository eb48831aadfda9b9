"""The Triton engine: kernels for tensors on a GPU. `laws` are the laws, `kernels` the loops, `plan` the decisions.

Nothing is imported here: `installed` and `reason` say whether the engine can be used before `plan` is.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from ... import settings
from ...spec import Law, Window
from ..dtypes import name

LEAST = (7, 0)  # the compute capability that Triton asks for


class NotCompiledError(Exception):
    """This release of Triton does not compile a kernel."""


def declined() -> str:
    """Why nobody is to use it here, in one sentence; empty if one may."""
    if settings.ENGINE.value() == "portable":
        return "NDPOOL_ENGINE=portable asks for the portable engine; unset it to use this one"
    return "" if find_spec("triton") else "Triton is not installed; install triton"


@cache
def reason() -> str:
    """Why it runs no tensors of torch's, and what to do about it, in one sentence; empty if it may."""
    if find_spec("torch") is None:
        return "it runs on torch's tensors, and torch is not installed; install a build of torch for your GPU"
    return declined()


def available() -> bool:
    """Whether this engine is in use where there is a GPU that it can serve."""
    return not reason()


# the elements that the kernels take; integers are compared and added, not divided
FLOATS = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = {
    "max": (*FLOATS, *WHOLE, "bool"),
    "min": (*FLOATS, *WHOLE, "bool"),
    "sum": (*FLOATS, *WHOLE),
    "mean": FLOATS,
    "smooth_max": FLOATS,
    "lp": FLOATS,
}


def takes(law: Law, dtype: Any) -> bool:
    """Whether the kernels run that law on such elements."""
    return law.name in DTYPES and name(dtype) in DTYPES[law.name]


def bind(
    window: Window, law: Law, dtype: Any, order: tuple[int, ...], axes: tuple[int, ...] = (), runner: Any = None
) -> Any:
    """The plan for arrays that lie dense in that order of axes; positions are those within `axes`. They are torch's
    tensors unless there is another runner."""
    try:
        from .plan import planned
    except Exception as error:  # a name that this release of Triton does not have
        raise NotCompiledError(f"the kernels cannot be read: {type(error).__name__}: {error}") from error
    return planned(window, law, dtype, order, axes, runner)
