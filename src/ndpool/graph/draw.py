"""A program to look at: a table of its nodes, and a drawing with arguments above and shapes on the edges.

Reading order: words (`plain`, `described`), `summary`, then `svg`. Where things stand in the drawing is `layout`'s.
Nothing here knows an op beyond its name and its dataclass fields.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from html import escape
from typing import Any
from unicodedata import east_asian_width

from ..lazy import lazy
from ..picture import CARD, COVER, FAINT, FONT, INK, LINE, PAPER, TAP
from .layout import MARGIN, Layout, crowd
from .node import NodeOp, op_name
from .program import Const, Input, Node, Parameter, Program

MOST = 20_000  # nodes and bends in a drawing, which takes seconds; the table has no limit

# -- words -----------------------------------------------------------------------------------------------------------


def plain(text: str, width: int = 10_000) -> str:
    """On one line, printable, and at most `width` long.

    >>> plain("a\\nname", 9), plain("a longer name", 9)
    ('a\\\\nname', 'a long...')
    """
    text = text[: width + 1]
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= width else text[: width - 3] + "..."


def _columns(text: str) -> int:
    """How many letters wide a text is: an East Asian letter counts as two."""
    return len(text) + sum(east_asian_width(c) in "WF" for c in text)


def arguments(op: Any) -> list[str]:
    """The fields of an op that differ from their defaults, as one would type them."""
    if not is_dataclass(op) or isinstance(op, Const):
        return []
    given = [(f, getattr(op, f.name, None)) for f in sorted(fields(op), key=lambda f: bool(f.kw_only)) if f.repr]
    shown = [(f.name, v) for f, v in given if (f.default is MISSING or v != f.default) and v != op_name(op)]
    return [f"{name}={described(v) if isinstance(v, NodeOp) else _value(v)}" for name, v in shown]


def _value(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", plain(repr(value), 200))  # an address would differ from run to run


def described(op: Any) -> str:
    """An op in one line.

    >>> from ndpool import MaxPool
    >>> described(MaxPool(3, stride=2))
    'max_pool(kernel_size=3, stride=2)'
    """
    given = ", ".join(arguments(op))
    return f"{plain(op_name(op))}({given})" if given else plain(op_name(op))


def _shape(shape: tuple[int, ...]) -> str:
    return plain(str(shape), 60)


def _parameters(node: Node) -> int:
    return math.prod(node.shape) if isinstance(node.op, (Const, Parameter)) else 0


def _bytes(node: Node) -> int:
    """The bytes of a node's value: 4 per element unless the dtype's name says otherwise."""
    bits = re.search(r"\d+", node.dtype or "float32")
    return math.prod(node.shape) * (max(1, int(bits[0]) // 8) if bits else 1)


def _marks(program: Program) -> dict[int, str]:
    """Which nodes are outputs (and which, if there are several), and which are dead."""
    places: dict[int, list[str]] = {}
    for place, i in enumerate(program.outputs):
        places.setdefault(i, []).append(str(place))
    several = len(program.outputs) > 1
    marks = {i: plain(f"output {', '.join(found)}", 24) if several else "output" for i, found in places.items()}
    return {node.id: marks.get(node.id, "" if node.id in program.needed else "dead") for node in program.nodes}


def _totals(program: Program) -> str:
    dead = len(program.nodes) - len(program.needed)
    counts = [f"{len(program.nodes)} nodes" + f" ({dead} dead)" * bool(dead)]
    counts += [f"{len(program.inputs)} inputs", f"{len(program.outputs)} outputs"]
    counts = [count.removesuffix("s") if count.startswith("1 ") else count for count in counts]
    return ", ".join([*counts, f"{sum(map(_parameters, program.nodes)):,} parameters"])


# -- the table -------------------------------------------------------------------------------------------------------


def summary(program: Program) -> str:
    """One line per node: label, op, argument shapes -> shape, dtype if fixed, parameters held, bytes of the value.

    >>> from ndpool import Graph
    >>> g = Graph()
    >>> print(summary(g.build(g.max_pool(g.input((4, 4)), 2))))
    node        op                       shapes            dtype  parameters  bytes
    x0          input                    (4, 4)                                  64
    max_pool 1  max_pool(kernel_size=2)  (4, 4) -> (2, 2)                        16  output
    total                                                                  0     80
    2 nodes, 1 input, 1 output, 0 parameters
    """
    marks = _marks(program)
    rows = [("node", "op", "shapes", "dtype", "parameters", "bytes", "")]
    for node in program.nodes:
        read = ", ".join(_shape(program.nodes[a].shape) for a in node.args[:8]) + ", ..." * (len(node.args) > 8)
        shapes = f"{read} -> {_shape(node.shape)}" if read else _shape(node.shape)
        held = f"{_parameters(node):,}" if isinstance(node.op, (Const, Parameter)) else ""
        words = plain(node.label, 32), plain(described(node.op), 60), shapes, node.dtype or ""
        rows.append((*words, held, f"{_bytes(node):,}", marks[node.id]))
    totals = f"{sum(map(_parameters, program.nodes)):,}", f"{sum(map(_bytes, program.nodes)):,}"
    rows.append(("total", "", "", "", *totals, ""))
    widths = [max(_columns(row[i]) for row in rows) for i in range(7)]
    return "\n".join([*(_aligned(row, widths) for row in rows), _totals(program)])


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """Words to the left, the two columns of numbers to the right."""
    space = [" " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True)]
    cells = [space[i] + cell if i in (4, 5) else cell + space[i] for i, cell in enumerate(row)]
    return "  ".join(cells).rstrip()


# -- drawing it ------------------------------------------------------------------------------------------------------

LETTER, SMALL, LINES = 7.3, 6.1, 13  # the widths of letters 12 and 10 pixels high, and the height of a line
CONST = "#eceef2"
STYLES = {
    "input": f'fill="{COVER}" stroke="{TAP}" stroke-width="1.5"',
    "const": f'fill="{CONST}" stroke="{LINE}" stroke-dasharray="4 2"',
    "op": f'fill="{PAPER}" stroke="{FAINT}"',
}
DEAD = 'opacity="0.45"'


@dataclass(frozen=True)
class _Box:
    """What is written on one node, and how large that is."""

    node: Node
    mark: str

    @property
    def kind(self) -> str:
        return "input" if isinstance(self.node.op, Input) else "const" if isinstance(self.node.op, Const) else "op"

    @property
    def title(self) -> str:
        return plain(self.node.label, 28)

    @lazy
    def lines(self) -> list[str]:
        """The op if the node has a name of its own, and the op's arguments."""
        op = self.node.op
        words = described(op) if self.node.name else ", ".join(arguments(op))
        words = f"{words} {self.node.dtype or ''}".strip() if self.kind != "op" else words
        return textwrap.wrap(words, 28, max_lines=3, placeholder=" ...")

    @property
    def shape(self) -> str:
        return _shape(self.node.shape)

    @lazy
    def width(self) -> float:
        small = max(map(_columns, [*self.lines, self.shape, self.mark]))
        return max(64, LETTER * _columns(self.title), SMALL * small) + 24

    @property
    def height(self) -> int:
        return 28 + LINES * len(self.lines) + (LINES + 4) * bool(self.mark)


