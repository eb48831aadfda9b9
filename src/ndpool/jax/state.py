"""`python -m ndpool.jax.state`: which way JAX's programs take to an engine here, tried. `ndpool doctor` asks it."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from . import ffi, functional, gpu


def lines() -> Iterator[str]:
    """What runs on the CPU, and elsewhere."""
    x = jnp.array([[1.0, 3.0], [2.0, 0.0]])
    y, g = jax.jit(jax.value_and_grad(lambda x: functional.max_pool(x, 2).sum()))(x)
    right = float(y) == 3 and g.tolist() == [[0, 1], [0, 0]]
    if not right:
        yield f"jax adapter: not to be used; on JAX {jax.__version__} a max has the wrong value or gradient"
    elif ffi.available():
        yield f"jax adapter: in use on JAX {jax.__version__}; on the CPU, XLA calls the native engine"
    else:
        yield f"jax adapter: in use on JAX {jax.__version__}, in JAX's own operations; {ffi.reason()}"
    for platform in sorted({device.platform for device in jax.devices()} - {"cpu"}):
        why = gpu.reason() if platform in ("gpu", "cuda") else "there are no kernels for it"
        yield f"  on {platform}: {f'JAX operations of its own; {why}' if why else 'the Triton engine, by jax-triton'}"


if __name__ == "__main__":
    print("\n".join(lines()))
