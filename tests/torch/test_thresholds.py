"""The adapter's own rules on both sides: what is just allowed is what the spec or torch says, the next value raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ndpool
import ndpool.torch
from ndpool.engines import native
from ndpool.torch import functional as N

from .ops import QUIET

pytestmark = QUIET

X = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(1.0, 5.0).reshape(1, 1, 2, 2)
AT = torch.tensor([[[[0, 3], [9, 15]]]])  # winners of 2 x 2 windows in a plane of 4 x 4


def at(place: int) -> Tensor:
    """`AT` with another first place."""
    where = AT.clone()
    where[0, 0, 0, 0] = place
    return where


# -- error rules: what is just allowed, what is not, and words of the error -------------------------------------------

Rule = tuple[Callable[[], Any], Callable[[], Any], str]

RULES: dict[str, Rule] = {
    "padding of half an even kernel": (
        lambda: N.max_pool2d(X, 2, 1, 1),
        lambda: N.max_pool2d(X, 2, 1, 2),
        r"padding=2 is more than half of the 2 positions that kernel_size=2 spans; use padding <= 1",
    ),
    "padding of half an odd kernel": (
        lambda: N.max_pool2d(X, 5, 1, 2),
        lambda: N.max_pool2d(X, 5, 1, 3),
        r"padding=3 is more than half of the 5 positions that kernel_size=5 spans; use padding <= 2",
    ),
    "padding of half a dilated kernel": (
        lambda: N.max_pool2d(X, 2, 1, 2, 3),
        lambda: N.max_pool2d(X, 2, 1, 3, 3),
        r"padding=3 is more than half of the 4 positions that kernel_size=2 spans; use padding <= 2",
    ),
    "padding of the first axis": (
        lambda: N.avg_pool2d(X, (4, 2), 1, (2, 1)),
        lambda: N.avg_pool2d(X, (4, 2), 1, (3, 1)),
        "padding=3 is more than half of the 4 positions",
    ),
    "padding of the last axis": (
        lambda: N.avg_pool2d(X, (4, 2), 1, (2, 1)),
        lambda: N.avg_pool2d(X, (4, 2), 1, (2, 2)),
        "padding=2 is more than half of the 2 positions",
    ),
    "as few axes as channels and planes": (
        lambda: N.max_pool2d(X[0], 2),
        lambda: N.max_pool2d(X[0, 0], 2),
        "input has 2 axes; give it 3",
    ),
    "as many axes as a batch": (
        lambda: N.max_pool2d(X, 2),
        lambda: N.max_pool2d(X[None], 2),
        "input has 5 axes; give it 3",
    ),
    "axes of a line": (
        lambda: N.max_pool1d(X[0], 2),
        lambda: N.max_pool1d(X, 2),
        "input has 4 axes; give it 2",
    ),
    "axes of space": (
        lambda: N.avg_pool3d(X, 1),
        lambda: N.avg_pool3d(X[0], 1),
        "input has 3 axes; give it 4",
    ),
    "the least index": (
        lambda: N.max_unpool2d(Y, at(-1), 2),
        lambda: N.max_unpool2d(Y, at(-2), 2),
        "indices holds -2, outside the 16 positions",
    ),
    "the largest index": (
        lambda: N.max_unpool2d(Y, at(15), 2),
        lambda: N.max_unpool2d(Y, at(16), 2),
        "indices holds 16, outside the 16 positions",
    ),
    "indices of int64": (
        lambda: N.max_unpool2d(Y, AT, 2),
        lambda: N.max_unpool2d(Y, AT.int(), 2),
        "indices has dtype int32; give the int64",
    ),
    "indices of the input's shape": (
        lambda: N.max_unpool2d(Y, AT, 2),
        lambda: N.max_unpool2d(Y, AT[..., :1], 2),
        r"indices has shape \(1, 1, 2, 1\), but input has \(1, 1, 2, 2\)",
    ),
    "an output less than a stride larger": (
        lambda: N.max_unpool2d(Y, AT, 2, 3, output_size=(7, 7)),
        lambda: N.max_unpool2d(Y, AT, 2, 3, output_size=(8, 7)),
        r"output_size=\(8, 7\) has 8 on axis -2; use 3 to 7",
    ),
    "an output less than a stride smaller": (
        lambda: N.max_unpool2d(Y, AT, 2, 3, output_size=(6, 3)),
        lambda: N.max_unpool2d(Y, AT, 2, 3, output_size=(6, 2)),
        r"output_size=\(6, 2\) has 2 on axis -1; use 3 to 7",
    ),
    "an output of the kernel's stride": (
        lambda: N.max_unpool2d(Y, AT, 2, output_size=(5, 4)),
        lambda: N.max_unpool2d(Y, AT, 2, output_size=(4, 6)),
        r"has 6 on axis -1; use 3 to 5",
    ),
    "an output of the stride of its own axis": (
        lambda: N.max_unpool2d(Y, AT, 2, (4, 2), output_size=(9, 5)),
        lambda: N.max_unpool2d(Y, AT, 2, (4, 2), output_size=(9, 6)),
        r"has 6 on axis -1; use 3 to 5",
    ),
    "an exact divisor": (
        lambda: N.avg_pool2d(X.long(), 2, divisor_override=2**31 - 1),
        lambda: N.avg_pool2d(X.long(), 2, divisor_override=2**31),
        "convert",
    ),
    "beta of one number a channel": (
        lambda: N.smooth_max_pool2d(X, 2, beta=torch.ones(2, 1, 1)),
        lambda: N.smooth_max_pool2d(X, 2, beta=torch.ones(2, 1, 6)),
        r"beta has shape \(2, 1, 6\), so it varies in a window; give it size 1 on axes \(-2, -1\)",
    ),
    "beta of one number": (
        lambda: N.smooth_max_pool2d(X, 2, beta=torch.ones(1)),
        lambda: N.smooth_max_pool2d(X, 2, beta=torch.ones(6)),
        "beta has shape",
    ),
    "beta that varies down the rows": (
        lambda: N.smooth_max_pool2d(X, 2, beta=torch.ones(1, 1)),
        lambda: N.smooth_max_pool2d(X, 2, beta=torch.ones(6, 1)),
        "beta has shape",
    ),
    "a rule": (
        lambda: N.max_unpool2d(Y, AT, 2, duplicates="sum"),
        lambda: N.max_unpool2d(Y, AT, 2, duplicates="first"),
        "duplicates='first' is not a rule",
    ),
    "enough arguments by position": (
        lambda: N.avg_pool2d(X, 2, 2, 0, False, True, None),
        lambda: N.avg_pool2d(X, 2, 2, 0, False, True, None, (0, 1)),
        "too many positional arguments",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_what_is_just_allowed_and_what_is_not(rule: str) -> None:
    allowed, beyond, words = RULES[rule]
    allowed()
    with pytest.raises((RuntimeError, ValueError, TypeError), match=words):
        beyond()


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if ("padding" in rule or "output" in rule) and "dilated" not in rule]
)
def test_torch_draws_the_line_in_the_same_place(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, beyond, _ = RULES[rule]
    monkeypatch.setitem(globals(), "N", F)
    allowed()
    with pytest.raises((RuntimeError, ValueError)):
        beyond()


def test_padding_for_each_side_may_be_any() -> None:
    want = torch.from_numpy(np.asarray(ndpool.max_pool(X.numpy(), 2, 1, ((3, 2), (1, 4)))))
    assert torch.equal(N.max_pool2d(X, 2, 1, ((3, 2), (1, 4))), want)
    assert N.max_pool2d(X, 3, 2, "same").shape == (1, 2, 3, 3)
    assert N.max_pool2d(X, 2, 1, 2, empty="zero").shape == (1, 2, 9, 9)


def test_one_entry_stands_for_all_axes() -> None:
    for name, arguments in (("max_pool2d", ((2,), (1,), (1,), (2,))), ("avg_pool2d", ((3,), (2,), (1,)))):
        single = [a[0] for a in arguments]
        torch.testing.assert_close(getattr(N, name)(X, *arguments), getattr(F, name)(X, *single))
    assert torch.equal(N.max_pool2d(X, 2, ()), F.max_pool2d(X, 2))
    torch.testing.assert_close(N.adaptive_avg_pool2d(X, (3,)), F.adaptive_avg_pool2d(X, 3))


def test_an_index_of_minus_one_puts_nothing() -> None:
    y = N.max_unpool2d(Y, at(-1), 2)
    assert y.flatten().tolist() == [0, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 4]
    assert N.max_unpool2d(Y, torch.full_like(AT, -1), 2, duplicates="sum").any().item() is False


@pytest.mark.parametrize(("duplicates", "want"), [("last", [4.0, 0]), ("sum", [10.0, 0])])
def test_values_that_meet(duplicates: str, want: list[float]) -> None:
    y = N.max_unpool(
        Y.reshape(1, 4), torch.zeros(1, 4, dtype=torch.int64), (1,), output_size=(2,), duplicates=duplicates
    )
    assert y.tolist() == [want]


# -- convert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [2, 4, 2.0, 1, 3, 2.5, 1.5, 0.5, 3.999])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_only_even_norms_without_ceil_mode_are_converted(norm: float, ceil_mode: bool) -> None:
    """Torch sums x^p without a magnitude: of a negative x that is another number, or none."""
    module = torch.nn.LPPool2d(norm, 2, ceil_mode=ceil_mode)
    done = ndpool.torch.convert(torch.nn.Sequential(module))
    assert bool(done.replaced) == (norm in (2, 4) and not ceil_mode)
    assert bool(done.left) != bool(done.replaced)
    if done.left:
        assert done.left[0][2] == (
            "torch scales the last window of ceil_mode"
            if norm in (2, 4)
            else "torch sums x^p, and for this p that is not |x|^p"
        )


def test_what_is_converted_is_neither_converted_again_nor_left() -> None:
    class Own(torch.nn.MaxPool2d):
        """A module of the user's."""

    model = torch.nn.Sequential(torch.nn.MaxPool2d(2), Own(2), torch.nn.FractionalMaxPool2d(2, 3), torch.nn.ReLU())
    first, again = ndpool.torch.convert(model), ndpool.torch.convert(model)
    assert [name for name, _ in first.replaced] == ["0"]
    assert [name for name, _, _ in first.left] == [name for name, _, _ in again.left] == ["1", "2"]
    assert again.replaced == ()


