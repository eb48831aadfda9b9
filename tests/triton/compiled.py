"""Compile kernels for a GPU that is not here: `python -m tests.triton.compiled`, without TRITON_INTERPRET.

With `--few`: every kernel, window, law and dtype, but not every pair of them.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ndpool.engines.triton import plan as plans
from ndpool.engines.triton.tensors import OPTIONS, OnTensors
from ndpool.spec import SUM, Law, Window, adaptive, each, lp, maximum, mean, sliding, smooth_max, whole

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip


def compile_launch(kernel: Any, warps: int, args: list[Any], constants: dict[str, Any]) -> Any:
    """What a launch would compile."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict.fromkeys(kernel.arg_names, "constexpr")
    for name, arg in zip(names, args, strict=True):
        signature[name] = POINTERS[arg.dtype] if isinstance(arg, torch.Tensor) else "i64" if arg >> 31 else "i32"
    even = [n for n, arg in zip(names, args, strict=True) if isinstance(arg, torch.Tensor) or arg % 16 == 0]
    aligned = {(kernel.arg_names.index(n),): [["tt.divisibility", 16]] for n in even}
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=TARGET, options={"num_warps": warps, **OPTIONS})


SQUARE = Window((each(2), sliding(9, 3, 2, (1, 1)), sliding(9, 3, 2, (1, 1))))
WINDOWS = {
    "plane": SQUARE,
    "line": Window((each(2), sliding(64, 5, 1, (2, 2)))),
    "space, channels last": Window((each(2), *(sliding(n, 2, 2) for n in (4, 6, 8)), each(8))),
    "space": Window((each(2), *(sliding(8, 3, 1, (1, 1)) for _ in range(3)))),
    "one after another": Window((each(64), whole(7), whole(7))),
    "bins": Window((each(2), adaptive(23, 7), adaptive(7, 5))),
    "rank 4": Window(tuple(sliding(4, 2, 1) for _ in range(4))),
    "long": Window((each(2), sliding(40, 17, 1, (8, 8)), sliding(40, 17, 1, (8, 8)))),
    "beyond 2**31 elements": Window((each(2**21), *SQUARE.axes[1:], each(64))),
}
LAWS: dict[str, Law] = {
    "max": maximum(), "max, last": maximum("last", "ignore"), "max, split": maximum("split"), "sum": SUM,
    "mean": mean(), "smooth max": smooth_max(2.0), "lp": lp(3),
}  # fmt: skip


class Compiled(OnTensors):
    """Compiles what it is to launch."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Any] = []

    def start(self, kernel: Any, programs: int, warps: int, args: list[Any], constants: dict[str, Any]) -> None:
        self.kernels.append(compile_launch(kernel, warps, args, constants))


def run(window: Window, law: Law, dtype: torch.dtype) -> list[Any]:
    """Everything that a plan would launch, compiled."""
    runner = Compiled()
    large = math.prod(axis.taps for axis in window.axes) > 256
    x, residual = torch.empty(0, dtype=dtype), torch.empty(0, dtype=torch.int16 if large else torch.uint8)
    plan = plans.planned(window, law, dtype, tuple(range(len(window.axes))), (1,), runner)
    plan.forward(x, x)
    if not dtype.is_floating_point:
        return runner.kernels
    if law.name == "max" and law.params[0] in ("first", "last"):
        plan.winners(x, residual, x)
        plan.jvp_by_winner(residual, x, x)
        plan.vjp_by_winner(residual, x, x)
        plan.positions(residual, torch.empty(0, dtype=torch.int64))
    else:
        plan.jvp(x, x, x)
        plan.vjp(None if law.name in ("sum", "mean") else x, x, x)
    return runner.kernels


Row = tuple[str, str, torch.dtype]
FEW: list[Row] = [
    *((window, "max", torch.float32) for window in WINDOWS),
    *((window, "mean", torch.float32) for window in ("one after another", "bins", "long")),
    *(("plane", law, torch.float32) for law in LAWS if law != "max"),
    *(("plane", "max", dtype) for dtype in POINTERS if dtype is not torch.float32),
    *(("plane", "sum", dtype) for dtype in (torch.bfloat16, torch.uint8, torch.int64)),
]
ALL: list[Row] = [
    *FEW,
    *((window, "mean", torch.float32) for window in WINDOWS),
    *(("plane", "sum", dtype) for dtype in POINTERS),
    ("space", "max", torch.int32),
]


def main(*arguments: str) -> None:
    for window, law, dtype in dict.fromkeys(FEW if "--few" in arguments else ALL):
        start = time.perf_counter()
        made = run(WINDOWS[window], LAWS[law], dtype)
        took = time.perf_counter() - start
        print(f"{window}: {law} of {dtype}: {len(made)} kernels, {took:.1f} s", flush=True)
        assert all(len(kernel.asm["cubin"]) for kernel in made)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
