"""`ndpool graph`: what it prints and writes, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from ndpool import Graph, Program, cli
from ndpool.graph.store import save
from ndpool.graph.table import OPS


def program(dtype: str | None = None) -> Program:
    g = Graph()
    x, y = g.input((4, 4), name="x", dtype=dtype), g.input((2, 2), name="y", dtype=dtype)
    h = g.max_pool(x, 2, name="pooled") * g.const(np.array([[1.0, 2.0], [3.0, 4.0]]), name="w")
    return g.build(h - y)


@pytest.fixture
def file(tmp_path):
    save(program(), tmp_path / "net.json")
    np.save(tmp_path / "x.npy", np.arange(16.0, dtype=np.float32).reshape(4, 4))
    np.save(tmp_path / "y.npy", np.ones((2, 2), np.float32))
    return tmp_path / "net.json"


def fails(capsys, *argv) -> str:
    """The one line that a wrong command line prints."""
    assert cli.main(["graph", *map(str, argv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ndpool: ")
    assert err[:-1].isprintable()
    assert err.endswith("\n")
    return err


# -- show and check --------------------------------------------------------------------------------------------------


def test_show_prints_the_table(file, capsys):
    assert cli.main(["graph", "show", str(file)]) == 0
    assert capsys.readouterr().out == program().summary() + "\n"


def test_show_writes_the_drawing(file, tmp_path, capsys):
    assert cli.main(["graph", "show", str(file), "--svg", str(tmp_path / "net.svg")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"picture in {tmp_path / 'net.svg'}"
    assert (tmp_path / "net.svg").read_text(encoding="utf-8") == program().to_svg()
    assert ET.parse(tmp_path / "net.svg").getroot().tag.endswith("svg")


def test_show_reads_constants_beside(tmp_path, capsys):
    save(program(), tmp_path / "net.json", "npz")
    assert cli.main(["graph", "show", str(tmp_path / "net.json")]) == 0
    assert "w" in capsys.readouterr().out
    (tmp_path / "net.npz").unlink()
    assert "node 3: in net.npz" in fails(capsys, "show", tmp_path / "net.json")


def test_check_prints_the_report(file, capsys):
    assert cli.main(["graph", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{program().check()}\n"


@dataclass(frozen=True)
class Wrong:
    """A derivative that is not one."""

    def out_shape(self, shape):
        return shape

    def forward(self, x):
        return x * x

    def jvp(self, x, dx):
        return x * dx

    def vjp(self, x, dy):
        return x * dy


def test_check_exits_with_1_if_a_derivative_is_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(OPS, "wrong", Wrong)
    g = Graph()
    save(g.build(g.push(Wrong(), g.input((3,)))), tmp_path / "net.json")
    assert cli.main(["graph", "check", str(tmp_path / "net.json")]) == 1
    assert "WRONG" in capsys.readouterr().out


# -- run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [("x.npy", "y.npy"), ("x=x.npy", "y=y.npy"), ("y=y.npy", "x=x.npy"), ("y=y.npy", "x.npy"), ("y.npy", "x=x.npy")],
)
def test_run_takes_inputs_in_order_or_by_name(inputs, file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [part for text in inputs for part in ("--input", text)]
    assert cli.main(["graph", "run", str(file), *given, "--out", "out.npy"]) == 0
    assert capsys.readouterr().out == "sub 5: float32 (2, 2)\nresults in out.npy\n"
    got = np.load("out.npy")
    assert got.dtype == np.float32
    assert got.tolist() == [[4.0, 13.0], [38.0, 59.0]]


def test_run_writes_several_outputs_to_an_npz(tmp_path, capsys):
    g = Graph()
    x = g.input((2,), name="x")
    save(g.build([g.neg(x), g.sum(x)]), tmp_path / "net.json")
    np.save(tmp_path / "x.npy", [1.0, 2.0])
    run = ["run", tmp_path / "net.json", "--input", tmp_path / "x.npy", "--out"]
    assert "cannot hold 2 outputs; use a name that ends in .npz" in fails(capsys, *run, tmp_path / "out.npy")
    assert cli.main(["graph", *map(str, run), str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].tolist() for name in found} == {"out0": [-1.0, -2.0], "out1": 3.0}


def test_run_needs_no_input_where_there_is_none(tmp_path):
    g = Graph()
    save(g.build(g.const(np.array([1.0, 2.0])) + g.const([1, 2])), tmp_path / "net.json")
    assert cli.main(["graph", "run", str(tmp_path / "net.json"), "--out", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found["out0"].tolist() == [2.0, 4.0]


def test_run_reads_bfloat16_where_the_program_says_so(tmp_path):
    save(program("bfloat16"), tmp_path / "net.json")
    given = []
    for name, shape in {"x": (4, 4), "y": (2, 2)}.items():
        np.save(tmp_path / f"{name}.npy", np.ones(shape, ml_dtypes.bfloat16))
        given += ["--input", f"{name}={tmp_path / name}.npy"]
    assert cli.main(["graph", "run", str(tmp_path / "net.json"), *given, "--out", str(tmp_path / "o.npy")]) == 0
    got = np.load(tmp_path / "o.npy").view(ml_dtypes.bfloat16)
    assert got.astype(float).tolist() == [[0.0, 1.0], [2.0, 3.0]]


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_wrong_inputs_are_one_line(file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("text.npy", np.array(["a"]))
    np.savez("x.npz", x=np.ones(3))
    with open("empty.npy", "wb"):
        pass
    with open("huge.npy", "wb") as huge:  # a header that speaks of more than there is
        np.lib.format.write_array_header_1_0(huge, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    out = ("--out", "o.npy")
    for given, words in {
        (): "0 files for the inputs x, y",
        ("x.npy",): "1 files for the inputs x, y",
        ("x.npy", "y.npy", "y.npy"): "3 files",
        ("x=x.npy", "x=x.npy"): "No such file",
        ("z=x.npy", "y.npy"): "No such file",
        ("no.npy", "y.npy"): "No such file",
        ("y.npy", "x.npy"): "input x has shape (2, 2), but the graph says (4, 4)",
        ("object.npy", "y.npy"): "Object arrays cannot be loaded",
        ("text.npy", "y.npy"): "text.npy holds <U1, not numbers",
        ("x.npz", "y.npy"): "x.npz is not an .npy file",
        ("empty.npy", "y.npy"): "empty.npy is not an .npy file",
        ("huge.npy", "y.npy"): "Unable to allocate",
    }.items():
        options = [part for text in given for part in ("--input", text)]
        assert words in fails(capsys, "run", file, *options, *out)
    assert not (tmp_path / "o.npy").exists()


def test_a_wrong_dtype_is_one_line(tmp_path, capsys):
    save(program("float64"), tmp_path / "net.json")
    np.save(tmp_path / "x.npy", np.ones((4, 4), np.float32))
    np.save(tmp_path / "y.npy", np.ones((2, 2), np.float32))
    given = ["--input", tmp_path / "x.npy", "--input", tmp_path / "y.npy"]
    assert "float32, not float64" in fails(capsys, "run", tmp_path / "net.json", *given, "--out", tmp_path / "o.npy")


def test_a_wrong_file_is_one_line(file, tmp_path, capsys):
    text = file.read_text()
    hostile = json.loads(text)
    hostile["nodes"][2]["name"] = "a\nb\x1b[31m"
    hostile["nodes"][2]["shape"] = [3, 3]
    for content, words in {
        "": "JSON",
        text[:100]: "net.json: JSON: ",
        text.replace('"version": 1', '"version": 9'): "version 9 is not 1",
        json.dumps(hostile): "node 2",
        "[" * 10**6: "nested",
    }.items():
        file.write_text(content)
        for command in ("show", "check"):
            assert words in fails(capsys, command, file)
        assert words in fails(capsys, "run", file, "--out", tmp_path / "o.npy")
    assert "No such file" in fails(capsys, "show", tmp_path / "no.json")
    assert "not a file" in fails(capsys, "show", tmp_path)


def test_a_wrong_command_line_is_one_line(file, tmp_path, capsys):
    assert "try ndpool graph --help" in fails(capsys)
    assert "invalid choice: 'dance'" in fails(capsys, "dance")
    assert "try ndpool graph show --help" in fails(capsys, "show")
    assert "required: --out" in fails(capsys, "run", file)
    assert "use a name that ends in .npz" in fails(capsys, "run", file, "--out", tmp_path / "out.txt")
    assert cli.main(["graph", "show", str(file), "--svg", str(tmp_path / "no" / "a.svg")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_what_arrays_say_is_one_line(tmp_path, capsys):
    g = Graph()
    save(g.build(g.sub(g.input((2,), name="x"), g.input((2,), name="y"))), tmp_path / "net.json")
    np.save(tmp_path / "x.npy", np.array([True, False]))
    given = ["--input", tmp_path / "x.npy", "--input", tmp_path / "x.npy", "--out", tmp_path / "o.npy"]
    assert "net.json: numpy boolean subtract" in fails(capsys, "run", tmp_path / "net.json", *given)


def test_a_program_too_large_to_check_is_one_line(file, capsys, monkeypatch):
    def check(program):
        raise MemoryError("Unable to allocate 8 TiB")

    monkeypatch.setattr(Program, "check", check)
    assert "net.json: Unable to allocate" in fails(capsys, "check", file)


def test_help_names_the_three_commands(capsys):
    assert cli.main(["graph", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("show", "check", "run"))
    assert cli.main(["graph", "run", "--help"]) == 0
    assert "[NAME=]X.npy" in capsys.readouterr().out


def test_the_cli_loads_files_and_drawings_only_when_asked():
    code = "import sys, ndpool.cli; sys.exit(any(f'ndpool.graph.{m}' in sys.modules for m in ('store', 'draw')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
