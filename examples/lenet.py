"""LeNet-5 and the start of a ResNet as ndpool graphs: compared with PyTorch, then LeNet learns to read digits.

    python examples/lenet.py [--steps N] [--out DIR]

Reading order: the networks (`lenet`, `resnet`), their PyTorch twins and `compare`, the digits (`draw`), `learn` (plain
SGD on `program.linearize(..).vjp`), the pictures (lenet_loss.svg, lenet_digits.svg), `main`. PyTorch is optional: the
comparison says so and is left out. Everything random is seeded.
"""

from __future__ import annotations

import argparse
import base64
import math
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ndpool

Array = np.ndarray[Any, Any]
Values = dict[str, Array]  # by input name

SIDE, CLASSES = 28, 10
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}  # of the largest magnitude in the array compared

# -- the networks: parameters are inputs of the program --------------------------------------------------------------


def lenet(n: int) -> tuple[ndpool.Program, ndpool.Program]:
    """LeNet-5 for n images: (image, parameters) -> logits, and the same with a target -> mean loss."""
    g = ndpool.Graph()
    image = g.input((n, 1, SIDE, SIDE), name="image")

    h = g.conv(image, g.input((6, 1, 5, 5), name="w1"), padding=2) + g.input((6, 1, 1), name="b1")
    h = g.avg_pool(g.tanh(h), 2)
    h = g.conv(h, g.input((16, 6, 5, 5), name="w2")) + g.input((16, 1, 1), name="b2")
    h = g.avg_pool(g.tanh(h), 2)
    h = g.flatten(h, start=1)
    h = g.tanh(h @ g.input((400, 120), name="w3") + g.input((120,), name="b3"))
    h = g.tanh(h @ g.input((120, 84), name="w4") + g.input((84,), name="b4"))
    logits = h @ g.input((84, CLASSES), name="w5") + g.input((CLASSES,), name="b5")
    predict = g.build(logits)

    target = g.input((n, CLASSES), name="target")
    return predict, g.build(g.mean(g.softmax_cross_entropy(logits, target)))


def resnet(n: int, side: int = 32, channels: int = 16) -> ndpool.Program:
    """The stem and one basic block of a ResNet: (image, parameters) -> one number a channel."""
    g = ndpool.Graph()
    image = g.input((n, 3, side, side), name="image")

    def conv(x: Any, k: int, name: str, **arguments: Any) -> Any:
        """A convolution and its batch norm, folded into a factor and a shift a channel."""
        w = g.input((channels, x.shape[1], k, k), name=f"w{name}")
        scale, shift = (g.input((channels, 1, 1), name=f"{kind}{name}") for kind in ("scale", "shift"))
        return g.conv(x, w, **arguments) * scale + shift

    stem = g.max_pool(g.relu(conv(image, 7, "0", stride=2, padding=3)), 3, stride=2, padding=1)
    h = g.relu(conv(stem, 3, "1", padding=1))
    h = g.relu(conv(h, 3, "2", padding=1) + stem)
    return g.build(g.global_avg_pool(h, keepdims=False))


def initial(program: ndpool.Program, rng: np.random.Generator, dtype: Any = np.float32) -> Values:
    """Random parameters: weights of variance 1 / fan-in, scales around 1, small shifts."""
    values = {}
    for node in program.inputs:
        if node.name in ("image", "target"):
            continue
        fan = math.prod(node.shape[1:]) if len(node.shape) > 2 else node.shape[0]
        size, around = (1 / math.sqrt(fan), 0) if node.name.startswith("w") else (0.1, node.name.startswith("scale"))
        values[node.name] = (around + size * rng.standard_normal(node.shape)).astype(dtype)
    return values


# -- the same in PyTorch ---------------------------------------------------------------------------------------------


def torch_lenet(torch: Any, v: dict[str, Any]) -> Any:
    """`lenet`'s loss, in PyTorch's own words."""
    f = torch.nn.functional
    h = f.avg_pool2d(torch.tanh(f.conv2d(v["image"], v["w1"], v["b1"].reshape(-1), padding=2)), 2)
    h = f.avg_pool2d(torch.tanh(f.conv2d(h, v["w2"], v["b2"].reshape(-1))), 2)
    h = torch.tanh(f.linear(h.flatten(1), v["w3"].T, v["b3"]))
    h = torch.tanh(f.linear(h, v["w4"].T, v["b4"]))
    return f.cross_entropy(f.linear(h, v["w5"].T, v["b5"]), v["target"])


