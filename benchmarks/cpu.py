"""ndpool beside its peers on the CPU: `python -m benchmarks.cpu [--threads 2] [--json out.json] [--plot out.png]`.

Each row of `rows.ROWS` is measured in up to four phases, together with every peer that is installed, and the floor:

    forward   y = op(x)
    vjp       at = op.linearize(x); at.vjp(dy)      against a peer's forward and backward together
    pull      at.vjp(dy) alone                      against torch's backward alone; no goal
    jvp       op.value_and_jvp(x, dx)               against torch.func.jvp and jitted jax.jvp, which give both too

`vjp` counts the forward pass because peers keep something of theirs: torch's max pooling stores an int64 index an
output, so its backward alone looks cheap at the expense of its forward. Only the sum is comparable.

Before anything is timed a peer's result is compared with ndpool's; one that disagrees or raises is named and dropped.
The ratio is the best peer's median over ndpool's (higher is better), the fraction is the floor's over ndpool's, where
the floor only reads and writes as many bytes (see `timing`). A `MISS` is a goal that is not met.

Two curves follow: time against window size, which should stay flat, and against rank at equal element counts.
In this file: one row and phase, what is printed and written, curves, pictures, the command. What is measured is in
`rows`, how in `timing`, and how each library spells it in `peers`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import ndpool

from . import timing
from .peers import PEERS, Spell, spell_ndpool, spells
from .rows import PHASES, PLANES, ROWS, Case, Phase, Row, case_of
from .timing import Contender, Times, measure


@dataclass(frozen=True)
class Ratio:
    """ndpool against the fastest of some peers; above 1 is faster than it."""

    peer: str
    ms: float
    ratio: float
    goal: float | None

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.ratio < self.goal


@dataclass(frozen=True)
class Result:
    """One row and phase: all times, and what they come to."""

    row: str
    phase: Phase
    times: dict[str, Times]
    ratios: list[Ratio]
    floor: float
    floor_goal: float | None
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def floor_missed(self) -> bool:
        return self.floor_goal is not None and self.floor < self.floor_goal


# -- one row and phase -------------------------------------------------------------------------------------------------


def disagreement(case: Case, phase: Phase, got: list[Any], want: list[Any]) -> str | None:
    """Why a peer's result is not ndpool's: a maximum and its tangent are copies and must be equal, sums nearly.

    Peers add up bfloat16 and float16 in what they are, so these need only agree beside the largest value there is.
    """
    exact = case.law == "max" and phase in ("forward", "jvp")
    if [a.shape for a in got] != [a.shape for a in want]:
        return f"has shapes {[a.shape for a in got]}, not {[a.shape for a in want]}"
    for a, b in zip(got, want, strict=True):
        if a.dtype != b.dtype:
            return f"gives {a.dtype}, not {b.dtype}"
        if exact and not np.array_equal(a, b):
            return f"disagrees in {np.mean(a != b):.2%} of the elements"
        half = a.dtype.itemsize == 2
        a, b = (np.asarray(v, np.float32) if half else v for v in (a, b))
        close = {"rtol": 0, "atol": 2**-5 * np.abs(b).max()} if half else {"rtol": 1e-4, "atol": 1e-5}
        if not exact and not np.allclose(a, b, **close):
            return f"disagrees by up to {np.abs(a - b).max():.2g}"
    return None


def accepted(
    case: Case, phase: Phase, spells: Mapping[str, Spell], threads: int, dropped: dict[str, str], checked: bool = False
) -> Iterator[Contender]:
    """ndpool, and the contenders that give what it gives; why the others do not goes into `dropped`.

    Who is in `dropped` already stays out. `checked` says that the others were compared before.
    """
    (ours,) = spell_ndpool(case, phase, threads)
    yield ours
    want = [] if checked else ours.read(ours.run())
    for peer, spell in spells.items():
        name = peer
        try:
            for contender in spell(case, phase, threads):
                name = contender.name
                problem = dropped.get(name)
                if problem is None and not checked:
                    problem = disagreement(case, phase, contender.read(contender.run()), want)
                if problem is None:
                    yield contender
                else:
                    dropped[name] = problem
        except Exception as error:  # a peer may lack the dtype or the derivative, and says so in its own way
            dropped[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def ratios(row: Row, phase: Phase, times: dict[str, Times]) -> list[Ratio]:
    """Against the best peer; where OpenCV has a goal of its own, against OpenCV and against the best of the others."""
    ours, goal = times["ndpool"].median_ms, row.goals.of(phase)
    rivals = {name: t.median_ms for name, t in times.items() if name != "ndpool" and not name.startswith("floor")}
    groups: list[tuple[dict[str, float], float | None]] = [(rivals, goal)]
    if phase == "forward" and row.goals.opencv is not None:
        opencv = {name: ms for name, ms in rivals.items() if name.startswith("opencv")}
        groups = [(opencv, row.goals.opencv), ({n: ms for n, ms in rivals.items() if n not in opencv}, goal)]
    bests = [(min(group, key=lambda name: group[name]), goal) for group, goal in groups if group]
    return [Ratio(name, rivals[name], rivals[name] / ours, goal) for name, goal in bests]


def result_of(case: Case, phase: Phase, peers: list[str], threads: int, rounds: int) -> Result:
    dropped: dict[str, str] = {}
    runs = {contender.name: contender.run for contender in accepted(case, phase, spells(peers), threads, dropped)}
    times = measure(runs | timing.floors(case.moved(phase), threads), rounds, threads)
    floor = times["floor"].median_ms / times["ndpool"].median_ms
    goal = case.row.goals.floor if phase == "forward" else None
    return Result(case.row.name, phase, times, ratios(case.row, phase, times), floor, goal, dropped)


# -- what is printed and written ---------------------------------------------------------------------------------------

HEADER = f"{'row':28} {'phase':8} {'ms':>9}  {'best peer':28} {'its ms':>9} {'ratio':>7}  goal  floor goal"


def goal_text(goal: float | None) -> str:
    return "" if goal is None else f"{goal:g}"


def lines(result: Result) -> Iterator[str]:
    """A line for each group of peers (one, but for rows with a goal over OpenCV)."""
    start = f"{result.row:28} {result.phase:8} {result.times['ndpool'].median_ms:9.4f}"
    floor = f"{result.floor:5.2f} {goal_text(result.floor_goal):>4}"
    for i, r in enumerate(result.ratios or [None]):
        peer = f"{'no peer':28} {'':9} {'':7} {'':5}"
        if r is not None:
            peer = f"{r.peer:28} {r.ms:9.4f} {r.ratio:7.2f} {goal_text(r.goal):>5}"
        missed = (r is not None and r.missed) or (i == 0 and result.floor_missed)
        yield f"{start}  {peer}  {floor if i == 0 else '':10}{'  MISS' if missed else ''}".rstrip()


def busy(results: list[Result]) -> dict[str, float]:
    """Contenders that used more than one thread when told to use one."""
    cores: dict[str, float] = {}
    for result in results:
        for name, t in result.times.items():
            cores[name] = max(t.cores, cores.get(name, 0.0))
    return {name: c for name, c in cores.items() if c > 1.2}


def machine() -> dict[str, Any]:
    """What a reader needs to place the figures."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def versions(peers: list[str]) -> dict[str, str]:
    found = {"ndpool": ndpool.__version__, "numpy": np.__version__}
    for peer in peers:
        try:
            found[peer] = metadata.version(PEERS[peer].distribution)
        except metadata.PackageNotFoundError:  # installed under another name, as opencv-python is
            found[peer] = "unknown"
    return found


