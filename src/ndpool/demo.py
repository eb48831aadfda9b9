"""`ndpool demo`: every op on one picture, checked against the spec: a table in the terminal and a page of pictures.

Reading order: `scene` draws the input; `ops_shown` lists what runs on it; `check` compares an op with the reference
engine on a crop; `values` and `derivatives` are the pictures; `page` puts all of it into one HTML file that loads
nothing. Nothing here is part of the library: only `ndpool demo` imports it.
"""

from __future__ import annotations

import base64
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from . import ops
from .engines import reference
from .op import Op
from .picture import window_svg
from .unpool import max_unpool

Array = np.ndarray[Any, np.dtype[Any]]

SLIDING: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 1}
FORMS: dict[str, dict[str, Any]] = {"": SLIDING, "Adaptive": {"output_size": (12, 16)}, "Global": {}}
LAWS: dict[str, dict[str, Any]] = {
    "Max": {}, "Min": {}, "Mode": {}, "Avg": {}, "Sum": {}, "SmoothMax": {"beta": 5.0}, "Lp": {"norm_type": 3},
}  # fmt: skip
CLOSE = 1e-9  # largest difference from the spec that passes, relative to the largest value
CROP = (slice(54, 74), slice(52, 76))  # small enough for the reference, with edges and texture in it

# -- the picture -----------------------------------------------------------------------------------------------------

GLYPHS = {
    "p": ("1110", "1001", "1001", "1110", "1000", "1000"),
    "o": ("0110", "1001", "1001", "1001", "1001", "0110"),
    "l": ("1000", "1000", "1000", "1000", "1000", "1110"),
}


def scene() -> Array:
    """A night with a moon, stars, hills, a striped field, a chequered field and a word: values in [0, 1], 96 x 128."""
    y, x = np.mgrid[0:96, 0:128].astype(float)
    noise = np.abs(np.sin(12.9898 * x + 78.233 * y) * 43758.5453) % 1
    picture = 0.12 + 0.3 * (y / 96) ** 2  # the sky
    picture[noise > 0.994] = 0.95  # stars: one pixel each, so max keeps them and min drops them
    picture += 0.25 * np.exp(-((x - 98) ** 2 + (y - 22) ** 2) / 300)
    moon = (x - 98) ** 2 + (y - 22) ** 2 < 13**2
    picture[moon] = 0.95 - 0.15 * noise[moon]
    picture[(x - 94) ** 2 + (y - 18) ** 2 < 10] = 0.6
    for top, centre, slope, shade in ((30, 36, 0.9, 0.32), (38, 84, 0.7, 0.24)):
        hill = y > top + slope * np.abs(x - centre)
        picture[hill] = shade - 0.12 * (x[hill] > centre) + 0.06 * noise[hill]
        picture[hill & (y < top + 8 + 3 * np.sin(x))] = 0.85  # snow
    field = y > 64 + 3 * np.sin(x / 14)
    picture[field] = (0.45 + 0.25 * np.sin(x * 0.8 + (y - 64) * x / 90))[field]  # stripes that grow finer
    board = field & (x > 92)
    picture[board] = np.where((x // 4 + y // 4) % 2, 0.75, 0.2)[board]
    return np.clip(_write(picture, "pool", 78, 8), 0, 1)


def _write(picture: Array, word: str, top: int, left: int) -> Array:
    """The word on a dark plate, in strokes of two pixels."""
    glyphs = [np.array([[int(bit) for bit in row] for row in GLYPHS[letter]]) for letter in word]
    mask = np.kron(np.hstack([np.pad(glyph, 1)[:, 1:] for glyph in glyphs]), np.ones((2, 2)))
    high, wide = mask.shape
    picture[top : top + high, left - 2 : left + wide] = 0.05
    picture[top : top + high, left : left + wide] += 0.9 * mask
    return picture


def labels(picture: Array) -> Array:
    """The picture as labels: a number for each of five ranges of brightness."""
    return np.digitize(picture, (0.2, 0.35, 0.5, 0.7)).astype(np.uint8)


# -- checks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """How far an op is from the spec on a crop of the picture, and how long it takes on all of it."""

    label: str
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    differences: dict[str, float]
    milliseconds: float

    @property
    def passed(self) -> bool:
        return all(difference <= CLOSE for difference in self.differences.values())


def ops_shown() -> list[Op]:
    """Every law in every form of window."""
    return [
        getattr(ops, f"{form}{law}Pool")(**window, **law_arguments)
        for form, window in FORMS.items()
        for law, law_arguments in LAWS.items()
    ]


def check(op: Op, picture: Array) -> Check:
    """Forward, jvp and vjp of the op against the reference engine's; of labels, which have no derivative, forward."""
    picture = labels(picture) if op.law.no_derivative else picture
    x = picture[CROP]
    spec = reference.linearize(op.window(x.shape), op.law, x)
    differences = {"forward": _difference(op(x), spec.y)}
    if not op.law.no_derivative:
        at = op.linearize(x)
        dx, dy = np.cos(np.arange(x.size)).reshape(x.shape), np.sin(1.0 + np.arange(spec.y.size)).reshape(spec.y.shape)
        differences = {
            "forward": max(differences["forward"], _difference(at.y, spec.y)),
            "jvp": _difference(at.jvp(dx), spec.jvp(dx)),
            "vjp": _difference(at.vjp(dy), spec.vjp(dy)),
        }
    return Check(repr(op), picture.shape, op.out_shape(picture.shape), differences, _milliseconds(partial(op, picture)))


def check_unpool(picture: Array) -> Check:
    """Max-unpooling is max pooling's vjp at the winners: compared with the reference's vjp."""
    op, x = ops.MaxPool(**SLIDING, return_indices=True), picture[CROP]
    y, indices = op(x)
    spec = reference.linearize(op.window(x.shape), op.law, x).vjp(y)
    difference = _difference(max_unpool(y, indices, **SLIDING, output_size=x.shape), spec)
    y, indices = op(picture)
    run = partial(max_unpool, y, indices, **SLIDING, output_size=picture.shape)
    return Check("max_unpool(y, indices)", y.shape, picture.shape, {"forward": difference}, _milliseconds(run))


def _difference(got: Array, want: Array) -> float:
    """The largest difference, relative to the largest value; inf where shapes differ or a NaN is."""
    if got.shape != want.shape or not np.all(np.isfinite(got)):
        return float("inf")
    return float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-300))