def torch_resnet(torch: Any, v: dict[str, Any]) -> Any:
    """`resnet`, in PyTorch's own words: its batch norm with zero mean and unit variance is the factor and shift."""
    f = torch.nn.functional

    def conv(x: Any, name: str, **arguments: Any) -> Any:
        scale, shift = v[f"scale{name}"].reshape(-1), v[f"shift{name}"].reshape(-1)
        zero, one = torch.zeros_like(scale), torch.ones_like(scale)
        return f.batch_norm(f.conv2d(x, v[f"w{name}"], **arguments), zero, one, scale, shift, eps=0.0)

    stem = f.max_pool2d(f.relu(conv(v["image"], "0", stride=2, padding=3)), 3, stride=2, padding=1)
    h = f.relu(conv(stem, "1", padding=1))
    return f.relu(conv(h, "2", padding=1) + stem).mean((-2, -1))


class Difference(NamedTuple):
    """The largest difference of one array from PyTorch's, as a part of its largest magnitude."""

    network: str
    dtype: str
    what: str
    of: str
    size: float

    @property
    def ok(self) -> bool:
        return self.size <= TOLERANCE[self.dtype]


def compare(
    name: str, program: ndpool.Program, twin: Callable[..., Any], values: Values, seed: int
) -> Iterator[Difference]:
    """Value, full jvp (a tangent for every input) and full vjp (a cotangent of every input) against PyTorch."""
    import torch

    rng = np.random.default_rng(seed)
    names = [node.label for node in program.inputs]
    dtype = values["image"].dtype

    def like(shapes: Any) -> list[Array]:
        return [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes]

    primals, tangents = [values[n] for n in names], like(program.input_shapes)
    [cotangent] = like(program.output_shapes)

    at = program.linearize(tuple(primals))
    moved, pulled = at.jvp(tuple(tangents)), at.vjp(cotangent)

    def network(*inputs: Any) -> Any:
        return twin(torch, dict(zip(names, inputs, strict=True)))

    given, given_tangents = (tuple(map(torch.from_numpy, arrays)) for arrays in (primals, tangents))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)  # torch's own, in its forward mode
        want, want_moved = torch.func.jvp(network, given, given_tangents)
        _, pull = torch.func.vjp(network, *given)
        want_pulled = pull(torch.from_numpy(cotangent))

    def difference(what: str, of: str, got: Array, wanted: Any) -> Difference:
        wanted = wanted.numpy()
        assert got.dtype == wanted.dtype == dtype
        assert got.shape == wanted.shape
        return Difference(name, dtype.name, what, of, float(np.max(np.abs(got - wanted)) / np.max(np.abs(wanted))))

    yield difference("value", "output", at.y, want)
    yield difference("jvp", "output", moved, want_moved)
    for of, got, wanted in zip(names, pulled, want_pulled, strict=True):
        yield difference("vjp", of, got, wanted)


def comparisons(n: int = 4, side: int = 32, channels: int = 16) -> Iterator[Difference]:
    """Both networks in both precisions."""
    for dtype in (np.float32, np.float64):
        rng = np.random.default_rng(1)
        images, labels = draw(n, rng)
        _, loss = lenet(n)
        values = {"image": images.astype(dtype), "target": one_hot(labels).astype(dtype), **initial(loss, rng, dtype)}
        yield from compare("LeNet-5", loss, torch_lenet, values, seed=2)
        features = resnet(n, side, channels)
        image = rng.standard_normal((n, 3, side, side)).astype(dtype)
        values = {"image": image, **initial(features, rng, dtype)}
        yield from compare("ResNet stem + block", features, torch_resnet, values, seed=3)


# -- digits ----------------------------------------------------------------------------------------------------------

FONT = """
 ###    #    ###  #####    #  #####   ##  #####  ###   ###
#   #  ##   #   #    #    ##  #      #        # #   # #   #
#  ##   #       #   #    # #  ####  #        #  #   # #   #
# # #   #      #     #  #  #      # ####    #    ###   ####
##  #   #     #       # #####     # #   #  #    #   #     #
#   #   #    #    #   #    #  #   # #   #  #    #   #    #
 ###   ###  #####  ###     #   ###   ###   #     ###   ##
"""


def glyphs() -> Array:
    """The ten digits as 7 x 5 pictures of 0 and 1, each with a border of 2."""
    rows = [[c == "#" for c in line.ljust(60)] for line in FONT.strip("\n").split("\n")]
    table = np.array(rows, dtype=np.float32).reshape(7, CLASSES, 6)[:, :, :5].transpose(1, 0, 2)
    return np.pad(table, ((0, 0), (2, 2), (2, 2)))