@pytest.mark.parametrize("norm", [2, 2.5, 3])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_patched_norms_are_those_of_torch(norm: float, ceil_mode: bool) -> None:
    z = X.abs() if norm == 2.5 else X
    want = F.lp_pool2d(z, norm, 4, 3, ceil_mode)
    with ndpool.torch.patched():
        torch.testing.assert_close(F.lp_pool2d(z, norm, 4, 3, ceil_mode), want, equal_nan=True)


def test_patched_functions_give_indices_and_leave_other_layouts_to_torch() -> None:
    want = F.max_pool2d_with_indices(X, 2)
    dense = X.to_mkldnn() if torch.backends.mkldnn.is_available() else X
    other = F.avg_pool2d(dense, 2)
    with ndpool.torch.patched():
        for got in (F.max_pool2d_with_indices(X, 2), F.max_pool2d(X, 2, return_indices=True)):
            assert all(map(torch.equal, got, want))
        assert F.avg_pool2d(dense, 2).layout is other.layout


# -- which tap won, where its number grows -----------------------------------------------------------------------------


@pytest.mark.parametrize("taps", [255, 256, 257, 65535, 65536, 65537])
@pytest.mark.parametrize("where", ["first", "last"])
def test_winners_where_their_number_takes_more_bytes(way: str, taps: int, where: str) -> None:
    z = torch.zeros(1, taps + 2, requires_grad=True)
    with torch.no_grad():
        z[0, 1 if where == "first" else taps] = 1
    y, places = N.max_pool1d(z, taps, 1, return_indices=True)
    place = int(z.argmax())
    reads = [o <= place < o + taps for o in range(3)]
    assert y.tolist() == [[1.0 if read else 0.0 for read in reads]]
    assert [p for p, read in zip(places[0].tolist(), reads, strict=True) if read] == [place] * sum(reads)
    y.sum().backward()
    assert z.grad is not None
    assert z.grad[0, place] == sum(reads)


