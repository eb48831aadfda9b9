"""Every transform on every op, one table: what holds for the same op in JAX's own words holds for ours.

A transform is a function of the op; both sides go through it and the results must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from jax.sharding import PartitionSpec

from ndpool.jax import ffi

from .ops import CASES, FEW, Run

Transform = Callable[[Run, Any, Any], Any]  # of the op, a batch of samples and their tangents


def array(seed: int, *shape: int) -> Any:
    """Values without ties, and none near 0."""
    values = np.random.default_rng(seed).permutation(int(np.prod(shape)))
    return ((values + 1) / 10 * np.where(values % 2 == 0, 1, -1)).reshape(shape)


X, DX = array(0, 2, 2, 4, 4), array(1, 2, 2, 4, 4)


def cubed(f: Run) -> Run:
    """A number that bends with every output."""
    return lambda x: (f(x) ** 3 / 7).sum()


def pulled(f: Run, x: Any, _: Any = None) -> Any:
    y, pull = vjp(f, x)
    return pull(y * y)[0]


def scanned(f: Run, x: Any, _: Any) -> Any:
    """A gradient through a loop that pools at each step."""

    def total(x: Any) -> Any:
        def step(carry: Any, scale: Any) -> Any:
            return carry + cubed(f)(x * scale), None

        return jax.lax.scan(step, jnp.zeros(()), jnp.array([0.5, 1.0, 2.0]))[0]

    return grad(total)(x)


def sharded(run: Run, *arrays: Any) -> Any:
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("batch")
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec))(*arrays)


def exported(f: Run, x: Any, *sizes: Any) -> Any:
    """Through the bytes of an exported program, with its gradient."""
    allowed = [export.DisabledSafetyCheck.custom_call(ffi.TARGET)]
    shape = jax.ShapeDtypeStruct((*sizes, *x.shape[len(sizes) :]), x.dtype)
    program = export.export(jax.jit(f), disabled_checks=allowed)(shape)
    again = export.deserialize(program.serialize(vjp_order=1))
    return again.call(x), grad(cubed(again.call))(x)


def without_jit(f: Run, x: Any, _: Any) -> Any:
    with jax.disable_jit():
        return pulled(f, x)


COMPILED: dict[str, Transform] = {  # each as one program
    "jit": lambda f, x, d: f(x),
    "grad": lambda f, x, d: grad(cubed(f))(x),
    "vjp": pulled,
    "jvp": lambda f, x, d: jvp(f, (x,), (d,))[1],
    "linearize": lambda f, x, d: linearize(f, x)[1](d),
    "transpose of linearize": lambda f, x, d: jax.linear_transpose(linearize(f, x)[1], x)(f(x))[0],
    "jacfwd": lambda f, x, d: jacfwd(f)(x[0]),
    "jacrev": lambda f, x, d: jacrev(f)(x[0]),
    "hessian": lambda f, x, d: hessian(cubed(f))(x[0]),
    "jacrev of jacfwd": lambda f, x, d: jacrev(jacfwd(cubed(f)))(x[0]),
    "jacrev of jacrev": lambda f, x, d: jacrev(jacrev(cubed(f)))(x[0]),
    "jvp of jvp": lambda f, x, d: jvp(lambda x: jvp(f, (x,), (d,))[1], (x,), (d[::-1],))[1],
    "jvp of vjp": lambda f, x, d: jvp(partial(pulled, f), (x,), (d,))[1],
    "vjp of vjp in the cotangent": lambda f, x, d: vjp(lambda g: vjp(f, x)[1](g)[0], f(x))[1](d)[0],
    "third order": lambda f, x, d: grad(lambda x: (jvp(grad(cubed(f)), (x,), (d,))[1] * d[::-1]).sum())(x),
    "vmap": lambda f, x, d: vmap(f)(x),
    "vmap, batch in the middle": lambda f, x, d: vmap(f, in_axes=1, out_axes=-1)(x.swapaxes(0, 1)),
    "vmap, batch between pooled axes": lambda f, x, d: vmap(f, in_axes=2, out_axes=1)(jnp.moveaxis(x, 0, 2)),
    "vmap, batch last": lambda f, x, d: vmap(f, in_axes=-1, out_axes=-1)(jnp.moveaxis(x, 0, -1)),
    "vmap of vmap": lambda f, x, d: vmap(vmap(f))(x[None] + d[:, None]),
    "vmap of grad": lambda f, x, d: vmap(grad(cubed(f)))(x),
    "vmap of jvp": lambda f, x, d: vmap(lambda a, b: jvp(f, (a,), (b,))[1])(x, d),
    "vmap over tangents": lambda f, x, d: vmap(lambda b: jvp(f, (x[0],), (b,))[1])(d),
    "vmap over cotangents": lambda f, x, d: vmap(lambda g: vjp(f, x[0])[1](g)[0], in_axes=-1)(
        jnp.stack([f(x[0]), f(x[1])], -1)
    ),
    "checkpoint": lambda f, x, d: grad(cubed(jax.checkpoint(lambda x: f(x * x))))(x),
    "scan": scanned,
    "cond": lambda f, x, d: jax.lax.cond(x[0, 0, 0, 0] > 0, f, lambda x: 2 * f(x), x),
}  # fmt: skip
OUTSIDE: dict[str, Transform] = {  # as the user has them
    "eager": lambda f, x, d: f(x),
    "eager grad": lambda f, x, d: grad(cubed(f))(x),
    "no jit": without_jit,
    "shard_map": lambda f, x, d: sharded(grad(cubed(f)), x),
    "shard_map, forward over reverse": lambda f, x, d: sharded(lambda x, d: jvp(grad(cubed(f)), (x,), (d,))[1], x, d),
    "pmap": lambda f, x, d: jax.pmap(grad(cubed(f)))(x[None]),
    "donation": lambda f, x, d: jax.jit(lambda x: (f(x), x + 1), donate_argnums=0)(jnp.array(x)),
    "ahead of time": lambda f, x, d: jax.jit(f).lower(jax.ShapeDtypeStruct(x.shape, x.dtype)).compile()(x),
    "export": lambda f, x, d: exported(f, x),
    "export, symbolic batch": lambda f, x, d: exported(f, x, *export.symbolic_shape("b")),
    "export, symbolic batch and channels": lambda f, x, d: exported(f, x, *export.symbolic_shape("b, 2*c")),
}
TRANSFORMS = COMPILED | OUTSIDE
BENDING = {name for name in TRANSFORMS if " of " in name} | {
    "hessian", "third order", "shard_map, forward over reverse", "vmap over tangents", "checkpoint", "eager grad",
}  # fmt: skip


def run(transform: str, f: Run) -> Any:
    if transform in OUTSIDE:
        return OUTSIDE[transform](f, X, DX)
    return jax.jit(partial(COMPILED[transform], f))(X, DX)


@cache
def wanted(transform: str, op: str) -> Any:
    """What the op in JAX's own words gives."""
    return run(transform, jax.jit(CASES[op].theirs))