def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """n digits (n, 1, 28, 28), each turned, sized, slanted, moved, thick or thin, sharp or blurred, noisy; labels."""
    labels = rng.integers(0, CLASSES, n)

    def each(low: float, high: float) -> Array:
        return rng.uniform(low, high, (n, 1, 1))

    down, across = np.meshgrid(*[np.arange(SIDE) - (SIDE - 1) / 2] * 2, indexing="ij")
    down, across = down - each(-3, 3), across - each(-3, 3)
    turn, slant = each(-0.25, 0.25), each(-0.3, 0.3)
    down, across = np.cos(turn) * down - np.sin(turn) * across, np.sin(turn) * down + np.cos(turn) * across
    v, u = down / each(2.2, 3.2) + 5, (across + slant * down) / each(2.4, 3.6) + 4  # where in the bordered glyph

    v, u = np.clip(v, 0, 9.999), np.clip(u, 0, 7.999)
    i, j = v.astype(int), u.astype(int)
    a, b, table, which = v - i, u - j, glyphs(), labels[:, None, None]
    ink = (1 - a) * ((1 - b) * table[which, i, j] + b * table[which, i, j + 1])
    ink += a * ((1 - b) * table[which, i + 1, j] + b * table[which, i + 1, j + 1])
    ink = np.clip((ink - each(0.3, 0.6)) * each(1.5, 5.0) + 0.5, 0, 1)
    ink += 0.1 * rng.standard_normal(ink.shape)
    return ink[:, None].astype(np.float32), labels


def one_hot(labels: Array) -> Array:
    return np.eye(CLASSES, dtype=np.float32)[labels]


# -- learning --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What `learn` learnt: the loss of each step, and what it makes of digits that it has not seen."""

    losses: list[float]
    parameters: Values
    images: Array
    labels: Array
    guesses: Array

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.guesses == self.labels))


def learn(steps: int, batch: int = 32, rate: float = 0.5, held_out: int = 1000, seed: int = 0) -> Result:
    """LeNet by plain stochastic gradient descent on digits drawn as they are needed; then a test on `held_out` more."""
    rng = np.random.default_rng(seed)
    images, labels = draw(held_out, rng)  # drawn first, and never trained on
    _, loss = lenet(batch)
    parameters, losses = initial(loss, rng), []
    names = [node.label for node in loss.inputs]

    for step in range(steps):
        x, answers = draw(batch, rng)
        at = loss.linearize({"image": x, "target": one_hot(answers), **parameters})
        gradient = dict(zip(names, at.vjp(np.ones((), np.float32)), strict=True))
        size = np.float32(rate * 0.5 * (1 + math.cos(math.pi * step / steps)))  # falls to 0 along a cosine
        parameters = {name: value - size * gradient[name] for name, value in parameters.items()}
        losses.append(float(at.y))

    predict, _ = lenet(held_out)
    guesses = np.argmax(predict(image=images, **parameters), axis=-1)
    return Result(losses, parameters, images, labels, guesses)


# -- pictures --------------------------------------------------------------------------------------------------------

INK, FAINT, LINE, CURVE, WRONG = "#1f2937", "#6b7280", "#e2e6ec", "#2f7fd1", "#c0362c"