@pytest.mark.parametrize("taps", [255, 256, 257, 65535, 65536, 65537])
def test_fake_residuals_are_as_wide_as_real_ones(taps: int) -> None:
    """Of windows, and of bins, of which the longest may have one tap more than the mean."""
    if not native.available():
        pytest.skip(f"the native engine is not in use: {native.reason()}")
    cases = [(f"MaxPool(kernel_size={taps}, stride=1, axes=(-1,))", taps + 1)]
    cases += [(f"AdaptiveMaxPool(output_size={b}, axes=(-1,))", b * taps + d) for b in (2, 3) for d in (-2, -1, 0, 1)]
    for record, n in cases:
        arguments = torch.zeros(1, n), record
        torch.library.opcheck(torch.ops.ndpool.winners.default, arguments, test_utils="test_faketensor")


def test_a_tensor_beta_keeps_axes_or_drops_them() -> None:
    for keeps, shape in ((True, (1, 2, 1, 1)), (False, (1, 2))):
        got = N.global_smooth_max_pool(X, beta=torch.tensor(2.0), keepdims=keeps)
        assert got.shape == shape
        torch.testing.assert_close(got, N.global_smooth_max_pool(X, beta=2.0, keepdims=keeps))


@pytest.mark.parametrize("outputs", [4095, 4096, 4097])
def test_small_tensors_and_others_are_pooled_alike(outputs: int) -> None:
    """Small ones are read by address."""
    z = torch.randn(1, 2 * outputs, generator=torch.Generator().manual_seed(1))
    for n in (outputs, 2 * outputs):
        part = z[:, :n].contiguous().requires_grad_()
        for ours, theirs in ((N.max_pool1d, F.max_pool1d), (N.avg_pool1d, F.avg_pool1d)):
            y, want = ours(part, 2, 2), theirs(part, 2, 2)
            assert torch.equal(y, want)
            g = torch.arange(1.0, y.numel() + 1).reshape(y.shape)
            assert torch.equal(torch.autograd.grad(y, part, g)[0], torch.autograd.grad(want, part, g)[0])


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_gradients_may_lie_anywhere(name: str) -> None:
    """Those of small tensors, too, which are read by address."""
    z = X.clone().requires_grad_()
    y = getattr(N, name)(z, 2)
    g = torch.arange(18.0).reshape(1, 2, 3, 3)
    for laid in (
        g.transpose(2, 3),
        g.flip(3)[..., ::1],
        torch.ones(()).expand(y.shape),
        g.repeat(1, 1, 1, 2)[..., ::2],
    ):
        got, want = (torch.autograd.grad(y, z, a, retain_graph=True)[0] for a in (laid, laid.contiguous()))
        assert torch.equal(got, want)
        torch.testing.assert_close(got, torch.autograd.grad(getattr(F, name)(z, 2), z, laid)[0])


