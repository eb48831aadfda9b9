"""How each library spells the pooling of a volume in memory, by windows that tile: one call, one thread.

A speller gets a case and yields contenders; it is called if its library is installed. Peers give the dtype they like:
what gives float64 for the mean of bytes is not asked to convert it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import ndpool

from .timing import Contender
from .volumes import blobs, labels

AXES = ("z", "y", "x")
OPS = {"mean": "AvgPool", "max": "MaxPool", "mode": "ModePool"}
REDUCED: dict[str, Any] = {"mean": np.mean, "max": np.max}


@dataclass(frozen=True)
class Cell:
    """What is made of which volume."""

    op: str
    kernel: tuple[int, int, int]
    dtype: str
    order: str

    @property
    def name(self) -> str:
        return f"{self.op} {'x'.join(map(str, self.kernel))} {self.dtype} {self.order}"


@dataclass(frozen=True)
class Case(Cell):
    """A cell with its volume."""

    x: Any

    @property
    def out(self) -> tuple[int, ...]:
        return tuple(n // k for n, k in zip(self.x.shape, self.kernel, strict=True))


def case_of(cell: Cell, size: int) -> Case:
    """The volume has whole windows alone, so that nobody's rule for edges matters."""
    shape = tuple(size // k * k for k in cell.kernel)
    x = labels(shape, cell.dtype) if cell.op == "mode" else blobs(shape, "uint8").astype(cell.dtype)
    return Case(cell.op, cell.kernel, cell.dtype, cell.order, np.asarray(x, order=cell.order))


def spell_ndpool(case: Case) -> Iterator[Contender]:
    record = getattr(ndpool, OPS[case.op])(case.kernel)
    yield _contender("ndpool", lambda: record(case.x))


def _tensorstore(case: Case) -> Iterator[Contender]:
    import tensorstore

    one = tensorstore.Context({"data_copy_concurrency": {"limit": 1}})

    def run() -> Any:
        source = tensorstore.array(case.x, context=one)
        return tensorstore.downsample(source, list(case.kernel), case.op).read(order=case.order).result()

    yield _contender("tensorstore", run)


def _tinybrain(case: Case) -> Iterator[Contender]:
    """Its compiled loops want Fortran order, which a transposed C array has; its maximum is NumPy's, on slices."""
    import tinybrain

    function = {
        "mean": tinybrain.downsample_with_averaging,
        "max": tinybrain.downsample_with_max_pooling,
        "mode": tinybrain.downsample_segmentation,
    }[case.op]
    turned = case.order == ("F" if case.op == "max" else "C")
    x, kernel = (case.x.T, case.kernel[::-1]) if turned else (case.x, case.kernel)

    def run() -> Any:
        y = function(x, kernel)[0]
        return y.T if turned else y

    yield _contender("tinybrain", run)


def _dask(case: Case) -> Iterator[Contender]:
    import dask.array

    def run() -> Any:
        lazy = dask.array.from_array(case.x, name=False)
        return dask.array.coarsen(REDUCED[case.op], lazy, dict(enumerate(case.kernel))).compute(scheduler="synchronous")

    if case.op in REDUCED:
        yield _contender("dask", run)


def _xarray(case: Case) -> Iterator[Contender]:
    import xarray

    def run() -> Any:
        windows = xarray.DataArray(case.x, dims=AXES).coarsen(dict(zip(AXES, case.kernel, strict=True)))
        return getattr(windows, case.op)().values

    if case.op in REDUCED:
        yield _contender("xarray", run)


def _skimage(case: Case) -> Iterator[Contender]:
    from skimage.measure import block_reduce

    if case.op in REDUCED:
        yield _contender("scikit-image", lambda: block_reduce(case.x, case.kernel, REDUCED[case.op]))


def _ome_zarr(case: Case) -> Iterator[Contender]:
    """What `write_image` makes levels with."""
    import dask.array
    from ome_zarr.dask_utils import local_mean

    def run() -> Any:
        return local_mean(dask.array.from_array(case.x, name=False), case.out).compute(scheduler="synchronous")

    if case.op == "mean":
        yield _contender("ome-zarr-py", run)


def _ngff_zarr(case: Case) -> Iterator[Contender]:
    import ngff_zarr

    def run(method: Any) -> Any:
        image = ngff_zarr.to_ngff_image(case.x, dims=AXES)
        factors = [dict(zip(AXES, case.kernel, strict=True))]
        levels = ngff_zarr.to_multiscales(image, scale_factors=factors, method=method, cache=False).images
        return levels[1].data.compute(scheduler="synchronous")

    for name in {"mean": ("DASK_BIN_SHRINK", "ITKWASM_BIN_SHRINK"), "mode": ("DASK_IMAGE_MODE",)}.get(case.op, ()):
        method = getattr(ngff_zarr.Methods, name, None)
        if method is not None:
            yield _contender(f"ngff-zarr {name.lower()}", lambda method=method: run(method))


def _torch(case: Case) -> Iterator[Contender]:
    """A Fortran array is a C array with its axes in the other order. What has no loops for bytes gets floats."""
    import torch
    import torch.nn.functional as F

    if case.op not in REDUCED:
        return
    torch.set_num_threads(1)
    turned = case.order == "F"
    x = torch.from_numpy(case.x.T if turned else case.x)[None]
    kernel = case.kernel[::-1] if turned else case.kernel
    function = F.max_pool3d if case.op == "max" else F.avg_pool3d
    floats = case.op == "mean" and not x.is_floating_point()

    def run() -> Any:
        y = function(x.float() if floats else x, kernel)[0].numpy()
        return y.T if turned else y

    yield _contender("torch", run)


PEERS: dict[str, tuple[str, Callable[[Case], Iterator[Contender]]]] = {  # distribution -> module, speller
    "tensorstore": ("tensorstore", _tensorstore),
    "tinybrain": ("tinybrain", _tinybrain),
    "dask": ("dask.array", _dask),
    "xarray": ("xarray", _xarray),
    "scikit-image": ("skimage", _skimage),
    "ome-zarr": ("ome_zarr", _ome_zarr),
    "ngff-zarr": ("ngff_zarr", _ngff_zarr),
    "torch": ("torch", _torch),
}


def disagreement(case: Case, got: Any, want: Any) -> str | None:
    """Why a peer's result is not ours. Means of integers may differ by 1: some are rounded, some cut off, some not
    rounded at all; of labels that are equally frequent, any is right."""
    if got.shape != want.shape:
        return f"has shape {got.shape}, not {want.shape}"
    if case.op == "mode":
        wrong = _counts(case, got) != _counts(case, want)
    else:
        integer = np.dtype(case.dtype).kind in "iu"
        most = 0.0 if case.op == "max" else 1.0 if integer else 1e-5 * float(np.abs(want).max())
        wrong = np.abs(got.astype(np.float64) - want.astype(np.float64)) > most
    return f"differs in {wrong.mean():.1%} of the elements" if wrong.any() else None


def _counts(case: Case, labels: Any) -> Any:
    """How often each label is in its window."""
    pairs = [size for both in zip(case.out, case.kernel, strict=True) for size in both]
    return np.sum(case.x.reshape(pairs) == labels[:, None, :, None, :, None], axis=(1, 3, 5))


def _contender(name: str, run: Callable[[], Any]) -> Contender:
    return Contender(name, run, lambda y: [np.asarray(y)])
