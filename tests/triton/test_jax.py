"""The Triton engine in JAX's programs, with kernels run by the interpreter where jax-triton would compile them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

from ndpool.jax import composed, gpu  # noqa: E402
from ndpool.jax.pooled import Pooled, pooled  # noqa: E402
from ndpool.spec import SUM, Law, Window, adaptive, each, lp, maximum, mean, sliding, smooth_max, whole  # noqa: E402

from .engine import array, tensor  # noqa: E402


def triton_call(
    *args: Any, kernel: Any, out_shape: Any, grid: Any, num_warps: int, enable_fp_fusion: bool, **constants: Any
) -> list[Any]:
    """What jax-triton's does, on the CPU: inputs and numbers as they are given, then memory for the results."""
    made = [np.full(one.shape, 77, one.dtype) for one in out_shape]
    tensors = [a if isinstance(a, int) else tensor(np.asarray(a)) for a in (*args, *made)]
    kernel[grid](*tensors, num_warps=num_warps, **constants)
    return [jnp.asarray(array(t)) for t in tensors[len(args) :]]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "jax_triton", SimpleNamespace(triton_call=triton_call))
    with jax.default_device(jax.devices("cpu")[0]):
        yield


WINDOWS = {
    "plane": Window((each(2), *(sliding(n, 3, 2, (1, 1), count_padding=False) for n in (7, 6)))),
    "channels last": Window((each(2), sliding(6, 2, 2), each(3))),
    "bins": Window((each(2), adaptive(7, 3))),
    "one after another": Window((each(4), whole(5), whole(7))),
    "passes": Window((each(1), sliding(22, 13, 1), sliding(14, 5, 1))),
    "runs": Window((each(3), sliding(30, 11, 1, (5, 5), count_padding=False))),
    "more taps than a byte counts": Window((each(2), sliding(300, 260, 20))),
}
LAWS: dict[str, Law] = {
    "max": maximum(), "max, split": maximum("split"), "sum": SUM, "mean": mean(), "smooth max": smooth_max(2.0),
    "lp": lp(3),
}  # fmt: skip
EVERY = [("plane", law) for law in LAWS] + [(w, "max") for w in WINDOWS] + [("passes", "mean"), ("bins", "mean")]


def modes(one: Pooled) -> list[str]:
    if one.law.linear:
        return ["forward", "vjp"]
    return ["winners", "jvp_by_winner", "vjp_by_winner"] if one.law.one_winner else ["forward", "jvp", "vjp"]


@pytest.mark.parametrize(("window", "law"), dict.fromkeys(EVERY))
def test_programs_with_kernels_agree_with_those_without(window: str, law: str) -> None:
    one = pooled(LAWS[law], WINDOWS[window])
    rng = np.random.default_rng(0)
    x, dx = (jnp.asarray(rng.standard_normal(one.window.shape).astype(np.float32)) for _ in range(2))
    dy = jnp.asarray(rng.standard_normal(one.window.out_shape).astype(np.float32))
    kept: Any = x
    for mode in modes(one):
        arguments = {
            "forward": (x,), "winners": (x,), "jvp": (kept, dx), "jvp_by_winner": (kept, dx),
            "vjp": (dy,) if one.law.linear else (kept, dy), "vjp_by_winner": (kept, dy),
        }[mode]  # fmt: skip
        found, want = gpu.run(one, mode, *arguments), composed.run(one, mode, *arguments)
        for a, b in zip(found, want, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), 2e-5, 2e-5)
        if mode == "winners":
            kept = want[1]


def test_sums_of_integers_are_wide_between_passes_where_jax_is_narrow() -> None:
    one = pooled(SUM, Window((sliding(30, 9, 1), sliding(30, 9, 1))))
    x = jnp.full(one.window.shape, 2**24, jnp.int32)
    assert np.asarray(gpu.run(one, "forward", x)[0]).tolist() == [[81 * 2**24] * 22] * 22
