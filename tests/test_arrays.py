"""One front door: every kind of array gives what NumPy gives, in its own kind, values and derivatives alike."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ndpool
from ndpool import PoolError, PoolTypeError, arrays
from ndpool.arrays import Adapter, Held
from ndpool.arrays.cupy import Borrowed

from . import examples
from .cases import RECORDS, SHAPE, sliding_arguments
from .torch.ops import QUIET

pytestmark = QUIET


def needed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is the array library in question")


class WithInterface:
    """Memory with NumPy's old protocol, as pictures have it."""

    def __init__(self, a: Any):
        self.a = np.ascontiguousarray(a)

    @property
    def __array_interface__(self) -> Any:
        return self.a.__array_interface__


class WithArray:
    """What can be made an array."""

    def __init__(self, a: Any):
        self.a = a

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.a, dtype)


class WithDlpack:
    """Memory that is lent by DLPack, on some device."""

    def __init__(self, a: Any, device: tuple[int, int] = (1, 0)):
        self.a, self.device_ = np.array(a), device

    def __dlpack__(self, **options: Any) -> Any:
        return self.a.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_


class Lent(WithDlpack):
    """As a CuPy array: DLPack, and its package's `from_dlpack`."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.a.shape

    @property
    def dtype(self) -> Any:
        return self.a.dtype


def from_dlpack(x: Any) -> Lent:
    """The way back."""
    return Lent(np.from_dlpack(x))


@dataclass(frozen=True)
class Kind:
    """A library's arrays: how to make one, what is in it, the ranks it has, and of which type a result is."""

    make: Callable[[Any], Any]
    read: Callable[[Any], Any]
    kind: Callable[[], Any]
    most_axes: int = 9


def _dask(a: Any) -> Any:
    return needed("dask.array").from_array(a, chunks=2)


Lent.__module__ = "lent"


@pytest.fixture(autouse=True)
def lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as CuPy is, but on the CPU: arrays are lent to torch, results come back by its `from_dlpack`."""
    package = ModuleType("lent")
    package.from_dlpack = from_dlpack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lent", package)
    monkeypatch.setattr(arrays, "_registered", {**arrays._registered, "lent.Lent": "ndpool.arrays.cupy:LENT"})
    monkeypatch.setattr("ndpool.arrays.cupy.LENT", Borrowed(), raising=False)
    arrays._found.clear()


def _lent(a: Any) -> Any:
    needed("torch")
    return Lent(a)


def _mapped(a: np.ndarray) -> np.memmap:
    with tempfile.TemporaryFile() as file:  # gone with the last map of it
        found = np.memmap(file, a.dtype, "w+", shape=a.shape)
    found[...] = a
    return found


KINDS = {
    "xarray": Kind(lambda a: needed("xarray").DataArray(a), np.asarray, lambda: needed("xarray").DataArray),
    "xarray over dask": Kind(
        lambda a: needed("xarray").DataArray(_dask(a)), np.asarray, lambda: needed("xarray").DataArray
    ),
    "pandas": Kind(
        lambda a: (needed("pandas").Series if a.ndim == 1 else needed("pandas").DataFrame)(a),
        np.asarray,
        lambda: (needed("pandas").Series, needed("pandas").DataFrame),
        2,
    ),
    "dask": Kind(_dask, np.asarray, lambda: needed("dask.array").Array),
    "torch": Kind(lambda a: needed("torch").from_numpy(a.copy()), np.asarray, lambda: needed("torch").Tensor),
    "array_api_strict": Kind(
        lambda a: needed("array_api_strict").asarray(a),
        np.from_dlpack,
        lambda: type(needed("array_api_strict").ones(1)),
    ),
    "memoryview": Kind(memoryview, np.asarray, lambda: memoryview),
    "memory map": Kind(_mapped, np.asarray, lambda: np.ndarray),
    "interface": Kind(WithInterface, np.asarray, lambda: np.ndarray),
    "array": Kind(WithArray, np.asarray, lambda: np.ndarray),
    "dlpack": Kind(WithDlpack, np.asarray, lambda: np.ndarray),
    "cupy's way": Kind(_lent, lambda y: y.a, lambda: Lent),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
OPS = {
    op.name: op
    for op in (
        ndpool.MaxPool((3, 2), stride=(2, 1), padding=1),
        ndpool.MinPool(2, padding=((1, 0), (0, 1)), ceil_mode=True, ties="last"),
        ndpool.AvgPool(3, 2, 1, count_include_pad=False, axes=(-2, -1)),
        ndpool.SumPool(2, dilation=2, stride=1),
        ndpool.SmoothMaxPool((2, 3), 2, (1, 0), beta=2.5),
        ndpool.LpPool(3, 2, axes=0),
        ndpool.AdaptiveMaxPool((3, 4)),
        ndpool.AdaptiveAvgPool((None, 2)),
        ndpool.GlobalMaxPool(keepdims=False, axes=1),
        ndpool.GlobalAvgPool(dtype="float64"),
    )
}


def sample(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Distinct values, none of them 0, so that every op is smooth there."""
    rng = np.random.default_rng(seed)
    return (rng.permutation(int(np.prod(shape))) / 7 - 3.05).reshape(shape)


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)


