"""Every family of kernels compiles for a GPU that is not here (compute capability 9.0)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("rows", [["--few"], pytest.param([], marks=pytest.mark.long)], ids=["few", "all"])
def test_kernels_compile_for_sm_90(rows: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.triton.compiled", *rows]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("kernels") > 20
