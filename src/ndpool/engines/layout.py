"""Which axes lie where, and which neighbours are walked as one: decided once per plan, by sizes and strides alone."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from ..spec import Axis, Window, each, whole

Array = np.ndarray[Any, Any]


class Layout:
    """The axes of strided arrays in the order of memory: lead (a tile for each index), pooled, lanes.

    Lanes lie inside all pooled axes: elements side by side that no window joins. Neighbouring axes that can be walked
    as one are one: lanes, and pooled axes that are pooled whole. Which of the latter are one is the window's to say, so
    that every layout gives the same bits; an array in which they cannot be walked as one is copied. `steps` are those
    of positions, if positions are wanted.
    """

    def __init__(self, window: Window, strides: tuple[int, ...], steps: dict[int, int]):
        sizes = window.shape
        pooled = [i for i, axis in enumerate(window.axes) if not axis.is_identity]
        groups: list[list[int]] = []
        for before, i in zip([-1, *pooled], pooled, strict=False):
            both = before >= 0 and window.axes[before].is_whole and window.axes[i].is_whole
            both = both and (not steps or steps.get(before) == steps.get(i, 0) * sizes[i])  # positions must be one, too
            groups = [*groups[:-1], [*groups[-1], i]] if both else [*groups, [i]]
        self.merged = [g for g in groups if len(g) > 1]
        self.copies = not all(_walks_as_one(g, sizes, strides) for g in self.merged)
        if self.copies:  # the copy's: in the caller's order, but with the pooled axes last
            order = [*(i for i in range(len(sizes)) if i not in pooled), *pooled]
            strides = tuple(math.prod(sizes[j] for j in order[order.index(i) + 1 :]) for i in range(len(sizes)))
        # axes of one element, or of the same one again and again, may lie anywhere: outermost
        by_stride = sorted(range(len(sizes)), key=lambda i: (-abs(strides[i]) * (sizes[i] > 1) or -math.inf, i))
        self.pooled = [i for i in by_stride if i in pooled]
        for group in self.merged:
            at = min(self.pooled.index(i) for i in group)
            self.pooled = [i for i in self.pooled if i not in group]
            self.pooled[at:at] = group
        inside = max((by_stride.index(i) for i in pooled if sizes[i] > 1), default=len(sizes))
        lanes = [i for i in by_stride[inside + 1 :] if sizes[i] > 1 and i not in self.pooled]
        while len(lanes) > 1 and not _walks_as_one(lanes, sizes, strides):
            lanes = lanes[1:]
        self.lanes = lanes
        self.lead = [i for i in by_stride if i not in self.lanes and i not in self.pooled]
        self.order = [*self.lead, *self.pooled, *self.lanes]
        back = sorted(range(len(sizes)), key=self.order.__getitem__)
        self.back = None if back == list(range(len(sizes))) else back
        self.in_shape, self.out_shape = (tuple(s[i] for i in self.order) for s in (sizes, window.out_shape))
        first = {g[0]: g for g in self.merged}
        rest = {i for g in self.merged for i in g[1:]}
        self.pooled_groups = [first.get(i, [i]) for i in self.pooled if i not in rest]
        self.one = [*self.merged, *([self.lanes] if len(self.lanes) > 1 else [])]
        self.walked = [*self.lead, *(_walker(g, sizes) for g in self.pooled_groups), *self.lanes[-1:]]

    def laid(self, a: Array) -> Array:
        """An array that can be walked as this layout is: itself, or a copy where its axes lie otherwise."""
        if not self.one or all(_walks_as_one(g, a.shape, a.strides) for g in self.one):
            return a
        dense = np.ascontiguousarray(a.transpose(self.order))
        return dense if self.back is None else dense.transpose(self.back)


def _walker(group: list[int], sizes: tuple[int, ...]) -> int:
    """The axis whose stride is that of a group walked as one."""
    return next((i for i in reversed(group) if sizes[i] > 1), group[-1])


def _walks_as_one(group: list[int], sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    kept = [i for i in group if sizes[i] > 1]
    return all(strides[i] == strides[j] * sizes[j] for i, j in pairwise(kept))


def folded(axes: list[Axis]) -> tuple[int, int, list[Axis], list[list[int]]]:
    """Of dense arrays: lead, lanes, and the axes between them, where neighbours that can be walked as one are one; and
    which axes each is made of."""
    groups: list[tuple[Axis, list[int]]] = []
    for i, axis in enumerate(axes):
        axis = axis.simplified()
        if groups and groups[-1][0].is_identity and axis.is_identity:
            groups[-1] = each(groups[-1][0].size * axis.size), [*groups[-1][1], i]
        elif groups and groups[-1][0].is_whole and axis.is_whole:
            groups[-1] = whole(groups[-1][0].size * axis.size), [*groups[-1][1], i]
        else:
            groups.append((axis, [i]))
    lead = groups.pop(0)[0].size if groups and groups[0][0].is_identity else 1
    lanes = groups.pop()[0].size if groups and groups[-1][0].is_identity else 1
    found = groups or [(each(1), [])]
    return lead, lanes, [axis for axis, _ in found], [members for _, members in found]
