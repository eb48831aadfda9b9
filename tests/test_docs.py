"""The documents keep their word: torchlean.md's table has no gap, every Python block runs, ARCHITECTURE.md is a map of
the files that are there, and the pictures are what docs/draw.py draws."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib.util
import inspect
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

import ndpool
from ndpool import arrays, graph, spec
from ndpool.errors import PoolError

from .test_house import FILES, LAYERS

ROOT = Path(__file__).parents[1]
SCOPE = {"ndpool": ndpool, "spec": spec, "Fraction": Fraction, "F": Fraction}

# Every definition of TorchLean's pooling pages, by page: its own name, or where it has none there, what it does.
REQUIRED = {
    "GraphM": [
        "max pooling node, any rank",
        "average pooling node, any rank",
        "smooth max pooling node, any rank",
        "2-D max pooling node",
        "2-D max pooling node, padded",
        "2-D smooth max pooling node",
        "2-D average pooling node",
        "2-D average pooling node, padded",
        "max pooling builder, any rank",
        "average pooling builder, any rank",
        "smooth max pooling builder, any rank",
        "2-D max pooling builder",
        "2-D max pooling builder, padded",
        "2-D smooth max pooling builder",
        "2-D average pooling builder",
        "2-D average pooling builder, padded",
    ],
    "N-D": [
        "N-D max pooling configuration",
        "N-D average pooling configuration",
        "kernel size of each axis (a field of both)",
        "stride of each axis (a field of both)",
        "symmetric padding of each axis (a field of both)",
        "output shape, any rank",
        "input lookup of average and smooth max: padding is a zero that counts",
        "getPaddedMaxInputVal?",
        "maxPoolValue",
        "derivative of max over one window",
        "smoothMaxPoolValue",
        "derivative of smooth max over one window",
        "maxPoolSpatialSpec",
        "jvp of max, without a channel axis",
        "avg_pool_spatial_spec",
        "vjp of max, without a channel axis",
        "vjp of average, without a channel axis",
        "tie rule of max: the first of equals in row-major order",
        "max_pool_spec",
        "maxPoolJvpSpec",
        "avg_pool_spec",
        "vjp of max, channels first",
        "vjp of average, channels first",
        "smooth_max_pool_spatial_spec",
        "jvp of smooth max, without a channel axis",
        "smooth_max_pool_spec",
        "jvp of smooth max, channels first",
        "smoothMaxPoolSpatialBackwardSpec",
        "vjp of smooth max, channels first",
    ],
    "2-D": [
        "MaxPool2DSpec",
        "AvgPool2DSpec",
        "2-D output shape",
        "2-D output shape, channels first",
        "2-D output shape, padded",
        "2-D output shape, padded, channels first",
        "smooth_max_pool2d_spec",
        "smooth_max_pool2d_multi_spec",
        "jvp of 2-D smooth max",
        "jvp of 2-D smooth max, channels first",
        "max_pool2d_spec",
        "2-D max, channels first",
        "jvp of 2-D max",
        "jvp of 2-D max, channels first",
        "avg_pool2d_spec",
        "2-D average, channels first",
        "first position of an adaptive bin",
        "end of an adaptive bin",
        "adaptive average",
        "adaptive max",
        "getValueAtPosition",
        "maxPool2dBackwardSpec",
        "vjp of 2-D max, channels first",
        "vjp of 2-D average",
    ],
    "padded 2-D": [
        "unpadImage",
        "unpadMultiChannel",
        "maxPool2dMultiSpecPad",
        "maxPool2dMultiJvpSpecPad",
        "avgPool2dMultiSpecPad",
        "maxPool2dMultiBackwardSpecPad",
        "avgPool2dMultiBackwardSpecPad",
        "smoothMaxPool2dBackwardSpec",
        "smoothMaxPool2dMultiBackwardSpec",
        "Image",
        "MultiChannelImage",
        "Context (what a scalar must bring)",
    ],
    "global": [
        "global average tag",
        "global max tag",
        "global output shape (C, 1, 1)",
        "global output shape (C)",
        "reduce_spatial",
        "alias of reduce_spatial for one channel",
        "a scalar as a 1 x 1 image",
        "global_pool2d_1x1",
        "global_pool2d_flat",
        "reduce with its VJP, in one value",
        "global average to (C, 1, 1)",
        "global max to (C, 1, 1)",
        "global average to (C)",
        "global max to (C)",
        "vjp of global average, from (C, 1, 1)",
        "vjp of global average, from (C)",
        "vjp of global max, from (C, 1, 1)",
        "vjp of global max, from (C)",
        "vjp of global max that splits among the maxima",
        "tie rule: all of the gradient to every maximum",
        "tie rule: even shares",
        "tie rule: the first maximum alone",
    ],
}


# -- the table of torchlean.md ---------------------------------------------------------------------------------------


class Row(NamedTuple):
    definition: str
    page: str
    names: str
    example: str


def rows() -> list[Row]:
    lines = (ROOT / "docs/torchlean.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    assert all(len(row) == 4 for row in cells), [row for row in cells if len(row) != 4]
    return [Row(row[0].replace("`", ""), *row[1:]) for row in cells if row[0] != "definition"]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def resolve(name: str) -> Any:
    """The object of a dotted name; a field of a record stands for itself, and a graph's ops are those of any graph."""
    first, *rest = name.split(".")
    found: Any = SCOPE[first]
    for part in rest:
        found = ndpool.Graph() if found is ndpool.Graph else found
        fields = getattr(found, "__dataclass_fields__", {})
        found = fields[part] if part in fields else getattr(found, part)
    return found


