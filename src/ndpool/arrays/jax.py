"""JAX's arrays and tracers go to `ndpool.jax`, and are differentiated by JAX's own transforms."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..engines import Linear, dtypes
from ..errors import PoolError, PoolTypeError
from .adapter import Adapter, values_alone

if TYPE_CHECKING:
    from ..op import Op


class Arrays(Adapter):
    def pool(self, op: Op, x: Any) -> Any:
        return importlib.import_module("ndpool.jax").apply(op, x)

    def _at(self, op: Op, x: Any) -> Any:
        """The function whose derivatives at x are wanted."""
        if dtypes.kind(x.dtype) not in ("real", "complex"):
            raise PoolTypeError(f"x has dtype {x.dtype}, in which JAX has no derivatives; convert x to float32")
        op = values_alone(op)
        return lambda x: self.pool(op, x)

    def linearize(self, op: Op, x: Any) -> Linear:
        import jax

        f = self._at(op, x)
        y, vjp = jax.vjp(f, x)

        def jvp(dx: Any) -> Any:
            _check(op, "dx", dx, x)
            return jax.jvp(f, (x,), (dx,))[1]

        def pulled(dy: Any) -> Any:
            _check(op, "dy", dy, y)
            return vjp(dy)[0]

        return Linear(y, jvp, pulled)

    def value_and_jvp(self, op: Op, x: Any, dx: Any) -> tuple[Any, Any]:
        import jax

        f = self._at(op, x)
        _check(op, "dx", dx, x)
        y, dy = jax.jvp(f, (x,), (dx,))
        return y, dy

    def jacobian(self, op: Op, x: Any) -> Any:
        import jax

        return jax.jacrev(self._at(op, x))(x)

    def hvp(self, op: Op, x: Any, dx: Any, dy: Any) -> Any:
        import jax

        f = self._at(op, x)
        _check(op, "dx", dx, x)
        _check(op, "dy", dy, jax.eval_shape(f, x))
        return jax.jvp(lambda p: jax.vjp(f, p)[1](dy)[0], (x,), (dx,))[1]

    def unpool(self, y: Any, indices: Any, arguments: dict[str, Any]) -> Any:
        return importlib.import_module("ndpool.jax").max_unpool(y, indices, **arguments)


def _check(op: Op, name: str, t: Any, like: Any) -> None:
    """Raise unless `t` is an array like the one it moves."""
    of = "x" if name == "dx" else "y"
    if not hasattr(t, "dtype"):
        raise PoolTypeError(
            f"{op.name}: {name} is a {type(t).__name__}, not a JAX array; use jax.numpy.asarray({name})"
        )
    if t.shape != like.shape:
        raise PoolError(f"{op.name}: {name} has shape {t.shape}, but {of} has {like.shape}; give it {of}'s shape")
    if t.dtype != like.dtype:
        raise PoolTypeError(f"{op.name}: {name} has dtype {t.dtype}, but {of} has {like.dtype}; convert {name} to that")


ADAPTER = Arrays()
