"""The handler: programs that outlive a process, programs that are not its own, XLA's threads, and its numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ndpool
import ndpool.jax as npx
from ndpool.jax import ffi
from ndpool.jax.pooled import of

pytestmark = pytest.mark.skipif(not ffi.available(), reason="XLA does not call the native engine")


def elsewhere(code: str, **environment: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_the_engine_that_runs() -> None:
    lowered = jax.jit(lambda x: npx.max_pool(x, 3, 2, 1)).lower(jnp.zeros((2, 3, 9, 9))).as_text()
    assert f"@{ffi.TARGET}" in lowered
    assert "transpose" not in lowered


def test_an_exported_program_runs_in_a_new_process(tmp_path: Path) -> None:
    from jax import export

    def f(x: Any) -> Any:
        return jax.grad(lambda x: (npx.smooth_max_pool(x, 3, 1, beta=2.0) ** 2).sum())(x)

    x = np.arange(50, dtype="float32").reshape(2, 5, 5) % 7
    (b,) = export.symbolic_shape("b")
    allowed = [export.DisabledSafetyCheck.custom_call(ffi.TARGET)]
    program = export.export(jax.jit(f), disabled_checks=allowed)(jax.ShapeDtypeStruct((b, 5, 5), x.dtype))
    (tmp_path / "program").write_bytes(program.serialize())
    got = elsewhere(
        "import ndpool.jax, numpy as np; from jax import export;"
        f"p = export.deserialize(bytearray(open({str(tmp_path / 'program')!r}, 'rb').read()));"
        "x = np.arange(50, dtype='float32').reshape(2, 5, 5) % 7; print(np.asarray(p.call(x)).tobytes().hex())"
    )
    assert got == np.asarray(f(jnp.asarray(x))).tobytes().hex()


def test_a_cached_program_runs_in_a_new_process(tmp_path: Path) -> None:
    code = (
        "import jax, jax.numpy as jnp, ndpool.jax as npx;"
        "f = jax.jit(jax.grad(lambda x: (npx.max_pool(x, 3, 2, 1) ** 2).sum()));"
        "print(f(jnp.arange(50.0).reshape(2, 5, 5) % 7).tobytes().hex())"
    )
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    first = elsewhere(code, **settings)
    assert list(tmp_path.iterdir())
    assert elsewhere(code, **settings) == first


NUMBERS = ffi.numbers(of(ndpool.MaxPool(2), (3, 4, 4)), "forward", of(ndpool.MaxPool(2), (3, 4, 4)).window.axes[1:])


def called(numbers: Any, *arrays: Any, results: int = 1) -> Any:
    """The handler with a plan and arrays that may not go together."""
    shapes = [jax.ShapeDtypeStruct((3, 2, 2, 1), jnp.float32)] * results
    return jax.ffi.ffi_call(ffi.TARGET, shapes)(*arrays, plan=np.array(numbers, np.int64))


def test_those_numbers_are_a_plan() -> None:
    x = jnp.arange(48, dtype=jnp.float32).reshape(3, 4, 4, 1)
    np.testing.assert_array_equal(called(NUMBERS, x)[0][..., 0], npx.max_pool(x[..., 0], 2))


@pytest.mark.parametrize(
    ("at", "to", "message"),
    [
        (0, 99, "made by another version of ndpool; export it again"),
        (1, 6, "without a plan"),
        (1, 7, "names a mode that is not known"),
        (1, 1, "with other arrays than its plan has"),
        (2, 9, "names a law that is not known"),
        (3, -1, "names a law that is not known"),
        (8, -1, "names a law that is not known"),
        (9, 3, "without a plan"),
        (9, 40, "without a plan"),
        (10, 0, "has an axis that is none"),
        (10, 5, "has not the shape or type that its plan has"),
        (11, 0, "has an axis that is none"),
        (11, 3, "has not the shape or type that its plan has"),
        (13, -2, "has an axis that is none"),
        (13, 1 << 40, "has an axis that is none"),
        (15, -(1 << 40), "has an axis that is none"),
    ],
)
def test_programs_that_are_not_its_own_are_errors(at: int, to: int, message: str) -> None:
    """An exported program may come from anywhere: nothing in it is believed."""
    numbers = [*NUMBERS[:at], to, *NUMBERS[at + 1 :]]
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(called(numbers, jnp.zeros((3, 4, 4, 1), jnp.float32)))


def test_arrays_that_do_not_fit_a_plan_are_errors() -> None:
    for arrays, results in (((jnp.zeros((3, 5, 4, 1), "float32"),), 1), ((jnp.zeros((3, 4, 4, 1), "float16"),), 1),
                            ((jnp.zeros(3, "float32"),), 1), ((jnp.zeros((3, 4, 4, 1), "complex64"),), 1),
                            ((jnp.zeros((3, 4, 4, 1), "float32"),) * 2, 1),
                            ((jnp.zeros((3, 4, 4, 1), "float32"),), 2)):  # fmt: skip
        with pytest.raises(jax.errors.JaxRuntimeError, match="ndpool: "):
            jax.block_until_ready(called(NUMBERS, *arrays, results=results))
    with pytest.raises(jax.errors.JaxRuntimeError, match="without a plan"):
        jax.block_until_ready(jax.ffi.ffi_call(ffi.TARGET, jax.ShapeDtypeStruct((1,), "float32"))(jnp.zeros(1)))


def test_many_callers_of_many_units() -> None:
    """XLA's threads call the handler at the same time, and help one another."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 16, 64, 64)).astype("float32"))
    run = jax.jit(jax.value_and_grad(lambda x: (npx.max_pool(x, 3, 2, 1) ** 2).sum()))
    want = jax.block_until_ready(run(x))
    with ThreadPoolExecutor(8) as pool:
        for y, g in pool.map(lambda _: jax.block_until_ready(run(x)), range(40)):
            assert y == want[0]
            np.testing.assert_array_equal(g, want[1])


