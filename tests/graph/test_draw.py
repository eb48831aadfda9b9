"""The table and the drawing of a program: what they say, and that a browser shows every word inside its box."""

from __future__ import annotations

import math
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndpool import Graph, Law, Pool, Program
from ndpool.graph import draw, layout

ROOT = Path(__file__).parents[2]


def lenet() -> Program:
    """LeNet-5 with constants for weights, an input for the target, and two outputs."""
    rng = np.random.default_rng(0)
    g = Graph()

    def weights(*shape, name):
        return g.const(rng.standard_normal(shape).astype(np.float32) / 10, name=name)

    h = g.input((1, 28, 28), name="image", dtype="float32")
    for i, (channels, taken, padding) in enumerate([(6, 1, 2), (16, 6, 0)]):
        h = g.conv(h, weights(channels, taken, 5, 5, name=f"kernel{i}"), padding=padding)
        h = g.tanh(h + weights(channels, 1, 1, name=f"bias{i}"))
        h = g.avg_pool(h, 2, name=f"pool{i}")
    h = g.flatten(h)
    for i, (n, m) in enumerate([(400, 120), (120, 84), (84, 10)]):
        h = g.add(g.matmul(h, weights(n, m, name=f"dense{i}")), weights(m, name=f"offset{i}"))
        h = g.tanh(h) if i < 2 else h
    target = g.input((10,), name="target", dtype="float32")
    return g.build([h, g.softmax_cross_entropy(h, target, name="loss")])


def block() -> Program:
    """A ResNet stem and one block with a projection on the skip."""
    rng = np.random.default_rng(0)
    g = Graph()
    x = g.input((3, 32, 32), name="x")

    def conv(h, channels, k, **options):
        return g.conv(h, g.const(rng.standard_normal((channels, h.shape[0], k, k)).tolist()), **options)

    stem = g.max_pool(g.relu(conv(x, 8, 7, stride=2, padding=3)), 3, stride=2, padding=1)
    h = g.relu(conv(stem, 16, 3, stride=2, padding=1))
    h = conv(h, 16, 3, padding=1) + conv(stem, 16, 1, stride=2)
    return g.build(g.global_avg_pool(g.relu(h), keepdims=False))


def sixty() -> Program:
    """60 nodes: blocks with skips of different lengths, branches that are joined again, a dead node."""
    g = Graph()
    h = g.input((4, 32, 32), name="x")
    early, kept = h, []
    while len(g.nodes) < 48:
        start = h
        h = g.relu(g.max_pool(h, 3, stride=1, padding=1))
        side = g.avg_pool(start, 3, stride=1, padding=1)
        h = g.add(g.sub(h, side), start)
        kept.append(h)
        if len(kept) % 3 == 0:
            h = g.add(h, early)
            early = h
        if len(kept) == 5:
            h = g.mul(h, g.const(np.full((4, 1, 1), 2.0), name="scale"))
    h = g.concat(kept[0], kept[4], h, axis=0)
    g.exp(h)  # dead
    pooled = g.global_avg_pool(h, keepdims=False)
    a, b = g.sigmoid(pooled), g.tanh(pooled)
    while len(g.nodes) < 59:
        a = g.softplus(a)
    return g.build([g.div(a, b), kept[-1]])


def inception() -> Program:
    """Four times three branches and a skip, joined again."""
    g = Graph()
    h = g.input((8, 16, 16), name="x")
    for _ in range(4):
        a, b, c = (getattr(g, op)(h, 3, stride=1, padding=1) for op in ("max_pool", "avg_pool", "sum_pool"))
        h = g.concat(g.relu(a), g.relu(b), g.tanh(g.relu(c)), h)
    return g.build(h)


@st.composite
def programs(draw) -> Program:
    """Any graph of one shape: sources, chains, joins, dead ends."""
    g = Graph()
    made = [g.input((2,))]
    for kind in draw(st.lists(st.sampled_from(["input", "const", "relu", "add", "mul", "concat"]), max_size=30)):
        read = [made[i] for i in draw(st.lists(st.integers(0, len(made) - 1), min_size=2, max_size=4))]
        if kind == "concat":
            made.append(g.sum(g.concat(*read), keepdims=True) + g.const([0, 0]))
        else:
            one = {
                "input": lambda: g.input((2,)),
                "const": lambda: g.const([1, 2]),
                "relu": lambda r=read: g.relu(r[0]),
            }
            made.append(one[kind]() if kind in one else getattr(g, kind)(*read[:2]))
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    return g.build(outputs)


