"""`reduce_window` beside jax.lax's, and beside torch's pooling, on random geometry."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ndpool.jax as npx
from ndpool import PoolError, PoolTypeError

MONOIDS = {"max": (lax.max, -np.inf), "min": (lax.min, np.inf), "add": (lax.add, 0.0)}


def geometry(rng: np.random.Generator) -> dict[str, Any]:
    """Arguments of reduce_window over a small array of rank 1 to 4."""
    ndim = int(rng.integers(1, 5))
    most = {1: 20, 2: 9, 3: 6, 4: 4}[ndim]

    def draw(low: int, high: int, often: int | None = None) -> tuple[int, ...]:
        found = rng.integers(low, high + 1, ndim)
        return tuple(int(n) if often is None or rng.random() < 0.4 else often for n in found)

    padding: Any = [(int(lo), int(hi)) for lo, hi in zip(draw(-1, 3, 0), draw(-1, 3, 0), strict=True)]
    return {
        "shape": draw(1, most),
        "window_dimensions": draw(1, 4),
        "window_strides": draw(1, 3),
        "padding": rng.choice(["SAME", "VALID"]) if rng.random() < 0.5 else padding,
        "base_dilation": draw(1, 3, 1),
        "window_dilation": draw(1, 3, 1),
    }


def cropped(x: Any, init: Any, function: Any, *, padding: Any, base_dilation: Any, **given: Any) -> Any:
    """lax's reduce_window; what padding cuts off is cut before, because lax has no gradient through that, and because
    XLA aborts where it does nothing but cut (openxla/xla#48719)."""
    if not isinstance(padding, str):
        cut = [(min(lo, 0), min(hi, 0), d - 1) for (lo, hi), d in zip(padding, base_dilation, strict=True)]
        x, base_dilation = lax.pad(x, jnp.asarray(dict(MONOIDS.values())[function], x.dtype), cut), None
        padding = [(max(lo, 0), max(hi, 0)) for lo, hi in padding]
    return lax.reduce_window(x, init, function, padding=padding, base_dilation=base_dilation, **given)


def check(seed: int, derivatives: bool) -> None:
    rng = np.random.default_rng(seed)
    given = geometry(rng)
    shape = given.pop("shape")
    given["padding"] = str(given["padding"]) if isinstance(given["padding"], np.str_) else given["padding"]
    name = str(rng.choice(list(MONOIDS)))
    function, neutral = MONOIDS[name]
    init = neutral if rng.random() < 0.7 else 0.25
    x = (rng.permutation(int(np.prod(shape))).reshape(shape) - 5) / 7
    windows = given["window_dimensions"]

    def pooled(reduce: Any) -> Any:
        return jax.jit(lambda x: reduce(x, init, function, **given))

    ours, theirs = pooled(npx.reduce_window)(x), pooled(lax.reduce_window if max(windows) > 1 else cropped)(x)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), given
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12, err_msg=str((name, init, given)))
    # lax has no derivative through a dilated window of a max, nor with another initial value
    if derivatives and theirs.size and init == neutral and set(given["window_dilation"]) == {1}:
        g = [jax.jit(jax.grad(lambda x, f=f: (pooled(f)(x) ** 2).sum()))(x)
             for f in (npx.reduce_window, cropped)]  # fmt: skip
        if np.isfinite(theirs).all():
            np.testing.assert_allclose(*g, rtol=1e-12, atol=1e-12, err_msg=str((name, init, given)))


