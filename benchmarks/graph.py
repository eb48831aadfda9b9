"""What a program costs over its ops called by hand, in microseconds a node.

    python -m benchmarks.graph

By hand means each op's own `forward`, or `linearize` and then `jvp` or `vjp`, in a plain loop without a graph. Both run
in turns, round after round, and the best round of each counts, so a busy machine disturbs both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ndpool

Run = Callable[[], Any]
MOST = 10.0  # the aim, in microseconds a node


class Case(NamedTuple):
    """A program's run, the same work by hand, and how many nodes it has."""

    name: str
    nodes: int
    program: Run
    by_hand: Run


def relu_chain(n: int) -> ndpool.Program:
    """n relus, one after another, of 4 elements."""
    g = ndpool.Graph()
    x = g.input((4,))
    for _ in range(n):
        x = g.relu(x)
    return g.build(x)


def add_chain(n: int) -> ndpool.Program:
    """n sums, each with the input again."""
    g = ndpool.Graph()
    start = x = g.input((4,))
    for _ in range(n):
        x = x + start
    return g.build(x)


def lenet() -> ndpool.Program:
    """LeNet-5's logits for one image; parameters are inputs."""
    g = ndpool.Graph()
    h = g.input((1, 28, 28))
    for out, size, padding in ((6, 1, 2), (16, 6, 0)):
        h = g.conv(h, g.input((out, size, 5, 5)), padding=padding) + g.input((out, 1, 1))
        h = g.avg_pool(g.tanh(h), 2)
    h = g.flatten(h)
    for size, out in ((400, 120), (120, 84), (84, 10)):
        h = h @ g.input((size, out)) + g.input((out,))
        h = g.tanh(h) if out > 10 else h
    return g.build(h)


def cases(name: str, program: ndpool.Program) -> list[Case]:
    """The three runs of a program and of its ops by hand, at one random point."""
    rng = np.random.default_rng(0)
    xs, dxs = ([rng.standard_normal(shape).astype(np.float32) for shape in program.input_shapes] for _ in range(2))
    [dy] = (rng.standard_normal(shape).astype(np.float32) for shape in program.output_shapes)
    ops = [(node.id, node.op, node.args) for node in program.nodes if node.args]
    inputs = [node.id for node in program.inputs]
    last = program.outputs[0]

    def forward() -> Any:
        values = dict(zip(inputs, xs, strict=True))
        for i, op, args in ops:
            values[i] = op.forward(*[values[a] for a in args])
        return values[last]

    def jvp() -> Any:
        values, moved = dict(zip(inputs, xs, strict=True)), dict(zip(inputs, dxs, strict=True))
        for i, op, args in ops:
            at = op.linearize(*[values[a] for a in args])
            values[i], moved[i] = at.y, at.jvp(*[moved[a] for a in args])
        return moved[last]

    def vjp() -> Any:
        values, pulls = dict(zip(inputs, xs, strict=True)), []
        for i, op, args in ops:
            at = op.linearize(*[values[a] for a in args])
            values[i] = at.y
            pulls.append((i, args, at.vjp))
        pulled = {last: dy}
        for i, args, pull in reversed(pulls):
            dxs = pull(pulled.pop(i))
            for a, dx in zip(args, dxs if isinstance(dxs, tuple) else (dxs,), strict=True):
                pulled[a] = pulled[a] + dx if a in pulled else dx
        return tuple(pulled[i] for i in inputs) if len(inputs) > 1 else pulled[inputs[0]]

    point, tangents = tuple(xs), tuple(dxs)
    return [
        Case(f"{name}, forward", len(ops), lambda: program(*xs), forward),
        Case(f"{name}, jvp", len(ops), lambda: program.jvp(point, tangents), jvp),
        Case(f"{name}, vjp", len(ops), lambda: program.vjp(point, dy), vjp),
    ]


def same(a: Any, b: Any) -> bool:
    """Whether two results, alone or in tuples, are the same numbers."""
    a, b = (part if isinstance(part, tuple) else (part,) for part in (a, b))
    return len(a) == len(b) and all(map(np.array_equal, a, b))


def best(runs: list[Run], rounds: int, seconds: float) -> list[float]:
    """The least time of each run over interleaved rounds, in microseconds a call."""
    start = time.perf_counter()
    for run in runs:
        run()
    calls = max(1, int(seconds / (time.perf_counter() - start)))
    least = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            for _ in range(calls):
                run()
            least[i] = min(least[i], (time.perf_counter() - start) / calls)
    return [1e6 * t for t in least]


def main(rounds: int = 200, seconds: float = 0.005) -> float:
    """Print the table; the largest overhead, in microseconds a node."""
    print(f"{'case':<26}{'nodes':>6}{'program us':>12}{'by hand us':>12}{'us a node':>11}")
    worst = 0.0
    for name, program in (("50 relu", relu_chain(50)), ("50 add", add_chain(50)), ("LeNet-5", lenet())):
        for case in cases(name, program):
            assert same(case.program(), case.by_hand()), case.name
            program_us, by_hand_us = best([case.program, case.by_hand], rounds, seconds)
            extra = (program_us - by_hand_us) / case.nodes
            worst = max(worst, extra)
            print(f"{case.name:<26}{case.nodes:>6}{program_us:>12.1f}{by_hand_us:>12.1f}{extra:>11.2f}")
    print(f"largest overhead {worst:.2f} us a node; the aim is under {MOST:.0f}")
    return worst


if __name__ == "__main__":
    main()