def svg(program: Program) -> str:
    """A drawing of the graph: inputs as pills, constants dashed, outputs marked, the shape of a value on its edges.

    >>> from ndpool import Graph
    >>> g = Graph()
    >>> svg(g.build(g.relu(g.input((3,)))))[:4]
    '<svg'
    """
    if crowd(program) > MOST:
        words = [f"{_totals(program)}: too many nodes or long edges to draw", "see summary(), or draw upto(node)"]
        text = (_text(MARGIN, MARGIN + 18 * i, line, f'fill="{INK}"') for i, line in enumerate(words))
        return _page(2 * MARGIN + LETTER * max(map(len, words)), MARGIN + 36, words[0], text)
    marks, caption = _marks(program), _totals(program)
    boxes = [_Box(node, marks[node.id]) for node in program.nodes]
    layout = Layout(program, [(box.width, box.height) for box in boxes])
    right = max(layout.x[place] + layout.width(place) / 2 for place in layout.x)
    width, height = max(right, MARGIN + LETTER * len(caption)) + MARGIN, layout.top[-1] + MARGIN
    parts = [part for draw in (_edges, _shapes, _nodes) for part in draw(layout, boxes)]
    parts.append(_text(MARGIN, height - 16, caption, f'fill="{FAINT}"'))
    return _page(width, height, caption, parts)


