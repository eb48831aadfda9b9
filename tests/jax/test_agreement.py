"""The adapter beside the reference, which is the spec itself: each law, window, kind of element and mode.

Every program is compiled, so each law meets some of the windows here, such that each window is met by some laws; the
long tables have all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndpool.engines import reference
from ndpool.spec import Window

from .. import cases, examples
from ..cases import COMPLEX, EXTREMES, FLOATS, LAWS, assert_close, assert_exact, assert_same_zeros
from ..test_agreement import Case, case, table_case
from . import ways

long = pytest.mark.long


def check(law: Any, want: Case, note: Any) -> None:
    """Bit for bit where a value is chosen; within the stated tolerance where floats are summed."""
    chosen = law.winners is not None
    got = ways.linearize(want.window, law, want.x)
    (assert_exact if chosen else assert_close)(got.y, want.y, note)
    if chosen:
        assert_same_zeros(got.y, want.y, note)
    if want.x.dtype in FLOATS + COMPLEX:
        # tangents are whole numbers, and only added
        compare = assert_exact if chosen and law.winners != "split" else assert_close
        compare(got.jvp(want.dx), want.jvp, note)
        compare(got.vjp(want.dy), want.vjp, note)


def some(law: str, every: int) -> Iterator[tuple[str, bool, Window]]:
    """One of so many of the table's windows, other ones for each law."""
    return islice(cases.told_apart(LAWS[law]), list(LAWS).index(law) % every, None, every)


@pytest.mark.parametrize("law", LAWS)
def test_each_law_agrees_with_the_reference(law: str) -> None:
    for window, counted, _ in some(law, 7):
        check(LAWS[law], table_case(law, counted, window, np.dtype("float64")), (window, counted))


@pytest.mark.parametrize("way", ["composed"], indirect=True)
@pytest.mark.parametrize("law", ["max first propagate", "min split ignore", "mean", "lp 2.5", "smooth max"])
def test_each_law_agrees_when_composed(way: str, law: str) -> None:
    for window, counted, _ in some(law, 13):
        check(LAWS[law], table_case(law, counted, window, np.dtype("float64")), (window, counted))


@pytest.mark.parametrize("law", ["max last ignore", "min first propagate", "sum", "mean", "lp 2", "sharp max"])
def test_each_dtype_agrees_with_the_reference(law: str) -> None:
    for dtype in cases.KINDS[LAWS[law].name]:
        check(LAWS[law], table_case(law, False, "channels last", dtype), dtype.name)


@pytest.mark.parametrize("law", ["max first propagate", "max last ignore", "min split propagate"])
def test_winners_agree_with_the_reference(way: str, law: str) -> None:
    for name in ("windows without a tap", "uneven bins", "batch in the middle"):
        window = cases.WINDOWS[False][name]
        x, axes = table_case(law, False, name, np.dtype("float64")).x, cases.pooled(window)
        want, got = reference.winners(window, LAWS[law], x, axes), ways.winners(window, LAWS[law], x, axes)
        assert_exact(got[0], want[0], name)
        assert np.array_equal(got[1], want[1]), (name, got[1], want[1])


@long
@pytest.mark.parametrize("law", LAWS)
def test_each_law_agrees_over_each_window(way: str, law: str) -> None:
    for window, counted, _ in cases.told_apart(LAWS[law]):
        check(LAWS[law], table_case(law, counted, window, np.dtype("float64")), (window, counted))


@long
@pytest.mark.parametrize("law", LAWS)
def test_each_law_agrees_in_each_dtype(way: str, law: str) -> None:
    for dtype in cases.KINDS[LAWS[law].name]:
        for window, counted, _ in cases.told_apart(LAWS[law], cases.FEW):
            check(LAWS[law], table_case(law, counted, window, dtype), (dtype.name, window, counted))


@long
@pytest.mark.parametrize("law", LAWS)
@settings(max_examples=examples(15))
@given(data=st.data())
def test_any_window_agrees_with_the_reference(law: str, data: st.DataObject) -> None:
    window = data.draw(cases.windows(counted=data.draw(st.sampled_from(cases.counted_choices(LAWS[law])))))
    dtype = data.draw(st.sampled_from(cases.KINDS[LAWS[law].name]))
    want = case(LAWS[law], window, dtype, data.draw(st.integers(0, 2**16)), specials=law in EXTREMES)
    check(LAWS[law], want, (window, dtype.name))
