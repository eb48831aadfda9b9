"""`ndpool pool` and `ndpool pyramid`: what is typed, as calls of `ndpool.large`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .typed import Command, Wrong, maker, record, shape

if TYPE_CHECKING:
    from .op import Op

PLAIN = {"mean": "AvgPool", "avg": "AvgPool", "max": "MaxPool", "min": "MinPool", "sum": "SumPool", "mode": "ModePool"}


def _pool(arguments: argparse.Namespace) -> int:
    from . import large

    source = large.open_store(arguments.source, **_given(arguments, raw_shape="shape", raw_dtype="dtype"))
    return _large(arguments, large.pool, source, arguments.destination, _op(arguments))


def _pyramid(arguments: argparse.Namespace) -> int:
    from . import large

    source = large.open_store(arguments.source, **_given(arguments, raw_shape="shape", raw_dtype="dtype"))
    factor = arguments.factor[0] if len(arguments.factor) == 1 else arguments.factor
    return _large(
        arguments, large.pyramid, source, arguments.destination,
        op=arguments.op, levels=arguments.levels, factor=factor,
    )  # fmt: skip


def _large(arguments: argparse.Namespace, do: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Do it with the options that all such commands have, and say what was done."""
    from .large.progress import duration, size

    dry = arguments.dry_run
    how = _given(arguments, "memory", "threads", "overwrite", "resume", "dry_run", "cluster", "chunks", "shards")
    formats = _given(arguments, "codec", "zarr_format")
    report = do(*args, **kwargs, **how, options=formats, progress=not (arguments.quiet or dry))
    if dry or not arguments.quiet:
        print(f"would write {report.place}" if dry else f"wrote {report.place} in {duration(report.seconds)}")
        print(report)
    if report.made and not arguments.quiet:
        print(f"speed  {size(report.bytes_read * report.made / report.tiles / report.seconds)}/s of source")
    return 0


def _given(arguments: argparse.Namespace, *names: str, **others: str) -> dict[str, Any]:
    """The options that were typed, as the arguments of those names."""
    pairs = {**{name: name for name in names}, **others}
    values = {argument: getattr(arguments, name) for name, argument in pairs.items()}
    return {argument: value for argument, value in values.items() if value is not None}


def _op(arguments: argparse.Namespace) -> Op:
    """The record of --op: one of PLAIN with --kernel and its like, or a call like "AdaptiveMaxPool((64, 64))"."""
    given = _given(arguments, "stride", "padding", "axes", "dtype", kernel="kernel_size", ceil="ceil_mode")
    if "(" in arguments.op:
        if given:
            raise Wrong(f"--op {arguments.op} is a whole record; put the other arguments into it")
        return record(arguments.op)
    if arguments.op not in PLAIN:
        raise Wrong(f'--op {arguments.op} is not one of {", ".join(PLAIN)}; or use a record like "LpPool(2, (2, 2))"')
    if "kernel_size" not in given:
        raise Wrong(f"--op {arguments.op} needs a window; use --kernel 2,2,2")
    return maker(PLAIN[arguments.op])(**{name: _one(value) for name, value in given.items()})


def _one(value: Any) -> Any:
    """A list of one number is that number."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _levels(text: str) -> int | str:
    if text == "auto" or text.isdigit():
        return text if text == "auto" else int(text)
    raise argparse.ArgumentTypeError(f'{text!r} is not a number of levels; use one like 4, or "auto"')


_SOURCE: dict[str, dict[str, Any]] = {
    "source": {"metavar": "SRC", "help": "what to read: .npy, .zarr, .tif, .h5:/DATASET, .png, .jpg, .raw"},
    "--raw-shape": {"type": shape, "metavar": "N,N,...", "help": "the shape of a .raw source"},
    "--raw-dtype": {"metavar": "DTYPE", "help": "the element type of a .raw source, like uint16 or >f4"},
}
_HOW: dict[str, dict[str, Any]] = {
    "--chunks": {"type": shape, "metavar": "N,N,...", "help": "chunks of a zarr result (default: the source's)"},
    "--shards": {"type": shape, "metavar": "N,N,...", "help": "shards of a zarr result"},
    "--codec": {"metavar": "NAME", "help": "how a zarr result is compressed: blosc, zstd, gzip, none"},
    "--zarr-format": {"type": int, "metavar": "N", "help": "2 or 3 (default: 3, or as the source)"},
    "--memory": {"metavar": "SIZE", "help": "the most that this process may hold (default: 2GB)"},
    "--threads": {"type": int, "metavar": "N", "help": "how many tiles are made at a time (default: one per core)"},
    "--resume": {"action": "store_true", "help": "go on with work that was interrupted"},
    "--overwrite": {"action": "store_true", "help": "replace what is there, once the new result is whole"},
    "--dry-run": {"action": "store_true", "help": "say what would be read, written and held in memory, and do nothing"},
    "--cluster": {"metavar": "ADDRESS", "help": "a dask scheduler whose workers make the tiles"},
    "--quiet": {"action": "store_true", "help": "print nothing but errors"},
}
_POOL: dict[str, dict[str, Any]] = {
    **_SOURCE,
    "destination": {"metavar": "DST", "help": "what to write; its ending says the format"},
    "--op": {
        "default": "max",
        "metavar": "OP",
        "help": 'mean, max, min, sum, mode, or a record like "LpPool(2, (2, 2))"',
    },
    "--kernel": {"type": shape, "metavar": "N,N,...", "help": "the window, over the last axes"},
    "--stride": {"type": shape, "metavar": "N,N,...", "help": "how far windows are apart (default: the kernel)"},
    "--padding": {"type": shape, "metavar": "N,N,...", "help": "positions before and after each axis"},
    "--axes": {"type": shape, "metavar": "A,A,...", "help": "the pooled axes, by number (default: the last)"},
    "--ceil": {"action": "store_true", "default": None, "help": "windows may hang over the end of an axis"},
    "--dtype": {"metavar": "DTYPE", "help": "convert to this element type first"},
    **_HOW,
}
_PYRAMID: dict[str, dict[str, Any]] = {
    **_SOURCE,
    "destination": {"metavar": "DST", "nargs": "?", "help": "NAME.ome.zarr (default: beside SRC)"},
    "--levels": {"type": _levels, "default": "auto", "metavar": "N", "help": "how many smaller levels (default: auto)"},
    "--op": {"default": "mean", "metavar": "OP", "help": "mean, max, min, sum or mode (of labels); default: mean"},
    "--factor": {
        "type": shape,
        "default": (2,),
        "metavar": "N,N,...",
        "help": "by how much each is smaller (default: 2)",
    },
    **_HOW,
}

COMMANDS = {
    "pool": Command("pool an array from file to file, in as much memory as you say", _POOL, _pool),
    "pyramid": Command("make a multiscale image (OME-Zarr): copies of an array, each smaller", _PYRAMID, _pyramid),
}
