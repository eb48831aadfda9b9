"""Programs as files: versioned JSON, with constants inside it or in an .npz beside it.

    {"format": "ndpool-program", "version": 1, "nodes": [...], "outputs": [ids]}
    node:  {"op": a name of OPS, "args": [ids], "params": {field: literal}, "shape": [...], "name": ..., "dtype": ...}
    const: "params" is {"dtype": ..., "base64": little-endian bytes}, {"dtype": ..., "npz": "c<id>"} or
           {"exact": ["3/4", "0.5", "3", ...]}, a string for each Fraction, float and int

Reading order: limits, writing, reading, constants. A file is data: nothing in it is run but the constructors of the ops
that it names (`literals`). Every size is compared with what is there before memory is taken, and the graph is built
again node by node, so its rules are checked by the code that made it. What is wrong is one line that says where.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from ..engines import dtypes
from .build import Graph, Var
from .draw import plain
from .literals import at, read, seen, write
from .node import GraphError, Shape, exact
from .program import Const, Input, Node, Program

FORMAT, VERSION = "ndpool-program", 1
NODES = 20_000
BYTES = 2**32  # of a file, unless `load` is told otherwise
ELEMENTS, CONSTANTS = 2**40, 2**31  # of all values together, of all constants together
NESTING, RANK, DIGITS = 64, 64, 4300  # of brackets, of a shape, of an exact number
DIRECTORY = 256 * NODES  # bytes of an .npz that list its arrays

# what the bytes of each dtype are; long doubles are left out: their bytes differ from machine to machine
DTYPES = {
    "bool": "|b1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
    "uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8",
    "float16": "<f2", "bfloat16": "<u2", "float32": "<f4", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
}  # fmt: skip

# -- writing ---------------------------------------------------------------------------------------------------------


def to_json(program: Program) -> str:
    """The program as JSON, always the same for the same program; constants inside, as base64 or exact strings.

    >>> g = Graph()
    >>> program = g.build(g.max_pool(g.input((4, 4), name="x"), 2))
    >>> print(to_json(program))
    {"format": "ndpool-program", "version": 1, "nodes": [
    {"op": "input", "args": [], "params": {}, "shape": [4, 4], "name": "x", "dtype": null},
    {"op": "max_pool", "args": [0], "params": {"kernel_size": 2}, "shape": [2, 2], "name": null, "dtype": null}
    ], "outputs": [1]}
    >>> from_json(to_json(program)) == program
    True
    """
    return _text(program, None)


def save(program: Program, path: str | Path, constants: Literal["inline", "npz"] = "inline") -> None:
    """Write the program to `path`; with constants="npz" its arrays go to an .npz of the same stem beside it."""
    path = Path(path)
    if constants not in ("inline", "npz"):
        raise GraphError(f'save: constants={constants!r} is not a rule; use "inline" or "npz"')
    if constants == "npz" and path.suffix == ".npz":
        raise GraphError(f"save: {path.name} would be overwritten by its constants; use a path that ends in .json")
    arrays: dict[str, Any] = {}
    text = _text(program, arrays if constants == "npz" else None)
    if arrays:
        np.savez(path.with_suffix(".npz"), **arrays)
    path.write_text(text, encoding="utf-8")


def _text(program: Program, arrays: dict[str, Any] | None) -> str:
    with at("program"):
        if len(program.nodes) > NODES:
            raise GraphError(f"{len(program.nodes)} nodes are more than the {NODES} that a file holds")
        nodes = ",\n".join(json.dumps(_write_node(node, arrays)) for node in program.nodes)
        head = f'{{"format": "{FORMAT}", "version": {VERSION}, "nodes": [\n'
        text = f'{head}{nodes}\n], "outputs": {json.dumps(list(program.outputs))}}}'
        _check_nesting(text)
        return text


def _write_node(node: Node, arrays: dict[str, Any] | None) -> dict[str, Any]:
    with at(f"node {node.id} ({plain(node.label, 40)})"):
        if isinstance(node.op, (Input, Const)):
            params = _write_const(node, arrays) if isinstance(node.op, Const) else {}
            _check_dtype(node.dtype)
            op = {"op": node.op.name, "params": params}
        else:
            op = write(node.op)
        about = {"shape": list(node.shape), "name": node.name, "dtype": node.dtype}
        return {"op": op["op"], "args": list(node.args), "params": op["params"], **about}


def _write_const(node: Node, arrays: dict[str, Any] | None) -> dict[str, Any]:
    value = node.op.value
    if exact(value):
        return {"exact": [_write_exact(entry) for entry in value.reshape(-1)]}
    _check_dtype(dtype := dtypes.name(value.dtype))
    # bfloat16, which NumPy has no name for, as its bits
    bits = np.asarray(value.view(np.uint16) if dtype == "bfloat16" else value, dtype=DTYPES[dtype], order="C")
    if arrays is None:
        return {"dtype": dtype, "base64": base64.b64encode(bits.tobytes()).decode("ascii")}
    arrays[f"c{node.id}"] = bits
    return {"dtype": dtype, "npz": f"c{node.id}"}


def _write_exact(value: Any) -> str:
    """A scalar in words that say its type: 3, 0.75, 3/4, True."""
    if type(value) not in (int, float, Fraction, bool):
        raise GraphError(f"it holds a {type(value).__qualname__}; use ints, floats or Fractions, or pass an array")
    return f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else str(value)


# -- reading ---------------------------------------------------------------------------------------------------------


def from_json(text: str) -> Program:
    """The program that `to_json` wrote; a GraphError in one line for anything else."""
    with at("program file"):
        return _rebuild(_parse(text), None)


def load(path: str | Path, limit: int = BYTES) -> Program:
    """The program that `save` wrote to `path`. Neither the file nor an .npz beside it may have more than `limit` bytes:
    what is read takes about as much memory."""
    path = Path(path)
    size, beside = path.stat().st_size, path.with_suffix(".npz")
    with at(path.name), ExitStack() as stack:
        _check_size(path, size, limit)

        @cache
        def opened() -> _Npz:
            _check_size(beside, beside.stat().st_size, limit)
            return _Npz(stack.enter_context(_Bounded(io.FileIO(beside))))

        def archive(said: _Said, dtype: np.dtype[Any]) -> Any:
            with at(f"in {beside.name}"):
                return opened().read(said, dtype)

        return _rebuild(_parse(path.read_bytes().decode("utf-8")), archive)


def _check_size(path: Path, size: int, limit: int) -> None:
    if not path.is_file():
        raise GraphError("not a file")
    if size > limit:
        raise GraphError(
            f"{size} bytes, more than the {limit} that are read; if you trust it: load(path, limit={size})"
        )


def _parse(text: Any) -> dict[str, Any]:
    """The JSON, without what JSON allows and programs never have: repeated keys, NaN, numbers of any length."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(made := dict(found)) < len(found):
            raise GraphError(f"a key is there twice, of {seen([key for key, _ in found])}")
        return made

    def whole(digits: str) -> int:
        return int(digits) if len(digits) <= 20 else refuse(digits)

    def real(digits: str) -> float:
        return number if len(digits) <= 100 and math.isfinite(number := float(digits)) else refuse(digits)

    def refuse(token: str) -> NoReturn:
        raise GraphError(f"{plain(token, 24)} is too long, too large or no number at all")

    with at("JSON"):
        if not isinstance(text, str):
            raise GraphError(f"a {type(text).__qualname__} is not a str")
        _check_nesting(text)
        hooks: dict[str, Any] = {"parse_int": whole, "parse_float": real, "parse_constant": refuse}
        found = json.loads(text, object_pairs_hook=pairs, **hooks)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise GraphError(f'this is not a program, which starts {{"format": "{FORMAT}"')
    if type(found.get("version")) is not int or found["version"] != VERSION:
        raise GraphError(f"version {seen(found.get('version'))} is not {VERSION}, the one that this ndpool reads")
    _check_keys(found, ("format", "version", "nodes", "outputs"))
    return found


