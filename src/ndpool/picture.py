"""A window as a picture: which inputs one output reads, as SVG for a notebook or a file.

Reading order: `example_shape` finds an input worth showing, `look` picks an output, `View` says in words what it reads,
`window_svg` draws it. All geometry is asked of the window's axes (`reads`, `span`, `count`); none is worked out here.
"""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from itertools import product

from .arguments import axes_tuple, integer, named, resolve_axes, resolve_layout
from .errors import PoolError
from .op import Op
from .spec import Axis, Window, each

MOST = 128  # cells drawn along one side; of a longer axis only the part around the window is drawn
SIDE, CELL, ROOM = 384, 24, 16  # in pixels: the input's longest side, the largest cell, the least one with an index

INK, FAINT, LINE, PAPER, CARD = "#1f2937", "#6b7280", "#b4bcc8", "#ffffff", "#f6f7f9"
TAP, COVER, HATCH = "#2f7fd1", "#cfe3f7", "#c6ccd6"
INDEX = f'fill="{FAINT}" font-size="9"'
OUTLINE = f'stroke="{INK}" stroke-width="2"'
LEFT, TOP, GAP, LETTER, LEADING = 32, 56, 80, 7.3, 18  # margins, and the width and height of a caption's letter
FONT = "ui-monospace, Menlo, Consolas, monospace"

# -- what to show ----------------------------------------------------------------------------------------------------


def example_shape(op: Op) -> tuple[int, ...]:
    """A small input that shows the op: about five outputs on each pooled axis, one position on the others.

    >>> from ndpool import AdaptiveMaxPool, MaxPool
    >>> example_shape(MaxPool(3, stride=2, padding=1)), example_shape(AdaptiveMaxPool((3,)))
    ((9, 9), (7,))
    """
    axes, rank = axes_tuple(op.axes, names=True), op._rank()
    if op.layout is not None:
        axes = resolve_layout(op.layout, ndim := len(op.layout))
    elif axes and isinstance(axes[0], str):
        axes, ndim = tuple(range(len(axes))), len(axes)
    elif axes is None:
        ndim = 2 if rank is None else rank
    else:
        reach = max((a + 1 if a >= 0 else -a for a in axes), default=0)
        ndim = next((n for n in range(reach, reach + len(axes)) if len({a % n for a in axes}) == len(axes)), reach)
    pooled = resolve_axes(axes, rank, ndim)
    sizes = {a: _example_size(partial(op._axis, i=i, rank=len(pooled))) for i, a in enumerate(pooled)}
    return tuple(sizes.get(a, 1) for a in range(ndim))


def _example_size(axis_of: Callable[[int], Axis]) -> int:
    """The least size with five outputs and room for a whole window; with fewer outputs if that is over 64."""
    far = 2**61
    if axis_of(far).outputs == axis_of(2 * far).outputs:  # adaptive or global: an odd size makes bins overlap
        return max(5, 2 * axis_of(far).outputs + 1)

    def enough(n: int, outputs: int) -> bool:
        try:
            axis = axis_of(n)
        except PoolError:
            return False
        return axis.outputs >= outputs and n >= axis.extent

    sizes = [bisect_left(range(far), True, lo=1, key=partial(enough, outputs=outputs)) for outputs in (5, 4, 3, 2)]
    return next((n for n in sizes if n <= 64), sizes[-1])


def _covers(axis: Axis, o: int) -> range:
    """The positions under output `o`'s window, read or not: negative, or beyond the size, where it is padding."""
    first, length = axis.span(o, (axis.lo, axis.stride * axis.outputs + axis.extent))
    return range(first, first + length * axis.dilation, axis.dilation)


