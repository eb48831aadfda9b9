"""What pip asks for a wheel: scikit-build-core's; and where the extension does not build, the Python files alone.

Why it did not build is the last line of `pip install -v`, and in the package for `ndpool doctor`: `not_built.txt`.
NDPOOL_NATIVE=0 asks for the Python files alone, NDPOOL_NATIVE=1 makes a failure an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import get_requires_for_build_editable as get_requires_for_build_editable
from scikit_build_core.build import get_requires_for_build_sdist as get_requires_for_build_sdist
from scikit_build_core.build import get_requires_for_build_wheel as get_requires_for_build_wheel

NOT_BUILT = Path("src/ndpool/not_built.txt")
LONGEST = 300  # characters of an error
ERRORS = (  # the first line that has the first of these; then the second, ...
    r"\berror: ",  # a compiler's, or a linker's
    r"^CMake Error",
    r"^FAILED: ",  # Ninja's, of a compiler that said nothing
)


def build_sdist(*arguments: Any) -> str:
    NOT_BUILT.unlink(missing_ok=True)
    return build.build_sdist(*arguments)


def build_wheel(*arguments: Any) -> str:
    try:
        return _build(build.build_wheel, *arguments)
    finally:
        NOT_BUILT.unlink(missing_ok=True)


def build_editable(*arguments: Any) -> str:
    return _build(build.build_editable, *arguments)  # the sources are the package: the file stays


def _build(build_one: Callable[..., str], *arguments: Any) -> str:
    NOT_BUILT.unlink(missing_ok=True)
    if os.environ.get("NDPOOL_NATIVE") == "0":
        NOT_BUILT.write_text("NDPOOL_NATIVE=0 asked for that", encoding="utf-8")
        return build_one(*arguments)
    try:
        with _echoed() as lines:
            wheel = build_one(*arguments)
        if not wheel.endswith("-py3-none-any.whl"):
            return wheel
        why = "there is no CMake here, and none to fetch"  # the override in pyproject.toml
    except SystemExit:
        why = first_error(b"".join(lines).decode(errors="replace"))
        if os.environ.get("NDPOOL_NATIVE") == "1":
            _say(f"ndpool: the native engine does not build: {why}")
            raise
    NOT_BUILT.write_text(why, encoding="utf-8")
    os.environ["NDPOOL_NATIVE"] = "0"
    wheel = build_one(*arguments)
    _say(f"ndpool: installed without the native engine, which does not build: {why}")
    return wheel


def first_error(output: str) -> str:
    """What a build's output says first about why it failed, in one line."""
    lines = output.splitlines()
    for pattern in ERRORS:
        for i, line in enumerate(lines):
            if re.search(pattern, line):
                return _shortened(" ".join([line, *_indented(lines[i + 1 :])]) if line.startswith("CMake") else line)
    return _shortened(next((line for line in reversed(lines) if line.strip()), "it said nothing"))


def _indented(lines: list[str]) -> Iterator[str]:
    """The text of CMake's error, which stands below it."""
    for line in lines:
        if line.strip() and not line.startswith("  "):
            return
        yield line


def _shortened(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 4] + " ..."


def _say(line: str) -> None:
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _echoed() -> Iterator[list[bytes]]:
    """The lines that this process and those it starts write, which are written all the same."""
    lines: list[bytes] = []
    reading, writing = os.pipe()
    _flush()
    kept = [os.dup(1), os.dup(2)]

    def echo() -> None:
        with open(reading, "rb") as written, open(kept[0], "wb", closefd=False) as on:
            for line in written:
                lines.append(line)
                on.write(line)
                on.flush()

    echoing = threading.Thread(target=echo)
    echoing.start()
    for stream in (1, 2):
        os.dup2(writing, stream)
    os.close(writing)
    try:
        yield lines
    finally:
        _flush()
        for stream, held in zip((1, 2), kept, strict=True):
            os.dup2(held, stream)
        echoing.join()
        for held in kept:
            os.close(held)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