def _page(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="max-width:100%;height:auto" role="img" '
        f'font-family="{FONT}" font-size="12" fill="none"><title>{escape(title)}</title>'
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{CARD}"/>{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _edges(layout: Layout, boxes: list[_Box]) -> Iterator[str]:
    """One curve per argument, upright where it passes a row. Arguments that come out of order are numbered."""
    for box in boxes:
        node, ports, faded = box.node, layout.ports(box.node), f" {DEAD}" if box.mark == "dead" else ""
        top = layout.of(node)[1]
        for i, (a, port) in enumerate(zip(node.args, ports, strict=True)):
            course = layout.course(a, node.id)
            x, above = layout.of(boxes[a].node)
            path = f"M{x:.1f} {above + boxes[a].height:.1f}"
            for place in course[1:]:
                foot, level = layout.foot[place[1] - 1], layout.top[place[1]]
                to, middle = port if place == course[-1] else layout.x[place], (foot + level) / 2
                path += f"V{foot:.1f}C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {level:.1f}"
                x = to
            yield f'<path class="edge" stroke="{FAINT}" stroke-width="1.3"{faded} d="{path}"/>'
            yield f'<path class="head" fill="{FAINT}"{faded} d="M{x - 3.5:.1f} {top - 7:.1f}h7l-3.5 7z"/>'
            if ports != sorted(ports):
                yield _text(x + 5, top - 5, str(i + 1), f'class="number" fill="{FAINT}" font-size="9"')


def _label(x: float, y: float, shape: str, style: str) -> Iterator[str]:
    """A shape on an edge, which is hidden behind it."""
    wide = SMALL * len(shape) + 6
    yield f'<rect x="{x - wide / 2:.1f}" y="{y + 4:.1f}" width="{wide:.1f}" height="14" fill="{CARD}" {style}/>'
    yield _text(x, y + 15, shape, f'class="shape" fill="{INK}" font-size="10" text-anchor="middle" {style}')


def _shapes(layout: Layout, boxes: list[_Box]) -> Iterator[str]:
    """Each value's shape: under its node, where its edges begin, and again on the last stretch of a long one."""
    for box in boxes:
        (x, top), faded = layout.of(box.node), DEAD if box.mark == "dead" else ""
        yield from _label(x, top + box.height, box.shape, faded)
        for a in dict.fromkeys(box.node.args):
            above, last = ([None] * 3 + layout.course(a, box.node.id))[-3:-1]
            if above and last and layout.bend(above) and layout.x[above] == layout.x[last]:
                x, y = layout.x[last], (layout.top[above[1]] + layout.foot[last[1]]) / 2
                yield from _label(x, y - 11, boxes[a].shape, f'transform="rotate(-90 {x:.1f} {y:.1f})" {faded}')


def _nodes(layout: Layout, boxes: list[_Box]) -> Iterator[str]:
    for box in boxes:
        node, (x, y) = box.node, layout.of(box.node)
        size = f'x="{x - box.width / 2:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height}"'
        output = box.mark.startswith("output")
        style = STYLES[box.kind] + f' style="stroke:{INK};stroke-width:2.5;stroke-dasharray:none"' * output
        kind = " ".join([box.kind, *box.mark.split(" ")[:1]]).strip()
        yield f'<g class="node {kind}"{f" {DEAD}" if box.mark == "dead" else ""}>'
        yield f"<title>{escape(f'{plain(node.label, 200)}: {described(node.op)}')}</title>"
        yield f'<rect {size} rx="{box.height / 2 if box.kind == "input" else 7:g}" {style}/>'
        yield _text(x, y + 18, box.title, f'fill="{INK}" font-weight="600" text-anchor="middle"')
        for i, line in enumerate(box.lines):
            yield _text(x, y + 18 + LINES * (i + 1), line, f'fill="{FAINT}" font-size="10" text-anchor="middle"')
        if box.mark:
            wide, low = SMALL * len(box.mark) + 10, y + box.height - 18
            fill, ink = (INK, PAPER) if output else (LINE, INK)
            yield f'<rect x="{x - wide / 2:.1f}" y="{low:.1f}" width="{wide:.1f}" height="14" rx="4" fill="{fill}"/>'
            yield _text(x, low + 10.5, box.mark, f'fill="{ink}" font-size="10" text-anchor="middle"')
        yield "</g>"
