"""JAX's arrays and tracers go to `ndpool.jax`. Without it the portable engine has them, as any array-API array."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ..engines import Linear
from .adapter import Adapter, values_alone

if TYPE_CHECKING:
    from ..op import Op


class Arrays(Adapter):
    """Runs records by `pool(op, x)` of a module, and differentiates them by JAX's own transforms."""

    def __init__(self, module: str):
        self.module = module

    def pool(self, op: Op, x: Any) -> Any:
        return importlib.import_module(self.module).pool(op, x)

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
        return importlib.import_module(self.module).max_unpool(y, indices, **arguments)


ADAPTER = Arrays("ndpool.jax") if importlib.util.find_spec("ndpool.jax") else None