def _telling_output(axes: list[Axis]) -> tuple[int, ...]:
    """The middle output, moved along one axis (the last that can) to where it reads some input and some padding."""
    chosen = [(axis.outputs - 1) // 2 for axis in axes]
    for i, axis in reversed(list(enumerate(axes))):
        ends = {*range(min(axis.outputs, MOST)), axis.outputs - 1}
        at_padding = [o for o in sorted(ends) if 0 < len(axis.reads(o)) < len(_covers(axis, o))]
        if at_padding:
            chosen[i] = at_padding[0]
            break
    return tuple(chosen)


def _given_output(output: int | tuple[int, ...], axes: list[Axis]) -> tuple[int, ...]:
    chosen = tuple(integer("output", o, 0) for o in (output if isinstance(output, (tuple, list)) else (output,)))
    if len(chosen) != len(axes):
        raise PoolError(f"output={output} has {len(chosen)} entries for {len(axes)} pooled axes; give one per axis")
    for o, axis in zip(chosen, axes, strict=True):
        if o >= axis.outputs:
            raise PoolError(f"output={output} is beyond the {axis.outputs} outputs; use at most {axis.outputs - 1}")
    return chosen


@dataclass(frozen=True)
class View:
    """One output of an op (one index per pooled axis) over an input."""

    op: Op
    window: Window
    pooled: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def edges(self) -> tuple[_Edge, _Edge]:
        """The two drawn axes, down and across; an axis that is not there is one position that reads itself."""
        found = [_Edge(self.window.axes[a], o) for a, o in zip(self.pooled, self.output, strict=True)]
        down, across = ([_Edge(each(1), 0)] * 2 + found)[-2:]
        return down, across

    @property
    def lines(self) -> list[str]:
        """The view in words: the op, the shapes, what the output reads, and what a picture leaves out."""
        axes = [self.window.axes[a] for a in self.pooled]
        taps, counted, covered = (
            math.prod(measure(axis, o) for axis, o in zip(axes, self.output, strict=True))
            for measure in (lambda axis, o: len(axis.reads(o)), Axis.count, lambda axis, o: len(_covers(axis, o)))
        )
        reads = f"output {self.output} reads {taps} tap{'s' * (taps != 1)}"
        reads += f"; padding that counts as 0: {counted - taps}" * (counted > taps)
        reads += f"; outside the input, not read: {covered - counted}" * (covered > counted)
        return [repr(self.op), f"{self.window.shape} -> {self.op._shown(self.window)}", reads, *self._left_out()]

    def _left_out(self) -> list[str]:
        drawn = self.pooled[-2:]
        notes = []
        if len(self.pooled) > 2:
            notes = [f"drawn are axes {drawn[0]} and {drawn[1]}, the last two of {len(self.pooled)} pooled ones"]
        for a, edge in zip(drawn, self.edges[2 - len(drawn) :], strict=True):
            if len(edge.shown) < len(edge.reach):
                notes.append(f"axis {a} is drawn from {edge.shown[0]} to {edge.shown[-1]}")
        return notes


def look(op: Op, shape: tuple[int, ...] | None = None, output: int | tuple[int, ...] | None = None) -> View:
    """Output `output` of the op over an input of that shape; by default a small example and a telling output.

    >>> from ndpool import AvgPool
    >>> print(*look(AvgPool((3,), 2, 1)).lines, sep="\\n")
    AvgPool(kernel_size=(3,), stride=2, padding=1)
    (9,) -> (5,)
    output (0,) reads 2 taps; padding that counts as 0: 1
    """
    with named(op.name):
        # an example may show a window that empty="error" rejects: that is what the picture is for
        window = replace(op, empty="zero").window(example_shape(op)) if shape is None else op.window(shape)
        pooled = op.pooled_axes(len(window.axes))
        axes = [window.axes[a] for a in pooled]
        if not all(axis.outputs for axis in axes):
            raise PoolError(f"shape={window.shape} gives no output to show; use a larger shape")
        return View(op, window, pooled, _telling_output(axes) if output is None else _given_output(output, axes))


# -- drawing it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Edge:
    """One side of the picture: an axis, the marked output, and which positions and outputs are drawn."""

    axis: Axis
    output: int

    @property
    def covered(self) -> range:
        return _covers(self.axis, self.output)

    @property
    def reach(self) -> range:
        """The input and the padding that some window covers or counts."""
        axis, (lo, hi) = self.axis, self.axis.margin
        end = _hull(_covers(axis, axis.outputs - 1)).stop
        return range(-max(lo, axis.lo), max(axis.size + hi, end))

    @property
    def shown(self) -> range:
        return _part(self.reach, self.covered)

    @property
    def outputs(self) -> range:
        return _part(range(self.axis.outputs), range(self.output, self.output + 1))


def _hull(positions: range) -> range:
    """All positions from the first to the last."""
    return range(positions.start, positions.stop - positions.step + 1)


def _part(whole: range, centre: range) -> range:
    """At most MOST positions of `whole`, around the middle of `centre`."""
    first = (centre.start + centre.stop) // 2 - MOST // 2
    first = max(whole.start, min(first, whole.stop - MOST))
    return range(first, min(whole.stop, first + MOST))


@dataclass(frozen=True)
class _Grid:
    """Cells on the page: `left`, `top` are its corner and `wide`, `high` a cell's sides, in whole pixels."""

    rows: range
    columns: range
    wide: int
    high: int
    left: int = 0
    top: int = 0

    @property
    def width(self) -> int:
        return len(self.columns) * self.wide

    @property
    def height(self) -> int:
        return len(self.rows) * self.high

    def x(self, column: int) -> int:
        return self.left + (column - self.columns.start) * self.wide

    def y(self, row: int) -> int:
        return self.top + (row - self.rows.start) * self.high

    def cells(self, name: str, colour: str, rows: range, columns: range) -> str:
        """Those cells that are in the grid, filled: one closed subpath each."""
        inside = product((r for r in self.rows if r in rows), (c for c in self.columns if c in columns))
        cell = f"h{self.wide}v{self.high}h-{self.wide}z"
        marks = "".join(f"M{self.x(c)} {self.y(r)}{cell}" for r, c in inside)
        return f'<path class="{name}" fill="{colour}" d="{marks}"/>' if marks else ""

    def box(self, style: str, rows: range, columns: range) -> str:
        """A rectangle over those rows and columns."""
        if not rows or not columns:
            return ""
        size = f'width="{len(columns) * self.wide}" height="{len(rows) * self.high}"'
        return f'<rect x="{self.x(columns.start)}" y="{self.y(rows.start)}" {size} {style}/>'

    def ruled(self, rows: range, columns: range, style: str = "") -> str:
        """The lines around those cells."""
        if not rows or not columns:
            return ""
        x, y = self.x(columns.start), self.y(rows.start)
        across = [f"M{x} {y + r * self.high}h{len(columns) * self.wide}" for r in range(len(rows) + 1)]
        down = [f"M{x + c * self.wide} {y}v{len(rows) * self.high}" for c in range(len(columns) + 1)]
        faint = ' stroke-opacity="0.3"' * (min(self.wide, self.high) < 8)  # or the lines would hide what they part
        return f'<path class="line" stroke="{LINE}"{faint}{style} d="{"".join(across + down)}"/>'

    def hatched(self) -> str:
        """Diagonals through every cell: what is not painted over afterwards is padding."""
        n, m = len(self.rows), len(self.columns)
        ends = ((max(0, i - n), min(i, n), min(i, m), max(0, i - m)) for i in range(1, n + m))
        x, y = self.columns.start, self.rows.start
        marks = (f"M{self.x(x + a)} {self.y(y + b)}L{self.x(x + c)} {self.y(y + d)}" for a, b, c, d in ends)
        return f'<path class="hatch" stroke="{HATCH}" d="{"".join(marks)}"/>'

    def numbered(self, rows: range, columns: range) -> Iterable[str]:
        """Indices along the top and the left, where there is room and more than one."""
        if len(columns) > 1 and self.wide >= ROOM:
            for c in columns:
                yield _text(self.x(c) + self.wide / 2, self.top - 5, str(c), f'{INDEX} text-anchor="middle"')
        if len(rows) > 1 and self.high >= ROOM:
            for r in rows:
                yield _text(self.left - 5, self.y(r) + self.high / 2 + 3, str(r), f'{INDEX} text-anchor="end"')


def _fit(rows: range, columns: range, side: int) -> _Grid:
    """Square cells that keep the grid within `side`; a single row or column is as broad as a cell can be."""
    cell = max(2, min(CELL, side // max(len(rows), len(columns), 1)))
    return _Grid(rows, columns, CELL if len(columns) == 1 else cell, CELL if len(rows) == 1 else cell)


def _common(a: range, b: range) -> range:
    """What two ranges of step 1 share."""
    return range(max(a.start, b.start), max(a.start, b.start, min(a.stop, b.stop)))


def _input(grid: _Grid, down: _Edge, across: _Edge) -> Iterable[str]:
    """Padding below, the input over it, then what the window reads and the outline of what it covers."""
    rows, columns = (_common(range(edge.axis.size), edge.shown) for edge in (down, across))
    hull = [_common(_hull(edge.covered), edge.shown) for edge in (down, across)]
    yield grid.cells("cover", COVER, down.covered, across.covered)
    yield grid.hatched()
    yield grid.ruled(grid.rows, grid.columns, ' stroke-dasharray="3 2"')
    yield grid.box(f'fill="{PAPER}"', rows, columns)
    yield grid.cells("tap", TAP, down.axis.reads(down.output), across.axis.reads(across.output))
    yield grid.ruled(rows, columns)
    yield grid.box(OUTLINE, *hull)
    yield from grid.numbered(rows, columns)


def _output(grid: _Grid, down: _Edge, across: _Edge) -> Iterable[str]:
    marked = [range(edge.output, edge.output + 1) for edge in (down, across)]
    yield grid.box(f'fill="{PAPER}"', grid.rows, grid.columns)
    yield grid.cells("output", TAP, *marked)
    yield grid.ruled(grid.rows, grid.columns)
    yield grid.box(OUTLINE, *marked)
    yield from grid.numbered(grid.rows, grid.columns)


def _text(x: float, y: float, text: str, style: str = f'fill="{INK}"') -> str:
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def _grids(down: _Edge, across: _Edge) -> tuple[_Grid, _Grid]:
    """Input and output side by side, their middles on one line."""
    source, target = _fit(down.shown, across.shown, SIDE), _fit(down.outputs, across.outputs, SIDE // 2)
    middle = TOP + max(source.height, target.height) // 2
    return (
        replace(source, left=LEFT, top=middle - source.height // 2),
        replace(target, left=LEFT + source.width + GAP, top=middle - target.height // 2),
    )


def window_svg(op: Op, shape: tuple[int, ...] | None = None, output: int | tuple[int, ...] | None = None) -> str:
    """An SVG of the inputs that one output reads: the input with its padding (hatched) and taps (filled), the output
    marked beside it, and a caption. `output` has one index per pooled axis; the last two pooled axes are drawn.

    >>> from ndpool import MaxPool
    >>> window_svg(MaxPool(2))[:4]
    '<svg'
    """
    view = look(op, shape, output)
    edges = view.edges
    source, target = _grids(*edges)
    width = max(target.left + target.width + LEFT, 360)
    wrap = partial(textwrap.wrap, width=int((width - 2 * LEFT) / LETTER), max_lines=4, placeholder=" ...")
    caption = [part for line in view.lines for part in wrap(line)]
    below = TOP + max(source.height, target.height) + 32
    height = below + LEADING * len(caption)
    arrow = f"M{target.left - 56} {target.top + target.height / 2:g}h24m-7 -6l7 6l-7 6"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' style="max-width:100%;height:auto" role="img" font-family="{FONT}" font-size="12" fill="none">',
        f"<title>{escape(view.lines[0])}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{CARD}"/>',
        _text(source.left, 28, "input"),
        *_input(source, *edges),
        f'<path class="arrow" stroke="{INK}" stroke-width="1.5" d="{arrow}"/>',
        _text(target.left, 28, "output"),
        *_output(target, *edges),
        *(_text(LEFT, below + LEADING * i, line) for i, line in enumerate(caption)),
        "</svg>",
    ]
    return "".join(parts)
