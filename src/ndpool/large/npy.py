"""NumPy's own files, mapped."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from ..errors import PoolError
from .mapped import Layout, Mapped, new_file, order_of
from .store import Like, Store, check_dtype, check_options

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def open(name: str, options: dict[str, Any]) -> Store:
    check_options(name, options, ())
    with Path(name).open("rb") as file:
        try:
            version = npy.read_magic(file)
            shape, fortran, dtype = HEADERS[version](file)
        except (ValueError, KeyError) as error:
            raise OSError(f"{name}: is no .npy file that can be mapped ({error}); save it with numpy.save") from error
        check_dtype(name, dtype)
        return Mapped(name, Layout(file.tell(), shape, dtype, "F" if fortran else "C"))


def check(name: str, like: Like) -> None:
    check_options(name, like.options, ("order",))
    order_of(name, like.options)
    if like.dtype.kind == "V":
        raise PoolError(f"{name}: .npy has no name for dtype {like.dtype}; use .raw, or .zarr")


def create(name: str, like: Like) -> Store:
    order = order_of(name, like.options)
    header = io.BytesIO()
    described = {"descr": npy.dtype_to_descr(like.dtype), "fortran_order": order == "F", "shape": like.shape}
    npy.write_array_header_1_0(header, described)
    layout = Layout(header.tell(), like.shape, like.dtype, order)
    new_file(name, header.getvalue(), layout.offset + layout.nbytes)
    return Mapped(name, layout)
