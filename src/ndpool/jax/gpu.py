"""The Triton engine in JAX's programs: each launch of a plan is one call of jax-triton.

A program's arrays are values: a kernel that writes to memory is a function that gives what it wrote. So a plan runs on
`Written`, which holds a value once a launch has made it. Nothing is launched while a program is traced.

What may not live here: arithmetic on elements, and decisions about launches (`engines/triton/plan.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engines import triton
from ..engines.dtypes import kind, name
from .ffi import RESULTS
from .pooled import Pooled

NEEDED = ("triton", "jax_triton")
SIGNED = {np.dtype("uint16"): np.dtype("int16"), np.dtype("uint32"): np.dtype("int32")}  # which tap, as kernels have it


@cache
def reason() -> str:
    """Why programs for a GPU of NVIDIA's do without the Triton engine, in one sentence; empty if they use it."""
    if why := triton.declined():
        return why
    for module in NEEDED:
        try:
            with _cache_kept():
                import_module(module)
        except Exception as error:  # not installed, or made for another JAX or Triton: it uses what these keep private
            return f"{module} cannot be imported ({type(error).__name__}: {error}); pip install 'ndpool[jax-gpu]'"
    try:
        devices = jax.devices("cuda")
    except RuntimeError:
        return "there is no GPU of NVIDIA's here"
    has = min(tuple(map(int, device.compute_capability.split("."))) for device in devices)
    return "" if has >= triton.LEAST else f"the GPU has compute capability {has}, and Triton asks for {triton.LEAST}"


@contextmanager
def _cache_kept() -> Iterator[None]:
    """jax-triton empties a setting of Triton's as it is imported; torch, in the same process, compiles by it."""
    before = os.environ.get("TRITON_CACHE_DIR")
    try:
        yield
    finally:
        os.environ.pop("TRITON_CACHE_DIR", None)
        if before is not None:
            os.environ["TRITON_CACHE_DIR"] = before


def serves(one: Pooled, dtype: Any) -> bool:
    """Whether the kernels run that law over that window on such elements."""
    sizes = (*one.window.shape, *one.window.out_shape)
    if name(dtype) == "bool" or not triton.takes(one.law, dtype) or not one.pooled_axes:
        return False
    return all(isinstance(n, int) and n > 0 for n in sizes) and not reason()


def run(one: Pooled, mode: str, *arrays: Any) -> list[Any]:
    """That mode; the arguments and results of its primitive."""
    to = one.window.shape if RESULTS[mode] == "size" else one.window.out_shape
    # whole numbers are summed in 64 bits, also where JAX as the user has it knows none
    with jax.enable_x64(True) if kind(arrays[-1].dtype) == "integer" else nullcontext():
        plan = _plan(one, np.dtype(arrays[-1].dtype))
        result = Written(math.prod(to), arrays[-1].dtype)
        given = [Written(a.size, _signed(a.dtype), _seen(a)) for a in arrays]
        if mode == "winners":
            residual = Written(result.n, _signed(one.residual))
            plan.winners(*given, residual, result)
            return [result.value.reshape(to), _as(residual.value, one.residual).reshape(to)]
        if mode == "vjp" and len(given) == 1:
            plan.vjp(None, *given, result)
        else:
            getattr(plan, mode)(*given, result)
        return [result.value.reshape(to)]


@lru_cache(maxsize=1024)
def _plan(one: Pooled, dtype: np.dtype[Any]) -> Any:
    return triton.bind(one.window, one.law, dtype, tuple(range(len(one.window.axes))), runner=InPrograms())


@dataclass
class Written:
    """Memory of n elements; `value` is what was last written to it."""

    n: int
    dtype: Any
    value: Any = None


class InPrograms:
    """How a plan runs while a program is traced."""

    def launch(
        self,
        kernel: Any,
        programs: int,
        warps: int,
        inputs: tuple[Written | None, ...],
        total: int,
        outputs: tuple[Written | None, ...],
        constants: dict[str, Any],
    ) -> None:
        from jax_triton import triton_call

        unread = next(a.value for a in inputs if a is not None)
        unwritten = next(Written(1, a.dtype) for a in outputs if a is not None)
        made = [unwritten if a is None else a for a in outputs]
        values = triton_call(
            *(unread if a is None else a.value for a in inputs),
            total,
            kernel=kernel,
            out_shape=[jax.ShapeDtypeStruct((a.n,), a.dtype) for a in made],
            grid=(programs,),
            num_warps=warps,
            enable_fp_fusion=True,
            **constants,
        )
        for a, value in zip(made, values, strict=True):
            a.value = value

    def made(self, n: int, dtype: str | None, like: Written) -> Written:
        return Written(n, like.dtype if dtype is None else np.dtype(dtype))


def _signed(dtype: Any) -> Any:
    return SIGNED.get(np.dtype(dtype), dtype)


def _as(a: Any, dtype: Any) -> Any:
    """The same bits as elements of that type."""
    return a if a.dtype == dtype else jax.lax.bitcast_convert_type(a, dtype)


def _seen(a: Any) -> Any:
    return _as(jnp.ravel(a), _signed(a.dtype))
