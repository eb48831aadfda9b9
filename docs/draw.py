"""Draws the pictures of the documents: `python docs/draw.py` writes architecture.svg and others beside itself.

Each picture brings its own background, light or dark as the reader's browser asks, so it can stand on any page. Colours
are class names; `LIGHT_AND_DARK` says what they look like. `tests/test_docs.py` draws all again and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise
from math import exp
from pathlib import Path

import numpy as np

import ndpool

# Fill and stroke of each class: on a light background, and on a dark one.
LIGHT_AND_DARK = {
    "card": (("#ffffff", "#d5dae2"), ("#11161f", "#2c3543")),
    "band": (("#f1f4f8", "none"), ("#19202c", "none")),
    "box": (("#ffffff", "#c3cad5"), ("#232d3c", "#3f4d62")),
    "panel": (("#fcf1e3", "#ecc999"), ("#2a2118", "#64492a")),
    "ink": (("#1b2430", "none"), ("#e8ecf2", "none")),
    "faint": (("#566173", "none"), ("#9eaabc", "none")),
    "grey": (("#8a95a5", "none"), ("#77859a", "none")),
    "grey-line": (("none", "#8a95a5"), ("none", "#77859a")),
    "rule": (("none", "#cfd5de"), ("none", "#374357")),
    "edge": (("none", "#1b2430"), ("none", "#e8ecf2")),
    "blue": (("#1f6fc4", "none"), ("#5aa5f2", "none")),
    "blue-line": (("none", "#1f6fc4"), ("none", "#5aa5f2")),
    "orange": (("#c2660c", "none"), ("#f0a04b", "none")),
    "orange-line": (("none", "#c2660c"), ("none", "#f0a04b")),
    "green": (("#2c7d4f", "none"), ("#63bf8b", "none")),
    "green-line": (("none", "#2c7d4f"), ("none", "#63bf8b")),
    "badge": (("#ffffff", "none"), ("#11161f", "none")),
}
SANS = "ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def page(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole picture, on its background."""
    light, dark = (
        "".join(f".{name}{{fill:{both[i][0]};stroke:{both[i][1]}}}" for name, both in LIGHT_AND_DARK.items())
        for i in (0, 1)
    )
    fonts = f"text{{font-family:{SANS}}}.code{{font-family:{MONO}}}.bold{{font-weight:600}}"
    style = f"<style>{fonts}{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>{style}'
    return "\n".join([head, rect(0.5, 0.5, width - 1, height - 1, "card", 10), *parts, "</svg>\n"])


def rect(x: float, y: float, wide: float, high: float, kind: str, corner: float = 6, more: str = "") -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="{corner:g}"{more}/>'


