"""What a wheel holds, and that it works where it is installed: `python -m tests.installed WHEEL`, from any folder."""

from __future__ import annotations

import re
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import ndpool
from ndpool.engines import native

PARTS = r"ndpool/([a-z_]+/)*[a-z_]+\.pyi?|ndpool/py\.typed|ndpool/_native\.abi3\.so|ndpool-[^/]+\.dist-info/.+"


def strangers(wheel: str) -> list[str]:
    """Files that no user needs: all but modules, the extension and what describes the package."""
    with zipfile.ZipFile(wheel) as files:
        return [file.filename for file in files.infolist() if not (file.is_dir() or re.fullmatch(PARTS, file.filename))]


def first_example(readme: str) -> str:
    """The first block of Python."""
    found = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert found, "the README has no example"
    return found[1]


def main(wheel: str) -> None:
    assert not (odd := strangers(wheel)), f"{wheel} has files that no user needs: {', '.join(odd)}"
    place = Path(ndpool.__file__)
    assert place.is_relative_to(sysconfig.get_path("platlib")), f"this is {place}, not what the wheel installed"
    assert native.available(), native.reason()
    scope: dict[str, Any] = {}
    exec(first_example(Path("README.md").read_text()), scope)
    op, x = scope["op"], scope["x"]
    assert native.supports(op.window(x.shape), op.law, x), "the README's first example takes another engine"
    size = Path(wheel).stat().st_size
    print(f"{Path(wheel).name}: {size / 1e6:.1f} MB, instruction sets {', '.join(native.isas())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