def _milliseconds(run: Callable[[], Any]) -> float:
    """The best of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


# -- pictures --------------------------------------------------------------------------------------------------------


def png(pixels: Array) -> bytes:
    """An (h, w, 3) array of uint8 as a PNG file."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0))).tobytes()  # each row is led by filter 0
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _unit(values: Array) -> Array:
    """Stretched to [0, 1]; what is not finite (only a broken engine makes it) counts as 0."""
    finite: Array = np.nan_to_num(values, posinf=0, neginf=0)
    low, high = float(finite.min()), float(finite.max())
    return np.subtract(finite, low) / max(high - low, 1e-300)


def grey(values: Array) -> Array:
    """Smallest black, largest white."""
    return np.repeat(np.rint(255 * _unit(values)).astype(np.uint8)[..., None], 3, axis=-1)


def heat(values: Array) -> Array:
    """From night blue over red to pale yellow, by size."""
    stops = np.array([[13, 16, 48], [170, 48, 105], [238, 105, 62], [252, 178, 80], [252, 250, 200]])
    at = _unit(values) * (len(stops) - 1)
    return np.stack([np.interp(at, range(len(stops)), channel) for channel in stops.T], axis=-1).astype(np.uint8)


def spotted(picture: Array, where: Array) -> Array:
    """The picture, dimmed, with some pixels in orange."""
    return np.where(where[..., None], np.array([255, 150, 40], np.uint8), grey(picture) // 2)


@dataclass(frozen=True)
class Figure:
    """A picture of the page, with a line or two below it."""

    title: str
    notes: tuple[str, ...]
    pixels: Array


VALUES = {
    "Max": ops.MaxPool(**SLIDING),
    "Min": ops.MinPool(**SLIDING),
    "Average": ops.AvgPool(**SLIDING),
    "Smooth max, beta=-5": ops.SmoothMaxPool(**SLIDING, beta=-5.0),
    "Smooth max, beta=2": ops.SmoothMaxPool(**SLIDING, beta=2.0),
    "Smooth max, beta=20": ops.SmoothMaxPool(**SLIDING, beta=20.0),
    "Lp, p=3": ops.LpPool(3, **SLIDING),
    "Adaptive average": ops.AdaptiveAvgPool((18, 24)),
    "Adaptive max": ops.AdaptiveMaxPool((18, 24)),
}


def values(picture: Array) -> Iterator[Figure]:
    """The input and what each op makes of it, each stretched from its smallest value to its largest."""
    yield Figure("Input", (f"{_size(picture.shape)}, {picture.min():.2f} to {picture.max():.2f}",), grey(picture))
    for title, op in VALUES.items():
        y = op(picture)
        yield Figure(title, (repr(op), f"{y.min():.2f} to {y.max():.2f}"), grey(y))
    classes, op = labels(picture), ops.ModePool(**SLIDING)
    yield Figure("Labels", (f"{classes.max() + 1} classes of brightness",), heat(classes.astype(float)))
    yield Figure("Mode", (repr(op), "the most frequent label"), heat(op(classes).astype(float)))


def derivatives(picture: Array) -> Iterator[Figure]:
    """Who won, and where tangents and cotangents go."""
    y, indices = ops.MaxPool(**SLIDING, return_indices=True)(picture)
    won = np.isin(np.arange(picture.size), indices).reshape(picture.shape)
    yield Figure("Winners of max", (f"{won.sum()} of {won.size} inputs won a window",), spotted(picture, won))
    unpooled = max_unpool(y, indices, **SLIDING, output_size=picture.shape, duplicates="last")
    yield Figure("Unpooled", ("max_unpool: each maximum back at its place",), grey(unpooled))
    hard, soft = (VALUES[title].linearize(picture) for title in ("Max", "Smooth max, beta=20"))
    ones = np.ones_like(y)
    yield Figure("Gradient of max", ("vjp of ones: how many windows each input won",), heat(hard.vjp(ones)))
    yield Figure("Gradient of smooth max", ("vjp of ones: shares instead of winners",), heat(soft.vjp(ones)))
    down, across = np.indices(picture.shape)
    spot = np.exp(-((down - 52) ** 2 + (across - 60) ** 2) / 250.0)
    yield Figure("A bright spot", ("a tangent of the input",), heat(spot))
    yield Figure("jvp of the spot", ("through max: the tangent of each winner",), heat(hard.jvp(spot)))


# -- the report ------------------------------------------------------------------------------------------------------

COLUMNS = ("forward", "jvp", "vjp")


def _verdict(result: Check, column: str, tick: str) -> str:
    """A tick, the largest difference if there is one that matters, or nothing if the op has no such column."""
    difference = result.differences.get(column)
    return "" if difference is None else tick if difference <= CLOSE else f"{difference:.0e}"


def table(results: list[Check], tick: str = "✓") -> str:
    """The checks as lines of text."""
    rows = [["op", "in", "", "out", *COLUMNS, "ms"]]
    for r in results:
        name, marks = r.label.partition("(")[0], [_verdict(r, column, tick) for column in COLUMNS]
        rows.append([name, _size(r.shape), "->", _size(r.out_shape), *marks, f"{r.milliseconds:.2f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<><<^^^>", widths, strict=True))
    return "\n".join(form.format(*row) for row in rows)


WINDOWS = (
    ops.MaxPool(3, 2, 1),
    ops.AvgPool(3, 2, dilation=2),
    ops.AdaptiveAvgPool((3, 4)),
    ops.MaxPool((3,), 2, 1),
)

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --page: #f3f4f6; --card: #fff; --line: #dfe3e8;
  --good: #15803d; --bad: #c02626; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --page: #12151a; --card: #1b2027;
  --line: #2c343f; --good: #4ade80; --bad: #f87171; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: auto; padding: 32px 20px 48px; }
h1 { margin: 0; font-size: 32px; line-height: 1.2; }
h2 { margin: 40px 0 16px; font-size: 21px; }
p { margin: 8px 0 0; max-width: 90ch; color: var(--soft); }
code { font: 0.86em ui-monospace, Menlo, Consolas, monospace; }
.pictures { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(max(160px, 22%), 1fr)); }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
img { display: block; width: 100%; aspect-ratio: 4 / 3; image-rendering: pixelated; }
figcaption { padding: 10px 12px 12px; font-size: 13px; line-height: 1.4; color: var(--soft); }
figcaption b { display: block; font-size: 15px; color: var(--ink); }
.wide { overflow-x: auto; margin-top: 16px; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th, td { padding: 7px 12px; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th { font-weight: 600; color: var(--soft); }
td:first-child, td:nth-child(2) { white-space: normal; }
@media (max-width: 640px) { th, td { padding: 6px 5px; font-size: 12px; } main { padding: 24px 14px; } }
.mark { text-align: center; } td.mark { color: var(--good); } td.mark.bad { color: var(--bad); font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.windows { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start; }
.windows svg { border: 1px solid var(--line); border-radius: 8px; }
"""


def _text(text: str) -> str:
    """Escaped, and free to break after a bracket."""
    return escape(text).replace("(", "(<wbr>")


def _figure_html(figure: Figure) -> str:
    data = base64.b64encode(png(figure.pixels)).decode()
    title, notes = escape(figure.title), "<br>".join(map(_text, figure.notes))
    image = f'<img alt="{title}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption><b>{title}</b>{notes}</figcaption></figure>"


def _row_html(result: Check) -> str:
    marks = []
    for column in COLUMNS:
        bad = " bad" * (result.differences.get(column, 0) > CLOSE)
        marks.append(f'<td class="mark{bad}">{_verdict(result, column, "✓")}</td>')
    shapes = f"{_size(result.shape)} → {_size(result.out_shape)}".replace("x", "&nbsp;&times;&nbsp;").replace(
        " →", "&nbsp;→"
    )
    time_taken = f'<td class="number">{result.milliseconds:.2f}</td>'
    return f"<tr><td><code>{_text(result.label)}</code></td><td>{shapes}</td>{''.join(marks)}{time_taken}</tr>"


def page(picture: Array, results: list[Check]) -> str:
    """All of it as one HTML file that loads nothing."""
    heads = "".join(f'<th class="mark">{column}</th>' for column in COLUMNS)
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>ndpool demo</title><style>{STYLE}</style></head>
<body><main>
<h1>ndpool</h1>
<p>One picture, pooled by every op: a window says what is read, a law says what is made of it.<br>
See what each law keeps, where its derivatives go, and how each op compares with the specification.</p>
<h2>Pictures</h2>
<div class="pictures">{"".join(map(_figure_html, [*values(picture), *derivatives(picture)]))}</div>
<h2>Checked against the specification</h2>
<p>Each op on a crop of the picture, against the plain loops that define it; the time is for the whole picture.</p>
<div class="wide"><table><thead><tr><th>op</th><th>in → out</th>{heads}<th class="number">ms</th></tr></thead>
<tbody>{"".join(map(_row_html, results))}</tbody></table></div>
<h2>Windows: what one output reads</h2>
<div class="windows">{"".join(map(window_svg, WINDOWS))}</div>
</main></body></html>
"""


def run(out: str | Path = "demo.html") -> int:
    """Pool the picture, print the table, write the page; 0 if every op agrees with the spec, else 1."""
    picture = scene()
    results = [check(op, picture) for op in ops_shown()] + [check_unpool(picture)]
    print(table(results, "✓" if (sys.stdout.encoding or "").lower().startswith("utf") else "ok"))
    Path(out).write_text(page(picture, results), encoding="utf-8")
    failed = sum(not result.passed for result in results)
    agree = (
        f"{failed} of {len(results)} ops differ from the spec"
        if failed
        else f"all {len(results)} ops agree with the spec"
    )
    print(f"\n{agree}; pictures in {out}")
    return 1 if failed else 0
