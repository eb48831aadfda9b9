"""The list of private names in docs/torch.md is what the adapter touches: found in its source, and in its table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import ndpool
from ndpool.torch import private

PACKAGE = Path(ndpool.__file__).parent
DOCS = Path(__file__).parents[2] / "docs" / "torch.md"


def listed() -> list[str]:
    section = DOCS.read_text().partition("## What it needs of torch")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def looked_up() -> list[str]:
    places = [*private.OPERATORS.values(), *private.PLAIN.values()]
    return [*(place.replace(":", ".") for place in places), private.TRACERS, private.CONSTANT, private.NODES]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """What ndpool itself defines under a private name: functions, classes, attributes, variables."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {*names, *vars(ndpool.op.Op)}


def touched(source: str) -> set[str]:
    """The private names, and the modules and strings with one in it, that are not ndpool's own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {part for part in (node.module or "").split(".") if is_private(part)}
            found |= {alias.name for alias in node.names if is_private(alias.name)}
        elif isinstance(node, ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".") if is_private(part)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found |= {part for part in re.split(r"[.:]", node.value) if is_private(part)}
    return found - own_names()


def test_the_list_is_the_table() -> None:
    assert listed() == looked_up()


@pytest.mark.parametrize("path", sorted((PACKAGE / "torch").glob("*.py")), ids=lambda path: path.stem)
def test_the_source_touches_nothing_else(path: Path) -> None:
    known = {part for place in looked_up() for part in place.split(".")}
    assert touched(path.read_text()) <= (known if path.stem == "private" else {"_current_level"})


def test_what_is_touched_is_seen() -> None:
    source = "from torch._C import _x\nimport torch._dynamo.y\nz._inductor_thing()\nvars(f)['_dynamo_mark']"
    assert touched(source) == {"_C", "_x", "_dynamo", "_inductor_thing", "_dynamo_mark"}
