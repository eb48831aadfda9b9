"""ndpool beside its peers on the pooling calls of real networks: `python -m benchmarks.networks [--quick]`.

Each call of `calls.NETWORKS` at batch 1, 8 and 32, in float32 and bfloat16, with 1 and 2 threads, in three passes:

    forward    y = f(x), without a gradient
    both       y = f(x) and its gradient
    backward   the gradient alone, of a y that is there

ndpool runs through `ndpool.torch`, on contiguous and on channels-last tensors (where torch has that layout), and for
forward also on NumPy arrays. Beside it: torch, of whose two layouts and spellings the fastest counts ("same layout":
the fastest in ours), and onnxruntime and OpenCV where they are installed and have the call. The floor reads and writes
as many bytes and does nothing else (`timing`).

All contenders of a line run in turns, and the least time counts. No ratio comes from one run: the whole list is gone
through twice or more (`--visits`), so that other work lies between. Times are the least over all visits; where the
ratios of two visits differ by more than 15 % the smallest and the largest are shown, too.

The whole list takes hours; `--only`, `--calls`, `--batch`, `--pass` and others choose. `--quick` takes two minutes: a
sample of calls, batch 1 and 8, float32, fewer rounds. In this file: what is measured, what it comes to, the command.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import re
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import ndpool

from . import timing
from .calls import NETWORKS, distinct
from .cpu import accepted, machine, versions, warn_of_load
from .peers import PEERS, Spell, spell_ndpool, spell_ndpool_torch, spells
from .rows import Case, Phase, Row, case_of, channels_innermost
from .timing import Contender

PASSES: dict[str, Phase] = {"forward": "forward", "both": "vjp", "backward": "pull"}
OURS = {
    "contiguous": "ndpool.torch",
    "channels last": "ndpool.torch channels_last",
    "NumPy, contiguous": "ndpool",
    "NumPy, channels last": "ndpool channels_last",
}
RIVALS = ("torch", "onnxruntime", "opencv")
DTYPES = {"float32": 4, "bfloat16": 2}  # bytes of each
LOSES = 0.95  # a rival's time over ours below which a call is lost: nearer to 1 is noise
UNSTEADY = 1.15  # ratios of two visits that differ by more are both shown
MOST_BYTES = 128 * 2**20  # of an input; about a dozen copies are alive at once, so the process stays below 4 GiB
QUICK_CALLS, QUICK_BYTES = 26, 8 * 2**20  # so that it stays below two minutes where nothing else runs


# -- what is measured --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Array:
    """What one array is pooled with, and the networks' layers that do it."""

    names: tuple[str, ...]
    op: ndpool.Op
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]

    def case(self) -> Case:
        return case_of(
            Row(self.names[0], self.op, self.shape, dtype=self.dtype, phases=tuple(PASSES.values())), "randn"
        )


@dataclass
class Line:
    """One array, pass and number of threads: for each visit the least milliseconds of each contender."""

    array: Array
    step: str
    threads: int
    visits: list[dict[str, float]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)

    def least(self, name: str) -> float:
        return min(visit[name] for visit in self.visits)


def spell_channels_last(case: Case, phase: Phase, threads: int) -> Iterator[Contender]:
    """ndpool on a NumPy array whose channels lie innermost, for the ranks that torch has this layout for."""
    if phase == "forward" and case.x.ndim in (4, 5):
        for contender in spell_ndpool(replace(case, x=channels_innermost(case.x)), phase, threads):
            yield replace(contender, name=OURS["NumPy, channels last"])


def visit(line: Line, case: Case, contestants: dict[str, Spell], rounds: int) -> None:
    """Measure a line once more; results are compared at its first visit."""
    phase = PASSES[line.step]
    found = accepted(case, phase, contestants, line.threads, line.dropped, checked=bool(line.visits))
    runs = {contender.name: contender.run for contender in found}
    if phase != "forward":
        del runs[OURS["NumPy, contiguous"]]  # it was there to compare with
    runs["floor"] = timing.floors(case.moved(phase), line.threads)["floor"]
    times = timing.measure(runs, rounds, line.threads)
    line.visits.append({name: t.min_ms for name, t in times.items()})


def limit(given: argparse.Namespace) -> int:
    return QUICK_BYTES if given.quick else MOST_BYTES


def chosen(given: argparse.Namespace) -> tuple[list[Array], int]:
    """The arrays to go through, and how many were left out because they are too large."""
    wanted = re.compile(given.only)
    found = [(op, sample, calls) for (op, sample), calls in distinct().items()]
    found = [row for row in found if any(wanted.search(call.name) for call in row[2])]
    if given.calls:
        found = found[:: max(1, math.ceil(len(found) / given.calls))]
    arrays = [
        Array(tuple(call.name for call in calls), op, (batch, *sample), dtype)
        for op, sample, calls in found
        for batch in given.batch
        for dtype in given.dtype
    ]
    kept = [array for array in arrays if array.bytes <= limit(given)]
    return kept, len(arrays) - len(kept)


