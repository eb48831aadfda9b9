"""`python -m ndpool.torch.state`: what the adapter is made of here, tried. `ndpool doctor` asks it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch

from ..engines import native
from . import functional, operators, private


def lines() -> Iterator[str]:
    """Which way tensors take on this torch, and why not another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried = [trial for trial in operators.TRIALS if operators.AVAILABLE and operators.passes(trial)]
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            x = torch.zeros(1, 1, 4, 4, device="cuda", requires_grad=True)
            functional.max_pool2d(x, 2).sum().backward()
    if private.PROBLEMS:
        yield f"torch adapter: in use in part on {private.versions()}"
        yield from (f"  {problem}" for problem in private.PROBLEMS)
    elif operators.AVAILABLE:
        yield f"torch adapter: in use on {private.versions()}"
    else:
        yield f"torch adapter: torch's own operations pool; {native.reason()}"
    if tried:
        yield f"  tried here: derivatives by {', '.join(tried)}{', and a kernel on the GPU' if on_gpu else ''}"


if __name__ == "__main__":
    print("\n".join(lines()))
