"""Installing where the extension does not build: what is said, and what is installed all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import ndpool
from ndpool.engines import native

ROOT = Path(__file__).parents[1]
WORD = "installed without the native engine, which does not build: "
builds = pytest.mark.skipif(
    find_spec("scikit_build_core") is None or not shutil.which("c++") or not (ROOT / "install").exists(),
    reason="needs the sources, scikit-build-core and a compiler",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a source distribution has."""
    tree = tmp_path / "tree"
    for name in ("src", "native", "install"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    return tree


def compiler(tree: Path, script: str) -> str:
    """A compiler that takes what the real one does, but for sources of native/."""
    path = tree / "c++"
    path.write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("c++")} "$@"\n')
    path.chmod(0o755)
    return str(path)


def build(tree: Path, hook: str = "build_wheel", **environ: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, 'install'); import backend; print(backend.{hook}('out'))"
    clean = {name: value for name, value in os.environ.items() if name != "NDPOOL_NATIVE"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env={**clean, "PATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def not_built(tree: Path) -> str:
    """What the only wheel says about its extension."""
    (wheel,) = (tree / "out").iterdir()
    with zipfile.ZipFile(wheel) as files:
        assert "ndpool/engines/portable.py" in files.namelist()
        return files.read("ndpool/not_built.txt").decode()


@builds
def test_a_source_that_does_not_compile_is_named(tree):
    error = "native/kernels_lp.cpp:3:1: error: no such luck"
    broken = compiler(
        tree,
        f"""
case "$*" in
  *kernels_lp.cpp) echo '{error}' >&2; exit 1 ;;
  *native/*.cpp) while [ "$1" != -o ]; do shift; done; touch "$2"; exit ;;
esac""",
    )
    done = build(tree, CXX=broken)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"ndpool-{ndpool.__version__}-py3-none-any.whl"
    assert error in done.stdout  # where the build said so
    assert done.stderr.splitlines()[-1] == f"ndpool: {WORD}{error}"
    assert not_built(tree) == error
    assert not (tree / "src/ndpool/not_built.txt").exists()


@builds
def test_a_compiler_that_does_not_work_is_named(tree):
    done = build(tree, CXX="/bin/false")
    assert done.returncode == 0
    word = done.stderr.splitlines()[-1]
    assert word.startswith(f"ndpool: {WORD}CMake Error")
    assert "/bin/false" in word
    assert not_built(tree) in word


@builds
def test_a_failure_is_an_error_where_the_extension_is_asked_for(tree):
    done = build(tree, CXX="/bin/false", NDPOOL_NATIVE="1")
    assert done.returncode == 1
    assert "the native engine does not build: CMake Error" in done.stderr.splitlines()[-1]
    assert not (tree / "out").exists() or not list((tree / "out").iterdir())


@builds
def test_no_extension_is_built_where_none_is_asked_for(tree):
    done = build(tree, NDPOOL_NATIVE="0")
    assert done.stderr == ""
    assert not_built(tree) == "NDPOOL_NATIVE=0 asked for that"


@builds
def test_sources_that_are_the_package_keep_the_reason(tree):
    assert build(tree, "build_editable", CXX="/bin/false").returncode == 0
    assert "CMake Error" in (tree / "src/ndpool/not_built.txt").read_text()
    assert build(tree, "build_sdist").returncode == 0
    assert not (tree / "src/ndpool/not_built.txt").exists()


OUTPUTS = {
    "a compiler": (
        "[1/9] c++\na.h: In function:\na.h:1:2: error: no\na.h:3:4: error: nor that\n",
        "a.h:1:2: error: no",
    ),
    "CMake": ("-- ok\nCMake Error at a:1 (message):\n  The\n\n    x\n\n-- no\n", "CMake Error at a:1 (message): The x"),
    "a compiler that is silent": ("[1/9] c++\nFAILED: a.o \nc++ a.cpp\nninja: build stopped\n", "FAILED: a.o"),
    "anything else": ("going\ngone\n\n", "gone"),
    "nothing": ("", "it said nothing"),
    "a long one": ("error: " + "x" * 999, "error: " + "x" * 289 + " ..."),
}


@builds
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_first_error_of_a_build_is_found(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "install"))
    from backend import first_error

    output, error = OUTPUTS[name]
    assert first_error(output) == error


def test_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "NOT_BUILT", tmp_path / "not_built.txt")
    assert native._why_not_built() == ""
    (tmp_path / "not_built.txt").write_text("a.h:1:2: error: no")
    assert native._why_not_built() == " (a.h:1:2: error: no)"