def ids(row: Row) -> str:
    return f"{row.page}: {row.definition}"


every_row = pytest.mark.parametrize("row", rows(), ids=ids)


@pytest.mark.parametrize("page", REQUIRED)
def test_table_covers_every_definition(page: str) -> None:
    found = [row.definition for row in rows() if row.page == page]
    assert not set(REQUIRED[page]) - set(found)
    assert len(found) == len(set(found))


@every_row
def test_table_names_resolve(row: Row) -> None:
    names = [token for token in code(row.names) if "=" not in token]
    assert names, "no ndpool name"
    for name in names:
        assert resolve(name) is not None
        assert name.rpartition(".")[2] in row.example, f"the example does not use {name}"


@every_row
def test_table_arguments_exist(row: Row) -> None:
    """An argument beside a name is one that the record takes, and the example passes it."""
    names = [token for token in code(row.names) if "=" not in token]
    for argument in (token for token in code(row.names) if "=" in token):
        record = names[0].split(".")[1]
        record = record if record[0].isupper() else "".join(part.title() for part in record.split("_"))
        assert argument.partition("=")[0] in {field.name for field in dataclasses.fields(getattr(ndpool, record))}
        assert argument in row.example


@every_row
def test_table_examples_are_true(row: Row) -> None:
    [example] = code(row.example)
    value = eval(example, dict(SCOPE))
    assert value is not False, f"{example} is False"
    assert solid(value), f"{example} gives {value!r}"


def solid(value: Any) -> bool:
    """Not empty, and finite all through."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(solid(part) for part in value)
    return value is not None and (not isinstance(value, (int, float, Fraction)) or math.isfinite(value))


# -- the signatures of graph-api.md ----------------------------------------------------------------------------------

OWNERS = {"Graph": graph.Graph, "Program": graph.Program, "Var": graph.Var, "Node": graph.Node}


def signatures() -> dict[str, list[str]]:
    """Each name in the first column of the page's tables, with the arguments shown."""
    found = {}
    for line in (ROOT / "docs/graph-api.md").read_text(encoding="utf-8").splitlines():
        for token in code(line.split(" | ")[0]) if line.startswith("| `") else []:
            if "<" not in token and ".__" not in token:
                name, _, rest = token.partition("(")
                call = ast.parse(f"f({rest or ')'}", mode="eval").body
                assert isinstance(call, ast.Call)
                arguments = [arg.value if isinstance(arg, ast.Starred) else arg for arg in call.args]
                found[name] = [ast.unparse(a) for a in arguments] + [
                    k.arg or ast.unparse(k.value) for k in call.keywords
                ]
    return found


