"""Errors are of torch's kind on the same inputs, and say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ndpool
from ndpool.torch import functional as N

from .ops import use

X = torch.randn(1, 2, 6, 6)

# what is wrong: a call of either module, and words of ours
BOTH: dict[str, tuple[Callable[[Any], Any], str]] = {
    "padding over half": (lambda f: f.max_pool2d(X, 3, 1, 2), r"padding <= 1, or padding=\(\(2, 2\), \.\.\.\)"),
    "average, padding over half": (lambda f: f.avg_pool2d(X, 3, 1, 2), "more than half"),
    "kernel too large": (lambda f: f.max_pool2d(X, 9), r"max_pool2d: on axis 2, kernel_size=9 is larger than .* use"),
    "no kernel": (lambda f: f.max_pool2d(X, 0), "kernel_size=0 is below 1"),
    "no stride": (lambda f: f.max_pool2d(X, 2, 0), "stride=0 is below 1"),
    "negative padding": (lambda f: f.max_pool2d(X, 2, 1, -1), "padding=-1 is below 0"),
    "no dilation": (lambda f: f.max_pool2d(X, 2, 1, 0, 0), "dilation=0 is below 1"),
    "three sizes for two axes": (lambda f: f.max_pool2d(X, (2, 2, 2)), "3"),
    "a float kernel": (lambda f: f.max_pool2d(X, 2.0), "kernel_size=2.0 is not a whole number"),
    "a string": (lambda f: f.max_pool2d(X, "2"), "kernel_size='2' is not"),
    "no argument": (lambda f: f.max_pool2d(X), "kernel_size"),
    "two axes": (lambda f: f.max_pool2d(X[0, 0], 2), "input has 2 axes; give it 3"),
    "five axes": (lambda f: f.max_pool2d(X[None], 2), "without a rank in its name"),
    "complex": (lambda f: f.max_pool2d(X.to(torch.complex64), 2), "complex64, but max takes"),
    "an array": (lambda f: f.max_pool2d(X.numpy(), 2), "input is a ndarray, not a torch.Tensor"),
    "no rows": (lambda f: f.max_pool2d(X[:, :, :0], 2), r"on axis 2, kernel_size=2 is larger than .* \(0 \+ 0 \+ 0\)"),
    "adaptive, no rows": (lambda f: f.adaptive_avg_pool2d(X[:, :, :0], 2), "size 0"),
    "adaptive, negative": (lambda f: f.adaptive_avg_pool2d(X, -1), "output_size=-1 is below 1"),
    "adaptive, three sizes": (lambda f: f.adaptive_avg_pool2d(X, (2, 2, 2)), "3"),
    "divisor 0": (lambda f: f.avg_pool2d(X, 2, divisor_override=0), "divisor_override=0 is below 1"),
    "unpool, wrong dtype": (lambda f: f.max_unpool2d(X, X, 2), "give the int64 of return_indices"),
    "unpool, wrong shape": (lambda f: f.max_unpool2d(X, X[0].long(), 2), "indices has shape"),
    "unpool, outside": (
        lambda f: f.max_unpool2d(X, torch.full(X.shape, 999), 2), "999, outside the 144 positions"
    ),
    "unpool, size": (
        lambda f: f.max_unpool2d(X, torch.zeros(X.shape, dtype=torch.int64), 2, output_size=(50, 50)), "use 11 to 13"
    ),
    "sparse": (lambda f: f.max_pool2d(X.to_sparse(), 2), "use input.to_dense"),
}  # fmt: skip


@pytest.mark.parametrize("what", BOTH)
def test_errors_are_of_the_kind_of_torchs(what: str) -> None:
    call, words = BOTH[what]
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # its kind is what is compared
        call(F)
    with pytest.raises(type(theirs.value), match=words) as ours:
        call(N)
    if not isinstance(ours.value, TypeError) or "missing" not in str(ours.value):
        assert isinstance(ours.value, ndpool.PoolError)


def test_what_ndpools_rules_allow_has_to_be_asked_for() -> None:
    y = N.max_pool2d(X, 3, 1, ((2, 2), (2, 2)))
    assert torch.equal(y, torch.from_numpy(np.asarray(ndpool.max_pool(X.numpy(), 3, 1, 2))))
    assert N.max_pool2d(X, 2, 2, "same").shape == (1, 2, 3, 3)
    assert N.max_pool(X, (3, 3), 1, 2).shape == y.shape
    assert N.max_pool(X[0, 0], 2).shape == (3, 3)
    assert N.max_pool(X, (1, 1, 2, 2)).shape == (1, 2, 3, 3)


def test_a_wrong_rule_is_named() -> None:
    with pytest.raises(ValueError, match="max_pool2d: ties='frist' is not a rule; use one of 'first'"):
        N.max_pool2d(X, 2, ties="frist")


def test_integer_sums_that_do_not_fit_raise(way: str) -> None:
    with pytest.raises(RuntimeError, match="a sum does not fit int8"):
        N.sum_pool2d(torch.full((1, 4, 4), 100, dtype=torch.int8), 2)


def test_integer_means_are_exact(way: str) -> None:
    z = torch.tensor([[1, 2, 2, 3, -1, -2]])
    assert N.avg_pool1d(z, 2).tolist() == [[2, 2, -2]]  # halves to even


def test_arguments_are_read_as_torch_reads_them() -> None:
    for arguments in ((2, []), ([2], [1, 2]), ((2,), (1,), (1,)), (2, None, 0, (1,))):
        assert torch.equal(N.max_pool2d(X, *arguments), F.max_pool2d(X, *arguments))
    assert torch.equal(N.max_pool2d(input=X, kernel_size=np.int64(2)), F.max_pool2d(X, 2))
    with pytest.raises(TypeError, match="too many positional arguments"):
        N.max_pool2d(X, 2, 2, 0, 1, False, False, "first")
    with pytest.raises(TypeError, match="multiple values for argument 'kernel_size'"):
        N.max_pool2d(X, 2, kernel_size=2)


def test_a_divisor_beyond_the_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use("operators", monkeypatch)
    with pytest.raises(RuntimeError, match="convert input to float64"):
        N.avg_pool2d(X.long(), 2, divisor_override=2**40)