PROGRAMS = [lenet, block, sixty, inception]
BAD = "<script>&\"'\n\x00\x1b[31m\ud800 ]]>"  # a name that would break a line, a page or a terminal


def groups(program: Program) -> list[ET.Element]:
    """The boxes of a drawing, in node order."""
    return [g for g in ET.fromstring(program.to_svg()).iter(f"{SVG}g") if "node" in g.get("class", "")]


SVG = "{http://www.w3.org/2000/svg}"

# -- the table -------------------------------------------------------------------------------------------------------


def test_summary_counts_parameters_and_bytes():
    lines = lenet().summary().splitlines()
    assert lines[0].split() == ["node", "op", "shapes", "dtype", "parameters", "bytes"]
    assert lines[1].split() == ["image", "input", "(1,", "28,", "28)", "float32", "3,136"]
    assert lines[3].split(maxsplit=2)[2].split("  ")[0] == "conv(padding=2)"
    assert "(1, 28, 28), (6, 1, 5, 5) -> (6, 28, 28)" in lines[3]
    parameters = 6 * 25 + 6 + 16 * 6 * 25 + 16 + 400 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10
    values = sum(4 * math.prod(node.shape) for node in lenet().nodes)
    assert lines[-2].split() == ["total", f"{parameters:,}", f"{values:,}"]
    assert lines[-1] == f"30 nodes, 2 inputs, 2 outputs, {parameters:,} parameters"


def test_summary_is_aligned():
    lines = sixty().summary().splitlines()
    end = lines[0].index("bytes") + len("bytes")
    for line in lines[1:-1]:
        assert re.fullmatch(r".* [0-9,]+", line[:end]), line
        assert line[end:].strip() in ("", "dead", "output 0", "output 1")


def test_summary_marks_outputs_and_dead_nodes():
    program = sixty()
    rows = program.summary().splitlines()[1:-2]
    assert [row.endswith("output 0") for row in rows].index(True) == program.outputs[0]
    assert [row.endswith("output 1") for row in rows].index(True) == program.outputs[1]
    assert [i for i, row in enumerate(rows) if row.endswith("dead")] == [
        node.id for node in program.nodes if node.id not in program.needed
    ]
    assert "60 nodes (1 dead), 1 input, 2 outputs" in program.summary()


@pytest.mark.parametrize(
    ("dtype", "size"), [("bool", 1), ("uint8", 1), ("int64", 8), ("float16", 2), ("complex64", 8), (None, 4)]
)
def test_bytes_follow_the_dtype(dtype, size):
    g = Graph()
    row = g.build(g.input((10,), dtype=dtype)).summary().splitlines()[1]
    assert row.split()[-2:] == [str(10 * size), "output"]


def test_summary_shows_arguments_not_defaults():
    g = Graph()
    x = g.input((1, 9, 9))
    w = g.const(np.ones((1, 1, 3, 3)))
    program = g.build([g.conv(x, w, stride=2), g.smooth_max_pool(x, 3, beta=2.5), g.relu(x), g.sum(x)]).batched(2)
    text = program.summary()
    for words in ("conv(stride=2)", "smooth_max_pool(kernel_size=3, axes=(-2, -1), beta=2.5)", "  relu  ", "sum(axes"):
        assert words in text


def test_a_mapped_op_shows_what_it_maps():
    g = Graph()
    x, w = g.input((1, 5, 5), name="x"), g.input((1, 1, 3, 3), name="w")
    text = g.build(g.conv(x, w, padding=1)).batched(2).summary()
    assert "mapped conv(op=conv(padding=1), flags=(True, True))" in text


def test_a_law_of_ones_own_looks_the_same_in_every_run():
    def text() -> str:
        law = Law(lambda x, t: x, lambda a, b: a + b, lambda s, n: (s, n), lambda g, x, t, n: g)
        g = Graph()
        program = g.build(g.push(Pool(law, 2), g.input((4, 4))))
        return program.summary() + program.to_svg()

    assert "0x" not in text()
    assert text() == text()


def test_a_name_is_one_printable_line_everywhere():
    g = Graph()
    program = g.build(g.relu(g.input((2,), name=BAD), name=BAD * 20))
    lines = program.summary().splitlines()
    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)
    text = program.to_svg()
    assert text.isprintable()
    text.encode()
    assert "<script" not in text
    assert ET.fromstring(text).find(f".//{SVG}script") is None


