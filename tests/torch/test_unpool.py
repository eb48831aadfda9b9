"""Unpooling of plain tensors, by the kernel, against torch's own operations, which transforms take."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the adapter is torch's")

import ndpool.torch.functional as N  # noqa: E402
from ndpool.engines import native  # noqa: E402
from ndpool.torch import unpool  # noqa: E402

pytestmark = pytest.mark.skipif(not native.available(), reason=f"the kernel is not in use: {native.reason()}")

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64]
both_rules = pytest.mark.parametrize("duplicates", ["last", "sum"])


def case(dtype: Any, seed: int = 0) -> tuple[Any, Any]:
    """Whole numbers, some of them -0.0, with places that meet and places that are none."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (3, 2, 5, 4), generator=generator).to(dtype)
    y = torch.where(y == 0, -y, y) if dtype.is_floating_point else y
    return y, torch.randint(-1, 9, y.shape, generator=generator)


def put(y: Any, places: Any, duplicates: str) -> Any:
    return N.max_unpool(y, places, 1, output_size=(3, 3), duplicates=duplicates)


@both_rules
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernel_and_operations_agree(dtype: Any, duplicates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    y, places = case(dtype)
    got = [put(y, places, duplicates), put(y.transpose(0, 2), places.transpose(0, 2), duplicates)]
    monkeypatch.setattr(unpool, "NATIVE", ())
    want = [put(y, places, duplicates), put(y.transpose(0, 2), places.transpose(0, 2), duplicates)]
    for a, b in zip(got, want, strict=True):
        assert a.dtype is dtype
        assert torch.equal(a, b)
        if dtype.is_floating_point and duplicates == "last":  # what is moved keeps its bits
            assert torch.equal(a.signbit(), b.signbit())


@both_rules
def test_derivatives_are_those_of_the_operations(duplicates: str) -> None:
    """Where values meet under "last", the last alone has a gradient."""
    y, places = case(torch.float64)
    y.requires_grad_()
    x = put(y, places, duplicates)
    g = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    (got,) = torch.autograd.grad(x, y, g)
    (want,) = torch.func.vjp(lambda z: put(z, places, duplicates), y.detach())[1](g)
    assert torch.equal(got, want)
    assert torch.autograd.gradcheck(lambda z: put(z, places, duplicates), y)
    assert torch.autograd.gradgradcheck(lambda z: put(z, places, duplicates), y)


@both_rules
def test_nothing_to_put_and_nowhere_to_put_it(duplicates: str) -> None:
    for shape, size in (((2, 0, 3), (2, 2)), ((0, 2, 3), (2, 2)), ((2, 1, 3), (0, 2))):
        y = torch.ones(shape, requires_grad=True)
        x = N.max_unpool(y, torch.full(shape, -1), 1, output_size=size, duplicates=duplicates)
        assert x.shape == (shape[0], *size)
        assert not x.any()
        x.sum().backward()
        assert y.grad is not None
        assert not y.grad.any()


@both_rules
@pytest.mark.parametrize("place", [-2, 9])
def test_a_place_outside_is_an_error(place: int, duplicates: str) -> None:
    y, places = case(torch.float32)
    places[-1, -1, -1, -1] = place
    with pytest.raises(RuntimeError, match=rf"indices holds {place}, outside the 9 positions"):
        put(y, places, duplicates)
