"""native/xla_ffi.h beside the header that jaxlib ships: the same sizes, offsets and numbers, or it does not compile."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jax
import pytest

HERE = Path(__file__).parents[2] / "native"
STRUCTS = {  # ours: theirs, and our fields with theirs
    "Extension": ("XLA_FFI_Extension_Base", "size:struct_size type:type next:next"),
    "Version": (
        "XLA_FFI_Api_Version",
        "size:struct_size extensions:extension_start major:major_version minor:minor_version",
    ),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", "base:extension_base metadata:metadata"),
    "Buffer": (
        "XLA_FFI_Buffer",
        "size:struct_size extensions:extension_start type:dtype data:data rank:rank dims:dims",
    ),
    "Buffers": ("XLA_FFI_Args", "size:struct_size extensions:extension_start count:size types:types items:args"),
    "Text": ("XLA_FFI_ByteSpan", "data:ptr length:len"),
    "Numbers": ("XLA_FFI_Array", "type:dtype count:size data:data"),
    "Attributes": (
        "XLA_FFI_Attrs",
        "size:struct_size extensions:extension_start count:size types:types names:names items:attrs",
    ),
    "CreateError": (
        "XLA_FFI_Error_Create_Args",
        "size:struct_size extensions:extension_start message:message code:errc",
    ),
    "DestroyError": ("XLA_FFI_Error_Destroy_Args", "size:struct_size extensions:extension_start error:error"),
    "Schedule": (
        "XLA_FFI_ThreadPool_Schedule_Args",
        "size:struct_size extensions:extension_start context:ctx task:task data:data",
    ),
    "CountThreads": (
        "XLA_FFI_ThreadPool_NumThreads_Args",
        "size:struct_size extensions:extension_start context:ctx threads:num_threads",
    ),
}
GROWING = {  # of which we have the beginning
    "Metadata": ("XLA_FFI_Metadata", "size:struct_size version:api_version traits:traits"),
    "Frame": (
        "XLA_FFI_CallFrame",
        "size:struct_size extensions:extension_start api:api context:ctx stage:stage arguments:args results:rets "
        "attributes:attrs",
    ),
    "Api": (
        "XLA_FFI_Api",
        "size:struct_size extensions:extension_start version:api_version create_error:XLA_FFI_Error_Create "
        "destroy_error:XLA_FFI_Error_Destroy schedule:XLA_FFI_ThreadPool_Schedule "
        "count_threads:XLA_FFI_ThreadPool_NumThreads",
    ),
}
NUMBERS = {
    "METADATA": "XLA_FFI_Extension_Metadata",
    "BUFFER": "XLA_FFI_ArgType_BUFFER",
    "ARRAY": "XLA_FFI_AttrType_ARRAY",
    "int(Code::invalid_argument)": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "int(Code::resource_exhausted)": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "int(Code::internal)": "XLA_FFI_Error_Code_INTERNAL",
    "MAJOR": "XLA_FFI_API_MAJOR",
    "int(DataType::boolean)": "XLA_FFI_DataType_PRED",
    "int(DataType::bf16)": "XLA_FFI_DataType_BF16",
    **{f"int(DataType::{kind}{n})": f"XLA_FFI_DataType_{sign}{n}"
       for kind, sign in (("i", "S"), ("u", "U")) for n in (8, 16, 32, 64)},
    **{f"int(DataType::f{n})": f"XLA_FFI_DataType_F{n}" for n in (16, 32, 64)},
}  # fmt: skip


def program() -> str:
    """Assertions for all of the above."""
    found = ['#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"', "using namespace ndpool::xla;"]
    for ours, (theirs, fields) in (STRUCTS | GROWING).items():
        if ours in STRUCTS:
            found.append(f"static_assert(sizeof({ours}) == sizeof({theirs}));")
        for pair in fields.split():
            mine, its = pair.split(":")
            found.append(f'static_assert(offsetof({ours}, {mine}) == offsetof({theirs}, {its}), "{ours}.{mine}");')
            found.append(f'static_assert(sizeof({ours}::{mine}) == sizeof({theirs}::{its}), "{ours}.{mine}");')
    found += [f'static_assert({mine} == {its}, "{mine}");' for mine, its in NUMBERS.items()]
    found.append("static_assert(XLA_FFI_API_MINOR >= MINOR);")
    return "\n".join(found)


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler to read headers")
def test_our_declarations_are_those_of_jaxlib(tmp_path: Path) -> None:
    source = tmp_path / "header.cpp"
    command = ["c++", "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", f"-I{HERE}", f"-I{jax.ffi.include_dir()}"]
    source.write_text(program())
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    source.write_text(program().replace("offsetof(Frame, results) == ", "8 + offsetof(Frame, results) == "))
    assert subprocess.run([*command, str(source)], capture_output=True, check=False).returncode != 0, "it would not see"