def _check_nesting(text: str) -> None:
    depth = 0
    # a string, whole or cut off, or a bracket: every position is looked at once
    for found in re.finditer(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{\]}]', text, re.DOTALL):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > NESTING:
            raise GraphError(f"brackets are nested more than {NESTING} deep")


def _check_keys(found: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in (*keys, *found):
        if (key in found) != (key in keys):
            raise GraphError(f"{'unknown' if key in found else 'missing'} key {seen(key)}")


@dataclass(frozen=True)
class _Said:
    """A node as the file has it, each part of the right type."""

    id: int
    op: str
    args: list[int]
    params: dict[str, Any]
    shape: Shape
    name: str | None
    dtype: str | None

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def _rebuild(found: dict[str, Any], archive: Archive | None) -> Program:
    """Build the graph again; what it says of each node must be what the file says."""
    graph = Graph()
    if not isinstance(found["nodes"], list) or len(found["nodes"]) > NODES:
        raise GraphError(f"nodes are {seen(found['nodes'])}, not a list of at most {NODES}")
    elements = constants = 0
    for i, node in enumerate(found["nodes"]):
        with at(f"node {i}"):
            said = _read_node(node, i)
            elements, constants = elements + said.count, constants + said.count * (said.op == "const")
            if elements > ELEMENTS or constants > CONSTANTS:
                raise GraphError(f"with shape {said.shape}, over {ELEMENTS} elements, or {CONSTANTS} in constants")
            made = _rebuild_node(graph, said, archive).node
            for part in ("shape", "name", "dtype"):
                if (got := getattr(made, part)) != (wanted := getattr(said, part)):
                    raise GraphError(f"{part} is {seen(wanted)} in the file, but the op gives {seen(got)}")
    with at("outputs"):
        return graph.build([Var(graph, i) for i in _read_ids(found["outputs"], len(graph.nodes))])


def _rebuild_node(graph: Graph, said: _Said, archive: Archive | None) -> Var:
    if said.op in ("input", "parameter", "const"):
        if said.args:
            raise GraphError(f"{said.op} reads nothing, but has args {said.args[:9]}")
        if said.op == "const":
            return graph.const(_read_const(said, archive), said.name)
        if said.params:
            raise GraphError("an input has no params")
        given = graph.input if said.op == "input" else graph.parameter
        return given(said.shape, said.name, said.dtype and _numpy(said.dtype))
    return graph.push(read(said.op, said.params), *(Var(graph, a) for a in said.args), name=said.name)


def _read_node(found: Any, i: int) -> _Said:
    if not isinstance(found, dict):
        raise GraphError(f"{seen(found)} is not a node")
    _check_keys(found, ("op", "args", "params", "shape", "name", "dtype"))
    types: dict[str, Any] = {"op": str, "params": dict, "shape": list, "name": str | None, "dtype": str | None}
    for key, kind in types.items():
        if not isinstance(found[key], kind):
            raise GraphError(f"{key} is {seen(found[key])}, not a {getattr(kind, '__name__', 'str or null')}")
    _check_dtype(found["dtype"])
    if len(found["shape"]) > RANK or not all(type(n) is int and 0 <= n < 2**63 for n in found["shape"]):
        raise GraphError(f"shape is not at most {RANK} sizes from 0 to 2**63 - 1: {plain(str(found['shape'][:9]), 99)}")
    with at("args"):
        args = _read_ids(found["args"], i)
    return _Said(i, found["op"], args, found["params"], tuple(found["shape"]), found["name"], found["dtype"])


def _check_dtype(dtype: str | None) -> None:
    if dtype not in (None, *DTYPES):
        raise GraphError(f"dtype {seen(dtype)} is not one that a file holds; use one of {', '.join(DTYPES)}")


def _read_ids(found: Any, below: int) -> list[int]:
    """Numbers of nodes that are there already, so that there is no cycle."""
    if not isinstance(found, list):
        raise GraphError(f"{seen(found)} is not a list")
    for i in found:
        if type(i) is not int or not 0 <= i < below:
            raise GraphError(f"{seen(i)} is not the number of a node before, of which there are {below}")
    return found


# -- constants -------------------------------------------------------------------------------------------------------

Archive = Callable[[_Said, np.dtype[Any]], Any]  # a const and its dtype in files -> the array in the .npz


def _read_const(said: _Said, archive: Archive | None) -> Any:
    """The array; what holds it must be exactly as long as the shape says, or nothing is made."""
    if set(said.params) == {"exact"}:
        held = said.params["exact"]
        if not isinstance(held, list) or len(held) != said.count:
            raise GraphError(f"shape {said.shape} has {said.count} elements, but exact is {seen(held)}")
        array = np.empty(said.count, dtype=object)
        array[:] = [_read_exact(text) for text in held]
        return array.reshape(said.shape)
    dtype = said.params.get("dtype")
    if set(said.params) not in ({"dtype", "base64"}, {"dtype", "npz"}) or not isinstance(dtype, str):
        raise GraphError("a const has the params exact, or dtype and base64, or dtype and npz")
    _check_dtype(dtype)
    form = np.dtype(DTYPES[dtype])
    bits = _read_base64(said, form) if "base64" in said.params else _beside(said, form, archive)
    if dtype == "bool" and np.any(bits.view(np.uint8) > 1):
        raise GraphError("a bool is neither 0 nor 1")
    return bits.view(_numpy(dtype)) if dtype == "bfloat16" else bits.astype(_numpy(dtype))


def _read_base64(said: _Said, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    held, size = said.params["base64"], said.count * dtype.itemsize
    if not isinstance(held, str) or len(held) != 4 * -(-size // 3):
        got = len(held) if isinstance(held, str) else seen(held)
        raise GraphError(f"shape {said.shape} of {dtype} is {4 * -(-size // 3)} characters of base64, not {got}")
    data = base64.b64decode(held, validate=True)
    if len(data) != size:
        raise GraphError(f"shape {said.shape} of {dtype} is {size} bytes, not {len(data)}")
    return np.frombuffer(data, dtype).reshape(said.shape)


def _beside(said: _Said, dtype: np.dtype[Any], archive: Archive | None) -> Any:
    if archive is None:
        raise GraphError("its value is in an .npz beside the file; use graph.store.load(path)")
    if said.params["npz"] != f"c{said.id}":
        raise GraphError(f"npz is {seen(said.params['npz'])}, not c{said.id}")
    return archive(said, dtype)


class _Bounded(io.BufferedReader):
    """A file that gives no more than `most` bytes at once: a zip's directory is read at once, however long it says."""

    most: int | None = DIRECTORY

    def read(self, n: int | None = -1, /) -> bytes:
        if (
            self.most is not None and n is not None and n > self.most
        ):  # the rest, n < 0, is asked for near the end alone
            raise GraphError(f"a directory of {n} bytes, more than the {self.most} of {NODES} arrays")
        return super().read(n)


class _Npz:
    """An .npz as `save` writes it: arrays as they are, not compressed, so what is read is never more than the file."""

    def __init__(self, file: _Bounded):
        self.zip = zipfile.ZipFile(file)
        self.left = file.seek(0, io.SEEK_END)  # bytes that no array has claimed; entries of a zip may share theirs
        file.most = None

    def read(self, said: _Said, dtype: np.dtype[Any]) -> Any:
        """One array, its header compared with what is wanted before any of it is read, as np.load would not."""
        entry = self.zip.getinfo(f"c{said.id}.npy")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise GraphError(f"{entry.filename} is compressed, which is not read; write it with numpy.savez")
        if entry.file_size != entry.compress_size or entry.file_size > self.left:
            raise GraphError(f"{entry.filename} says {entry.file_size} bytes, more than there are")
        self.left -= entry.file_size
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        with self.zip.open(entry) as member:
            shape, fortran, got = read_header[np.lib.format.read_magic(member)](member)
            if (shape, got) != (said.shape, dtype):
                raise GraphError(f"shape {shape} of {got}, but the program says {said.shape} of {dtype}")
            size = said.count * dtype.itemsize
            if (held := entry.file_size - member.tell()) != size:
                raise GraphError(f"{held} bytes of elements, {'more' if held > size else 'less'} than {size} bytes")
            return np.frombuffer(member.read(), dtype).reshape(shape, order="F" if fortran else "C")


def _read_exact(text: Any) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if isinstance(text, str) and (found := re.fullmatch(rf"(-?[0-9]{{1,{DIGITS}}})(?:/([0-9]{{1,{DIGITS}}}))?", text)):
        return int(found[1]) if found[2] is None else Fraction(int(found[1]), int(found[2]))
    if isinstance(text, str) and len(text) < 40 and re.fullmatch(r"-?(inf|nan|[0-9.]+(e[+-]?[0-9]+)?)", text):
        return float(text)
    raise GraphError(f"{seen(text)} is not an exact number, like 3, 0.75 or 3/4, as a string")


def _numpy(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)