def limit_threads(threads: int) -> None:
    """For libraries that read their environment when they are imported, which is later than this."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "PJRT_NPROC"):
        os.environ[name] = str(threads)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if threads == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()


# -- curves ------------------------------------------------------------------------------------------------------------

KERNELS = (3, 5, 9, 15, 31, 63, 127)
TORCH_UP_TO = 15  # its time grows with the window's area
SHAPES = (
    (4, 2**20),
    (4, 1024, 1024),
    (4, 64, 128, 128),
    (4, 32, 32, 32, 32),
    (4, 16, 16, 16, 16, 16),
    (4, 8, 8, 8, 8, 16, 16),
)  # 2**22 elements each; all axes but the first are pooled


@dataclass(frozen=True)
class Curves:
    """`kernels`: for max and avg, milliseconds of each contender by kernel size; `ranks`: ndpool's by rank."""

    kernels: dict[str, dict[str, dict[int, float]]]
    ranks: dict[int, float]


def curve_times(case: Case, peers: list[str], given: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of ndpool and of these peers' plain spelling, if it gives what ndpool gives."""
    dropped: dict[str, str] = {}
    contenders = list(accepted(case, "forward", spells(peers), given.threads, dropped))
    for name, why in dropped.items():
        print(f"{case.row.name}: {name} {why}")
    runs = {c.name: c.run for c in contenders if c.name in ("ndpool", *peers)}
    return {name: t.median_ms for name, t in measure(runs, given.rounds, given.threads).items()}


def by_kernel(record: Any, peers: list[str], given: argparse.Namespace) -> dict[str, dict[int, float]]:
    curve: dict[str, dict[int, float]] = {}
    for k in KERNELS:
        case = case_of(Row(f"K={k}", record(k, 1, k // 2), PLANES), given.data)
        shown = [p for p in peers if p == "opencv" or (p == "torch" and k <= TORCH_UP_TO)]
        for name, ms in curve_times(case, shown, given).items():
            curve.setdefault(name, {})[k] = ms
    return curve


def by_rank(given: argparse.Namespace) -> dict[int, float]:
    times = {}
    for shape in SHAPES:
        rank = len(shape) - 1
        case = case_of(Row(f"rank {rank}", ndpool.MaxPool((2,) * rank), shape), given.data)
        times[rank] = curve_times(case, [], given)["ndpool"]
    return times


def curves_of(given: argparse.Namespace, peers: list[str]) -> Curves:
    """Both curves, printed as they are measured."""
    kernels = {}
    for name, record in (("max", ndpool.MaxPool), ("avg", ndpool.AvgPool)):
        kernels[name] = by_kernel(record, peers, given)
        print_kernels(name, kernels[name])
    ranks = by_rank(given)
    print(f"\n{'max 2 s2 over 2**22 elements, rank':34}", *(f"{rank:9}" for rank in ranks))
    print(f"{'ndpool, ms':34}", *(f"{ms:9.3f}" for ms in ranks.values()))
    spread = max(ranks.values()) / min(ranks.values())
    print(f"slowest over fastest: {spread:.2f}, goal at most 2{'  MISS' if spread > 2 else ''}")
    return Curves(kernels, ranks)


def print_kernels(name: str, curve: dict[str, dict[int, float]]) -> None:
    print(f"\n{f'{name} K x K s1 on {PLANES}, K =':34}", *(f"{k:9}" for k in KERNELS))
    for contender, times in curve.items():
        print(f"{f'{contender}, ms':34}", *(f"{ms:9.3f}" for ms in times.values()))
    ours = curve["ndpool"]
    growth = ours[127] / ours[9]
    print(f"K=127 over K=9: {growth:.2f}, goal at most 1.5{'  MISS' if growth > 1.5 else ''}")
    slower = [k for k, ms in curve.get("opencv", {}).items() if ours[k] > ms]
    if slower:
        print(f"slower than OpenCV at K = {', '.join(map(str, slower))}  MISS")


# -- pictures ----------------------------------------------------------------------------------------------------------

OURS, BEHIND, GOAL = "#1f6f8b", "#d08c60", "#222222"


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def draw_bars(results: list[Result], path: Path) -> None:
    """The ratio to the best peer of each row, a panel a phase; a tick marks the goal, the line at 1 is the peer."""
    plt = pyplot()
    groups = [[(r, ratio) for r in results if r.phase == phase for ratio in r.ratios] for phase in PHASES]
    groups = [group for group in groups if group]
    heights = [len(group) + 1.5 for group in groups]
    figure, panels = plt.subplots(
        len(groups), 1, figsize=(11, 0.27 * sum(heights) + 1), sharex=True, squeeze=False,
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    for panel, group in zip(panels[:, 0], groups, strict=True):
        ratios = [ratio.ratio for _, ratio in group]
        # bars grow from 1, to the right where ndpool is faster and to the left where it is not
        panel.barh(
            range(len(group)), [r - 1 for r in ratios], left=1, color=[OURS if r >= 1 else BEHIND for r in ratios]
        )
        for y, (_, ratio) in enumerate(group):
            if ratio.goal is not None:
                panel.plot([ratio.goal] * 2, [y - 0.42, y + 0.42], color=GOAL, linewidth=2)
            end = max(1, ratio.ratio, ratio.goal or 1)  # right of the bar and of the tick
            panel.annotate(
                f"{ratio.ratio:.2g}x {ratio.peer}", (end, y), (4, 0), textcoords="offset points", va="center",
                fontsize=7,
            )  # fmt: skip
        panel.set_yticks(range(len(group)), [result.row for result, _ in group], fontsize=8)
        panel.set_ylim(len(group) - 0.4, -0.6)
        panel.set_xscale("log")
        panel.axvline(1, color=GOAL, linewidth=0.8)
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(group[0][0].phase, loc="left", fontsize=10, fontweight="bold")
    panels[-1, 0].set_xlabel("times as fast as the best peer (named); the black tick is the goal")
    low, high = panels[0, 0].get_xlim()
    panels[0, 0].set_xlim(min(low, 0.5), high * 4)  # room for the names
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_curves(drawn: Curves, path: Path) -> None:
    """Time against kernel size for max and average, and ndpool's time against rank."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for panel, (name, curve) in zip(panels, drawn.kernels.items(), strict=False):
        for contender, times in curve.items():
            panel.plot(
                list(times),
                list(times.values()),
                marker="o",
                label=contender,
                linewidth=2.5 if contender == "ndpool" else 1.3,
            )
        panel.set_xscale("log")
        panel.set_yscale("log")
        kernels = list(curve["ndpool"])
        panel.set_xticks(kernels, [str(k) for k in kernels])
        panel.minorticks_off()
        panel.set_title(f"{name} K x K, stride 1, 8 planes of 256 x 256", fontsize=10)
        panel.set_xlabel("K")
        panel.set_ylabel("ms")
        panel.grid(alpha=0.3)
        panel.legend()
    panels[-1].bar([str(rank) for rank in drawn.ranks], list(drawn.ranks.values()), color=OURS)
    panels[-1].set_title("max, kernel 2 on every axis, 2**22 elements", fontsize=10)
    panels[-1].set_xlabel("rank")
    panels[-1].set_ylabel("ms")
    figure.savefig(path, dpi=130)
    plt.close(figure)


# -- the command -------------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description="ndpool beside its peers on the CPU")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="rows whose name contains one of these; default: all")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--data", choices=("randn", "constant"), default="randn")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--curves", action=argparse.BooleanOptionalAction, help="default: only without --rows")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="bars; the curves go to FILE-curves.png")
    given = parser.parse_args()
    given.peers = [peer for peer in given.peers.split(",") if peer]
    unknown = set(given.peers) - set(PEERS)
    if unknown:
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    given.rows = [row for row in ROWS if given.rows is None or any(name in row.name for name in given.rows)]
    if given.curves is None:
        given.curves = len(given.rows) == len(ROWS)
    return given


def measured(given: argparse.Namespace, peers: list[str]) -> list[Result]:
    """All results, each printed when it is there."""
    results = []
    print(HEADER)
    for row in given.rows:
        case = case_of(row, given.data)
        for phase in row.phases:
            if phase in given.phases:
                results.append(result_of(case, phase, peers, given.threads, given.rounds))
                print(*lines(results[-1]), sep="\n", flush=True)
    return results


def print_notes(given: argparse.Namespace, results: list[Result]) -> None:
    dropped = [(r.row, r.phase, name, why) for r in results for name, why in r.dropped.items()]
    if dropped:
        print("\ndropped:")
    for row, phase, name, why in dropped:
        print(f"  {row}, {phase}: {name} {why}")
    if given.threads == 1:
        for name, cores in busy(results).items():
            print(f"{name} used {cores:.1f} cores although told to use one; its CPU time counts them all")
    missed = [r for r in results if r.floor_missed or any(ratio.missed for ratio in r.ratios)]
    print(f"\n{len(missed)} of {len(results)} lines miss a goal")


def facts_of(given: argparse.Namespace, peers: list[str]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "versions": versions(peers),
        "absent": [peer for peer in given.peers if peer not in peers],
        "threads": given.threads,
        "clock": "process CPU time" if given.threads == 1 else "wall time",
        "rounds": given.rounds,
        "data": given.data,
        "stream": "native" if timing.native_stream() else "NumPy stand-in, one thread",
    }


def warn_of_load(threads: int, load: float) -> None:
    if threads > 1 and load > 0.5:
        # whoever joins threads waits for the one that has no core: milliseconds, however little the work
        print(f"the machine is busy (load {load:.1f}): wall times of two threads mean little")


def print_facts(facts: dict[str, Any]) -> None:
    print(
        f"{facts['machine']['cpu']}, {facts['threads']} thread(s), {facts['clock']}, median of {facts['rounds']} rounds"
    )
    print("peers:", ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    print("absent:", ", ".join(facts["absent"]) or "none")
    print(f"floor: {facts['stream']}; data: {facts['data']}")
    warn_of_load(facts["threads"], facts["machine"]["load"][0])
    print()


def main() -> None:
    given = arguments()
    limit_threads(given.threads)
    warnings.simplefilter("ignore")  # peers warn about their own internals
    peers = [peer for peer in given.peers if importlib.util.find_spec(PEERS[peer].module)]
    facts = facts_of(given, peers)
    print_facts(facts)
    results = measured(given, peers)
    print_notes(given, results)
    drawn = curves_of(given, peers) if given.curves else None
    if given.json:
        everything = facts | {"results": [asdict(r) for r in results], "curves": asdict(drawn) if drawn else None}
        given.json.write_text(json.dumps(everything, indent=1))
    if given.plot:
        draw_bars(results, given.plot)
        if drawn:
            draw_curves(drawn, given.plot.with_stem(f"{given.plot.stem}-curves"))


if __name__ == "__main__":
    main()
