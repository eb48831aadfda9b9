"""The kernels under every compiler that is installed, for x86-64 and aarch64: no warning, and the same bits from all.

    python -m tests.cross                     every compiler, and what is not there by name
    python -m tests.cross --only clang        those whose name has this in it
    python -m tests.cross --fuzz 300          on aarch64 the agreement tests too, and so many seconds of the fuzzer

What is built stays in build/cross. Kernels for aarch64 run under qemu-user, with the Python of `make arm64`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "cross"
ARM64 = ROOT / "build" / "arm64"  # a system with a Python, whose libraries are in `site`
TOOLS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # CMake and Ninja may be in the virtual environment
AGREEMENT = (
    ["tests/test_native_axes.py", "tests/test_digest.py"],
    ["tests/test_agreement.py", "-k", "native"],
    ["tests/test_native_thresholds.py"],
)


@dataclass(frozen=True)
class Compiler:
    """`target` is for a Clang that compiles for another processor. The generic set is all there is but on x86-64."""

    command: str
    processor: str = "x86_64"
    target: str = ""
    isas: tuple[str, ...] = ("generic", "v3")

    @property
    def name(self) -> str:
        return f"{self.command} for {self.processor}"


ARM = {"processor": "aarch64", "isas": ("generic",)}
COMPILERS = (
    *(Compiler(f"g++-{release}") for release in (11, 12, 13, 14)),
    *(Compiler(f"clang++-{release}") for release in (14, 15, 16, 17, 18, 19, 20)),
    *(Compiler(f"aarch64-linux-gnu-g++-{release}", **ARM) for release in (11, 12, 13, 14)),
    *(Compiler(f"clang++-{release}", target="aarch64-linux-gnu", **ARM) for release in (14, 16, 19)),
)


class Failure(Exception):
    pass


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cross", description="the kernels under every compiler")
    parser.add_argument("--only", default="", help="compilers whose name has this in it")
    parser.add_argument("--cases", default="1000", help="of a digest")
    parser.add_argument("--fuzz", type=int, default=0, help="seconds on aarch64, after the agreement tests")
    given = parser.parse_args(arguments)
    digests: dict[str, list[str]] = {}
    failed = False
    for compiler in (c for c in COMPILERS if given.only in c.name):
        if not shutil.which(compiler.command):
            print(f"{compiler.name}: skipped, it is not installed")
            continue
        try:
            began = time.monotonic()
            package = build(compiler)
            print(f"{compiler.name}: builds without a warning ({time.monotonic() - began:.0f} s)")
            if not (python := interpreter(compiler, package)):
                print("  not run: needs qemu-user and `make arm64`")
                continue
            for isa in compiler.isas:
                line = run(*python, "-m", "tests.digest", "--cases", given.cases, "--isa", isa)
                print(f"  {isa}: {line}")
                digests.setdefault(line, []).append(f"{compiler.name}, {isa}")
            if compiler.processor == "aarch64" and given.fuzz:
                for tests in AGREEMENT:
                    print(f"  {run(*python, '-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider', *tests)}")
                print(f"  {run(*python, '-m', 'tests.fuzz', '--seconds', str(given.fuzz))}")
        except Failure as failure:
            print(f"{compiler.name}: FAILED\n{failure}")
            failed = True
    if len(digests) > 1:
        print("DIFFERENT BITS", *(f"  {line}: {'; '.join(names)}" for line, names in digests.items()), sep="\n")
    return 1 if failed or len(digests) > 1 else 0


def build(compiler: Compiler) -> Path:
    """A folder with ndpool and the extension that this compiler makes."""
    place = BUILD / compiler.name.replace(" ", "-")
    # CMake is not told that this is for another processor: then it would look for that processor's Python
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": compiler.command,
        "CMAKE_CXX_COMPILER_TARGET": compiler.target,
        "CMAKE_CXX_FLAGS": "-Werror -DPy_LIMITED_API=0x030b0000",  # any Python may run it, whichever has the headers
        "Python_EXECUTABLE": sys.executable,
        "NDPOOL_ISAS": ";".join(compiler.isas),
    }
    defined = [f"-D{name}={value}" for name, value in options.items() if value]
    run("cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(place), *defined)
    run("cmake", "--build", str(place))
    package = place / "package"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "ndpool", package / "ndpool", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (extension,) = place.glob("_native.*.so")
    shutil.copy(extension, package / "ndpool" / "_native.abi3.so")  # a suffix that any interpreter takes
    return package


def interpreter(compiler: Compiler, package: Path) -> list[str]:
    """A Python that runs what was built, or nothing. -S: no ndpool but this one."""
    if compiler.processor == platform.machine():
        command, site = [sys.executable, "-S"], sysconfig.get_path("platlib")
    else:
        command, site = ["qemu-aarch64", "-L", str(ARM64), str(ARM64 / "usr/bin/python3"), "-S"], str(ARM64 / "site")
    if not shutil.which(command[0]) or not Path(site).exists():
        return []
    return ["env", f"PYTHONPATH={package}:{ROOT}:{site}", *command]


def run(*command: str) -> str:
    """The last line it says."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": TOOLS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"{' '.join(command)}\n{done.stdout[-4000:]}")
    return done.stdout.strip().rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(main())
