"""The same bits from every instruction set built in, and half floats rounded as IEEE says.

`make cross` compares the digests of other processors and compilers.
"""

from __future__ import annotations

import numpy as np
import pytest

from ndpool.engines import native
from ndpool.spec import SUM, Window, each, maximum, whole

from . import digest

if not native.available():
    pytest.skip(f"the native engine is not in use: {native.reason()}", allow_module_level=True)

ISAS = native.isas()
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.fixture(params=ISAS)
def isa(request):
    before = native.isa()
    native.use(request.param)
    yield request.param
    native.use(before)


def same_numbers(got: np.ndarray, want: np.ndarray) -> None:
    """The same bits, and NaN where NaN is wanted."""
    numbers = want == want
    np.testing.assert_array_equal(got[numbers].view(np.uint16), want[numbers].view(np.uint16))
    assert np.isnan(got[~numbers]).all()


@pytest.mark.parametrize("apart", [False, True])
def test_every_half_float_is_a_float_and_floats_are_rounded(isa, apart):
    pairs = np.stack([HALVES, np.random.default_rng(0).permutation(HALVES)], 1)
    x = np.stack([pairs, pairs], 2)[..., 0] if apart else pairs
    with np.errstate(all="ignore"):
        want = (pairs[:, 0].astype(np.float32) + pairs[:, 1].astype(np.float32)).astype(np.float16)
    same_numbers(native.forward(Window((each(2**16), whole(2))), SUM, x)[:, 0], want)


def test_doubles_are_rounded_to_half_floats_at_once(isa):
    """Three ties split each cotangent, in double."""
    at = native.linearize(Window((each(2**16), whole(3))), maximum("split"), np.zeros((2**16, 3), np.float16))
    with np.errstate(all="ignore"):
        want = (HALVES.astype(np.float64) / 3).astype(np.float16)
        same_numbers(at.vjp(HALVES[:, None])[:, 1], want)


@pytest.mark.skipif(len(ISAS) == 1, reason="one instruction set is built in")
def test_instruction_sets_give_the_same_digest():
    lines: list[str] = []
    for each_isa in ISAS:
        assert digest.main(["--cases", "40", "--isa", each_isa], lines.append) == 0
    assert len(set(lines)) == 1


def test_every_case_has_a_line():
    lines: list[str] = []
    digest.main(["--cases", "3", "--each"], lines.append)
    assert len(lines) == 6 + 3 + 1
    assert len({line.split()[0] for line in lines}) == len(lines)