def check(transform: str, op: str) -> None:
    got, want = run(transform, CASES[op].ours), wanted(transform, op)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", ["handler"], indirect=True)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(way: str, transform: str) -> None:
    """On a law that bends for derivatives of derivatives, else on one whose derivative is its winner."""
    check(transform, "smooth max" if transform in BENDING else "max")


@pytest.mark.parametrize("way", ["handler"], indirect=True)
@pytest.mark.parametrize("op", CASES)
def test_ops(way: str, op: str) -> None:
    for transform in ("hessian", "vmap of grad"):
        check(transform, op)


@pytest.mark.parametrize("way", ["composed"], indirect=True)
@pytest.mark.parametrize("op", FEW)
def test_composed(way: str, op: str) -> None:
    for transform in ("hessian", "vmap of jvp"):
        check(transform, op)


@pytest.mark.parametrize("way", ["composed"], indirect=True)
def test_composed_with_symbols(way: str) -> None:
    """Where what is broadcast along a symbolic axis meets what is not."""
    check("export, symbolic batch and channels", "max")


@pytest.mark.long
@pytest.mark.parametrize("op", CASES)
def test_every_transform_of_every_op_either_way(way: str, op: str) -> None:
    for transform in TRANSFORMS:
        if not (CASES[op].pools_channels and transform == "export, symbolic batch and channels"):
            check(transform, op)


@pytest.mark.parametrize("op", [op for op in CASES if CASES[op].linear])
def test_linear_laws_are_linear_to_jax(op: str) -> None:
    """`linear_transpose` takes the op itself, and its transpose's."""
    ours, y = CASES[op].ours, CASES[op].ours(X)
    transposed = partial(jax.linear_transpose(ours, X), y)
    np.testing.assert_allclose(transposed()[0], vjp(ours, X)[1](y)[0])
    np.testing.assert_allclose(jax.linear_transpose(lambda g: jax.linear_transpose(ours, X)(g)[0], y)(X)[0], ours(X))


def test_the_residual_has_no_derivative() -> None:
    """Where it was taken from is whole numbers, under every transform."""
    from ndpool.jax import max_pool

    def places(x: Any) -> Any:
        return max_pool(x, 2, return_indices=True)[1]

    _, moved = jvp(places, (X,), (DX,))
    assert moved.dtype == jax.dtypes.float0
    assert vmap(places)(X).dtype == np.int64
