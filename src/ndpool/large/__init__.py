"""Arrays larger than memory: pooled from file to file, tile by tile, with the bits of the whole array pooled at once.

    ndpool.large.pool("volume.zarr", "small.zarr", ndpool.MaxPool((2, 2, 2)), memory="2GB")
    ndpool.large.pyramid("volume.zarr", "volume.ome.zarr")

`jvp` and `vjp` are the derivatives, from files to files. `ndpool pool` and `ndpool pyramid` do the same from a command
line.
"""

from .poolings import jvp, pool, vjp
from .pyramid import pyramid
from .report import Report
from .store import Store, open_store

__all__ = ["Report", "Store", "jvp", "open_store", "pool", "pyramid", "vjp"]
