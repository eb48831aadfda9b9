"""The window picture: well formed, and exactly the taps of `Axis.reads` are filled."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError
from ndpool.picture import MOST, example_shape, look, window_svg

SVG = "{http://www.w3.org/2000/svg}"
OWN = ndpool.Law(lambda x, t: x, lambda a, b: a + b, lambda s, n: (s, n), lambda g, x, t, r: g)

OPS = [
    ndpool.MaxPool(3, stride=2, padding=1),
    ndpool.MaxPool(2),
    ndpool.MaxPool(2, ceil_mode=True),
    ndpool.MaxPool((3,), 1, 1, dilation=2),
    ndpool.MaxPool((2, 3, 2)),
    ndpool.MaxPool(()),
    ndpool.MaxPool(3, stride=2, padding="same"),
    ndpool.MaxPool(2, padding=3),
    ndpool.MaxPool(3, axes=(0, -1)),
    ndpool.MaxPool(3, axes=(1, -1)),
    ndpool.MaxPool(2, axes=(-3,)),
    ndpool.AvgPool((2, 3), padding=((0, 1), (1, 0))),
    ndpool.AvgPool(7, 1, 3, count_include_pad=False),
    ndpool.SumPool((4, 1), dilation=(3, 1)),
    ndpool.AdaptiveAvgPool((3, 4)),
    ndpool.AdaptiveMaxPool((None, 2)),
    ndpool.AdaptiveSmoothMaxPool(7),
    ndpool.GlobalLpPool(2),
    ndpool.GlobalMaxPool(keepdims=False),
    ndpool.Pool(OWN, 3, dilation=2),
]


def label(op: ndpool.Op) -> str:
    """A test's name, the same in every process: without the addresses of a law's functions."""
    return repr(op).partition("(law")[0]


def parse(svg: str) -> ET.Element:
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return root


def filled(svg: str, name: str) -> int:
    """How many cells of that class are filled: one closed subpath each."""
    paths = [path for path in parse(svg).iter(f"{SVG}path") if path.get("class") == name]
    assert all(path.get("fill") not in (None, "none") for path in paths)
    return sum(path.attrib["d"].count("z") for path in paths)


def text(svg: str) -> str:
    return " ".join("".join(element.itertext()) for element in parse(svg).iter(f"{SVG}text"))


@pytest.mark.parametrize("op", OPS, ids=label)
def test_the_cells_filled_are_the_taps(op):
    view, svg = look(op), window_svg(op)
    reads = [len(view.window.axes[a].reads(o)) for a, o in zip(view.pooled, view.output, strict=True)]
    assert filled(svg, "tap") == math.prod(reads[-2:])
    assert filled(svg, "output") == 1
    assert f"reads {math.prod(reads)} tap" in text(svg)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_an_example_is_small_and_has_some_outputs(op):
    shape = example_shape(op)
    outputs = [op.out_shape(shape)[a] for a in op.pooled_axes(len(shape)) if not isinstance(op, ndpool.GlobalMaxPool)]
    assert all(n <= 64 for n in shape)
    assert all(1 <= n <= 8 for n in outputs)


@settings(deadline=None)
@given(
    n=st.tuples(st.integers(0, 9), st.integers(1, 9)),
    k=st.integers(1, 4),
    s=st.integers(1, 4),
    lo=st.integers(0, 3),
    hi=st.integers(0, 3),
    d=st.integers(1, 3),
    ceil_mode=st.booleans(),
    data=st.data(),
)
def test_every_output_of_every_window_can_be_drawn(n, k, s, lo, hi, d, ceil_mode, data):
    op = ndpool.AvgPool(k, s, ((lo, hi), (hi, lo)), dilation=d, ceil_mode=ceil_mode)
    try:
        window = op.window(n)
    except PoolError:
        assume(False)
    output = tuple(data.draw(st.integers(0, axis.outputs - 1)) for axis in window.axes)
    svg = window_svg(op, n, output)
    assert filled(svg, "tap") == math.prod(len(axis.reads(o)) for axis, o in zip(window.axes, output, strict=True))
    taps = filled(svg, "tap")
    counted = math.prod(axis.count(o) for axis, o in zip(window.axes, output, strict=True))
    assert filled(svg, "cover") >= counted >= taps
    assert (f"counts as 0: {counted - taps}" in text(svg).replace("\n", " ")) == (counted > taps)


def test_padding_is_shown_where_there_is_some():
    assert look(ndpool.MaxPool(3, 2, 1)).output == (2, 0)  # the middle row, at the left padding
    assert look(ndpool.MaxPool(3, 2)).output == (2, 2)
    assert look(ndpool.MaxPool(2, padding=((1, 0), (0, 0)))).output[0] == 0
    assert "not read: 3" in text(window_svg(ndpool.MaxPool(3, 2, 1)))
    assert "counts as 0: 3" in text(window_svg(ndpool.AvgPool(3, 2, 1)))


def test_more_than_two_pooled_axes_draw_the_last_two_and_say_so():
    svg = window_svg(ndpool.MaxPool((2, 3, 2)))
    assert filled(svg, "tap") == 6
    assert "axes 1 and 2, the last two of 3" in text(svg)


def test_leading_axes_are_not_drawn():
    assert filled(window_svg(ndpool.MaxPool(2), (0, 3, 4, 4)), "tap") == 4


def test_text_is_escaped():
    op = ndpool.Pool(ndpool.Law(OWN.lift, OWN.merge, OWN.finish, OWN.weigh, name="<b>&\"'"), 2)
    assert repr(op) == parse(window_svg(op)).findtext(f"{SVG}title")
    assert "<b>" not in window_svg(op)


@pytest.mark.parametrize("op", [ndpool.MaxPool(63), ndpool.AvgPool((63,)), ndpool.AvgPool(63, 1, 31)], ids=repr)
def test_a_large_kernel_gives_a_picture_of_sane_size(op):
    svg = window_svg(op)
    root = parse(svg)
    assert int(root.attrib["width"]) <= 800
    assert int(root.attrib["height"]) <= 600
    assert len(svg) < 200_000
    assert filled(svg, "tap") > 60


def test_of_a_huge_input_the_part_round_the_window_is_drawn():
    svg = window_svg(ndpool.MaxPool(3, 2, 1), (3, 10**6, 224), (50_000, 60))
    assert filled(svg, "tap") == 9
    assert "axis 1 is drawn from 99" in text(svg)
    assert int(parse(svg).attrib["width"]) <= 800
    assert filled(window_svg(ndpool.MaxPool(10**9)), "tap") == MOST**2


def test_an_empty_input_is_drawn_without_taps():
    assert filled(window_svg(ndpool.AdaptiveMaxPool(3), (0, 5)), "tap") == 0
    assert filled(window_svg(ndpool.GlobalSumPool(), (0, 0)), "tap") == 0


def test_an_op_that_rejects_its_example_is_drawn_all_the_same():
    op = ndpool.MaxPool(2, padding=3, empty="error")
    assert filled(window_svg(op), "output") == 1
    with pytest.raises(PoolError, match="empty='error'"):
        window_svg(op, (4, 4))


@pytest.mark.parametrize(
    ("output", "message"),
    [((0,), "1 entries for 2"), ((0, 2), "beyond the 2 outputs"), (-1, "below 0"), ((0, 1.5), "whole number")],
)
def test_a_wrong_output_is_an_error(output, message):
    with pytest.raises(PoolError, match=f"max_pool: .*{message}"):
        window_svg(ndpool.MaxPool(2), (4, 4), output)


def test_one_pooled_axis_takes_one_int():
    assert look(ndpool.MaxPool((2,)), (6,), 1) == look(ndpool.MaxPool((2,)), (6,), (1,))


def test_no_output_is_an_error():
    with pytest.raises(PoolError, match="no output to show"):
        window_svg(ndpool.AdaptiveMaxPool(None), (0, 4))


def test_an_op_without_an_example_is_an_error():
    with pytest.raises(PoolError, match="names an axis twice"):
        window_svg(ndpool.MaxPool(3, axes=(0, 0)))


# -- limits, on both sides


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (ndpool.MaxPool((4,), 15), (64,)),  # five outputs
        (ndpool.MaxPool((5,), 15), (50,)),  # five would take 65, so four
        (ndpool.MaxPool((9,), 1, 4), (9,)),  # five outputs, and room for a whole window
        (ndpool.MaxPool((3,), 1, 1), (5,)),
        (ndpool.AdaptiveMaxPool((1,)), (5,)),
        (ndpool.AdaptiveMaxPool((2,)), (5,)),
        (ndpool.AdaptiveMaxPool((3,)), (7,)),
        (ndpool.MaxPool(2, axes=0), (10,)),
        (ndpool.MaxPool(2, axes=-1), (10,)),
        (ndpool.MaxPool(2, axes=-2), (10, 1)),
        (ndpool.MaxPool(2, axes=1), (1, 10)),
    ],
    ids=repr,
)
def test_the_example_of_an_op(op, shape):
    assert example_shape(op) == shape


@pytest.mark.parametrize(
    ("op", "output", "words"),
    [
        (ndpool.MaxPool((1,), 2), 0, "output (0,) reads 1 tap"),
        (ndpool.MaxPool((2,), 2), 0, "output (0,) reads 2 taps"),
        (ndpool.MaxPool((2,), 2, ((3, 0),)), 0, "output (0,) reads 0 taps; outside the input, not read: 2"),
        (ndpool.MaxPool((2,), 2, ((1, 0),)), 0, "output (0,) reads 1 tap; outside the input, not read: 1"),
        (ndpool.AvgPool((3,), 2, ((1, 0),)), 0, "output (0,) reads 2 taps; padding that counts as 0: 1"),
        (ndpool.AvgPool((3,), 2, ((0, 0),)), 0, "output (0,) reads 3 taps"),
        (ndpool.AvgPool((3,), 3, ((0, 1),), ceil_mode=True), 2,
         "output (2,) reads 1 tap; padding that counts as 0: 1; outside the input, not read: 1"),
    ],
)  # fmt: skip
def test_a_view_says_what_there_is_and_nothing_else(op, output, words):
    assert look(op, (7,), output).lines[2] == words


def test_the_telling_output_reads_some_input_and_some_padding():
    assert look(ndpool.MaxPool((2,), 1, ((3, 0),)), (5,)).output == (2,)  # the first two read nothing
    assert look(ndpool.MaxPool((2,), 1, ((0, 3),)), (5,)).output == (4,)
    assert look(ndpool.MaxPool((2,), 1), (5,)).output == (1,)


def test_an_axis_is_drawn_whole_up_to_a_size():
    op = ndpool.MaxPool((2,), 2)
    assert not any("is drawn from" in line for line in look(op, (MOST,)).lines)
    assert look(op, (MOST + 1,), 0).lines[3:] == [f"axis 0 is drawn from 0 to {MOST - 1}"]
    assert look(op, (MOST + 2,), (MOST // 2,)).lines[3:] == [f"axis 0 is drawn from 2 to {MOST + 1}"]
    assert look(op, (1000,), 250).lines[3:] == [f"axis 0 is drawn from {501 - MOST // 2} to {500 + MOST // 2}"]


def test_of_three_pooled_axes_one_is_left_out():
    assert len(look(ndpool.MaxPool((2, 2)), (4, 4)).lines) == 3
    assert len(look(ndpool.MaxPool((2, 2, 2)), (4, 4, 4)).lines) == 4


@pytest.mark.parametrize(("n", "numbered"), [(24, True), (25, False)])
def test_positions_are_numbered_where_there_is_room(n, numbered):
    found = [element.text for element in parse(window_svg(ndpool.MaxPool((2,), 2), (n,))).iter(f"{SVG}text")]
    assert (str(n - 1) in found) == numbered


def test_the_last_output_can_be_shown_and_none_beyond():
    op = ndpool.MaxPool((2,))
    assert look(op, (6,), 2).output == (2,)
    with pytest.raises(PoolError, match="beyond the 3 outputs; use at most 2"):
        look(op, (6,), 3)
    with pytest.raises(PoolError, match="2 entries for 1 pooled axes"):
        look(op, (6,), (0, 0))


def test_a_window_is_outlined_from_its_first_to_its_last_tap():
    """Three taps two apart are five cells of a pixel size, with nothing after the last."""
    (outline,) = [
        rect
        for rect in parse(window_svg(ndpool.MaxPool((3,), 1, dilation=2), (9,), 1)).iter(f"{SVG}rect")
        if rect.get("stroke-width") == "2" and int(rect.attrib["width"]) > 24
    ]
    assert int(outline.attrib["width"]) == 5 * 24


def test_an_op_that_fits_no_array_has_no_picture():
    assert ndpool.MaxPool(2**62)._repr_svg_() is None
    assert ndpool.MaxPool(2)._repr_svg_().startswith("<svg")
