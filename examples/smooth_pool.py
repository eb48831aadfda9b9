"""A pooling layer that learns how sharp to be: MaxPool replaced by a learnable SmoothMaxPool in a small CNN.

    python examples/smooth_pool.py [--steps N] [--out DIR]

Three networks that differ in nothing but their pooling learn the same drawn digits from the same start: max, average,
and smooth max with a beta for each layer, which autograd finds the gradient of. Near beta = 0 it is an average, up to a
shift; beta -> infinity is the max. The picture, smooth_pool.svg, shows accuracy on held-out digits and where beta goes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ndpool.torch

sys.path.insert(0, str(Path(__file__).parent))
from lenet import CLASSES, FAINT, LINE, draw, svg, text

POOLS: dict[str, Callable[[], nn.Module]] = {
    "max": lambda: ndpool.torch.nn.MaxPool2d(2),
    "average": lambda: ndpool.torch.nn.AvgPool2d(2),
    "smooth max": lambda: ndpool.torch.nn.SmoothMaxPool2d(2, beta=1.0, learnable=True),
}
COLOURS = {"max": "#c0362c", "average": "#6b7280", "smooth max": "#2f7fd1", "layer 1": "#2f7fd1", "layer 2": "#1d8a4e"}


def network(pool: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)  # the same start for all
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), pool(), nn.Tanh(),
        nn.Conv2d(6, 12, 5), pool(), nn.Tanh(),
        nn.Flatten(), nn.Linear(12 * 25, CLASSES),
    )  # fmt: skip


def betas(model: nn.Module) -> list[float]:
    return [float(m.beta.detach()) for m in model.modules() if isinstance(m, ndpool.torch.nn.SmoothMaxPool2d)]


@dataclass(frozen=True)
class Result:
    """What one network learnt: accuracy at some steps, and its betas after each."""

    steps: list[int]
    accuracy: list[float]
    betas: list[list[float]]


def learn(pool: str, steps: int, batch: int = 32, held_out: int = 500, seed: int = 0) -> Result:
    """Adam on digits drawn as they are needed; beta, whose gradients are small, at ten times the rate."""
    rng = np.random.default_rng(seed)
    images, labels = (torch.from_numpy(a) for a in draw(held_out, rng))
    model = network(POOLS[pool])
    slow = [p for n, p in model.named_parameters() if not n.endswith("beta")]
    sharp = [p for n, p in model.named_parameters() if n.endswith("beta")]
    groups = [{"params": slow, "lr": 3e-3}] + ([{"params": sharp, "lr": 3e-2}] if sharp else [])
    optimizer = torch.optim.Adam(groups)
    result = Result([], [], [betas(model)])

    def accuracy() -> float:
        with torch.no_grad():
            return float((model(images).argmax(-1) == labels).float().mean())

    for step in range(1, steps + 1):
        x, answers = (torch.from_numpy(a) for a in draw(batch, rng))
        optimizer.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(model(x), answers)
        loss.backward()
        optimizer.step()
        result.betas.append(betas(model))
        if step % max(1, steps // 20) == 0 or step == steps:
            result.steps.append(step)
            result.accuracy.append(accuracy())
    return result


# -- the picture ------------------------------------------------------------------------------------------------------


def panel(
    left: float, title: str, ticks: list[float], across: int, curves: dict[str, tuple[list[float], list[float]]]
) -> list[str]:
    """Curves by name over steps, with a line at each tick and each name at the end of its curve."""
    top, wide, high = 56.0, 300.0, 220.0
    low, most = ticks[0], ticks[-1]

    def at(step: float, value: float) -> tuple[float, float]:
        return left + wide * step / across, top + high * (most - value) / (most - low)

    parts = [text(left, 30, title, "start")]
    for tick in ticks:
        x, y = at(0, tick)
        parts += [f'<line x1="{x}" x2="{x + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="{LINE}"/>']
        parts += [text(x - 8, y + 4, f"{tick:g}", "end", f'fill="{FAINT}"')]
    for step in (0, across // 2, across):
        parts.append(text(at(step, low)[0], top + high + 20, str(step), more=f'fill="{FAINT}"'))
    parts.append(text(left + wide / 2, top + high + 40, "step"))
    taken: list[float] = []
    for name, (steps, values) in sorted(curves.items(), key=lambda item: -item[1][1][-1]):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, steps, values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2.5"/>')
        y = max([at(0, values[-1])[1] + 4, *[other + 16 for other in taken]])
        taken.append(y)
        parts.append(text(left + wide + 6, y, f"{name} {values[-1]:.3g}", "start", f'fill="{COLOURS[name]}"'))
    return parts


def picture(results: dict[str, Result]) -> str:
    across = results["max"].steps[-1]
    accuracy = {name: (list(map(float, r.steps)), r.accuracy) for name, r in results.items()}
    least = min(0.9, math.floor(10 * min(a for r in results.values() for a in r.accuracy)) / 10)
    paths = list(zip(*results["smooth max"].betas, strict=True))
    steps = [float(i) for i in range(across + 1)]
    sharpness = {f"layer {i + 1}": (steps, list(path)) for i, path in enumerate(paths)}
    top = max(2, math.ceil(max(map(max, paths))))
    bottom = min(0, math.floor(min(map(min, paths))))
    ticks = [bottom + (top - bottom) * i / 4 for i in range(5)]
    parts = panel(56, "Held-out digits read rightly", [least + (1 - least) * i / 5 for i in range(6)], across, accuracy)
    return svg(940, 340, parts + panel(536, "beta of each smooth max pooling", ticks, across, sharpness))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A CNN whose pooling learns how sharp to be.")
    parser.add_argument("--steps", type=int, default=300, help="steps of gradient descent (default 300)")
    parser.add_argument("--out", type=Path, default=Path(), help="where the picture goes (default: here)")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error("--steps must be at least 1")
    torch.set_num_threads(1)  # so small that threads would wait for one another
    results = {}
    for name in POOLS:
        start = time.perf_counter()
        results[name] = result = learn(name, given.steps)
        learnt = "".join(f", beta 1 -> {b:.2f}" for b in result.betas[-1])
        print(f"{name:<11} {result.accuracy[-1]:.1%} right{learnt}; {time.perf_counter() - start:.1f} s")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "smooth_pool.svg").write_text(picture(results), encoding="utf-8")
    print(f"wrote {given.out / 'smooth_pool.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