def test_any_geometry_is_laxs() -> None:
    for seed in range(40):
        check(seed, derivatives=seed % 8 == 0)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_thousands_of_geometries_are_laxs(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        check(1000 + seed, derivatives=True)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_geometries_are_torchs(part: int) -> None:
    """max and avg, their values and gradients, over 1 to 3 axes."""
    torch = pytest.importorskip("torch", reason="torch is what is compared with")
    for seed in range(100 * part, 100 * part + 100):
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        kernel, stride = (tuple(map(int, rng.integers(1, 4, rank))) for _ in range(2))
        given = {
            "kernel_size": kernel,
            "stride": stride,
            "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel),
            "ceil_mode": bool(rng.random() < 0.3),
        }
        shape = (2, 2, *(int(n) for n in rng.integers(4, 9, rank)))
        x = (rng.permutation(int(np.prod(shape))).reshape(shape) - 5) / 7
        name = f"{'max' if seed % 2 else 'avg'}_pool{rank}d"
        leaf = torch.tensor(x, requires_grad=True)
        y = getattr(torch.nn.functional, name)(leaf, **given)
        (y**2).sum().backward()
        got, pull = jax.vjp(partial(getattr(npx, name), **given), x)
        note = str((name, shape, given))
        np.testing.assert_allclose(got, y.detach().numpy(), rtol=1e-12, atol=1e-12, err_msg=note)
        np.testing.assert_allclose(pull(2 * got)[0], leaf.grad.numpy(), rtol=1e-12, atol=1e-12, err_msg=note)


def test_laxs_limits_are_not_ours() -> None:
    """A gradient through a dilated window, and a jvp of a max."""
    x = jnp.arange(6.0)

    def pooled(x: Any) -> Any:
        return npx.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID", window_dilation=(3,))

    np.testing.assert_array_equal(pooled(x), [3, 4, 5])
    np.testing.assert_array_equal(jax.grad(lambda x: (pooled(x) ** 2).sum())(x), [0, 0, 0, 6, 8, 10])
    np.testing.assert_array_equal(jax.jvp(pooled, (x,), (x,))[1], [3, 4, 5])


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", "float16", "bfloat16"])
def test_initial_values_of_other_types(dtype: str) -> None:
    x = jnp.array([[3, 1, 2], [0, 5, 4]]).astype(dtype)
    for function in (lax.max, lax.min):
        low = function is lax.max
        init = low is False if dtype == "bool" else None
        if init is None:
            info = jnp.iinfo(dtype) if jnp.issubdtype(x.dtype, jnp.integer) else None
            init = (info.min if low else info.max) if info else (-np.inf if low else np.inf)
        given = (np.asarray(init, x.dtype), function, (2, 2), (1, 1), "SAME")
        np.testing.assert_array_equal(npx.reduce_window(x, *given), lax.reduce_window(x, *given))


def test_a_traced_initial_value() -> None:
    x = jnp.array([1.0, -2, 3])
    for init in (2.0, -5.0):
        got = jax.jit(lambda x, init: npx.reduce_window(x, init, jnp.maximum, (2,), (1,), "SAME"))(x, init)
        np.testing.assert_array_equal(got, lax.reduce_window(x, init, lax.max, (2,), (1,), "SAME"))


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((0, 0), (9, 0), (0, 0))])
def test_a_symbolic_batch(padding: Any) -> None:
    from jax import export

    (b,) = export.symbolic_shape("b")
    given = (-np.inf, lax.max, (1, 3, 2), (1, 2, 1), padding)
    allowed = [export.DisabledSafetyCheck.custom_call("ndpool.run")]
    shape = jax.ShapeDtypeStruct((b, 6, 4), jnp.float32)
    program = export.export(jax.jit(lambda x: npx.reduce_window(x, *given)), disabled_checks=allowed)(shape)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 6, 4)), jnp.float32)
    np.testing.assert_array_equal(program.call(x), lax.reduce_window(x, *given))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"computation": lax.mul}, PoolError, "computation=mul is none that ndpool pools with; use lax.max"),
        ({"window_dimensions": (2,)}, PoolError, r"window_dimensions=\(2,\) is not 2 numbers"),
        ({"window_dimensions": 2}, PoolTypeError, "window_dimensions=2 is not a list"),
        ({"window_strides": (0, 1)}, PoolError, r"window_strides=\(0, 1\) is not 2 numbers from 1 on"),
        ({"padding": "FULL"}, PoolError, "padding='FULL' is not a rule"),
        ({"padding": 1}, PoolTypeError, "padding=1 is not a list of pairs"),
        ({"padding": [(1, 1)]}, PoolError, "has 1 pairs for 2 axes"),
        ({"init_value": np.zeros(2)}, PoolTypeError, r"init_value has shape \(2,\)"),
        ({"operand": [[1.0]]}, PoolTypeError, "operand is a list"),
    ],
)
def test_errors(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = {"operand": jnp.zeros((3, 3)), "init_value": 0.0, "computation": lax.add, "window_dimensions": (2, 2)}
    with pytest.raises(kind, match=f"^reduce_window: .*{message}"):
        npx.reduce_window(**(given | change))
