"""How plans run on torch's tensors: on the current device and stream, without asking the device anything."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

from . import NotCompiledError

log = logging.getLogger("ndpool.triton")

OPTIONS = {"enable_fp_fusion": True}  # what Triton's releases have different defaults for


class OnTensors:
    """Remembers which kernels ran before: one that never did may not compile."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()

    def launch(
        self,
        kernel: Any,
        programs: int,
        warps: int,
        inputs: tuple[Tensor | None, ...],
        total: int,
        outputs: tuple[Tensor | None, ...],
        constants: dict[str, Any],
    ) -> None:
        unread = next(t for t in inputs if t is not None)
        unwritten = outputs[-1] if outputs[0] is None else outputs[0]
        args: list[Any] = [unread if t is None else t for t in inputs]
        args += [total, *(unwritten if t is None else t for t in outputs)]
        seen = id(kernel), tuple(constants.values())
        if seen in self.seen:
            self.start(kernel, programs, warps, args, constants)
            return
        start = time.perf_counter()
        try:
            self.start(kernel, programs, warps, args, constants)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # Triton's own kinds are many, and others in each release
            raise NotCompiledError(f"{kernel.__name__} does not compile: {type(error).__name__}: {error}") from error
        self.seen.add(seen)
        log.debug("%s compiled or loaded in %.2f s for %s", kernel.__name__, time.perf_counter() - start, constants)

    def start(self, kernel: Any, programs: int, warps: int, args: list[Any], constants: dict[str, Any]) -> None:
        kernel[(programs,)](*args, num_warps=warps, **OPTIONS, **constants)

    def made(self, n: int, dtype: str | None, like: Tensor) -> Tensor:
        return like.new_empty(n, dtype=like.dtype if dtype is None else getattr(torch, dtype))


ON_TENSORS = OnTensors()