def text(x: float, y: float, words: str, kind: str = "ink", size: float = 12, anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


# -- architecture.svg: the layers, and the way of a call -------------------------------------------------------------


WIDTH = 1040


def band(y: int, high: int, name: str, *words: str) -> Iterator[str]:
    """A layer: its name and what it is, on the left."""
    yield rect(12, y, WIDTH - 24, high, "band", 8)
    yield text(26, y + 27, name, "ink bold", 14)
    for i, line in enumerate(words):
        yield text(26, y + 45 + 14 * i, line, "faint", 10.5)


def box(x: int, y: int, wide: int, high: int, files: str, *words: str, size: float = 12) -> Iterator[str]:
    """A file or folder, and a few words about it. What is code stands in backquotes."""
    yield rect(x, y, wide, high, "box")
    yield text(x + 12, y + 20, files, "ink code bold", size)
    for i, line in enumerate(words):
        kind = "faint code" if line.startswith("`") else "faint"
        yield text(x + 12, y + 38 + 15 * i, line.strip("`"), kind, size - 1)


def arrow(kind: str, *points: tuple[int, int], dashed: bool = False) -> Iterator[str]:
    """A line through these points, and a head at the last of them."""
    (x, y), (u, v) = points[-2:]
    heads = {(0, 1): "l-4.5 -8h9z", (1, 0): "l-8 -4.5v9z", (-1, 0): "l8 -4.5v9z"}
    along = (u > x) - (u < x), (v > y) - (v < y)
    end = u - 6 * along[0], v - 6 * along[1]  # the line must not stick out of the head
    path = "M" + "L".join(f"{a} {b}" for a, b in (*points[:-1], end))
    dash = ' stroke-dasharray="5 4"' * dashed
    yield f'<path class="{kind}-line" d="{path}" stroke-width="2" stroke-linejoin="round"{dash}/>'
    yield f'<path class="{kind}" d="M{u} {v}{heads[along]}"/>'


def badge(x: int, y: int, number: int) -> Iterator[str]:
    """A step of the walk in ARCHITECTURE.md."""
    yield f'<circle class="blue" cx="{x}" cy="{y}" r="10"/>'
    yield text(x, y + 4.2, str(number), "badge bold", 12, "middle")


def window_icon(left: int, top: int, cell: int) -> Iterator[str]:
    """A 5 x 5 input, and the window of one output with its taps."""
    for row in range(5):
        for column in range(5):
            place = left + column * cell, top + row * cell, cell, cell
            yield rect(*place, "rule", 0)
            if row < 2 and 1 <= column <= 3:
                yield rect(*place, "blue", 0, ' fill-opacity="0.55"')
    yield rect(left + cell, top - cell, 3 * cell, 3 * cell, "edge", 0, ' stroke-width="1.6"')


def architecture() -> str:
    """Layers from the user's call down to the machine, the numbered way of a NumPy call, the ways of torch and JAX."""
    return page(WIDTH, 630, "ndpool: the layers, and the way of a call through them", _architecture())


def _architecture() -> Iterator[str]:
    yield from band(14, 78, "call", "functions with", "torch's arguments")
    yield from band(100, 92, "record", "arguments, read", "and checked once")
    yield from band(200, 112, "meaning", "what every result", "must be")
    yield from band(320, 154, "engine", "how it is made;", "no engine imports", "another")
    yield from band(482, 88, "kernel", "what touches", "the elements")
    yield from main_ways()
    yield from adapters()
    for x, y, number in ((450, 26, 1), (450, 114, 2), (654, 114, 3), (608, 214, 4), (608, 334, 5), (654, 496, 6)):
        yield from badge(x, y, number)
    yield from legend()


def main_ways() -> Iterator[str]:
    """What happens to a NumPy array, and to lists and other arrays. Boxes are drawn over the lines."""
    yield from arrow("blue", (270, 70), (270, 114))
    yield from arrow("grey", (558, 70), (558, 96), (360, 96), (360, 114))
    yield from arrow("blue", (450, 148), (482, 148))
    yield from arrow("blue", (520, 178), (520, 214))
    yield from arrow("blue", (371, 298), (371, 334))
    for x, kind in ((212, "grey"), (374, "grey"), (530, "blue")):
        yield from arrow(kind, (x, 368), (x, 394))
    yield from arrow("blue", (632, 178), (632, 394), dashed=True)
    for x, kind in ((212, "grey"), (374, "grey"), (556, "blue")):
        yield from arrow(kind, (x, 460), (x, 496))

    yield from box(134, 26, 316, 54, "api.py", "`max_pool(x, 3, stride=2, padding=1)`")
    yield from box(482, 26, 172, 54, "graph/", "programs of pooling")
    yield from box(134, 114, 316, 66, "ops.py", "`MaxPool(3, stride=2, padding=1)`", "a form of window, and a law")
    yield from box(482, 114, 172, 66, "op.py, remembered.py", "finds the plan by record", "and array signature")
    yield from box(134, 214, 474, 84, "spec/axis.py", "Window: which positions", "each output reads,", "by one formula")
    yield '<path class="rule" d="M390 224v64"/>'
    yield from window_icon(318, 238, 11)
    yield text(404, 234, "spec/law.py", "ink code bold")
    for i, words in enumerate(
        ("Law: lift, merge, finish; and", "weigh, its derivative; traits", "that engines ask for")
    ):
        yield text(404, 252 + 15 * i, words, "faint", 11)
    yield rect(134, 334, 474, 34, "box")
    yield text(146, 355, "engines/__init__.py", "ink code bold")
    yield text(298, 355, "the first of ENGINES that supports this law and x", "faint", 11)
    yield from box(134, 394, 156, 66, "reference.py", "nested lists, and", "laws of your own")
    yield from box(302, 394, 144, 66, "portable.py", "arrays of any", "array-API library")
    yield from box(458, 394, 196, 66, "native.py", "NumPy arrays; tensors and", "JAX's arrays on the CPU")
    yield from box(134, 496, 156, 62, "spec/pool.py", "Python's numbers,", "Fractions, ...")
    yield from box(302, 496, 144, 62, "its library", "NumPy, any other", "whole arrays")
    yield from box(458, 496, 196, 62, "native/", "C++, compiled for each", "instruction set")


def adapters() -> Iterator[str]:
    """torch's and JAX's: each from its functions to plans on the memory of its arrays."""
    yield from adapter(
        672, "orange", "torch/", "tensors",
        ("functional.py, nn.py", "`max_pool2d(t, 3, 2, 1)`"),
        ("routing.py", "which way it goes;", "the rest: composite.py"),
        ("operators.py", "under compile,", "vmap, export"),
        ("direct.py, bound.py", "a plan on its memory"),
    )  # fmt: skip
    yield from adapter(
        850, "green", "jax/", "arrays, tracers",
        ("functional.py", "`max_pool(x, 3, 2, 1)`"),
        ("primitives.py", "a rule for each", "transform"),
        ("composed.py", "portable.py's passes,", "compiled by XLA"),
        ("ffi.py, gpu.py", "a plan in the program"),
    )  # fmt: skip
    yield from arrow("orange", (757, 250), (757, 264))  # an operator runs a plan; what XLA compiles does not
    yield from arrow("green", (935, 310), (935, 352), (646, 352), (646, 394))
    yield from arrow("green", (935, 310), (935, 394))
    yield from arrow("orange", (757, 310), (757, 376), (670, 376), (670, 427), (654, 427))
    yield from arrow("orange", (757, 310), (757, 394))
    yield from arrow("orange", (757, 460), (757, 496))
    yield from arrow("green", (935, 460), (935, 496))
    yield from box(
        686, 394, 320, 66, "triton/", "tensors and JAX's arrays on a CUDA GPU;", "the same bits on every run"
    )
    yield from box(
        686, 496, 320, 62, "Triton's kernels", "compiled for each geometry, dtype and mode,", "and kept on disk"
    )


def adapter(x: int, kind: str, folder: str, takes: str, *boxes: tuple[str, ...]) -> Iterator[str]:
    """A panel of four boxes; the third is a way aside."""
    yield rect(x, 22, 170, 294, "panel", 8)
    yield text(x + 14, 41, folder, "ink code bold")
    yield text(x + 22 + 7.3 * len(folder), 41, takes, "faint", 11)
    for at, down in ((x + 85, (94, 108)), (x + 78, (172, 186)), (x + 152, (172, 264))):
        yield from arrow(kind, *((at, y) for y in down))
    for y, high, wide, words in zip((48, 108, 186, 264), (46, 64, 64, 46), (154, 154, 134, 154), boxes, strict=True):
        yield from box(x + 8, y, wide, high, *words, size=11)


def legend() -> Iterator[str]:
    ways = [
        (30, "blue", False, "a NumPy array"),
        (190, "blue", True, "the next array of that shape, strides and dtype"),
        (540, "orange", False, "a torch tensor"),
        (690, "green", False, "a JAX array"),
        (828, "grey", False, "lists, other arrays"),
    ]
    for x, kind, dashed, words in ways:
        yield from arrow(kind, (x, 599), (x + 34, 599), dashed=dashed)
        yield text(x + 44, 603, words, "faint", 11.5)


# -- pooling.svg: one picture, one window, five laws -----------------------------------------------------------------

LAWS = {
    "max": ndpool.MaxPool(3, stride=2, padding=1),
    "min": ndpool.MinPool(3, stride=2, padding=1),
    "average": ndpool.AvgPool(3, stride=2, padding=1),
    "smooth max": ndpool.SmoothMaxPool(3, stride=2, padding=1, count_include_pad=False),
    "Lp": ndpool.LpPool(2, 3, stride=2, padding=1),
}
SIDE = 13
BUMPS = ((3.2, 3.4, 9, 2.4), (4.1, 8.6, 7, 1.6), (9.2, 8.2, 9, 3.0), (9.5, 3.1, 6, 1.5), (6.4, 5.8, 3, 2.0))


def brightness(row: int, column: int) -> float:
    """The picture that is pooled: a few soft spots."""
    return sum(height * exp(-((row - r) ** 2 + (column - c) ** 2) / wide) for r, c, height, wide in BUMPS)


def tiles(left: float, top: float, cell: float, values: list[list[float]], kind: str) -> Iterator[str]:
    """A square for each value: the larger the value, the stronger its colour. Squares of one shade are one path."""
    most = max(map(max, values))
    shades: dict[str, str] = {}
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            square = f"M{left + c * cell:g} {top + r * cell:g}h{cell:g}v{cell:g}h-{cell:g}z"
            shade = f"{value / most:.2f}"
            shades[shade] = shades.get(shade, "") + square
    for shade, squares in sorted(shades.items()):
        yield f'<path class="{kind}" fill-opacity="{shade}" d="{squares}"/>'
    side, steps = cell * len(values), [i * cell for i in range(len(values) + 1)]
    lines = "".join(f"M{left:g} {top + step:g}h{side:g}M{left + step:g} {top:g}v{side:g}" for step in steps)
    yield f'<path class="rule" d="{lines}" stroke-width="0.7"/>'


def pooling() -> str:
    """A picture, what each law makes of it, and where the derivative of each goes."""
    return page(1000, 374, "Pooling: one window, five laws, and their derivatives", _pooling())


def _pooling() -> Iterator[str]:
    image = [[brightness(r, c) for c in range(SIDE)] for r in range(SIDE)]
    output = (4, 4)  # the one whose window is outlined
    left, top, cell = 46, 96, 16
    yield text(left - cell, 40, "x", "ink code bold", 15)
    yield text(left - cell + 20, 40, "13 x 13", "faint", 13)
    yield text(left - cell, 62, "window 3 x 3, stride 2, padding 1", "faint", 12)
    yield rect(left - cell, top - cell, (SIDE + 2) * cell, (SIDE + 2) * cell, "rule", 0, ' stroke-dasharray="4 3"')
    yield from tiles(left, top, cell, image, "blue")
    row, column = (2 * o - 1 for o in output)
    yield rect(left + column * cell, top + row * cell, 3 * cell, 3 * cell, "edge", 2, ' stroke-width="2.4"')
    yield from arrow("blue", (left + 236, 132), (left + 276, 132))
    yield from arrow("orange", (left + 276, 300), (left + 236, 300))
    yield text(left - cell, 350, "op = ndpool.MaxPool(3, stride=2, padding=1)", "ink code", 10.5)

    for i, (name, op) in enumerate(LAWS.items()):
        x = 340 + 130 * i
        y = op(image)
        yield text(x, 40, name, "ink bold", 14)
        yield from tiles(x, 80, 15, y, "blue")
        yield rect(x + output[1] * 15, 80 + output[0] * 15, 15, 15, "edge", 2, ' stroke-width="2.4"')
        yield from tiles(x, 248, 8, op.vjp(image, [[1.0] * len(y) for _ in y]), "orange")
    for y, code, words in (
        (62, "y = op(x)", "what each law makes of the windows"),
        (228, "dx = op.vjp(x, dy)", "where a gradient of 1 per output goes"),
    ):
        yield text(340, y, code, "ink code", 12)
        yield text(340 + 7.6 * len(code) + 8, y, words, "faint", 12)


# -- pyramid.svg: a plane of a volume, and of its smaller levels -----------------------------------------------------

SPOTS = ((24, 13, 12, 9), (22, 33, 17, 6), (27, 20, 35, 11), (20, 38, 39, 5), (25, 8, 31, 4), (24, 27, 26, 3))
LEVELS = {"mean": ndpool.AvgPool((2, 2, 2)), "max": ndpool.MaxPool((2, 2, 2))}


def volume(size: int) -> np.ndarray:
    """Soft spots and noise, as the tutorial's volume."""
    z, y, x = np.ogrid[:size, :size, :size]
    light = sum(np.exp(-((z - a) ** 2 + (y - b) ** 2 + (x - c) ** 2) / w**2) for a, b, c, w in SPOTS)
    noise = np.random.default_rng(0).random((size,) * 3) - 0.5
    return np.clip(20 + 170 * light + 60 * noise, 0, 255).astype(np.uint8)


def plane(left: float, top: float, cell: float, values: np.ndarray) -> Iterator[str]:
    """Values as squares, of which neighbours of one shade are one rectangle; a path for each of 16 shades."""
    shades: dict[int, list[str]] = {}
    for r, row in enumerate(values // 16):
        starts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        for begin, end in pairwise(starts):
            wide = (end - begin) * cell
            shades.setdefault(int(row[begin]), []).append(
                f"M{left + begin * cell:g} {top + r * cell:g}h{wide:g}v{cell:g}h-{wide:g}z"
            )
    for shade, squares in sorted(shades.items()):
        yield f'<path class="blue" fill-opacity="{(shade + 1) / 16:.2f}" d="{"".join(squares)}"/>'
    yield rect(left, top, cell * values.shape[1], cell * values.shape[0], "rule", 0)


def pyramid() -> str:
    """The middle plane of a volume, and of the levels that `ndpool pyramid` makes of it by mean and by max."""
    return page(690, 410, "A pyramid: the middle plane of each level, by mean and by max", _pyramid())


def _pyramid() -> Iterator[str]:
    base, cell, top = volume(48), 5.5, 62
    yield text(30, 34, "0", "ink code bold", 15)
    yield text(50, 34, "48 x 48 x 48", "faint", 13)
    yield from plane(30, top, cell, base[24])
    yield text(30, top + 48 * cell + 26, "ndpool pyramid scan.npy", "ink code", 11.5)
    for row, (name, op) in enumerate(LEVELS.items()):
        x, y, level = 350.0, top + row * 184, base
        yield text(x, y - 8, name, "ink bold", 14)
        for number in (1, 2, 3):
            level = op(level)
            yield from plane(x, y, cell, level[len(level) // 2])
            yield text(x, y + len(level) * cell + 16, str(number), "ink code bold", 12)
            if number < 3:
                yield text(x + 14, y + len(level) * cell + 16, " x ".join(map(str, level.shape)), "faint", 11)
            x += len(level) * cell + 36


# -- writing them ----------------------------------------------------------------------------------------------------

PICTURES = {"architecture.svg": architecture, "pooling.svg": pooling, "pyramid.svg": pyramid}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / name).write_text(draw(), encoding="utf-8")