# -- every kind gives what NumPy gives ---------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_values_and_derivatives_in_kind(op: Any, kind: Kind) -> None:
    shape = (2, 4, 6)[-kind.most_axes :]
    x, dx = sample(shape), sample(shape, 1)
    at = op.linearize(x)
    dy = sample(at.y.shape, 2)
    held, moved, pulled = (kind.make(a) for a in (x, dx, dy))
    found = op.linearize(held)
    if "xarray" in type(held).__module__:  # dims have names
        pulled = found.y.copy(data=pulled.data)
    for got, want in (
        (op(held), at.y),
        (op.forward(held), at.y),
        (found.y, at.y),
        (found.jvp(moved), at.jvp(dx)),
        (found.vjp(pulled), at.vjp(dy)),
        (op.jvp(held, moved), at.jvp(dx)),
        (op.vjp(held, pulled), at.vjp(dy)),
        (op.value_and_jvp(held, moved)[0], at.y),
        (op.value_and_jvp(held, moved)[1], at.jvp(dx)),
    ):
        assert isinstance(got, kind.kind())
        assert kind.read(got).dtype == np.float64
        close(kind.read(got), want)


@each_kind
def test_indices_and_unpooling_in_kind(kind: Kind) -> None:
    x = sample((4, 6))
    y, where = ndpool.max_pool(x, 2, return_indices=True)
    held, places = ndpool.max_pool(kind.make(x), 2, return_indices=True)
    assert np.array_equal(kind.read(held), y)
    assert np.array_equal(kind.read(places), where)
    if kind is KINDS["dask"] or kind is KINDS["xarray over dask"]:
        with pytest.raises(PoolTypeError, match=r"^max_unpool: y is a Array, which cannot be unpooled"):
            ndpool.max_unpool(held, places, 2)
        return
    for options in ({}, {"duplicates": "last", "output_size": (5, 7)}):
        got = ndpool.max_unpool(held, places, 2, **options)
        assert isinstance(got, kind.kind())
        assert np.array_equal(kind.read(got), ndpool.max_unpool(y, where, 2, **options))
    cut = ndpool.unpad(kind.make(x), ((1, 0), (2, 1)))
    assert np.array_equal(kind.read(cut), ndpool.unpad(x, ((1, 0), (2, 1))))


# array_api_strict's operators raise where a DualArray comes second; libraries leave such an operation to it
SECOND = {name: kind for name, kind in KINDS.items() if name != "array_api_strict"}


@pytest.mark.parametrize("kind", SECOND.values(), ids=SECOND)
def test_second_order_in_kind(kind: Kind) -> None:
    if kind is KINDS["dask"] or kind is KINDS["xarray over dask"]:
        with pytest.raises(PoolTypeError, match="lp_pool: a Array has no hvp here"):
            ndpool.LpPool(2, 2).hvp(*[_dask(sample((4, 6)))] * 3)
        return
    op, x, dx, dy = ndpool.LpPool(2, 2), sample((4, 6)), sample((4, 6), 1), sample((2, 3), 2)
    got = op.hvp(kind.make(x), kind.make(dx), kind.make(dy))
    assert isinstance(got, kind.kind())
    close(kind.read(got), op.hvp(x, dx, dy))
    close(np.asarray(op.jacobian(kind.make(x))).reshape(6, 24), op.jacobian(x).reshape(6, 24))


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from(["xarray", "pandas", "torch", "memoryview", "interface", "array_api_strict", "dask"]),
    rows=sliding_arguments(),
    columns=sliding_arguments(),
    law=st.sampled_from([ndpool.MaxPool, ndpool.MinPool, ndpool.AvgPool, ndpool.SumPool]),
    dtype=st.sampled_from(["float32", "float64", "int32"]),
)
def test_random_geometry_is_numpys(name: str, rows: Any, columns: Any, law: Any, dtype: str) -> None:
    kind = KINDS[name]
    keys = {"kernel_size": "kernel", "stride": "stride", "padding": "padding", "dilation": "dilation"}
    op = law(**{ours: (rows[key], columns[key]) for ours, key in keys.items()}, ceil_mode=False)
    x = sample((rows["n"], columns["n"])).astype(dtype)
    try:
        want = op(x)
    except PoolError as error:  # what is an error for NumPy is the same one for others
        said = re.escape(str(error))
        with pytest.raises(PoolError, match=said):
            op(kind.make(x))
        return
    got = kind.read(op(kind.make(x)))
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6 if dtype == "float32" else 1e-12)


