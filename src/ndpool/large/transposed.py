"""A store whose axes are seen in another order."""

from __future__ import annotations

import numpy as np

from .store import Array, Slices, Store


class Transposed(Store):
    """Axis i is axis order[i] of `base`. For reading."""

    def __init__(self, base: Store, order: tuple[int, ...]) -> None:
        self.base, self.turn = base, order
        self.name, self.path, self.dtype, self.encoded = base.name, base.path, base.dtype, base.encoded
        self.shape = tuple(base.shape[a] for a in order)
        self.chunks, self.units = (tuple(sizes[a] for a in order) for sizes in (base.chunks, base.units))
        self.axes = base.axes and tuple(base.axes[a] for a in order)

    def _inside(self, part: Slices) -> Slices:
        found = [slice(0)] * len(part)
        for one, a in zip(part, self.turn, strict=True):
            found[a] = one
        return tuple(found)

    def read(self, part: Slices, out: Array | None = None) -> Array:
        inside = None if out is None else out.transpose(np.argsort(self.turn))
        return self.base.read(self._inside(part), inside).transpose(self.turn)

    def write(self, part: Slices, values: Array) -> None:
        raise OSError(f"{self.name}: is seen with its axes in another order, for reading only")

    def working(self, part: Slices) -> int:
        return self.base.working(self._inside(part))

    def state(self) -> str:
        return self.base.state()