# -- where results lie ------------------------------------------------------------------------------------------------

LAID: dict[str, Tensor] = {
    "contiguous": torch.randn(2, 3, 4, 5),
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "one channel": torch.randn(2, 1, 4, 5),
    "one channel, last": torch.randn(2, 1, 4, 5).contiguous(memory_format=torch.channels_last),
    "one picture": torch.randn(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "one row": torch.randn(2, 3, 1, 5).contiguous(memory_format=torch.channels_last),
    "one column": torch.randn(2, 3, 4, 1).contiguous(memory_format=torch.channels_last),
    "without a batch": torch.randn(3, 4, 5),
    "without a batch, channels last": torch.randn(4, 5, 3).permute(2, 0, 1),
    "space": torch.randn(1, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last_3d),
    "transposed": torch.randn(2, 3, 5, 4).transpose(2, 3),
    "strided": torch.randn(2, 3, 4, 10)[..., ::2],
}


@pytest.mark.parametrize("laid", LAID)
def test_results_lie_where_torchs_do(laid: str) -> None:
    z = LAID[laid]
    rank = 3 if laid == "space" else 2
    for name in ("max_pool", "avg_pool")[: 4 - rank]:  # torch's averages over space lie contiguous whatever it is given
        ours, theirs = (getattr(module, f"{name}{rank}d")(z, 1) for module in (N, F))
        assert torch.equal(ours, theirs)
        assert ours.is_contiguous() == theirs.is_contiguous()
        if z.ndim == rank + 2:
            last = torch.channels_last if rank == 2 else torch.channels_last_3d
            assert ours.is_contiguous(memory_format=last) == theirs.is_contiguous(memory_format=last)


# -- windows at the edge of reading nothing ---------------------------------------------------------------------------

# size, kernel, stride, padding, dilation
EDGES = [
    (3, 2, 1, (1, 0), 1),
    (3, 2, 1, (2, 0), 1),
    (3, 2, 1, (3, 3), 1),
    (3, 2, 1, (0, 1), 1),
    (3, 2, 1, (0, 2), 1),
    (3, 2, 3, (0, 2), 1),
    (4, 1, 4, (0, 1), 1),
    (3, 2, 1, (2, 2), 2),
    (2, 2, 1, (2, 2), 2),
    (2, 2, 1, (3, 3), 3),
    (1, 3, 1, (2, 2), 2),
    (1, 3, 1, (4, 0), 2),
]


@pytest.mark.parametrize("edge", EDGES, ids=str)
def test_windows_at_the_edge_of_reading_nothing(way: str, edge: Any) -> None:
    """Value, place and derivative of every law, with padding that counts and padding that does not."""
    n, kernel, stride, padding, dilation = edge
    z = torch.arange(1.0, 2 * n + 1, dtype=torch.float64).reshape(2, n) * torch.tensor([[1.0], [-1.0]])
    window = {"kernel_size": (kernel,), "stride": stride, "padding": (padding,), "dilation": dilation}
    plain = {key: value for key, value in window.items() if dilation > 1 or key != "dilation"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("max_pool", window),
        ("min_pool", window | {"ties": "split"}),
        ("sum_pool", window),
        ("lp_pool", window | {"norm_type": 3}),
        *[(name, plain | {"count_include_pad": c}) for name in ("avg_pool", "smooth_max_pool") for c in (True, False)],
    ]
    for name, given in calls:
        record = getattr(ndpool, "".join(word.title() for word in name.split("_")))(**given)
        want = record.linearize(z.numpy())
        leaf = z.clone().requires_grad_()
        y = getattr(N, name)(leaf, **given)
        np.testing.assert_allclose(y.detach().numpy(), want.y, rtol=1e-12, err_msg=name)
        g = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).reshape(y.shape)
        (dx,) = torch.autograd.grad(y, leaf, g)
        np.testing.assert_allclose(dx.numpy(), want.vjp(g.numpy()), rtol=1e-12, err_msg=name)
        if name == "max_pool":
            places = N.max_pool(z, **given, return_indices=True)[1]
            assert places.tolist() == ndpool.max_pool(z.numpy(), **given, return_indices=True)[1].tolist()