def measured(arrays: list[Array], given: argparse.Namespace, peers: list[str]) -> list[Line]:
    """All lines, each visited `given.visits` times with all the others between."""
    ours: dict[str, Spell] = {"ndpool.torch": spell_ndpool_torch, "NumPy, channels last": spell_channels_last}
    contestants = ours | spells(peers)
    lines = {array: [Line(array, step, t) for t in given.threads for step in given.steps] for array in arrays}
    gc.freeze()  # what the imports left behind need not be looked through before each line
    for turn in range(given.visits):
        shown = time.monotonic()
        for done, array in enumerate(arrays):
            case = array.case()
            for line in lines[array]:
                visit(line, case, contestants, given.rounds)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                print(f"visit {turn + 1} of {given.visits}: {done + 1} of {len(arrays)} arrays", file=sys.stderr)
    gc.unfreeze()
    return [line for group in lines.values() for line in group]


# -- what it comes to --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """The fastest rival's time over ours: from the least times of all visits, and of single visits the extremes."""

    line: Line
    ours: str
    rival: str
    value: float
    low: float
    high: float

    @property
    def loses(self) -> bool:
        return self.value < LOSES

    @property
    def unsteady(self) -> bool:
        return self.high > UNSTEADY * self.low

    @property
    def floor(self) -> float:
        """The fraction of the floor's speed that ours reaches."""
        return self.line.least("floor") / self.line.least(self.ours)

    def __str__(self) -> str:
        array, (first, *others) = self.line.array, self.line.array.names
        extremes = f"({self.low:.2f} to {self.high:.2f})" if self.unsteady else ""
        times = "  ".join(f"{name} {self.line.least(name):.4f}" for name in (self.ours, self.rival, "floor"))
        shared = f" and {len(others)} more" if others else ""
        record = replace(array.op, axes=None)
        return f"{self.value:6.2f} {extremes:16}  {times} ms  {array.shape} {record}: {first}{shared}"


def compared(line: Line, ours: str, rivals: list[str]) -> Ratio:
    each = [min(v[name] for name in rivals) / v[ours] for v in line.visits]
    best = min(rivals, key=line.least)
    return Ratio(line, ours, best, line.least(best) / line.least(ours), min(each), max(each))


def rivals_of(line: Line, ours: str) -> dict[str, list[str]]:
    """The contenders that ours is compared with: torch in any layout, in the same one, and every peer in any."""
    peers = [name for name in line.visits[0] if name.split()[0] in RIVALS]
    torch = [name for name in peers if name.split()[0] == "torch"]
    same = [name for name in torch if name.endswith("channels_last") == ours.endswith("channels_last")]
    return {"torch": torch, "same layout": same, "any peer": peers}


@dataclass(frozen=True)
class Group:
    """All lines of one pass, layout, dtype and number of threads, and their ratios by whom they are compared with."""

    step: str
    layout: str
    dtype: str
    threads: int
    ratios: dict[str, list[Ratio]]

    @property
    def name(self) -> str:
        return f"{self.step}, {self.layout}, {self.dtype}, {self.threads} thread{'s' * (self.threads > 1)}"

    def means(self) -> dict[str, float]:
        """Geometric means of rivals' times over ours."""
        return {rivals: geometric_mean(r.value for r in ratios) for rivals, ratios in self.ratios.items()}

    def lost(self) -> dict[str, float]:
        """The share of calls that lose."""
        return {rivals: sum(r.loses for r in ratios) / len(ratios) for rivals, ratios in self.ratios.items()}

    @property
    def floor(self) -> float:
        return geometric_mean(r.floor for r in self.ratios["torch"])

    @property
    def unsteady(self) -> int:
        return sum(r.unsteady for r in self.ratios["torch"])


def groups(lines: list[Line]) -> Iterator[Group]:
    """In the order of passes, dtypes, threads and layouts."""
    counts = sorted({line.threads for line in lines})
    for step, dtype, threads, (layout, ours) in product(PASSES, DTYPES, counts, OURS.items()):
        ratios: dict[str, list[Ratio]] = {}
        for line in lines:
            if (line.step, line.array.dtype, line.threads) == (step, dtype, threads) and ours in line.visits[0]:
                for beside, rivals in rivals_of(line, ours).items():
                    if rivals:
                        ratios.setdefault(beside, []).append(compared(line, ours, rivals))
        if ratios:
            yield Group(step, layout, dtype, threads, ratios)


