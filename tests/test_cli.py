"""The command line and the demo: what they print and write, and how they fail."""

from __future__ import annotations

import base64
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
import zlib
from dataclasses import replace

import numpy as np
import pytest

import ndpool
from ndpool import cli, demo, remembered
from ndpool.engines import native, portable


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of the demo, as a path."""
    path = tmp_path_factory.mktemp("demo") / "demo.html"
    assert demo.run(path) == 0
    return path


def fails(capsys, *argv) -> str:
    """The one line that a wrong command line prints."""
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ndpool: ")
    assert err.count("\n") == 1
    return err


def decode(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and the filtered rows of a PNG, checksums checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + length
    return *struct.unpack(">II", chunks[b"IHDR"][:8]), zlib.decompress(chunks[b"IDAT"])


# -- demo ------------------------------------------------------------------------------------------------------------


def test_demo_prints_every_op_with_its_ticks(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path / "a.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for op in demo.ops_shown():
        (line,) = (line for line in lines if line.startswith(f"{type(op).__name__} "))
        assert len(re.findall("✓|ok", line)) == (1 if op.law.no_derivative else 3), line
    assert "all 22 ops agree with the spec" in lines[-1]
    assert (tmp_path / "a.html").exists()


def test_demo_runs_every_record_but_those_with_a_law_of_your_own():
    records = {n for n in ndpool.__all__ if n.endswith("Pool")} - {"Pool", "AdaptivePool", "GlobalPool"}
    assert {type(op).__name__ for op in demo.ops_shown()} == records


def test_demo_ticks_are_words_where_the_terminal_has_no_tick(tmp_path):
    run = "import sys; from ndpool import demo; sys.exit(demo.run(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", run, str(tmp_path / "a.html")],
        capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=True,
    )  # fmt: skip
    assert b" ok " in done.stdout


def test_the_page_holds_the_figures_and_loads_nothing(page):
    html = page.read_text(encoding="utf-8")
    titles = re.findall(r"<figcaption><b>(.*?)</b>", html)
    assert len(titles) == 18
    wanted = ["Input", "Max", "Min", "Average", "Smooth max, beta=-5", "Smooth max, beta=2", "Smooth max, beta=20"]
    wanted += ["Lp, p=3", "Adaptive max", "Winners of max", "Gradient of max", "jvp of the spot", "Unpooled"]
    wanted += ["Labels", "Mode"]
    assert not set(wanted) - set(titles)
    images = re.findall(r'src="data:image/png;base64,(.*?)"', html)
    assert len(images) == len(titles)
    assert len(set(images)) == len(images)  # no two ops look the same
    assert decode(base64.b64decode(images[0]))[:2] == (128, 96)
    assert len(re.findall(r'<td class="mark">✓', html)) == 3 * 18 + 3 + 1
    assert html.count("<svg") == len(demo.WINDOWS)
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|@import|<script", html)


def test_the_scene_is_always_the_same_and_in_range():
    picture = demo.scene()
    assert picture.shape == (96, 128)
    assert np.array_equal(picture, demo.scene())
    assert picture.min() >= 0
    assert picture.max() <= 1


def test_png_keeps_every_pixel():
    pixels = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    width, height, rows = decode(demo.png(pixels))
    assert (width, height) == (5, 2)
    assert rows == b"".join(b"\0" + row.tobytes() for row in pixels)


@pytest.mark.parametrize("part", ["forward", "jvp", "vjp"])
def test_a_broken_engine_fails_the_demo(part, monkeypatch, tmp_path, capsys):
    right = portable.Portable.linearize

    def wrong(*args):
        linear = right(*args)
        broken = {
            "forward": {"y": linear.y * 1.001},
            "jvp": {"jvp": lambda dx: linear.jvp(dx) * 1.001},
            "vjp": {"vjp": lambda dy: linear.vjp(dy) * float("nan")},
        }
        return replace(linear, **broken[part])

    remembered.forget()
    monkeypatch.setattr(portable.Portable, "linearize", wrong)
    monkeypatch.setattr(native, "supports", lambda *_: False)
    assert cli.main(["demo", "--out", str(tmp_path / "a.html")]) == 1
    out = capsys.readouterr().out
    assert "18 of 22 ops differ from the spec" in out
    assert ("inf" if part == "vjp" else "1e-03") in out
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count('class="mark bad"') == 18


def test_a_broken_unpooling_fails_the_demo(monkeypatch, tmp_path, capsys):
    right = demo.max_unpool
    monkeypatch.setattr(demo, "max_unpool", lambda *args, **kwargs: right(*args, **kwargs) + 1)
    assert demo.run(tmp_path / "a.html") == 1
    assert "1 of 22 ops differ" in capsys.readouterr().out


def test_the_page_renders_in_a_browser(page, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    shot = tmp_path / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,2400", f"--screenshot={shot}"]
    subprocess.run([chromium, *options, page.as_uri()], capture_output=True, timeout=120, check=True)
    width, height, rows = decode(shot.read_bytes())
    assert (width, height) == (1280, 2400)
    # rows are differences from their neighbours: a blank page has hardly any
    assert np.count_nonzero(np.frombuffer(rows, np.uint8)) > 0.02 * len(rows)


# -- show ------------------------------------------------------------------------------------------------------------


def test_show_says_what_an_op_reads(capsys):
    assert cli.main(["show", "MaxPool(3, stride=2, padding=1)", "--shape", "3,32,32"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "MaxPool(kernel_size=3, stride=2, padding=1)",
        "(3, 32, 32) -> (3, 16, 16)",
        "output (7, 0) reads 6 taps; outside the input, not read: 3",
        "  axis 1: 13, 14, 15",
        "  axis 2: 0, 1",
    ]


def test_show_writes_the_picture(tmp_path, capsys):
    path = tmp_path / "window.svg"
    assert cli.main(["show", "AvgPool(63)", "--out", str(path)]) == 0
    assert "  axis 0: 0, 1, 2, ..., 61, 62\n" in capsys.readouterr().out
    assert ET.parse(path).getroot().tag.endswith("svg")


def test_show_of_a_window_without_taps(capsys):
    assert cli.main(["show", "GlobalSumPool(axes=0)", "--shape", "0"]) == 0
    assert "  axis 0: none\n" in capsys.readouterr().out


def test_show_lists_twelve_positions_and_leaves_out_the_middle_of_more(capsys):
    for n, listed in ((12, ", ".join(map(str, range(12)))), (13, "0, 1, 2, ..., 11, 12")):
        assert cli.main(["show", f"MaxPool(({n},))", "--shape", str(n)]) == 0
        assert f"  axis 0: {listed}\n" in capsys.readouterr().out


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_show_takes_every_rank_in_a_name(rank):
    assert cli.record(f"MinPool{rank}d(2)") == ndpool.MinPool(2, axes=tuple(range(-rank, 0)))


def test_show_takes_the_names_that_fingers_know():
    assert cli.record("ndpool.MaxPool2d(3, stride=2)") == ndpool.MaxPool(3, stride=2, axes=(-2, -1))
    assert cli.record(" AdaptiveAvgPool((None, 4)) ") == ndpool.AdaptiveAvgPool((None, 4))
    assert cli.record("SmoothMaxPool(2, beta=-1.5)") == ndpool.SmoothMaxPool(2, beta=-1.5)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("__import__('os')", "__import__ is not an ndpool record"),
        ("os.system('true')", "os.system is not an ndpool record"),
        ("MaxPol(3)", "use one like MaxPool"),
        ("Op()", "Op is not an ndpool record"),
        ("Law(1, 2, 3, 4)", "Law is not an ndpool record"),
        ("max_pool2d(2)", "max_pool2d is not an ndpool record"),
        ("MaxPool(2)(3)", "is not an ndpool record"),
        ("MaxPool(open('x'))", "open('x') is not a literal"),
        ("MaxPool(*[1])", "*[1] is not a literal"),
        ("MaxPool(**{'kernel_size': 2})", "unexpected keyword"),
        ("MaxPool", "MaxPool is not a call"),
        ("MaxPool(3", "is not an expression"),
        ("MaxPool(3); 1", "is not an expression"),
        ("", "is not an expression"),
        ("a" + ".a" * 5000 + "()", "is not an expression"),
        ("MaxPool()", "MaxPool: missing 1 required positional argument: 'kernel_size'"),
        ("MaxPool(3, speed=1)", "unexpected keyword argument 'speed'"),
        ("MaxPool(0)", "max_pool: kernel_size=0 is below 1"),
        ("Pool(3, 2)", "law=3 is not a Law"),
        ("MaxPool(3, axes=(0, 0))", "names an axis twice"),
    ],
)
def test_a_bad_record_is_one_line(expression, message, capsys):
    assert message in fails(capsys, "show", expression)


def test_a_bad_shape_is_one_line(capsys):
    assert "'3,a' is not a list of sizes" in fails(capsys, "show", "MaxPool(3)", "--shape", "3,a")
    assert "larger than the padded input" in fails(capsys, "show", "MaxPool(3)", "--shape", "2,2")


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_wrong_command_line_is_one_line(capsys):
    assert "required: COMMAND" in fails(capsys)
    assert "invalid choice" in fails(capsys, "dance")
    assert "try ndpool show --help" in fails(capsys, "show")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path / "no" / "a.html")]) == 2
    assert capsys.readouterr().err.startswith("ndpool: [Errno 2]")


def test_version_and_help(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ndpool {ndpool.__version__}\n"
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in cli.COMMANDS)


def test_the_cli_imports_commands_only_when_they_run():
    code = "import sys, ndpool.cli; sys.exit('ndpool.demo' in sys.modules or 'ndpool.picture' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
