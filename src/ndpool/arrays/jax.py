"""JAX's arrays and tracers go to `ndpool.jax`, and are differentiated by JAX's own transforms."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..engines import Linear
from .adapter import Adapter, values_alone

if TYPE_CHECKING:
    from ..op import Op


class Arrays(Adapter):
    def pool(self, op: Op, x: Any) -> Any:
        return importlib.import_module("ndpool.jax").apply(op, x)

    def _at(self, op: Op) -> Any:
        op = values_alone(op)
        return lambda x: self.pool(op, x)

    def linearize(self, op: Op, x: Any) -> Linear:
        import jax

        f = self._at(op)
        y, vjp = jax.vjp(f, x)
        return Linear(y, lambda dx: jax.jvp(f, (x,), (dx,))[1], lambda dy: vjp(dy)[0])

    def value_and_jvp(self, op: Op, x: Any, dx: Any) -> tuple[Any, Any]:
        import jax

        y, dy = jax.jvp(self._at(op), (x,), (dx,))
        return y, dy

    def jacobian(self, op: Op, x: Any) -> Any:
        import jax

        return jax.jacrev(self._at(op))(x)

    def hvp(self, op: Op, x: Any, dx: Any, dy: Any) -> Any:
        import jax

        return jax.jvp(lambda p: jax.vjp(self._at(op), p)[1](dy)[0], (x,), (dx,))[1]

    def unpool(self, y: Any, indices: Any, arguments: dict[str, Any]) -> Any:
        return importlib.import_module("ndpool.jax").max_unpool(y, indices, **arguments)


ADAPTER = Arrays()