@each_kind
def test_layout_and_dtype_in_kind(kind: Kind) -> None:
    x = sample((4, 6)).astype(np.float32)
    got = ndpool.avg_pool(kind.make(x), 2, layout="HC", dtype="float64")
    assert kind.read(got).dtype == np.float64
    close(kind.read(got), ndpool.avg_pool(x, 2, axes=0, dtype="float64"))


# -- tangents of another kind, shape or type ---------------------------------------------------------------------------

HELD = {name: kind for name, kind in KINDS.items() if name not in ("array_api_strict", "dask", "xarray over dask")}


@pytest.mark.parametrize("kind", HELD.values(), ids=HELD)
def test_wrong_tangents(kind: Kind) -> None:
    op, x = ndpool.MaxPool(2), kind.make(sample((4, 6)))
    other = memoryview(sample((4, 6))) if kind.make is not memoryview else needed("pandas").DataFrame(sample((4, 6)))
    for call, words in (
        (lambda: op.jvp(x, kind.make(sample((4, 5)))), r"max_pool: .*dx .*\(4, 5\)|dx has the dims"),
        (lambda: op.vjp(x, kind.make(sample((4, 6)))), r"max_pool: dy has shape \(4, 6\), but y has \(2, 3\)"),
        (lambda: op.jvp(x, other), "max_pool: dx is a .*; use the same kind"),
        (lambda: op.vjp(x, kind.make(sample((2, 3)).astype(np.float32))), "max_pool: dy has dtype float32, but"),
        (lambda: op.vjp(x, [[1.0] * 3] * 2), "max_pool: dy is a list, but x is a"),
    ):
        with pytest.raises(PoolError, match=words):
            call()


def test_a_plain_array_may_move_what_holds_one() -> None:
    x = needed("xarray").DataArray(sample((4, 6)))
    assert ndpool.MaxPool(2).jvp(x, np.ones((4, 6))).values.tolist() == np.ones((2, 3)).tolist()


# -- JAX ---------------------------------------------------------------------------------------------------------------


def test_jax_arrays_and_tracers_go_to_ndpool_jax() -> None:
    jax = needed("jax")
    op, x = ndpool.SmoothMaxPool(2), sample((4, 6)).astype(np.float32)
    dx, dy = sample((4, 6), 1).astype(np.float32), sample((2, 3), 2).astype(np.float32)
    held, at = jax.numpy.asarray(x), op.linearize(x)
    found = op.linearize(held)
    for got, want in (
        (ndpool.smooth_max_pool(held, 2), at.y),
        (jax.jit(op)(held), at.y),
        (found.y, at.y),
        (found.jvp(jax.numpy.asarray(dx)), at.jvp(dx)),
        (found.vjp(jax.numpy.asarray(dy)), at.vjp(dy)),
        (op.value_and_jvp(held, jax.numpy.asarray(dx))[1], at.jvp(dx)),
        (op.jacobian(held), op.jacobian(x)),
        (op.hvp(held, jax.numpy.asarray(dx), jax.numpy.asarray(dy)), op.hvp(x, dx, dy)),
    ):
        assert isinstance(got, jax.Array)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    y, indices = ndpool.max_pool(held, 2, return_indices=True)
    back = ndpool.max_unpool(y, indices, 2)
    assert isinstance(back, jax.Array)
    assert np.array_equal(back, ndpool.max_unpool(*ndpool.max_pool(x, 2, return_indices=True), 2))


# -- the registry ------------------------------------------------------------------------------------------------------


class Shelf:
    """An array library of somebody else's."""

    def __init__(self, rows: list[list[float]]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)


class Shelves(Held):
    def values(self, x: Any) -> Any:
        return np.array(x.rows)

    def wrap(self, x: Any, y: Any, axes: Any) -> Any:
        return Shelf(y.tolist())