def public(owner: type) -> set[str]:
    """What a class and its instances have that is not private."""
    fields = [field.name for field in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
    return {name for name in (*vars(owner), *fields) if not name.startswith("_")}


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_api_page_has_every_name() -> None:
    shown = set(signatures())
    assert not set(graph.__all__) - shown
    for name in ("Graph", "Program", "Var"):
        assert not {f"{name}.{part}" for part in public(OWNERS[name])} - shown
    assert not set(graph.OPS) - shown


@pytest.mark.parametrize("name", [name for name in signatures() if name[0].isupper() or name in graph.__all__])
def test_api_page_names_are_real(name: str) -> None:
    owner, _, part = name.partition(".")
    if part in getattr(OWNERS.get(owner), "__dataclass_fields__", {}):
        return
    found = getattr(OWNERS[owner], part) if part else getattr(graph, owner)
    if inspect.isfunction(found) or found in OWNERS.values():
        assert signatures()[name] == parameters(found)


@pytest.mark.parametrize("name", graph.OPS)
def test_api_page_ops_take_what_is_shown(name: str) -> None:
    """Arguments shown are variables first, as many as the op reads, and then arguments of the op in their order."""
    taken = parameters(graph.OPS[name])
    shown = signatures()[name]
    own = [argument for argument in shown if argument in taken]
    variables = shown[: len(shown) - len(own)]
    assert shown == variables + own
    assert own == [argument for argument in taken if argument in own]
    made = graph.OPS[name](
        **{argument: {"shape": (6,), "law": spec.SUM}.get(argument, 2) for argument in own[: required(name)]}
    )
    counts = [n for n in (1, 2) if accepts(made, n)]
    assert (1 if variables[0] == "xs" else len(variables)) == counts[0]
    assert (len(counts) == 2) == (variables[0] == "xs")


def required(name: str) -> int:
    return sum(p.default is p.empty for p in inspect.signature(graph.OPS[name]).parameters.values())


def accepts(op: Any, count: int) -> bool:
    try:
        op.out_shape(*[(2, 2, 2, 2)] * count)
    except TypeError:
        return False
    except PoolError:
        return True
    return True


# -- the map: ARCHITECTURE.md and the pictures -----------------------------------------------------------------------

MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src/ndpool"
SOURCES = (".py", ".pyi", ".h", ".cpp")


class MapRow(NamedTuple):
    layer: str
    folder: Path
    names: list[str]


@cache
def map_rows() -> list[MapRow]:
    """The rows of the table of files."""
    table = MAP.partition("## Files")[2].partition("## Invariants")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    rows = [(layer.strip(), code(folder)[0], code(words)) for layer, folder, words in cells if layer.strip() != "layer"]
    return [MapRow(layer, ROOT / folder, list(filter(is_path, names))) for layer, folder, names in rows]


def is_path(token: str) -> bool:
    return token.endswith((*SOURCES, ".txt", ".md", "/"))


def exists(name: str, *folders: Path) -> bool:
    return any(any(folder.glob(name.rstrip("/"))) for folder in folders)


def test_map_is_a_map_and_not_a_wall() -> None:
    assert len(MAP.splitlines()) <= 120


def test_every_file_that_the_map_names_exists() -> None:
    missing = [
        f"{row.folder.name}/{name}" for row in map_rows() for name in row.names if not exists(name, row.folder, ROOT)
    ]
    engines = PACKAGE / "engines"
    text = MAP.replace(MAP.partition("## Files")[2].partition("## Invariants")[0], "")
    named = {token for token in code(text) if is_path(token)} | set(re.findall(r"\]\(([^)#]+)\)", MAP))
    missing += sorted(name for name in named if not exists(name, ROOT, PACKAGE, engines, ROOT / "native"))
    assert not missing, ", ".join(missing)


def test_every_file_is_on_the_map() -> None:
    found = [f for folder in (PACKAGE, ROOT / "native") for f in folder.rglob("*") if f.suffix in SOURCES]
    rows = map_rows()
    left_out = [
        str(file.relative_to(ROOT))
        for file in found
        if file.name != "__init__.py" and not any(is_named(file, row) for row in rows)
    ]
    assert not left_out, ", ".join(sorted(left_out))


def is_named(file: Path, row: MapRow) -> bool:
    return file.parent == row.folder and any(file.match(name) for name in row.names if not name.endswith("/"))


def test_the_map_has_the_layers_that_imports_are_held_to() -> None:
    """`test_house` walks the imports; the map must tell the same layers, by the same numbers."""
    found: list[set[str]] = [set() for _ in LAYERS]
    for row in map_rows():
        if row.layer.isdigit():
            inside = row.folder.relative_to(PACKAGE).parts[:1] or [Path(name).stem for name in row.names]
            found[int(row.layer) - 1].update(inside)
    assert found == [set(names) - {"__init__"} for names in LAYERS]


# -- its invariants, where reading the code can tell; `test_house` has more ------------------------------------------

SPELLINGS = {"api", "torch.functional", "torch.nn", "jax.equinox"}  # where a rank may stand in a name
# headers that may use all of C++; kernels may not
HOST = ["plan", "threads", "memory", "pages", "kernels", "unpool", "processor", "run", "running", "tensors"]
HOST += ["xla", "xla_frame"]


def test_only_the_command_line_imports_the_whole_package() -> None:
    """Such an import would go past `test_house.test_imports_flow_one_way`."""
    found = set()
    for module, tree in FILES.items():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {module for name in names if name.partition(".")[0] == "ndpool"}
    assert found == {"typed"}


def test_no_rank_or_layout_in_a_name() -> None:
    wrong = re.compile(r"[1-9]d(?![a-z])|nchw|nhwc|padded", re.IGNORECASE)
    found = [
        f"{module}: {node.name}"
        for module in set(FILES) - SPELLINGS
        for node in ast.walk(FILES[module])
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and wrong.search(node.name)
    ]
    assert not found


def test_private_names_of_torch_stand_in_one_file() -> None:
    """Whether they are imported, used, or looked up by a string."""
    found = set()
    for module in (module for module in FILES if module.startswith("torch")):
        for node in ast.walk(FILES[module]):
            names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [node.value]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            if any(re.fullmatch(r"torch(\.\w+)*[.:]_(?!_)[\w.:]+", name) for name in names):
                found.add(module)
    assert found == {"torch.private"}


def test_what_kernels_may_not_use() -> None:
    sources = {file.name: re.sub(r"//.*", "", file.read_text(encoding="utf-8")) for file in (ROOT / "native").iterdir()}
    knows_python = {name for name, text in sources.items() if "Python.h" in text or '"running.h"' in text}
    assert knows_python == {"running.h", "module.cpp", "tensors.h"}  # and tensors.cpp, through its header
    assert {name for name, text in sources.items() if re.search(r"\b_mm\d*_|immintrin", text)} <= {
        "vec.h",
        "some_lanes.h",
        "half.h",
    }
    kernels = [name for name in sources if name.endswith(".h") and name.removesuffix(".h") not in HOST]
    kernels += [name for name in sources if name.startswith("kernels") and name.endswith(".cpp")]
    assert len(kernels) > 8
    banned = r"\bstd::(vector|string|map|set|function|shared_ptr|unique_ptr)\b|\b(throw|try|catch)\b"
    assert not [(name, found[0]) for name in kernels if (found := re.search(banned, sources[name]))]


# -- the pictures, and links between pages ---------------------------------------------------------------------------


def pictures() -> Any:
    """docs/draw.py, as a module."""
    spec_of = importlib.util.spec_from_file_location("draw", ROOT / "docs/draw.py")
    assert spec_of is not None
    assert spec_of.loader is not None
    module = importlib.util.module_from_spec(spec_of)
    spec_of.loader.exec_module(module)
    return module


DRAWN = ["architecture.svg", "pooling.svg", "pyramid.svg"]


@pytest.mark.parametrize("name", DRAWN)
def test_pictures_are_as_drawn(name: str) -> None:
    assert set(pictures().PICTURES) == set(DRAWN)
    drawn = pictures().PICTURES[name]()
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == drawn, "run `python docs/draw.py`"


def test_files_in_the_picture_exist() -> None:
    words = re.findall(r">([^<]+)</text>", (ROOT / "docs/architecture.svg").read_text(encoding="utf-8"))
    files = [name for text in words for name in re.findall(r"[\w/]+(?:\.py|/(?=\s|$))", text)]
    assert len(files) > 12
    places = (ROOT, PACKAGE, PACKAGE / "engines", PACKAGE / "torch", PACKAGE / "jax")
    assert not [name for name in files if not exists(name, *places)]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text) + re.findall(
        r'(?:src|href)="(?!https?:)([^"#]+)(#?)"', text
    )
    for target, anchor in links:
        file = page.parent / target if target else page
        assert file.exists(), f"{target} is not there"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads], anchor