# -- the command -------------------------------------------------------------------------------------------------------


def print_groups(found: list[Group], worst: int) -> None:
    print("geometric means of a rival's time over ours, and the share of calls where that is below", LOSES)
    print(f"{'':50}{'calls':>6}{'torch':>13}{'same layout':>13}{'any peer':>13}{'floor':>8}{'unsteady':>10}")
    for group in found:
        lost = group.lost()
        columns = "".join(f"{mean:8.2f}{lost[rivals]:5.0%}" for rivals, mean in group.means().items())
        print(f"{group.name:50}{len(group.ratios['torch']):6}{columns}{group.floor:8.2f}{group.unsteady:10}")
    for group in found:
        print(f"\nworst of {group.name}:")
        print(*(f"  {ratio}" for ratio in sorted(group.ratios["any peer"], key=lambda r: r.value)[:worst]), sep="\n")


def print_dropped(lines: list[Line]) -> None:
    reasons = Counter((name, re.sub(r"\d[\d.e%+-]*", "#", why)) for line in lines for name, why in line.dropped.items())
    for (name, why), count in reasons.items():
        print(f"left out of {count} lines: {name} {why}")


def report(found: list[Group], lines: list[Line]) -> dict[str, object]:
    """What is written as JSON."""
    return {
        "groups": [
            {
                "group": group.name, "calls": len(group.ratios["torch"]), "over_ours": group.means(),
                "lost": group.lost(), "floor_over_ours": group.floor, "unsteady": group.unsteady,
            }
            for group in found
        ],
        "lines": [
            {
                "names": line.array.names, "op": repr(line.array.op), "shape": line.array.shape,
                "dtype": line.array.dtype, "pass": line.step, "threads": line.threads,
                "visits": line.visits, "dropped": line.dropped,
            }
            for line in lines
        ],
    }  # fmt: skip


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a sample in two minutes")
    parser.add_argument("--only", default="", metavar="REGEX", help="calls whose 'network layer' this is found in")
    parser.add_argument("--calls", type=int, metavar="N", help="a sample of at most so many calls")
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pass", dest="steps", nargs="+", choices=PASSES, default=list(PASSES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES)
    parser.add_argument("--rounds", type=int, help="turns of all contenders in one visit")
    parser.add_argument("--visits", type=int, default=2, help="at least 2")
    parser.add_argument("--worst", type=int, default=10, help="how many of the slowest calls are shown per group")
    parser.add_argument("--json", type=Path, metavar="FILE")
    read = parser.parse_args(given)
    if read.visits < 2:
        parser.error(f"--visits {read.visits}: a ratio never comes from one run; use 2 or more")
    read.calls = read.calls or (QUICK_CALLS if read.quick else None)
    read.batch = read.batch or ([1, 8] if read.quick else [1, 8, 32])
    read.dtype = read.dtype or (["float32"] if read.quick else list(DTYPES))
    read.rounds = read.rounds or (3 if read.quick else 7)
    return read


def main(args: list[str] | None = None) -> int:
    given = arguments(args)
    warnings.simplefilter("ignore")  # peers warn about their own internals
    peers = [peer for peer in RIVALS if importlib.util.find_spec(PEERS[peer].module)]
    arrays, too_large = chosen(given)
    if "torch" not in peers:
        print("torch is not installed, and this is about ndpool.torch beside it", file=sys.stderr)
        return 2
    if not arrays:
        print(f"no call matches --only {given.only}" if not too_large else "every array is too large", file=sys.stderr)
        return 2
    facts = {"machine": machine(), "versions": versions(peers), "absent": [p for p in RIVALS if p not in peers]}
    print(facts["machine"]["cpu"] + ",", ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    print("absent:", ", ".join(facts["absent"]) or "none", f"; load {facts['machine']['load'][0]:.1f}")
    warn_of_load(max(given.threads), facts["machine"]["load"][0])
    print(f"{len(arrays)} arrays, {len(NETWORKS)} networks in the list,", end=" ")
    print(f"{too_large} arrays beyond {limit(given) / 2**20:.0f} MiB left out")
    start = time.monotonic()
    lines = measured(arrays, given, peers)
    found = list(groups(lines))
    print(f"{time.monotonic() - start:.0f} s, {given.visits} visits of {given.rounds} rounds;", end=" ")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB\n")
    print_groups(found, given.worst)
    print_dropped(lines)
    if given.json:
        given.json.write_text(json.dumps(facts | {"too_large": too_large} | report(found, lines), indent=1))
    return int(any(name in OURS.values() for line in lines for name in line.dropped))  # ours must agree with itself


if __name__ == "__main__":
    sys.exit(main())
