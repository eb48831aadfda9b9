"""The Triton engine, interpreted, is the reference: every law and rule over every kind of window, both derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ndpool.engines import reference
from ndpool.spec import Window, adaptive, each, maximum, mean, minimum, sliding, smooth_max, whole

from .. import cases
from ..cases import EXTREMES, FEW, LAWS, SMOOTH, assert_close, assert_exact, assert_same_zeros
from .engine import Engine


def tiled(counted: bool) -> dict[str, Window]:
    """Windows that meet every decision of a plan: vectors, cells, lanes, taps side by side, passes."""

    def slide(*args: Any) -> Any:
        return sliding(*args, count_padding=counted)

    rows = {
        "vectors": (each(2), slide(16, 3, 1, (1, 1)), slide(16, 3, 1, (1, 1))),
        "vectors, stride 2": (each(3), slide(8, 3, 2, (1, 1)), slide(16, 3, 2, (1, 1))),
        "no overlap": (each(2), slide(9, 2, 2), slide(24, 2, 2)),
        "cells within a stride": (each(2), slide(16, 4, 8), slide(32, 8, 8)),
        "step by step": (each(2), slide(3, 3, 1, (1, 1)), slide(3, 2, 1, (1, 0)), slide(6, 3, 1, (1, 1))),
        "one column": (each(2), slide(9, 3, 1, (1, 1)), slide(5, 5, 1)),
        "windows one after another": (each(70), whole(5), whole(5)),
        "a long line": (each(2), slide(64, 11, 1, (5, 5))),
        "lanes": (each(2), slide(2, 2, 1, (1, 0)), slide(5, 3, 2), slide(9, 2, 1, (0, 2), 2), each(4)),
        "passes": (each(1), slide(14, 9, 1, (4, 4)), slide(12, 9, 1, (4, 4))),
        "passes around a batch": (slide(8, 5, 1, (2, 2)), each(2), slide(9, 5, 2, (1, 3)), slide(8, 5, 1, (2, 2))),
        "side by side": (each(3), whole(9), whole(9)),
        "side by side, lanes": (each(2), adaptive(20, 2), adaptive(17, 2), each(3)),
        "more taps than are unrolled": (each(2), slide(90, 70, 3, (8, 8))),
    }
    return {name: Window(axes) for name, axes in rows.items()}


TILED = {counted: tiled(counted) for counted in (False, True)}
PLAIN = ("max first propagate", "max split propagate", "mean", "smooth max")
MORE = ("min last ignore", "lp 2.5")  # of the same kinds


def agree(window: Window, law: Any, dtype: Any, order: Any = None, specials: bool = False, note: Any = "") -> None:
    """Value, jvp and vjp."""
    rng = np.random.default_rng(7)
    x = cases.values(rng, window.shape, dtype, specials)
    dx, dy = (cases.tangents(rng, shape, dtype) for shape in (window.shape, window.out_shape))
    with np.errstate(all="ignore"):
        got = Engine(window, law, np.dtype(dtype), order).linearize(x)
        want = reference.linearize(window, law, x)
        assert_close(got.y, want.y, (note, "y"))
        assert_close(got.jvp(dx), want.jvp(dx), (note, "jvp"))
        assert_close(got.vjp(dy), want.vjp(dy), (note, "vjp"))
    if law.name in ("max", "min"):
        assert_same_zeros(got.y, want.y, note)


def has_work(window: Window) -> bool:
    return 0 not in window.shape + window.out_shape


@pytest.mark.parametrize("law", LAWS)
def test_laws_over_few_windows(law: str) -> None:
    for name, counted, window in cases.told_apart(LAWS[law], FEW):
        agree(window, LAWS[law], "float64", specials=law in EXTREMES, note=(name, counted))


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=[pytest.mark.long] * (law in MORE or "split" in law)) for law in (*PLAIN, *MORE)]
)
def test_few_laws_over_windows(law: str) -> None:
    for name, counted, window in cases.told_apart(LAWS[law]):
        if has_work(window):
            agree(window, LAWS[law], "float32", specials=law in EXTREMES, note=(name, counted))


TILES = [(law, *tile) for law in (*PLAIN, *MORE) for tile in cases.told_apart(LAWS[law], TILED)]


@pytest.mark.parametrize(
    ("law", "window"),
    [
        pytest.param(law, window, id=f"{law}, {name}{', counted' * counted}", marks=[pytest.mark.long] * (law in MORE))
        for law, name, counted, window in TILES
    ],
)
def test_every_decision_of_a_plan(law: str, window: Window) -> None:
    agree(window, LAWS[law], "float32")


@pytest.mark.parametrize("dtype", cases.FLOATS, ids=str)
@pytest.mark.parametrize("law", ["max first propagate", "mean", "smooth max"])
def test_floats(law: str, dtype: Any) -> None:
    agree(TILED[False]["vectors, stride 2"], LAWS[law], dtype)
    agree(TILED[False]["side by side"], LAWS[law], dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_integers_are_exact(dtype: str) -> None:
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    for name in ("vectors", "lanes", "side by side", "passes"):
        window = TILED[False][name]
        x = rng.integers(info.min, info.max, window.shape, dtype=dtype, endpoint=True)
        for law in (maximum(), minimum("last")):
            assert_exact(Engine(window, law, x.dtype).forward(x), reference.forward(window, law, x), name)
        small = rng.integers(0, 2, window.shape).astype(dtype)
        law = cases.LAWS["sum"]
        assert_exact(Engine(window, law, x.dtype).forward(small), reference.forward(window, law, small), name)


@pytest.mark.parametrize("law", [law for law in EXTREMES if "first" in law or "last" in law])
def test_positions_of_winners(law: str) -> None:
    rng = np.random.default_rng(3)
    for name in ("vectors, stride 2", "lanes", "passes", "side by side, lanes"):
        window = TILED[False][name]
        x = cases.values(rng, window.shape, "float32", specials=True)
        axes = cases.pooled(window)
        y, places = Engine(window, EXTREMES[law], x.dtype).winners(x, axes)
        want_y, want_places = reference.winners(window, EXTREMES[law], x, axes)
        assert_exact(y, want_y, name)
        assert_exact(places, want_places, name)


@pytest.mark.parametrize("law", ["max first propagate", "mean", *SMOOTH])
def test_channels_that_lie_last(law: str) -> None:
    axes = (each(2), each(5), sliding(8, 3, 2, (1, 1)), sliding(9, 3, 1, (1, 1)))
    agree(Window(axes), LAWS[law], "float32", order=(0, 2, 3, 1))


@pytest.mark.parametrize("law", [maximum(), minimum()], ids=["max", "min"])
def test_the_first_of_zeros_wins_in_a_forward(law: Any) -> None:
    rng = np.random.default_rng(2)
    for window in TILED[False].values():
        x = rng.choice(np.array([0.0, -0.0, -1.0 if law.name == "max" else 1.0], "float32"), window.shape)
        got, want = Engine(window, law, x.dtype).forward(x), reference.forward(window, law, x)
        assert_exact(got, want)
        assert_same_zeros(got, want)


@pytest.mark.parametrize("window", ["vectors, stride 2", "no overlap", "vectors"])
def test_terms_far_apart(window: str) -> None:
    """A smooth max that no number of a cell can make relative, in its value and both derivatives."""
    window_ = TILED[True][window]
    rng = np.random.default_rng(5)
    x = (rng.normal(size=window_.shape) * 200).astype(np.float32)
    dx, dy = (cases.tangents(rng, shape, "float32") for shape in (window_.shape, window_.out_shape))
    for law in (smooth_max(1.0), smooth_max(-3.0)):
        got, want = Engine(window_, law, x.dtype).linearize(x), reference.linearize(window_, law, x)
        assert_close(got.y, want.y)
        assert_close(got.jvp(dx), want.jvp(dx))
        assert_close(got.vjp(dy), want.vjp(dy))


def test_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one program takes is no part of the meaning: sums are the same to the last bit."""
    from dataclasses import replace

    from ndpool.engines.triton import plan as plans

    window = TILED[True]["vectors"]
    rng = np.random.default_rng(1)
    x = rng.normal(size=window.shape).astype(np.float32)
    dy = rng.normal(size=window.out_shape).astype(np.float32)
    usual = Engine(window, mean(), x.dtype).linearize(x)
    for cells, vector in (((1, 1), 1), ((2, 4), 4), ((4, 8), 4)):
        shape = {"cells": cells, "vector": vector, "block": 32}
        monkeypatch.setattr(plans, "tiles", lambda p, m, s=shape: replace(plans.usual_tiles(p, m), **s))
        other = Engine(window, mean(), x.dtype).linearize(x)
        assert_exact(other.y, usual.y)
        assert_exact(other.vjp(dy), usual.vjp(dy))
