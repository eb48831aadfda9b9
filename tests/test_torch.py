"""Values, indices and gradients equal to PyTorch's on random geometries, wherever both are defined."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import ndpool

torch = pytest.importorskip("torch", reason="torch is what the conventions are compared with")
F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, in its forward mode

RANKS = (1, 2, 3)
RUNS = {1: 400, 2: 400, 3: 300}
LARGEST = {1: 24, 2: 11, 3: 6}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rngs(rank: int, salt: int, share: float = 1.0) -> Iterator[np.random.Generator]:
    """One seeded generator a run."""
    for seed in range(int(RUNS[rank] * share)):
        yield np.random.default_rng([salt, rank, seed])


def ours(name: str, rank: int) -> Any:
    return getattr(ndpool, f"{name}{rank}d")


def theirs(name: str, rank: int) -> Any:
    return getattr(F, f"{name}{rank}d")


def spread(rng: np.random.Generator, low: int, high: int, rank: int) -> Any:
    """One int for all axes, or one an axis."""
    return tuple(rng.integers(low, high + 1, rank).tolist()) if rng.random() < 0.5 else int(rng.integers(low, high + 1))


def each(value: Any, rank: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * rank


def sliding(rng: np.random.Generator, rank: int, dilated: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """An input shape and arguments that PyTorch takes: padding at most half the kernel, at least one output."""
    k, s = spread(rng, 1, 4, rank), spread(rng, 1, 4, rank)
    d = spread(rng, 1, 3, rank) if dilated else 1
    pads = [int(rng.integers(0, kk // 2 + 1)) for kk in each(k, rank)]
    p: Any = tuple(pads) if rng.random() < 0.5 else min(pads)
    least = [dd * (kk - 1) + 1 - 2 * pp for kk, dd, pp in zip(each(k, rank), each(d, rank), each(p, rank), strict=True)]
    n = [int(rng.integers(max(1, low), max(1, low) + LARGEST[rank])) for low in least]
    arguments = {"kernel_size": k, "stride": s, "padding": p, "ceil_mode": bool(rng.random() < 0.5)}
    return (*rng.integers(1, 3, 2).tolist(), *n), arguments | ({"dilation": d} if dilated else {})


def unpadded(shape: tuple[int, ...], kernel: Any, rank: int) -> tuple[int, ...]:
    """A shape that the kernel fits in without padding."""
    return shape[:2] + tuple(map(max, shape[2:], each(kernel, rank)))


def assert_same(got: Any, want: Any, note: Any, exact: bool = False) -> None:
    want = want.detach().numpy()
    tolerance = 0 if exact else 1e-12
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=str(note))


def compare(op: Any, f: Any, x: np.ndarray, rng: np.random.Generator, note: Any, exact: bool) -> None:
    """Value, vjp and jvp of both at x."""
    at, leaf = op.linearize(x), torch.tensor(x, requires_grad=True)
    y = f(leaf)
    assert_same(at.y, y, note, exact)
    dy, dx = rng.normal(size=at.y.shape), rng.normal(size=x.shape)
    y.backward(torch.tensor(dy))
    assert_same(at.vjp(dy), leaf.grad, note)
    _, moved = torch.func.jvp(f, (torch.tensor(x),), (torch.tensor(dx),))
    assert_same(at.jvp(dx), moved, note)


@pytest.mark.parametrize("rank", RANKS)
def test_max_pool(rank: int) -> None:
    for rng in rngs(rank, 1):
        shape, arguments = sliding(rng, rank, dilated=True)
        x = rng.integers(-3, 4, shape) / 2  # many ties
        y, indices = theirs("max_pool", rank)(torch.tensor(x), return_indices=True, **arguments)
        if not torch.isfinite(y).all():
            continue  # a dilated window that reads padding alone: PyTorch gives -inf, we give 0
        got, places = ours("max_pool", rank)(x, return_indices=True, **arguments)
        assert_same(got, y, (shape, arguments), exact=True)
        assert_same(places, indices, (shape, arguments), exact=True)
        op = ours("MaxPool", rank)(**arguments)
        compare(op, partial(theirs("max_pool", rank), **arguments), x, rng, (shape, arguments), exact=True)


@pytest.mark.parametrize("rank", RANKS)
def test_max_pool_with_nan(rank: int) -> None:
    """A window with one NaN has it as winner in both; among several PyTorch takes the last, we take the first."""
    for rng in rngs(rank, 2, share=0.5):
        shape, arguments = sliding(rng, rank, dilated=False)
        x = rng.normal(size=shape)
        x.flat[rng.integers(x.size)] = np.nan
        y, indices = theirs("max_pool", rank)(torch.tensor(x), return_indices=True, **arguments)
        got, places = ours("max_pool", rank)(x, return_indices=True, **arguments)
        assert_same(got, y, (shape, arguments), exact=True)
        assert_same(places, indices, (shape, arguments), exact=True)


@pytest.mark.parametrize("rank", RANKS)
def test_avg_pool(rank: int) -> None:
    for rng in rngs(rank, 3):
        shape, arguments = sliding(rng, rank, dilated=False)
        shape = unpadded(shape, arguments["kernel_size"], rank) if rank == 3 else shape  # avg_pool3d rejects others
        arguments["count_include_pad"] = bool(rng.random() < 0.5)
        if rank > 1 and rng.random() < 0.3:  # avg_pool1d has no divisor_override
            arguments["divisor_override"] = int(rng.integers(1, 9))
        op = ours("AvgPool", rank)(**arguments)
        x = rng.normal(size=shape)
        compare(op, partial(theirs("avg_pool", rank), **arguments), x, rng, (shape, arguments), exact=False)


def bins(rng: np.random.Generator, rank: int) -> tuple[tuple[int, ...], Any]:
    return tuple(rng.integers(1, LARGEST[rank], rank + 2).tolist()), spread(rng, 1, LARGEST[rank], rank)


@pytest.mark.parametrize("rank", RANKS)
def test_adaptive_max_pool(rank: int) -> None:
    for rng in rngs(rank, 4, share=0.6):
        shape, size = bins(rng, rank)
        x = rng.integers(-3, 4, shape) / 2
        y, indices = theirs("adaptive_max_pool", rank)(torch.tensor(x), size, return_indices=True)
        got, places = ours("adaptive_max_pool", rank)(x, size, return_indices=True)
        assert_same(got, y, (shape, size), exact=True)
        assert_same(places, indices, (shape, size), exact=True)
        op = ours("AdaptiveMaxPool", rank)(size)
        compare(op, partial(theirs("adaptive_max_pool", rank), output_size=size), x, rng, (shape, size), exact=True)


@pytest.mark.parametrize("rank", RANKS)
def test_adaptive_avg_pool(rank: int) -> None:
    for rng in rngs(rank, 5, share=0.6):
        shape, size = bins(rng, rank)
        op = ours("AdaptiveAvgPool", rank)(size)
        x = rng.normal(size=shape)
        compare(op, partial(theirs("adaptive_avg_pool", rank), output_size=size), x, rng, (shape, size), exact=False)


@pytest.mark.parametrize("rank", RANKS)
def test_lp_pool(rank: int) -> None:
    """On even norms (PyTorch has x^p for |x|^p) and whole windows (its ceil mode scales the last one wrongly)."""
    for rng in rngs(rank, 6, share=0.6):
        shape, arguments = sliding(rng, rank, dilated=False)
        shape = unpadded(shape, arguments["kernel_size"], rank)
        p, k, s = float(rng.choice([2, 4, 6])), arguments["kernel_size"], arguments["stride"]
        k = each(k, rank)[0] if rank == 1 else k  # lp_pool1d takes no tuple
        op = ours("LpPool", rank)(p, k, s)
        x = rng.normal(size=shape) + 3 * rng.choice([-1, 1], shape)  # away from 0, where PyTorch's gradient is NaN
        compare(
            op,
            partial(theirs("lp_pool", rank), norm_type=p, kernel_size=k, stride=s),
            x,
            rng,
            (shape, p, k, s),
            exact=False,
        )


@pytest.mark.parametrize("rank", RANKS)
def test_max_unpool(rank: int) -> None:
    """On windows that do not overlap: PyTorch leaves open what two values in one place give."""
    for rng in rngs(rank, 7, share=0.6):
        k = spread(rng, 1, 3, rank)
        s = tuple(kk + int(rng.integers(0, 2)) for kk in each(k, rank))
        n = tuple(int(rng.integers(kk, LARGEST[rank] + kk)) for kk in each(k, rank))
        x = torch.tensor(rng.normal(size=(2, *n)))
        y, indices = theirs("max_pool", rank)(x, k, s, return_indices=True)
        size = n if rng.random() < 0.5 else None
        try:
            want = theirs("max_unpool", rank)(y, indices, k, s, output_size=size)
        except (ValueError, RuntimeError):  # the default size does not hold all winners, or PyTorch limits output_size
            size = n
            want = theirs("max_unpool", rank)(y, indices, k, s, output_size=size)
        got = ours("max_unpool", rank)(y.numpy(), indices.numpy(), k, s, output_size=size)
        assert_same(got, want, (n, k, s, size), exact=True)


@pytest.mark.parametrize("name", ["MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"])
def test_float32_and_no_batch(name: str) -> None:
    """An unbatched (C, H, W) input, as PyTorch's modules take it."""
    x = np.random.default_rng(8).normal(size=(3, 9, 10)).astype(np.float32)
    want = getattr(torch.nn, f"{name}2d")(3)(torch.tensor(x))
    np.testing.assert_allclose(getattr(ndpool, f"{name}2d")(3)(x), want.numpy(), rtol=1e-6, atol=1e-6)


def test_output_shapes_on_thousands_of_geometries() -> None:
    """PyTorch's own shape function, on meta tensors; where it finds no output, so do we."""
    shapes, errors = 0, 0
    for rng in (np.random.default_rng([9, seed]) for seed in range(3000)):
        rank = int(rng.integers(1, 4))
        shape, arguments = sliding(rng, rank, dilated=True)
        shape = (*shape[:2], *rng.integers(1, 12, rank).tolist())  # kernels larger than the input among them
        op = ours("MaxPool", rank)(**arguments)
        try:
            want = theirs("max_pool", rank)(torch.empty(shape, device="meta"), **arguments)
        except RuntimeError:
            errors += 1
            with pytest.raises(ndpool.PoolError, match="kernel_size"):
                op.out_shape(shape)
        else:
            shapes += 1
            assert op.out_shape(shape) == tuple(want.shape), (shape, arguments)
    assert min(shapes, errors) > 300
