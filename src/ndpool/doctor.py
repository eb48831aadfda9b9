"""`ndpool doctor`: what is installed here, which engines run, and if one does not, why."""

from __future__ import annotations

import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from . import __version__, settings
from .engines import native, triton

ENGINES = {
    "native": ("NumPy arrays on the CPU", "the laws of ndpool"),
    "triton": ("torch's tensors on a CUDA GPU", "the laws of ndpool"),
    "portable": ("arrays of any array-API library", "the laws of ndpool"),
    "reference": ("nested lists of any scalar, NumPy arrays", "any law, yours too"),
}
OPTIONAL = ("torch", "jax", "triton", "dask", "distributed", "zarr", "tifffile", "h5py", "onnx")


def report() -> str:
    """What `ndpool doctor` prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a setting that cannot be used is in the report
        return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield f"ndpool {__version__}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()}, {platform.platform()})"
    yield f"NumPy {np.__version__}"
    yield ""
    if native.available():
        yield "native engine: in use"
        yield f"  instruction set {native.isa()}, of those built in: {', '.join(native.isas())}"
        yield f"  threads {settings.threads()}"
    else:
        yield f"native engine: not in use; {native.reason()}"
    if triton.available():
        yield "triton engine: in use where there is a GPU of compute capability {}.{} or more".format(*triton.LEAST)
    else:
        yield f"triton engine: not in use; {triton.reason()}"
    yield from _adapter()
    yield ""
    yield from _table([("engine", "runs", "under"), *((name, *served) for name, served in ENGINES.items())])
    yield ""
    yield "settings"
    yield from (f"  {variable.report()}" for variable in settings.VARIABLES)
    yield ""
    yield "optional libraries"
    yield from _table([("  " + name, _installed(name)) for name in OPTIONAL])


def _adapter() -> list[str]:
    """What the adapters find, each in a process of its own: importing torch or JAX takes seconds, and may fail."""
    return [line for name in ("torch", "jax") if _installed(name) != "not installed" for line in _state(name)]


def _state(name: str) -> list[str]:
    done = subprocess.run([sys.executable, "-m", f"ndpool.{name}.state"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.splitlines()
    return [f"{name} adapter: not in use; it does not load: {done.stderr.strip().rpartition(chr(10))[2]}"]


def _installed(name: str) -> str:
    """Its version, from its metadata: importing torch to ask takes seconds."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The rows, their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