def svg(width: int, height: int, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{words}</text>'


def loss_svg(losses: list[float], accuracy: float) -> str:
    """The loss of every step (faint) and its running mean, on a logarithmic scale."""
    left, top, wide, high = 64, 48, 600, 280
    low, most = (10.0 ** f(math.log10(e)) for f, e in ((math.floor, min(losses)), (math.ceil, max(losses))))

    def at(step: float, loss: float) -> str:
        down = (math.log10(most) - math.log10(loss)) / (math.log10(most) - math.log10(low))
        return f"{left + wide * step / len(losses):.1f},{top + high * down:.1f}"

    parts = [text(left, 26, f"LeNet-5: loss of each step ({accuracy:.1%} of held-out digits right)", "start")]
    for decade in range(round(math.log10(low)), round(math.log10(most)) + 1):
        x, y = map(float, at(0, 10.0**decade).split(","))
        parts.append(f'<line x1="{x}" x2="{x + wide}" y1="{y}" y2="{y}" stroke="{LINE}"/>')
        parts.append(text(x - 8, y + 4, f"{10.0**decade:g}", "end"))
    ten = 10 ** (len(str(len(losses))) - 1)
    between = next((k for k in (ten // 5, ten // 2, ten) if k and len(losses) // k <= 6), 2 * ten)
    for step in range(between, len(losses) + 1, between):
        x, y = map(float, at(step, low).split(","))
        parts.append(f'<line x1="{x}" x2="{x}" y1="{y}" y2="{y + 5}" stroke="{FAINT}"/>')
        parts.append(text(x, y + 20, str(step)))
    parts.append(text(left + wide / 2, top + high + 40, "step"))

    window = max(1, len(losses) // 20)
    mean = [sum(losses[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(losses))]
    for curve, style in ((losses, 'stroke-opacity="0.3"'), (mean, 'stroke-width="2.5"')):
        points = " ".join(at(i, e) for i, e in enumerate(curve, 1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{CURVE}" stroke-linejoin="round" {style}/>')
    x, y = left + wide - 150, top + 16
    for k, (words, style) in enumerate((("one batch", 'stroke-opacity="0.3"'), ("running mean", 'stroke-width="2.5"'))):
        parts.append(f'<line x1="{x}" x2="{x + 28}" y1="{y + 20 * k}" y2="{y + 20 * k}" stroke="{CURVE}" {style}/>')
        parts.append(text(x + 36, y + 20 * k + 4, words, "start"))
    return svg(left + wide + 32, top + high + 56, parts)


def png(grey: Array) -> bytes:
    """A grey PNG of values between 0 and 1, ink dark."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    high, wide = grey.shape
    rows = np.pad(255 - np.clip(255 * grey, 0, 255).round().astype(np.uint8), ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", wide, high, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def digits_svg(result: Result, count: int = 24) -> str:
    """Held-out digits with what the network took them for: first the mistakes (at most a row), then others."""
    across, cell, gap, top = 8, 72, 12, 44
    wrong = np.flatnonzero(result.guesses != result.labels)[:across]
    right = np.flatnonzero(result.guesses == result.labels)[: count - len(wrong)]
    mistakes = int(np.sum(result.guesses != result.labels))
    title = f"Held-out digits and what LeNet takes them for; {mistakes} of {len(result.labels)} are wrong"
    parts = [text(gap, 26, title, "start")]
    chosen = [*wrong, *right]
    for place, k in enumerate(chosen):
        x, y = gap + (cell + gap) * (place % across), top + (cell + 32) * (place // across)
        picture = base64.b64encode(png(result.images[k, 0])).decode()
        guess, label = int(result.guesses[k]), int(result.labels[k])
        parts.append(
            f'<image x="{x}" y="{y}" width="{cell}" height="{cell}" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{picture}"/>'
        )
        words, colour = (str(guess), INK) if guess == label else (f"{guess}, but is {label}", WRONG)
        parts.append(text(x + cell / 2, y + cell + 17, words, more=f'fill="{colour}"'))
    rows = -(-len(chosen) // across)
    return svg(gap + (cell + gap) * across, top + (cell + 32) * rows, parts)


# -- the whole -------------------------------------------------------------------------------------------------------


def table(rows: list[Difference]) -> str:
    """One line a network, precision and product; a vjp's worst input stands for it."""
    lines = [("network", "dtype", "", "worst in", "difference", "allowed", "")]
    for key in dict.fromkeys(row[:3] for row in rows):
        worst = max((row for row in rows if row[:3] == key), key=lambda row: row.size)
        verdict = "ok" if worst.ok else "WRONG"
        lines.append((*key, worst.of, f"{worst.size:.1e}", f"{TOLERANCE[worst.dtype]:.0e}", verdict))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="LeNet-5 as an ndpool graph: compared with PyTorch, and trained.")
    parser.add_argument("--steps", type=int, default=300, help="steps of gradient descent (default 300)")
    parser.add_argument("--out", type=Path, default=Path(), help="where the pictures go (default: here)")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error("--steps must be at least 1")

    print("Against PyTorch, with the same weights; jvp and vjp in every input")
    rows = [] if find_spec("torch") is None else list(comparisons())
    print(table(rows) if rows else "PyTorch is not installed, so there is nothing to compare with; going on")

    print(f"\nTraining LeNet-5 on drawn digits, {given.steps} steps")
    start = time.perf_counter()
    result = learn(given.steps)
    seconds = time.perf_counter() - start
    print(f"loss {result.losses[0]:.3f} at first, {np.mean(result.losses[-20:]):.3f} at last; {seconds:.1f} s")
    print(f"{result.accuracy:.1%} of {len(result.labels)} held-out digits right")

    given.out.mkdir(parents=True, exist_ok=True)
    for name, picture in (
        ("lenet_loss.svg", loss_svg(result.losses, result.accuracy)),
        ("lenet_digits.svg", digits_svg(result)),
    ):
        (given.out / name).write_text(picture, encoding="utf-8")
        print(f"wrote {given.out / name}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
