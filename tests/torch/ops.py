"""What the tests of `ndpool.torch` share: a table of functions beside the same in torch's own words, and the two ways
that a tensor can take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ndpool.engines import native
from ndpool.torch import functional as N
from ndpool.torch import operators, routing

Run = Callable[[Tensor], Tensor]

# torch's own warnings: in its forward mode, its linearize, its export and its opcheck, and for what it cannot batch
QUIET = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def use(way: str, patch: pytest.MonkeyPatch) -> None:
    """Send tensors that way, plain ones too."""
    if way == "composite":
        patch.setattr(operators, "AVAILABLE", False)
        patch.setattr(routing, "DIRECT", False)
    elif not native.available():
        pytest.skip(f"the native engine is not in use: {native.reason()}")


@dataclass(frozen=True)
class Case:
    """A function on (N, C, H, W) or (C, H, W), and the same in torch's own words, on inputs without ties."""

    ours: Run
    theirs: Run


def windows(x: Tensor, kernel: int, stride: int) -> Tensor:
    """What each output reads, on the last axis."""
    return x.unfold(-2, kernel, stride).unfold(-2, kernel, stride).flatten(-2)


def where(y: Tensor) -> Tensor:
    """A place in a plane of 4 x 4 for each of 2 x 2."""
    return torch.tensor([[1, 3], [8, 14]], device=y.device).expand(y.shape)


def scattered(x: Tensor) -> Tensor:
    y = x[..., :2, :2]
    return torch.zeros_like(x).flatten(-2).scatter(-1, where(y).flatten(-2), y.flatten(-2)).unflatten(-1, x.shape[-2:])


def unpooled(x: Tensor) -> Tensor:
    y = x[..., :2, :2]
    return N.max_unpool2d(y, where(y), 2, output_size=x.shape[-2:])


def beta(x: Tensor) -> Tensor:
    """One for each channel."""
    return torch.arange(1, x.shape[-3] + 1, device=x.device).to(x.dtype)[:, None, None] * 0.7


CASES: dict[str, Case] = {
    "max": Case(lambda x: N.max_pool2d(x, 3, 1, 1), lambda x: F.max_pool2d(x, 3, 1, 1)),
    "max with indices": Case(
        lambda x: N.max_pool2d(x, 2, return_indices=True)[0], lambda x: F.max_pool2d(x, 2, return_indices=True)[0]
    ),
    "max, shared ties": Case(lambda x: N.max_pool2d(x, 2, 1, ties="split"), lambda x: F.max_pool2d(x, 2, 1)),
    "min": Case(lambda x: N.min_pool2d(x, 2, 1), lambda x: -F.max_pool2d(-x, 2, 1)),
    "avg": Case(lambda x: N.avg_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "sum": Case(lambda x: N.sum_pool2d(x, 2, 1), lambda x: F.avg_pool2d(x, 2, 1, divisor_override=1)),
    "lp": Case(lambda x: N.lp_pool2d(x, 4, 2), lambda x: F.lp_pool2d(x, 4, 2)),
    "smooth max": Case(
        lambda x: N.smooth_max_pool2d(x, 3, 1, beta=-2.0), lambda x: (-2 * windows(x, 3, 1)).logsumexp(-1) / -2
    ),
    "smooth max, beta a tensor": Case(
        lambda x: N.smooth_max_pool2d(x, 2, 2, beta=beta(x)),
        lambda x: windows(beta(x) * x, 2, 2).logsumexp(-1) / beta(x),
    ),
    "adaptive max": Case(lambda x: N.adaptive_max_pool2d(x, (3, 2)), lambda x: F.adaptive_max_pool2d(x, (3, 2))),
    "adaptive avg": Case(lambda x: N.adaptive_avg_pool2d(x, (3, 1)), lambda x: F.adaptive_avg_pool2d(x, (3, 1))),
    "global max": Case(lambda x: N.global_max_pool(x, keepdims=False), lambda x: x.amax((-2, -1))),
    "global avg": Case(N.global_avg_pool, lambda x: x.mean((-2, -1), keepdim=True)),
    "no rank": Case(
        lambda x: N.max_pool(x, (2, 2, 2), 1),
        lambda x: windows(x.unfold(-3, 2, 1).movedim(-1, -3), 2, 1).amax((-4, -1)),
    ),
    "unpool": Case(unpooled, scattered),
}
