"""`ndpool doctor`: what it says with the native engine and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import ndpool
from ndpool import cli, doctor, settings
from ndpool.engines import native


@pytest.fixture(autouse=True)
def adapter(monkeypatch):
    """What the doctor asks of torch, which takes seconds to import: told here."""
    answer = ["torch adapter: in use on torch 2.71"]
    monkeypatch.setattr(doctor, "_adapter", lambda: answer)
    return answer


def said(capsys) -> str:
    assert cli.main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def told(code: str = "", **environ: str) -> str:
    """What `ndpool doctor` says about the native engine in a process of its own, after `code`."""
    quick = "from ndpool import doctor\ndoctor._adapter = list"  # importing torch takes seconds
    run = [sys.executable, "-c", f"{code}\n{quick}\nfrom ndpool.cli import main\nmain(['doctor'])"]
    environ = {**os.environ, "NDPOOL_ENGINE": "", **environ}
    out = subprocess.run(run, env=environ, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in out.splitlines() if line.startswith("native engine")]
    return line


def test_versions_engines_and_libraries_are_listed(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "OPTIONAL", ("numpy", "no-such-library"))
    out = said(capsys)
    assert f"ndpool {ndpool.__version__}\n" in out
    assert f"NumPy {np.__version__}\n" in out
    for name in ("native", "portable", "reference"):
        assert any(line.startswith(name + " ") for line in out.splitlines())
    assert out.splitlines()[-2].split() == ["numpy", np.__version__]
    assert out.splitlines()[-1].split() == ["no-such-library", "not", "installed"]


def test_the_native_engine_is_described(capsys, monkeypatch):
    answers = {"available": True, "reason": "", "isa": "v3", "isas": ("v4", "v3", "v2")}
    for name, answer in answers.items():
        monkeypatch.setattr(native, name, lambda answer=answer: answer)
    monkeypatch.setattr(settings.Held, "threads", 7)
    out = said(capsys)
    assert "native engine: in use\n" in out
    assert "instruction set v3, of those built in: v4, v3, v2\n" in out
    assert "threads 7\n" in out


def test_an_engine_that_is_not_in_use_says_why(capsys, monkeypatch):
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "reason", lambda: "the moon is full")
    assert "native engine: not in use; the moon is full\n" in said(capsys)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ModuleNotFoundError('no such module', name='ndpool._native')", ["not built", "GCC or Clang"]),
        ("ImportError('libstdc++ is too old')", ["does not load", "libstdc++ is too old", "again"]),
    ],
)
def test_a_missing_extension_and_a_broken_one_are_told_apart(error, words):
    finder = f"""
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "ndpool._native":
            raise {error}
sys.meta_path.insert(0, Finder())"""
    line = told(finder)
    assert all(word in line for word in ["not in use", *words])


def test_the_environment_switches_it_off():
    assert "not in use; NDPOOL_ENGINE=portable" in told(NDPOOL_ENGINE="portable")


@pytest.mark.skipif(os.environ.get("NDPOOL_NATIVE") != "1", reason="the build was free to fail")
def test_the_extension_that_had_to_be_built_is_there():
    assert told() == "native engine: in use"


def test_the_torch_adapter_is_described(capsys, adapter):
    adapter.append("  and a word of it")
    assert "\ntorch adapter: in use on torch 2.71\n  and a word of it\n\nengine" in said(capsys)


def run_adapter(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_torch_adapter_says_what_fails():
    code = """
import warnings
warnings.simplefilter("ignore")
from ndpool.torch import operators, state
def broken(*_):
    raise NotImplementedError("could not find kernel")
operators.TRIALS["torch.func.jvp"] = broken
print(*state.lines(), sep="\\n")"""
    lines = run_adapter(code)
    assert lines[0].startswith("torch adapter: ")
    if native.available():
        assert "in part on torch" in lines[0]
        assert "torch.func.jvp fail (NotImplementedError: could not find kernel)" in lines[1]
        assert "tried here: derivatives by torch.autograd, torch.func.grad" in lines[2]


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_library_that_does_not_load_is_told(library):
    code = f"""
import subprocess
from types import SimpleNamespace
from ndpool import doctor
doctor._installed = lambda name: "2.71" if name == {library!r} else "not installed"
doctor.subprocess = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=1, stderr="x\\nImportError: y\\n"))
print(*doctor._adapter())"""
    assert run_adapter(code) == [f"{library} adapter: not in use; it does not load: ImportError: y"]


def test_the_jax_adapter_is_described():
    pytest.importorskip("jax")
    lines = run_adapter("from ndpool.jax import state\nprint(*state.lines(), sep='\\n')")
    assert lines[0].startswith("jax adapter: in use on JAX ")
    assert ("XLA calls the native engine" in lines[0]) == native.available()


def test_no_library_is_imported_to_ask_its_version():
    code = "import sys; from ndpool.doctor import *; report(); sys.exit(any(name in sys.modules for name in OPTIONAL))"
    subprocess.run([sys.executable, "-c", code], check=True)
