"""Volumes as microscopes make them, from a seed: blobs in noise, and labels of cells; they compress as images do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

BLOBS = 40
CELL = 24  # the edge of a cell of labels, in voxels


@lru_cache(maxsize=1)
def blobs(shape: tuple[int, int, int], dtype: str) -> Any:
    """Soft spots on a dark ground, with a camera's noise."""
    rng = np.random.default_rng(0)
    volume = np.empty(shape, dtype)
    light = {"uint8": 200.0, "uint16": 8000.0}.get(volume.dtype.name, 1.0)
    widths = rng.uniform(0.02, 0.06, BLOBS) * min(shape)
    profiles = []
    for n in shape:
        middle = rng.uniform(0, n, BLOBS)
        profiles.append(np.exp(-(((np.arange(n)[:, None] - middle) / widths) ** 2)).astype(np.float32))
    z, y, x = profiles
    for i in range(shape[0]):  # a plane at a time: sums over blobs are matrix products
        plane = light * (0.05 + (z[i] * y) @ x.T)
        plane += light / 100 * rng.standard_normal(plane.shape, np.float32)
        volume[i] = np.clip(plane, 0, 1.25 * light)
    return volume


def labels(shape: tuple[int, int, int], dtype: str) -> Any:
    """Cells with bent walls, each with a number of its own (as far as the dtype has numbers)."""
    y, x = np.ogrid[: shape[1], : shape[2]]
    volume = np.empty(shape, dtype)
    for z in range(shape[0]):
        bent = (z + 5 * np.sin(y / 17) + 4 * np.sin(x / 11), y + 6 * np.sin(x / 19), x + 5 * np.sin(z / 13))
        cells = [np.floor(one / CELL).astype(np.int64) + 1 for one in bent]
        number = (cells[0] * 73856093) ^ (cells[1] * 19349663) ^ (cells[2] * 83492791)
        volume[z] = number % min(np.iinfo(dtype).max, 2**62)
    return volume