SHELVES = Shelves()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered, for one test."""
    monkeypatch.setattr(arrays, "_registered", dict(arrays._registered))
    arrays._found.clear()


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("kind", [Shelf, "tests.Shelf"])
@pytest.mark.parametrize("adapter", [SHELVES, "tests.test_arrays:SHELVES"])
def test_anyone_may_register_a_type(kind: Any, adapter: Any) -> None:
    x = Shelf([[1.0, 5.0], [4.0, 3.0]])
    with pytest.raises(PoolTypeError, match=r"max_pool: x is a tests.Shelf, not an array .* try list\(x\), or make it"):
        ndpool.max_pool(x, 2)
    arrays.register(kind, adapter)
    assert ndpool.max_pool(x, 2).rows == [[5.0]]
    assert ndpool.MaxPool(2).vjp(x, Shelf([[2.0]])).rows == [[0.0, 2.0], [0.0, 0.0]]
    assert ndpool.max_pool(type("Drawer", (Shelf,), {})(x.rows), 2).rows == [[5.0]]


@pytest.mark.usefixtures("registry")
def test_a_package_may_register_its_types_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("tests.Shelf", "tests.test_arrays:SHELVES", arrays.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == arrays.GROUP else [])
    assert ndpool.max_pool(Shelf([[1.0, 5.0]]), 1).rows == [[1.0, 5.0]]


@pytest.mark.parametrize(
    ("kind", "adapter", "words"),
    [(3, SHELVES, "kind=3 is not a type"), ("Shelf", SHELVES, "kind='Shelf'"), (Shelf, "shelves", "adapter='shelves'"),
     (Shelf, Shelves, "adapter=")],
)  # fmt: skip
def test_bad_registrations(kind: Any, adapter: Any, words: str) -> None:
    with pytest.raises(PoolTypeError, match=f"^register: {words}"):
        arrays.register(kind, adapter)


class Nearly:
    """Something with rows that is not an array."""

    def __len__(self) -> int:
        return 1

    def toarray(self) -> Any:
        return np.ones((2, 2))


UNKNOWN = [
    (Nearly(), r"x is a tests.Nearly, not an array or a nested list; try x.toarray\(\)"),
    (bytearray(b"ab"), r"x is a bytearray.*try memoryview\(x\)"),
    ("text", r"x is a str.*try numpy.asarray\(x\)"),
    ({"a": [1]}, r"x is a dict.*try list\(x.values\(\)\)"),
    ((n for n in [1, 2]), r"x is a generator.*try list\(x\)"),
    (WithDlpack(np.ones((2, 2)), (2, 1)), r"x lies on device \(2, 1\) of DLPack; move it to the CPU"),
]


@pytest.mark.parametrize(("x", "words"), UNKNOWN, ids=lambda part: type(part).__name__)
def test_unknown_types_say_the_nearest_way(x: Any, words: str) -> None:
    for call in (lambda: ndpool.max_pool(x, 1), lambda: ndpool.MaxPool(1).linearize(x)):
        with pytest.raises(PoolTypeError, match=f"^max_pool: {words}"):
            call()


def test_an_adapter_without_second_order_says_so() -> None:
    class Bare(Adapter):
        pool = linearize = lambda self, op, x: None  # type: ignore[assignment]

    for call in (
        lambda: Bare().hvp(ndpool.MaxPool(1), 1, 1, 1),
        lambda: Bare().jacobian(ndpool.MaxPool(1), 1),
        lambda: Bare().unpool(1, 1, {}),
    ):
        with pytest.raises(PoolTypeError, match="use a NumPy array"):
            call()


def test_a_law_of_ones_own_on_tensors_is_refused() -> None:
    torch = needed("torch")
    with pytest.raises(PoolTypeError, match=r"^pool: a law of your own runs on NumPy arrays .* use x.numpy"):
        RECORDS["Pool"](torch.ones(SHAPE))


# -- what is imported --------------------------------------------------------------------------------------------------


def test_no_library_is_imported_for_another() -> None:
    code = (
        "import sys, ndpool; ndpool.max_pool(memoryview(bytes(4)), (2,)); ndpool.avg_pool([1, 2], (2,), dtype=None);"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ndpool.arrays.buffers" in loaded
    found = {name.partition(".")[0] for name in loaded}
    assert not found & {"torch", "jax", "pandas", "xarray", "dask", "cupy", "ml_dtypes"}
    own = {name for name in loaded if name.startswith("ndpool.arrays.")}
    assert own == {f"ndpool.arrays.{name}" for name in ("adapter", "buffers", "converted")}
