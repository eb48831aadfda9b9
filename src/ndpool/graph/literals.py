"""Ops as names and literals: what a file says about an op, and the op made from that.

A name is an entry of OPS; the literals are the fields of its dataclass that differ from their defaults. Reading runs
nothing but that dataclass's constructor, on literals that fit the declared types of its fields.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .draw import plain
from .node import GraphError, op_name
from .table import OPS
from .transform import Mapped

ENTRIES = 1000  # in a tuple: constructors may take time that grows faster than their arguments
RESERVED = ("input", "parameter", "const", "mapped")  # names with a meaning of their own in files


@contextmanager
def at(where: str) -> Iterator[None]:
    """Any error inside, also one of an op's constructor, becomes a GraphError of one line that says where and what."""
    try:
        yield
    except Exception as error:
        fact = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise GraphError(plain(f"{where}: {fact}", 500)) from error


def seen(value: Any) -> str:
    """How an error shows a value of a file."""
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (dict, list)) else plain(repr(value), 60)


def write(op: Any) -> dict[str, Any]:
    """{"op": name, "params": {field: literal}}, where a literal is what JSON has, and lists for tuples.

    >>> from ndpool import MaxPool
    >>> write(MaxPool(3, padding=((0, 1), (1, 0))))
    {'op': 'max_pool', 'params': {'kernel_size': 3, 'padding': [[0, 1], [1, 0]]}}
    """
    if isinstance(op, Mapped):
        return {"op": "mapped", "params": {"op": write(op.op), "flags": list(op.flags)}}
    for name, make in OPS.items():
        entry = _entry(name) if type(op) in (make, getattr(make, "func", None)) else None
        if entry and all(repr(getattr(op, f)) == repr(value) for f, value in entry.given.items()):
            return {"op": name, "params": dict(_params(op, entry))}
    raise GraphError(
        f"{type(op).__qualname__} is not in the ops table as a dataclass; register({op_name(op)!r}, ...) it"
    )


def read(name: Any, params: Any) -> Any:
    """The op that `write` described."""
    if not isinstance(name, str) or not isinstance(params, dict):
        raise GraphError(f"op is {seen(name)} and params {seen(params)}, not a name and a dict")
    if name == "mapped":
        return _read_mapped(**params) if set(params) == {"op", "flags"} else _read_mapped(None, None)
    entry = _entry(name)
    if entry is None:
        raise GraphError(f"unknown op {seen(name)}; an op of your own is registered before a file is read")
    values = {}
    for field, literal in params.items():
        with at(f"field {plain(field, 40)}"):
            if field not in entry.params:
                raise GraphError(f"{name} has no such field; it has {', '.join(entry.params) or 'none'}")
            values[field] = _value(literal)
            _check_type(values[field], entry, field)
    return entry.make(**values)


def _read_mapped(op: Any, flags: Any) -> Mapped:
    if not isinstance(op, dict) or set(op) != {"op", "params"} or not _fits(_value(flags), tuple[bool, ...]):
        raise GraphError("mapped has the params op (an op and its params) and flags (truth values)")
    inner = read(op["op"], op["params"])
    if getattr(inner, "return_indices", False):
        raise GraphError("return_indices=True gives two values; a node has one")
    return Mapped(inner, _value(flags))


# -- entries of the table --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """A name of OPS that a file can hold: a dataclass, and the fields that the name itself gives it."""

    make: Callable[..., Any]
    record: type
    given: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """The other fields, with their defaults."""
        return {f.name: f.default for f in fields(self.record) if f.init and f.name not in self.given}


def _entry(name: str) -> _Entry | None:
    make = OPS.get(name)
    record = make.func if isinstance(make, partial) else make
    if make is None or name in RESERVED or not (isinstance(record, type) and is_dataclass(record)):
        return None
    given: dict[str, Any] = {}
    if isinstance(make, partial):
        positional = [f.name for f in fields(record) if f.init and not f.kw_only]
        given = {**dict(zip(positional, make.args, strict=False)), **make.keywords}
    return _Entry(make, record, given)


def _params(op: Any, entry: _Entry) -> Iterator[tuple[str, Any]]:
    for name, default in entry.params.items():
        value = getattr(op, name)
        if default is MISSING or repr(value) != repr(default):  # repr: 1, 1.0 and True are equal, but not the same
            with at(f"field {plain(name, 40)}"):
                literal = _literal(value)
                _check_type(value, entry, name)
            yield name, literal


# -- literals --------------------------------------------------------------------------------------------------------


def _literal(value: Any) -> Any:
    """A field's value as JSON."""
    if type(value) is tuple and len(value) <= ENTRIES:
        return [_literal(entry) for entry in value]
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if value is None or type(value) in (bool, str) or (type(value) is int and abs(value) < 2**63):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise GraphError(f"{seen(value)} is a {kind}; a file holds 64-bit ints, floats, bools, strings, None, short tuples")


def _value(literal: Any) -> Any:
    """The inverse of `_literal`."""
    if isinstance(literal, list):
        if len(literal) > ENTRIES:
            raise GraphError(f"a tuple of {len(literal)} entries; at most {ENTRIES} are read")
        return tuple(map(_value, literal))
    if isinstance(literal, dict):
        if literal not in ({"float": "inf"}, {"float": "-inf"}, {"float": "nan"}):
            raise GraphError(f'{seen(literal)} is not a literal; the only dicts are {{"float": "inf"}} and its like')
        return float(literal["float"])
    if type(literal) is int and abs(literal) >= 2**63:
        raise GraphError(f"{literal} does not fit 64 bits")
    return literal


def _check_type(value: Any, entry: _Entry, field: str) -> None:
    if not _fits(value, _hints(entry.record).get(field, Any)):
        raise GraphError(f"{seen(value)} does not fit its declared type")


@lru_cache(maxsize=256)
def _hints(record: type) -> dict[str, Any]:
    try:
        return get_type_hints(record)
    except Exception:  # a type of the user's that cannot be looked up
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a literal is of a declared type. Where the type is no literal's, the constructor decides."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        several = parts[:1] * len(value) if isinstance(value, tuple) and parts[-1:] == (...,) else parts
        return isinstance(value, tuple) and len(value) == len(several) and all(map(_fits, value, several))
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint if hint in (bool, int, str, tuple, types.NoneType) else True
