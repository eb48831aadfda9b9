"""What a plan decides, at the sizes that it decides by; and what it gives on either side of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ndpool.engines.triton import plan as plans
from ndpool.spec import Axis, Law, Window, adaptive, each, lp, maximum, mean, sliding, smooth_max, whole

from .test_agreement import agree


def slide(n: int, kernel: int, stride: int = 1, padding: tuple[int, int] = (0, 0), dilation: int = 1) -> Axis:
    return sliding(n, kernel, stride, padding, dilation, count_padding=False)


def planned(*axes: Axis, law: Law | None = None) -> Any:
    window = Window((each(2), *axes))
    return plans.planned(window, law or maximum(), np.dtype("float32"), tuple(range(len(window.axes))), ())


# -- a mean over passes ------------------------------------------------------------------------------------------------

PASSES: dict[str, tuple[Axis, ...]] = {
    "two": (slide(12, 11, 1, (1, 0)), slide(6, 6, 1, (1, 1))),
    "three": (slide(4, 3, 1, (1, 0)), slide(3, 3, 1, (1, 1)), slide(8, 8, 1, (1, 1))),
}


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("divisor", [None, 7])
def test_a_mean_over_passes_is_divided_once(passes: str, divisor: int | None) -> None:
    """By the divisor, or by the product of what each pass counts."""
    assert isinstance(planned(*PASSES[passes], law=mean(divisor)), plans.Chain)
    agree(Window((each(1), *PASSES[passes])), mean(divisor), "float32", note=(passes, divisor))


# -- one launch or several ---------------------------------------------------------------------------------------------


def test_passes_are_for_more_taps_than_are_unrolled_along_two_axes() -> None:
    """More than 64 taps, or readers, of windows that overlap; not where a law must see all taps at once."""
    for kernels, chained in (((8, 8), False), ((5, 13), True), ((1, 65), False), ((65, 1), False), ((2, 33), True)):
        axes = [slide(k + 9, k) for k in kernels]
        assert isinstance(planned(*axes), plans.Chain) == chained, kernels
    tall = slide(22, 13), slide(14, 5)
    for law, chained in (
        (maximum("first"), True),
        (maximum("split"), False),
        (maximum("all"), True),
        (smooth_max(1.0), True),
        (lp(2), True),
    ):
        assert isinstance(planned(*tall, law=law), plans.Chain) == chained, law.params
    zeros = sliding(22, 13, 1, (0, 1)), sliding(14, 5, 1)
    assert isinstance(planned(*zeros, law=smooth_max(1.0)), plans.Plan)
    assert isinstance(planned(*zeros, law=mean()), plans.Chain)


def decisions(*axes: Axis, law: Law | None = None) -> set[str]:
    """The names of what a plan does."""
    window = Window(axes)
    plan = plans.Plan(window, law or maximum(), np.dtype("float32"), tuple(range(len(axes))))
    return {name for name in ("collects", "marches", "remakes", "runs", "flat", "wide", "empty") if getattr(plan, name)}


DECISIONS: dict[str, tuple[str, list[tuple[Axis, ...]], list[tuple[Axis, ...]]]] = {
    # what it decides, windows for which it does, and windows for which it just does not
    "taps side by side": (
        "collects",
        [(each(2), slide(32, 16, 16)), (each(2), slide(40, 16, 4)), (each(2), slide(18, 9, 9), slide(16, 8, 8))],
        [(each(2), slide(30, 15, 15)), (each(2), slide(40, 16, 3)), (each(2), slide(16, 8, 8), slide(16, 8, 8))],
    ),
    "step by step": (
        "marches",
        [(slide(4, 3, 1, (1, 1)), slide(3, 2), slide(4, 3))],
        [
            (slide(5, 3, 2, (1, 1)), slide(3, 2), slide(4, 3)),
            (slide(5, 2, 1, (1, 1), 2), slide(3, 2), slide(4, 3)),
            (slide(4, 3, 1, (1, 1)), slide(4, 3)),
            (slide(4, 1, 1), slide(3, 2), slide(4, 3)),
        ],
    ),
    "states made anew": (
        "remakes",
        [(slide(9, 3, 1),), (slide(9, 3, 3), slide(9, 3, 3)), (slide(40, 12, 4),), (slide(54, 9, 3), slide(54, 3, 3))],
        [(slide(9, 4, 1),), (slide(40, 13, 4),), (slide(60, 5, 5),), (slide(28, 7, 4), slide(8, 4, 4))],
    ),
    "runs of outputs": (
        "runs",
        [(each(2), slide(40, 9)), (each(2), slide(600, 512))],
        [(each(2), slide(40, 8)), (each(2), slide(600, 513)), (each(2), slide(60, 9, 1, (0, 0), 2))],
    ),
    "windows loaded at once": (
        "flat",
        [(each(4), whole(126)), (each(4), whole(125)), (each(4), whole(5), whole(17))],
        [(each(4), whole(128)), (each(4), whole(129)), (each(4), whole(124)), (each(4), whole(17), each(3))],
    ),
    "windows that count nothing": (
        "empty",
        [(slide(3, 2, 1, (2, 0)),), (slide(3, 2, 1, (0, 2)),)],
        [(slide(3, 2, 1, (1, 1)),), (slide(3, 2, 1, (0, 1)),)],
    ),
    "long indices": (
        "wide",
        [(each(plans.NARROW + 1), slide(1, 1, 2)), (slide(plans.NARROW + 1, 2, 2**30),)],
        [(each(plans.NARROW), slide(1, 1, 2)), (slide(plans.NARROW, 2, 2**30),)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_plan_decides_by_the_window(decision: str) -> None:
    name, those, others = DECISIONS[decision]
    for axes in those:
        assert name in decisions(*axes), axes
    for axes in others:
        assert name not in decisions(*axes), axes


@pytest.mark.parametrize(("kernel", "outputs", "readers"), [(3, 9, 3), (4, 9, 2), (5, 9, 3), (5, 2, 2), (1, 9, 1)])
def test_readers_are_as_many_as_windows_overlap(kernel: int, outputs: int, readers: int) -> None:
    stride = 1 if kernel == 3 else 2
    axis = slide((outputs - 1) * stride + kernel, kernel, stride)
    assert axis.outputs == outputs
    assert axis.most_readers == readers


@pytest.mark.parametrize(("n", "outputs"), [(7, 5), (5, 7), (8, 4), (23, 7), (3, 7), (1, 4), (9, 9)])
def test_readers_of_bins_are_no_fewer_than_read(n: int, outputs: int) -> None:
    axis = adaptive(n, outputs)
    most = max(sum(i in axis.reads(o) for o in range(outputs)) for i in range(n))
    assert most <= axis.most_readers <= most + 1


SIDES: dict[str, tuple[Axis, ...]] = {
    "65 taps": (each(1), slide(6, 5), slide(14, 13)),
    "16 taps": (each(2), slide(32, 16, 16)),
    "17 taps": (each(2), slide(34, 17, 17)),
    "9 readers": (each(1), slide(20, 9)),
    "127 taps at once": (each(2), whole(127)),
    "129 taps": (each(2), whole(129)),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("law", [maximum(), mean()], ids=["max", "mean"])
def test_values_on_either_side_of_a_decision(law: Law, side: str) -> None:
    agree(Window(SIDES[side]), law, "float32", note=side)
