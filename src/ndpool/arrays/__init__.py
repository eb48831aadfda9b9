"""Which arrays a record takes: the one place where x's type is looked up.

NumPy arrays, nested lists and arrays with an array-API namespace go to the engines as they are. For every other type
there is an `Adapter`, found by `find` and remembered by type:

    a type that someone `register`ed, or one of its bases           KNOWN has ndpool's own, imported when first met
    an entry point of the group "ndpool.arrays" that names it       "package.Class" = "module:adapter"
    a type with __dlpack__, __array_interface__ or __array__        `buffers`

`op.Op` asks only where it has no plan, so a NumPy call never comes here. No array library is imported here.
"""

from __future__ import annotations

import importlib
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..errors import PoolError, PoolTypeError
from .adapter import Adapter, Held, changed, positions, values_alone
from .converted import CONVERTED

__all__ = [
    "CONVERTED", "Adapter", "Held", "changed", "check_out", "find", "paired", "positions", "register", "values_alone",
]  # fmt: skip

GROUP = "ndpool.arrays"  # of entry points
KNOWN: dict[type | str, Adapter | str] = {
    "torch.Tensor": "ndpool.torch.door:ADAPTER",
    "jax.Array": "ndpool.arrays.jax:ADAPTER",
    "jax.Tracer": "ndpool.arrays.jax:ADAPTER",
    "cupy.ndarray": "ndpool.arrays.cupy:ADAPTER",
    "dask.Array": "ndpool.arrays.dask:ADAPTER",
    "xarray.DataArray": "ndpool.arrays.xarray:ADAPTER",
    "pandas.Series": "ndpool.arrays.pandas:ADAPTER",
    "pandas.DataFrame": "ndpool.arrays.pandas:ADAPTER",
    "builtins.memoryview": "ndpool.arrays.buffers:VIEWS",
    "numpy.memmap": "ndpool.arrays.buffers:MAPPED",
}
PROTOCOLS = ("__dlpack__", "__array_interface__", "__array__")

compiler: Any = None  # what runs functions and records while torch.compile traces; `ndpool.torch` puts it here

_registered = dict(KNOWN)
_found: WeakKeyDictionary[type, Adapter | None] = WeakKeyDictionary()  # as many as there are types


def register(kind: type | str, adapter: Adapter | str) -> None:
    """Let records take arrays of a type and of its subclasses, through `adapter`.

    The type may be named "package.Class" and the adapter "module:name", so that neither is imported before it is met. A
    package can do the same without a call, by an entry point of the group "ndpool.arrays": "package.Class" =
    "module:name".
    """
    if not isinstance(kind, type) and not (isinstance(kind, str) and kind.count(".") == 1):
        raise PoolTypeError(f'register: kind={kind!r} is not a type; use a class, or its name as "package.Class"')
    if not isinstance(adapter, Adapter) and not (isinstance(adapter, str) and adapter.count(":") == 1):
        raise PoolTypeError(
            f'register: adapter={adapter!r} is not an ndpool.arrays.Adapter; use one, or its name as "module:name"'
        )
    _registered[kind] = adapter
    _found.clear()


def find(x: Any, name: str = "x") -> Adapter | None:
    """The adapter of x's type; None for what engines take as it is. Errors call x `name`."""
    kind = type(x)
    try:
        return _found[kind]
    except KeyError:
        adapter = _found[kind] = _search(kind, name)
        return adapter


def _search(kind: type, name: str) -> Adapter | None:
    if kind in (list, tuple, np.ndarray):
        return None
    for base in kind.__mro__:
        for key in (base, _name(base)):
            if key in _registered:
                return _loaded(_registered[key])
    array_like = any(hasattr(kind, part) for part in PROTOCOLS) and not hasattr(kind, "keys")  # not a table of arrays
    if issubclass(kind, (np.ndarray, np.generic)) or hasattr(kind, "__array_namespace__"):
        return _installed(kind)
    if array_like or any(hasattr(kind, part) for part in ("__len__", "__iter__", "__array__")):
        adapter = _installed(kind)
        if adapter is None and array_like:
            adapter = _loaded("ndpool.arrays.buffers:ADAPTER")
        if adapter is None and not issubclass(kind, (list, tuple)):
            raise PoolTypeError(_unknown(kind, name))
        return adapter
    return None  # a scalar


def _name(kind: type) -> str:
    """How a type is registered by name: the package that it comes from, and its own name. (JAX's array has a module in
    front of that, too.)"""
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__.rpartition('.')[2]}"


def _loaded(adapter: Adapter | str) -> Adapter | None:
    """The adapter, of which the name may be given. One that is None leaves its arrays to the engines."""
    if isinstance(adapter, Adapter):
        return adapter
    module, _, attribute = adapter.partition(":")
    found: Adapter | None = getattr(importlib.import_module(module), attribute)
    return found


def _installed(kind: type) -> Adapter | None:
    """The adapter that an installed package has for a type, by entry point."""
    if kind.__module__.partition(".")[0] in ("builtins", "numpy", "ndpool", "collections"):
        return None
    from importlib.metadata import entry_points

    names = [_name(base) for base in kind.__mro__]
    found = {entry.name: entry for entry in entry_points(group=GROUP) if entry.name in names}
    return next((_loaded(found[name].value) for name in names if name in found), None)


def _unknown(kind: type, name: str) -> str:
    """What to say of a type that nothing is known of: the nearest way there is."""
    ways = ("to_numpy", "toarray", "numpy", "to_dataarray", "tolist", "to_list")
    way = next((f"{name}.{way}()" for way in ways if hasattr(kind, way)), None)
    if way is None and issubclass(kind, (bytes, bytearray)):
        way = f"memoryview({name})"
    if way is None and hasattr(kind, "items"):
        way = f"list({name}.values())"
    if way is None:
        way = f"numpy.asarray({name})" if issubclass(kind, str) else f"list({name})"
    home = "" if kind.__module__ == "builtins" else kind.__module__.partition(".")[0] + "."
    return (
        f"{name} is a {home}{kind.__qualname__}, not an array or a nested list; try {way}, "
        "or make it known with ndpool.arrays.register"
    )


# -- where results go --------------------------------------------------------------------------------------------------


def check_out(out: Any, x: Any, shape: tuple[int, ...] | None = None) -> None:
    """Raise unless `out` can hold what x is, or what is made of it in another shape."""
    if not isinstance(x, (np.ndarray, np.generic)):
        raise PoolTypeError(f"out is for results that are NumPy arrays, and this is a {type(x).__name__}; leave it out")
    shape, dtype = x.shape if shape is None else shape, x.dtype
    if not isinstance(out, np.ndarray):
        raise PoolTypeError(f"out is a {type(out).__name__}, not an array; use numpy.empty({shape}, {dtype.name!r})")
    if out.shape != shape or out.dtype != dtype:
        raise PoolError(
            f"out is {out.dtype.name} of shape {out.shape}, but the result is {dtype.name} of shape {shape}; "
            f"use numpy.empty({shape}, {dtype.name!r})"
        )
    if not out.flags.writeable:
        raise PoolError("out is read-only; use an array that can be written to")


def paired(out: Any, results: tuple[Any, ...]) -> tuple[tuple[Any, Any], ...]:
    """Each array of `out` with its result: values, and where they were taken from."""
    if not isinstance(out, tuple) or len(out) != len(results):
        raise PoolTypeError("out is not two arrays, but return_indices=True gives two; use a tuple of two")
    return tuple(zip(out, results, strict=True))