def test_wide_letters_count_twice():
    def width(name: str) -> str:
        g = Graph()
        return groups(g.build(g.input((2,), name=name)))[0].find(f"{SVG}rect").get("width")

    assert width("層" * 12) == width("x" * 24) != width("x" * 12)


# -- the drawing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", PROGRAMS)
def test_a_drawing_has_every_node_edge_and_shape(make):
    program = make()
    root = ET.fromstring(program.to_svg())
    assert len(groups(program)) == len(program.nodes)
    assert len([p for p in root.iter(f"{SVG}path") if p.get("class") == "edge"]) == sum(
        len(node.args) for node in program.nodes
    )
    shapes = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "shape"]
    assert not {str(node.shape) for node in program.nodes} - set(shapes)
    assert len(shapes) >= len(program.nodes)
    for node, group in zip(program.nodes, groups(program), strict=True):
        assert group.find(f"{SVG}text").text == node.label


def test_inputs_constants_outputs_and_dead_nodes_differ():
    program = sixty()
    looks = {}
    for node, group in zip(program.nodes, groups(program), strict=True):
        rect = group.find(f"{SVG}rect")
        keys = ("fill", "stroke", "stroke-dasharray", "style")
        looks.setdefault(group.get("class"), set()).add(
            (*map(rect.get, keys), group.get("opacity"), rect.get("rx") == "7")
        )
        words = [text.text for text in group.iter(f"{SVG}text")]
        assert ("dead" in words) == (node.id not in program.needed)
        assert any(word.startswith("output") for word in words) == (node.id in program.outputs)
    assert set(looks) == {"node input", "node const", "node op", "node op dead", "node op output"}
    assert all(len(found) == 1 for found in looks.values())
    assert len(set.union(*looks.values())) == len(looks)


def test_a_drawing_is_the_same_in_every_process():
    code = (
        "from tests.graph.test_draw import sixty, lenet; print(hash('a')); print(sixty().to_svg() + lenet().to_svg())"
    )
    runs = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        runs.append(done.stdout.split("\n", 1))
    assert runs[0][0] != runs[1][0]
    assert runs[0][1] == runs[1][1]


def test_arguments_out_of_order_are_numbered():
    g = Graph()
    a, b = g.input((2,), name="a"), g.input((2,), name="b")
    in_order, swapped = g.build(g.sub(a, b)), g.build([g.sub(a, b), g.sub(b, a), g.sub(a, b), g.sub(b, a)])
    assert "number" not in in_order.to_svg()
    numbers = [t.text for t in ET.fromstring(swapped.to_svg()).iter(f"{SVG}text") if t.get("class") == "number"]
    assert sorted(set(numbers)) == ["1", "2"]
    assert len(numbers) >= 4


def test_a_long_edge_says_its_shape_again():
    g = Graph()
    x = g.input((3, 5))
    h = x
    for _ in range(6):
        h = g.relu(h)
    chain, skip = g.build(h), g.build(h + x)
    assert "rotate(-90" not in chain.to_svg()
    assert skip.to_svg().count("rotate(-90") == 2  # the text and the patch behind it


def test_more_than_can_be_drawn_is_a_note(monkeypatch):
    monkeypatch.setattr(draw, "MOST", 59)
    text = sixty().to_svg()
    assert ET.fromstring(text).tag == f"{SVG}svg"
    assert "60 nodes (1 dead)" in text
    assert "too many nodes" in text
    assert len(text) < 1000


def test_notebooks_show_the_drawing():
    assert block()._repr_html_() == block().to_svg()


# -- the layout ------------------------------------------------------------------------------------------------------


def laid_out(program: Program, width: float = 80.0) -> layout.Layout:
    return layout.Layout(program, [(width + 7 * (node.id % 5), 40.0) for node in program.nodes])


@settings(max_examples=60, deadline=None)
@given(programs())
def test_nothing_overlaps_and_edges_go_down(program):
    found = laid_out(program)
    for row in found.rows:
        for a, b in pairwise(row):
            assert found.x[b] - found.x[a] >= (found.width(a) + found.width(b)) / 2 + layout.APART - 1e-6
    for node in program.nodes:
        for a in node.args:
            course = found.course(a, node.id)
            assert [layer for _, layer in course] == list(range(found.depth[a], found.depth[node.id] + 1))
            assert len(course) > 1
    assert found.top == sorted(found.top)
    assert len(found.x) == layout.crowd(program)
    assert min(found.x[place] - found.width(place) / 2 for place in found.x) == pytest.approx(layout.MARGIN)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_sweeps_never_add_crossings(program):
    swept = laid_out(program)._crossings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SWEEPS", 0)
        assert swept <= laid_out(program)._crossings()


