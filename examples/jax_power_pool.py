"""A power mean that learns its exponent, in a small network in JAX: digits, plain gradient descent, no other library.

    python examples/jax_power_pool.py [--steps N] [--out DIR]

Each pooling layer is the power mean ((sum |x|^p) / n)^(1/p) of its window, with an exponent p for each channel: p = 1
is the mean of |x|, and p towards infinity the max. JAX finds the gradients of weights and exponents alike through
`ndpool.jax.lp_pool`. The picture, jax_power_pool.svg, shows the loss and where the exponents of each layer go.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ndpool.jax as npx

sys.path.insert(0, str(Path(__file__).parent))
from lenet import CLASSES, FAINT, LINE, draw, svg, text

CHANNELS = (6, 12)
KERNEL, WINDOW = 5, 2
COLOURS = ("#2f7fd1", "#1d8a4e")

Params = dict[str, jax.Array]


def initial(seed: int = 0) -> Params:
    """Small weights, and exponents of 2: p = 1 + softplus(s), so that it stays above 1."""
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = {
        "conv1": (CHANNELS[0], 1, KERNEL, KERNEL),
        "conv2": (CHANNELS[1], CHANNELS[0], KERNEL, KERNEL),
        "dense": (CHANNELS[1] * 25, CLASSES),
    }
    scales = {"conv1": KERNEL, "conv2": KERNEL * math.sqrt(CHANNELS[0]), "dense": math.sqrt(CHANNELS[1] * 25)}
    params = {
        name: jax.random.normal(key, shape) / scales[name]
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    start = math.log(math.e - 1)  # softplus of it is 1
    return params | {f"power{i + 1}": jnp.full((n, 1, 1), start) for i, n in enumerate(CHANNELS)}


def exponents(params: Params, layer: int) -> jax.Array:
    return 1 + jax.nn.softplus(params[f"power{layer}"])


def power_mean(x: jax.Array, p: jax.Array) -> jax.Array:
    """((sum |x|^p) / n)^(1/p) of each window; p has one entry per channel."""
    return npx.lp_pool(x, p, WINDOW) * (WINDOW * WINDOW) ** (-1 / p)


def logits(params: Params, images: jax.Array) -> jax.Array:
    y = jax.nn.relu(lax.conv(images, params["conv1"], (1, 1), "SAME"))
    y = power_mean(y, exponents(params, 1))
    y = jax.nn.relu(lax.conv(y, params["conv2"], (1, 1), "VALID"))
    y = power_mean(y, exponents(params, 2))
    return y.reshape(len(images), -1) @ params["dense"]


def cross_entropy(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    found = jax.nn.log_softmax(logits(params, images))
    return -jnp.take_along_axis(found, labels[:, None], 1).mean()


@partial(jax.jit, donate_argnums=0)
def step(params: Params, images: jax.Array, labels: jax.Array, rate: float) -> tuple[Params, jax.Array]:
    """One step of gradient descent; exponents, whose gradients are small, at twenty times the rate."""
    loss, slope = jax.value_and_grad(cross_entropy)(params, images, labels)
    moved = {name: p - rate * (20 if "power" in name else 1) * slope[name] for name, p in params.items()}
    return moved, loss


@dataclass(frozen=True)
class Result:
    """The loss at each step, the mean exponents of both layers, and the share of held-out digits that are right."""

    losses: list[float]
    powers: list[tuple[float, float]]
    accuracy: float


def learn(steps: int, batch: int = 32, held_out: int = 500, seed: int = 0) -> Result:
    rng = np.random.default_rng(seed)
    params, losses, powers = initial(seed), [], []
    for _ in range(steps):
        images, labels = draw(batch, rng)
        params, loss = step(params, jnp.asarray(images), jnp.asarray(labels), 0.1)
        losses.append(float(loss))
        powers.append((float(exponents(params, 1).mean()), float(exponents(params, 2).mean())))
    images, labels = draw(held_out, np.random.default_rng(seed + 1))
    right = jax.jit(logits)(params, jnp.asarray(images)).argmax(1) == jnp.asarray(labels)
    return Result(losses, powers, float(right.mean()))


def picture(result: Result) -> str:
    """The loss on the left, the exponents on the right."""
    wide, high, left = 360, 220, 50

    def curve(values: list[float], x: float, top: float, colour: str) -> str:
        n = max(1, len(values) - 1)
        points = " ".join(
            f"{x + wide * i / n:.1f},{40 + high * (1 - value / top):.1f}" for i, value in enumerate(values)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    def frame(x: float, top: float, title: str) -> list[str]:
        return [
            f'<path d="M{x} 40V{40 + high}H{x + wide}" fill="none" stroke="{LINE}"/>',
            text(x + wide / 2, 26, title),
            text(x - 8, 44, f"{top:.1f}", "end", f'fill="{FAINT}"'),
            text(x - 8, 44 + high, "0", "end", f'fill="{FAINT}"'),
        ]

    second = left + wide + 80
    most, highest = max(result.losses), 1.1 * max(max(pair) for pair in result.powers)
    parts = frame(left, most, f"loss; {result.accuracy:.1%} of held-out digits right")
    parts.append(curve(result.losses, left, most, COLOURS[0]))
    parts += frame(second, highest, "mean exponent of each layer")
    for layer, colour in enumerate(COLOURS):
        parts.append(curve([pair[layer] for pair in result.powers], second, highest, colour))
    return svg(second + wide + 20, high + 70, parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args(arguments)
    start = time.perf_counter()
    result = learn(given.steps)
    first, last = result.powers[0], result.powers[-1]
    print(
        f"{given.steps} steps in {time.perf_counter() - start:.1f} s: loss {result.losses[0]:.2f} to "
        f"{np.mean(result.losses[-20:]):.2f}, {result.accuracy:.1%} of held-out digits right; "
        f"exponents {first[0]:.2f} to {last[0]:.2f} and {first[1]:.2f} to {last[1]:.2f}"
    )
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "jax_power_pool.svg"
    path.write_text(picture(result))
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
