"""What a piece of work reads, makes and holds in memory: said before it begins, and given back at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .progress import size
from .store import Store
from .targets import Target
from .tiles import Plan


@dataclass(frozen=True)
class Sweep:
    """One sweep over the tiles of an array, whose sources have that many chunks."""

    plan: Plan
    sources: tuple[Store | Target, ...]
    targets: tuple[Target, ...]

    @property
    def chunks(self) -> int:
        return sum(math.prod(-(-n // c) for n, c in zip(s.shape, s.chunks, strict=True)) for s in self.sources)

    @property
    def lines(self) -> list[str]:
        plan, grid = self.plan, self.plan.grid
        often = plan.chunks_read / self.chunks if self.chunks else 1.0
        kind = "chunks" if any(source.encoded for source in self.sources) else "rows"
        made = [f"{target.dtype.name} {_by(target.shape)}" for target in self.targets]
        tile = f"{len(grid)} tiles of {_by(grid.tile)}" if len(grid) != 1 else "1 tile"
        return [
            f"read   {size(plan.bytes_read)} in {plan.chunks_read} {kind}, each {often:.2f} times on average",
            *(f"make   {one}" for one in made),
            f"in     {tile}, {plan.at_a_time} at a time, each holds {size(plan.tile_bytes)}",
        ]


@dataclass(frozen=True)
class Report:
    """What was, or (of a dry run) would be done."""

    place: str
    sweeps: tuple[Sweep, ...]
    memory: int  # bytes that the process may hold
    peak: int  # bytes that it is expected to hold at most
    tiles: int
    made: int  # tiles that this process made; the others were there
    seconds: float = 0.0

    @property
    def bytes_read(self) -> int:
        return sum(sweep.plan.bytes_read for sweep in self.sweeps)

    @property
    def bytes_made(self) -> int:
        """Bytes of results, before they are encoded."""
        return sum(one.dtype.itemsize * math.prod(one.shape) for sweep in self.sweeps for one in sweep.targets)

    def __str__(self) -> str:
        lines = [line for sweep in self.sweeps for line in sweep.lines]
        return "\n".join([*lines, f"hold   up to {size(self.peak)} of the {size(self.memory)} that are allowed"])


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"