def test_sweeps_untangle():
    g = Graph()
    inputs = [g.input((2,)) for _ in range(6)]
    made = [g.relu(x) for x in reversed(inputs)]
    assert laid_out(g.build(made))._crossings() == 0


def test_a_sweep_that_makes_it_worse_is_taken_back():
    g = Graph()
    a, b = g.input((2,)), g.input((2,))
    program = g.build([g.relu(a) + b, a + b, g.relu(b + a)])
    seen, count = [], layout.Layout._crossings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout.Layout, "_crossings", lambda self: seen.append(count(self)) or seen[-1])
        found = laid_out(program)
    assert max(seen) > min(seen)
    assert count(found) == min(seen)


@pytest.mark.parametrize(("make", "count"), [(lenet, 19), (block, 10), (sixty, 48), (inception, 13)])
def test_a_chain_stands_straight(make, count):
    """The longest line through a network is one x from top to bottom: all but constants, skips and side branches."""
    program = make()
    found = laid_out(program)
    (_, straight), *_ = Counter(found.of(node)[0] for node in program.nodes).most_common()
    assert straight == count


def test_constants_stand_just_above_their_reader():
    program = lenet()
    depth = layout.layers(program)
    for node in program.nodes:
        for a in node.args:
            if not program.nodes[a].args:
                assert depth[node.id] - depth[a] == 1, (program.nodes[a].label, node.label)


# -- in a browser ----------------------------------------------------------------------------------------------------

MEASURE = """
<script>
const found = [];
const inside = (a, b) =>
  a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
for (const svg of document.querySelectorAll("svg")) {
  const page = svg.getBoundingClientRect(), boxes = [], texts = [...svg.querySelectorAll("text")];
  for (const text of texts)
    if (!inside(text.getBoundingClientRect(), page)) found.push("off the page: " + text.textContent);
  for (const node of svg.querySelectorAll("g.node")) {
    const box = node.querySelector("rect").getBoundingClientRect();
    boxes.push(box);
    const lines = [...node.querySelectorAll("text")].map(text => text.getBoundingClientRect());
    for (const line of lines) if (!inside(line, box)) found.push("outside its box: " + node.textContent);
    lines.slice(1).forEach((line, i) => { if (line.bottom < lines[i].bottom + 9) found.push("lines overlap"); });
  }
  const labels = [...svg.querySelectorAll("text.shape")].map(text => text.getBoundingClientRect());
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => { if (!apart(a, b)) found.push("boxes overlap"); }));
  labels.forEach((a, i) => labels.slice(i + 1).forEach(b => { if (!apart(a, b)) found.push("shapes overlap"); }));
  labels.forEach(a => boxes.forEach(b => { if (!apart(a, b)) found.push("a shape is on a box"); }));
  found.push("measured " + boxes.length + " boxes and " + labels.length + " shapes");
}
document.body.innerHTML = "<pre>" + found.join("\\n") + "</pre>";
</script>
"""


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Run chromium with some options on a page."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    profile = tmp_path_factory.mktemp("profile")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]

    def run(page, *more: str) -> str:
        command = [chromium, *options, f"--user-data-dir={profile}", *more, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    return run


def test_every_word_fits_in_a_browser(browse, tmp_path):
    g = Graph()
    odd = g.build(g.relu(g.input((2,), name="畳み込み層" * 9), name=BAD * 9))
    drawn = [make() for make in PROGRAMS] + [odd]
    page = tmp_path / "page.html"
    html = "".join(program.to_svg() for program in drawn)
    page.write_text(f'<!doctype html><meta charset="utf-8"><body>{html}{MEASURE}', encoding="utf-8")
    dom = browse(page, "--window-size=3000,2000", "--dump-dom")
    lines = dom.split("<pre>")[1].split("</pre>")[0].splitlines()
    assert [line.split(" boxes")[0] for line in lines] == [f"measured {len(program.nodes)}" for program in drawn]


def test_a_drawing_renders_in_a_browser(browse, tmp_path):
    page, shot = tmp_path / "sixty.svg", tmp_path / "sixty.png"
    page.write_text(sixty().to_svg(), encoding="utf-8")
    browse(page, "--window-size=700,1200", f"--screenshot={shot}")
    data = shot.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (700, 1200)
    assert len(data) > 20_000  # a blank page of this size is some 5,000 bytes
