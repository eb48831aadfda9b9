"""Where the nodes of a drawing stand: layers from top to bottom, an order in each, and an x for everything.

    layer   the longest path to a node; an input or constant stands just above its first reader
    order   each layer by the mean place of its neighbours above, then below, as long as edges cross less
    x       lines of nodes that follow each other first and straight, what is shorter beside them

An edge over several layers has a bend in each, which is placed like a narrow node, so that edges run round boxes. All
of it is a function of the program and the sizes of its boxes; nothing here draws.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from itertools import accumulate, pairwise

from ..lazy import lazy
from .program import Input, Node, Program

Place = tuple[int, int]  # (node, layer): the node in its own layer, a bend of its edges in a later one

BEND, APART, LABEL, GAP, MARGIN = 4, 24, 20, 30, 28  # pixels: a bend's width, between boxes, below one, between layers
SWEEPS, ROUNDS = 24, 4


def layers(program: Program) -> list[int]:
    """The longest path to each node; inputs, and what depends on none, stand just above their first reader."""
    depth = [0] * len(program.nodes)
    still: set[int] = set()
    first: dict[int, int] = {}
    for node in program.nodes:
        depth[node.id] = 1 + max((depth[a] for a in node.args), default=-1)
        if not isinstance(node.op, Input) and still.issuperset(node.args):
            still.add(node.id)
    for node in reversed(program.nodes):
        if node.id in first and (node.id in still or not node.args):
            depth[node.id] = first[node.id] - 1
        for a in node.args:
            first[a] = min(first.get(a, depth[node.id]), depth[node.id])
    return depth


def crowd(program: Program) -> int:
    """How many nodes and bends there are to place."""
    depth = layers(program)
    last: dict[int, int] = {}
    for node in program.nodes:
        last.update((a, max(last.get(a, 0), depth[node.id])) for a in node.args)
    return len(depth) + sum(last[a] - depth[a] - 1 for a in last)


class Layout:
    """Where everything stands: `x` the middle of a place, `top` where its row begins, `foot` where edges may bend."""

    def __init__(self, program: Program, sizes: list[tuple[float, float]]):
        self.program, self.sizes, self.depth = program, sizes, layers(program)
        self.rows: list[list[Place]] = [[] for _ in range(1 + max(self.depth, default=-1))]
        self.readers = Counter(a for node in program.nodes for a in set(node.args))
        self.above: dict[Place, dict[Place, float]] = {}
        self.below: dict[Place, dict[Place, float]] = {}
        for node in program.nodes:
            self._add((node.id, self.depth[node.id]))
            for a in node.args:
                for upper, lower in pairwise(self.course(a, node.id)):
                    self._add(lower)
                    self.above[lower][upper] = self.below[upper][lower] = self._pull(upper, lower)
        self._order()
        self.x = self._place()
        self.top, self.foot = self._levels()

    def _add(self, place: Place) -> None:
        if place not in self.above:
            self.above[place], self.below[place] = {}, {}
            self.rows[place[1]].append(place)

    def course(self, a: int, b: int) -> list[Place]:
        """The places on the edge from node a to node b."""
        return [*((a, layer) for layer in range(self.depth[a], self.depth[b])), (b, self.depth[b])]

    def of(self, node: Node) -> tuple[float, float]:
        """The middle and the upper end of a node's box."""
        layer = self.depth[node.id]
        return self.x[node.id, layer], self.top[layer]

    def bend(self, place: Place) -> bool:
        return self.depth[place[0]] != place[1]

    def _pull(self, upper: Place, lower: Place) -> float:
        """How much a link wants to be straight: bends most, then the only way on, an input or constant least."""
        bends = self.bend(upper) + self.bend(lower)
        pull = 16.0 if bends == 2 else 4.0 if bends == 0 or self.readers[upper[0]] == 1 else 1.0
        loose = not self.program.nodes[upper[0]].args or lower[0] not in self.program.needed
        return pull / 64 if loose else pull

    # -- order: each row by the mean place of its neighbours, down and up, as long as crossings get fewer

    def _order(self) -> None:
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            down = sweep % 2 == 0
            for i in range(len(self.rows))[:: 1 if down else -1]:
                if 0 <= (other := i - 1 if down else i + 1) < len(self.rows):
                    self._sort(i, other, self.above if down else self.below)
            if (found := self._crossings()) < fewest:
                best, fewest = [list(row) for row in self.rows], found
        self.rows = best

    def _sort(self, i: int, other: int, links: dict[Place, dict[Place, float]]) -> None:
        at = {place: k for k, place in enumerate(self.rows[other])}
        own = {place: float(k) for k, place in enumerate(self.rows[i])}
        key = {place: sum(at[p] for p in links[place]) / len(links[place]) for place in own if links[place]}
        self.rows[i] = sorted(own, key=lambda place: key.get(place, own[place]))

    def _crossings(self) -> int:
        total = 0
        for upper, lower in pairwise(self.rows):
            at = {place: k for k, place in enumerate(lower)}
            seen: list[int] = []
            for place in upper:
                ends = sorted(at[p] for p in self.below[place])
                total += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return total

    # -- places: the longest lines first and straight, what is shorter beside them

    def width(self, place: Place) -> float:
        return BEND if self.bend(place) else self.sizes[place[0]][0]

    def _place(self) -> dict[Place, float]:
        x: dict[Place, float] = {}
        strands = self._strands()
        for _ in range(ROUNDS):
            for strand in strands:
                self._straighten(strand, x)
        left = min((x[place] - self.width(place) / 2 for place in x), default=0) - MARGIN
        return {place: x[place] - left for place in x}

    def _strands(self) -> list[list[Place]]:
        """Lines of places to draw straight: a place and the one below it, if each is the other's strongest link.

        Longest first; inputs and constants, which can go anywhere, last.
        """
        strands: dict[Place, list[Place]] = {}
        favourite = {place: self._strongest(self.below[place]) for place in self.below}
        for place in (place for row in self.rows for place in row):
            upper = self._strongest(self.above[place])
            strands[place] = strands[upper] if upper and favourite[upper] == place else []
            strands[place].append(place)
        found = {id(strand): strand for strand in strands.values()}.values()
        return sorted(found, key=lambda strand: (not self.above[strand[-1]], -len(strand)))

    def _strongest(self, links: dict[Place, float]) -> Place | None:
        """The strongest link; among equals the middle one."""
        most = max(links.values(), default=0.0)
        tied = sorted((p for p in links if links[p] == most), key=self.at.__getitem__)
        return tied[(len(tied) - 1) // 2] if tied else None

    def _straighten(self, strand: list[Place], x: dict[Place, float]) -> None:
        """Put each part of the strand that has room for it at one x."""
        part: list[Place] = []
        low, high = -math.inf, math.inf
        for place in strand:
            lo, hi = self._room(place, x)
            if max(low, lo) > min(high, hi):
                x.update(dict.fromkeys(part, min(max(self._wanted(part, x), low), high)))
                part, low, high = [], -math.inf, math.inf
            part.append(place)
            low, high = max(low, lo), min(high, hi)
        x.update(dict.fromkeys(part, min(max(self._wanted(part, x), low), high)))

    def _wanted(self, part: list[Place], x: dict[Place, float]) -> float:
        """The mean place of what the part is linked to."""
        own, linked = set(part), [link for p in part for link in (*self.above[p].items(), *self.below[p].items())]
        pulls = [(pull, x[q]) for q, pull in linked if q in x and q not in own]
        return sum(pull * at for pull, at in pulls) / (sum(pull for pull, _ in pulls) or 1)

    def _room(self, place: Place, x: dict[Place, float]) -> tuple[float, float]:
        """The least and the greatest x for a place, leaving room for the places between it and those already placed."""
        row, steps, k = self.rows[place[1]], self.steps[place[1]], self.at[place]
        low = next((x[row[j]] + steps[k] - steps[j] for j in reversed(range(k)) if row[j] in x), -math.inf)
        return low, next((x[row[j]] + steps[k] - steps[j] for j in range(k + 1, len(row)) if row[j] in x), math.inf)

    @lazy
    def at(self) -> dict[Place, int]:
        """For each place, the number of places left of it in its row."""
        return {place: k for row in self.rows for k, place in enumerate(row)}

    @lazy
    def steps(self) -> list[list[float]]:
        """The least distance of each place from the first of its row."""
        found = []
        for row in self.rows:
            gaps = ((self.width(a) + self.width(b)) / 2 + APART for a, b in pairwise(row))
            found.append([0.0, *accumulate(gaps)])
        return found

    def _levels(self) -> tuple[list[float], list[float]]:
        """Where each row begins and where edges may bend below it; more room where they go far sideways."""
        top, foot = [float(MARGIN)], []
        for row in self.rows:
            foot.append(top[-1] + max(self.sizes[n][1] for n, layer in row if self.depth[n] == layer) + LABEL)
            far = max((abs(self.x[p] - self.x[place]) for place in row for p in self.below[place]), default=0)
            top.append(foot[-1] + min(GAP + far / 16, 2 * GAP))
        return top, foot

    def ports(self, node: Node) -> list[float]:
        """Where the edge of each argument ends: from left to right as they come, a straight one in the middle."""
        x = self.x[node.id, self.depth[node.id]]
        before = [self.x[self.course(a, node.id)[-2]] for a in node.args]
        order = sorted(range(len(before)), key=before.__getitem__)
        straight = [k for k, i in enumerate(order) if abs(before[i] - x) < 1]
        middle = float(straight[0]) if len(straight) == 1 else (len(order) - 1) / 2
        room = self.sizes[node.id][0] / 2 - 12
        step = min(22.0, room / max(1.0, middle, len(order) - 1 - middle))
        at = {i: (k - middle) * step for k, i in enumerate(order)}
        return [x + at[i] for i in range(len(order))]