def test_first_calls_from_many_threads() -> None:
    """Eager, jitted and differentiated at once, of windows that nobody has used."""
    x = np.random.default_rng(5).normal(size=(3, 23, 19)).astype(np.float32)
    met = Barrier(8)

    def call(i: int) -> tuple[Any, ...]:
        op = ndpool.MaxPool((2 + i % 3, 5), stride=(3, 2))
        met.wait()
        run = partial(npx.apply, op)
        g = jax.grad(lambda x: run(x).sum())(x)
        return op, run(x), jax.jit(run)(x), ndpool.max_pool(jnp.asarray(x), op.kernel_size, op.stride), g

    with ThreadPoolExecutor(8) as pool:
        for op, *values, g in pool.map(call, range(8)):
            want = op(x)
            for y in values:
                np.testing.assert_array_equal(y, want)
            np.testing.assert_array_equal(g, op.vjp(x, np.ones_like(want)))


def test_threads_change_no_bit() -> None:
    code = (
        "import jax, jax.numpy as jnp, ndpool.jax as npx, hashlib;"
        "x = jax.random.normal(jax.random.key(0), (4, 8, 100, 100));"
        "f = jax.jit(jax.value_and_grad(lambda x: (npx.smooth_max_pool(x, 5, 2) ** 2).sum()));"
        "print(hashlib.sha256(f(x)[1].tobytes()).hexdigest())"
    )
    one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    assert elsewhere(code, XLA_FLAGS=one) == elsewhere(code)


def test_numbers_below_the_normal_ones_are_numbers() -> None:
    """XLA's threads take them for 0; the engine has the same bits on every way."""
    x = np.array([[1e-310, 2e-310, 0, 0]])
    got = jax.jit(lambda x: npx.max_pool(x, (2,)))(x)
    np.testing.assert_array_equal(got, ndpool.max_pool(x, (2,)))
    np.testing.assert_array_equal(jax.jit(lambda x: npx.sum_pool(x, (2,)))(x), ndpool.sum_pool(x, (2,)))


def test_two_devices_in_one_process() -> None:
    """pmap and shard_map over a batch: each device's thread calls the handler."""
    out = elsewhere(
        "import jax, jax.numpy as jnp, ndpool.jax as npx;"
        "from jax.sharding import PartitionSpec as P, AxisType;"
        "x = jax.random.normal(jax.random.key(0), (4, 3, 64, 64));"
        "f = jax.grad(lambda x: (npx.max_pool(x, 3, 2, 1) ** 2).sum()); want = f(x);"
        "mesh = jax.make_mesh((2,), ('b',), axis_types=(AxisType.Auto,));"
        "a = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P('b'), out_specs=P('b')))(x);"
        "b = jax.pmap(f)(x.reshape(2, 2, 3, 64, 64)).reshape(x.shape);"
        "print(len(jax.devices()), bool((a == want).all()), bool((b == want).all()))",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert out == "2 True True"