# -- the Python blocks -----------------------------------------------------------------------------------------------


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Each ```python and ```sh block: the number of its first line, its language, and what is in it."""
    found = re.finditer(r"^```(python|sh)\b[^\n]*\n(.*?)^```[ \t]*$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(2)) + 1, match[1], match[2]) for match in found]


def run(name: str, text: str, shell: Callable[[str], object] | None = None) -> int:
    """Run a document's blocks in order, those of Python in one namespace, others by `shell`; the number of blocks."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    report: list[str] = []
    ran = 0
    for line, language, block in blocks(text):
        if language == "sh":
            if shell is None:
                continue
            shell(block)
        elif ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, namespace, name, name, line - 1)
            runner.run(test, out=report.append, clear_globs=False)
            namespace.update(test.globs)
        else:
            exec(compile("\n" * (line - 1) + block, name, "exec"), namespace)
        ran += 1
    assert not runner.failures, "".join(report)
    return ran


@pytest.mark.parametrize(
    ("document", "least"),
    [
        ("docs/guide.md", 10),
        ("docs/conventions.md", 10),
        ("docs/graph.md", 20),
        ("docs/graph-api.md", 2),
        ("docs/torch.md", 8),
        ("docs/arrays.md", 6),
        ("docs/jax.md", 7),
        ("README.md", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in its forward mode
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # and in its export
def test_python_blocks_run(document: str, least: int) -> None:
    if document in ("docs/torch.md", "README.md"):
        pytest.importorskip("torch", reason="it shows ndpool.torch")
    if document == "docs/arrays.md":
        for library in ("torch", "xarray", "pandas", "dask.array"):
            pytest.importorskip(library, reason="it shows these")
    if document == "docs/jax.md":
        pytest.importorskip("jax", reason="it shows ndpool.jax")
    # a block may set its own, register an op or a kind of array
    with np.printoptions(), mock.patch.dict(graph.OPS), mock.patch.dict(arrays._registered):
        assert run(document, (ROOT / document).read_text(encoding="utf-8")) >= least


@pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning")  # dask's, where it shows itself
def test_the_tutorial_of_large_arrays_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks in their order, in an empty folder; `ndpool` and `python` are these ones."""
    for library in ("zarr", "distributed"):
        pytest.importorskip(library, reason="it shows these")
    commands, folder = tmp_path / "bin", tmp_path / "here"
    for path in (commands, folder):
        path.mkdir()
    for name, call in {"ndpool": "-m ndpool", "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {call} "$@"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(ndpool.__file__).parents[1]))
    monkeypatch.chdir(folder)
    said: list[str] = []

    def shell(block: str) -> None:
        done = subprocess.run(["bash", "-ec", block], check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout)

    assert run("docs/large.md", (ROOT / "docs/large.md").read_text(encoding="utf-8"), shell) >= 10
    assert "killed" in said[-1]
    assert "unfinished-again.ome.zarr.journal" in said[-1]
    assert "refused" in said[-1]


def test_a_wrong_block_is_found() -> None:
    assert run("right", "```python\na = 1\n```\ntext\n```python\n>>> a\n1\n```\n") == 2
    with pytest.raises(AssertionError, match="Expected"):
        run("wrong value", "```python\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(ZeroDivisionError):
        run("wrong code", "```python\n1 / 0\n```\n")