# -- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_integer_sums_at_both_ends_of_their_type(way: str, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    pairs = [(info.max, 0), (info.max, 1), (info.max, info.max), (info.min, 0)]
    pairs += [(info.min, -1), (info.min, info.min), (info.min, info.max)] if info.min else []
    for pair in pairs:
        z = torch.tensor([pair], dtype=dtype)
        if info.min <= sum(pair) <= info.max:
            assert N.sum_pool1d(z, 2).item() == sum(pair)
        else:
            with pytest.raises(RuntimeError, match="a sum does not fit"):
                N.sum_pool1d(z, 2)


def test_integer_means_round_half_to_even(way: str) -> None:
    z = torch.tensor([[0, 1, 1, 2, 2, 3, 0, -1, -1, -2, -2, -3, 5, 5, 4, 7]])
    assert N.avg_pool1d(z, 2).tolist() == [[0, 2, 2, 0, -2, -2, 5, 6]]
    assert N.avg_pool1d(z[:, :3], 3).tolist() == [[1]]
    assert N.avg_pool1d(z[:, 3:6], 3).tolist() == [[2]]


# -- second order of Lp -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3, 3.5, 4])
def test_lp_has_no_second_derivative_where_all_taps_are_zero(way: str, p: float) -> None:
    """A kink: 0, as its first derivative there; and no NaN beside it."""
    z = torch.tensor([[0.0, 0.0, 3.0, -4.0]], dtype=torch.float64)
    h = torch.func.hessian(lambda v: N.lp_pool1d(v, p, 2).sum())(z)[0, :, 0]
    assert torch.equal(h[:2], torch.zeros(2, 4, dtype=torch.float64))
    assert torch.equal(h[2:, :2], torch.zeros(2, 2, dtype=torch.float64))
    assert h.isfinite().all()
    assert torch.autograd.functional.jacobian(lambda v: N.lp_pool1d(v, p, 2), z)[0, 0, 0].abs().sum() == 0


@pytest.mark.parametrize("scale", [1e-140, 1e-9, 1.0, 1e9, 1e140])
def test_the_second_derivative_of_a_norm_scales(way: str, scale: float) -> None:
    """y = |x|: y''(s x) = y''(x) / s, for windows of small numbers too."""
    z = torch.tensor([[3.0, -4.0]], dtype=torch.float64)
    h = torch.func.hessian(lambda v: N.lp_pool1d(v, 2, 2).sum())(z * scale)[0, :, 0]
    want = torch.tensor([[16.0, 12.0], [12.0, 9.0]], dtype=torch.float64) / 125
    torch.testing.assert_close(h * scale, want)
