"""The modes of a plan in torch's own operations: what runs where Triton does not compile a kernel.

`gpu.Launched` turns to it below the operators, so a graph that was traced before the kernel failed still runs. Which
tap won is told as the engines do: row-major among the taps of a window before clipping.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ..op import Op
from . import composite


class Composed:
    """A record on tensors of one shape; its methods write into the last tensor given, as a plan's do."""

    def __init__(self, op: Op, shape: tuple[int, ...]):
        self.op, self.text = op, repr(op)
        axes = op.window(shape).axes
        rows = sorted(a % len(shape) for a in op.pooled_axes(len(shape)))
        self.axes = [(a - len(shape), axes[a]) for a in rows]

    def forward(self, x: Tensor, y: Tensor) -> None:
        y.copy_(composite.pool(x, self.text))

    def winners(self, x: Tensor, residual: Tensor, y: Tensor) -> None:
        value, places = composite.winners(x, self.text)
        y.copy_(value)
        tap = torch.zeros_like(places)
        for a, axis, position in self._unravelled(places):
            tap = tap * axis.taps + (position - self._start(a, axis, places)) // axis.dilation
        residual.copy_(torch.where(places < 0, 0, tap))

    def positions(self, residual: Tensor, places: Tensor) -> None:
        places.copy_(self._places(residual))

    def jvp_by_winner(self, residual: Tensor, dx: Tensor, dy: Tensor) -> None:
        places = self._places(residual)
        found = self._flat(dx).gather(-1, self._flat(places).clamp(min=0))
        dy.copy_(torch.where(places < 0, 0, self._shaped(found, places.shape)))

    def vjp_by_winner(self, residual: Tensor, dy: Tensor, dx: Tensor) -> None:
        places = self._places(residual)
        given = torch.where(places < 0, 0, dy).to(torch.promote_types(dy.dtype, torch.float32))
        flat = self._flat(torch.zeros_like(dx, dtype=given.dtype))
        flat = flat.scatter_add(-1, self._flat(places).clamp(min=0), self._flat(given))
        dx.copy_(self._shaped(flat, dx.shape))

    def jvp(self, x: Tensor, dx: Tensor, dy: Tensor) -> None:
        dy.copy_(_aside(self._jvp, x, dx))

    def vjp(self, x: Tensor | None, dy: Tensor, dx: Tensor) -> None:
        dx.copy_(_aside(self._vjp, torch.zeros_like(dx) if x is None else x, dy))

    def _vjp(self, x: Tensor, dy: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(composite.pool(x, self.text), x, dy)[0]

    def _jvp(self, x: Tensor, dx: Tensor) -> Tensor:
        """The transpose of the transpose: forward mode has levels that another thread may be in."""
        x = x.detach().requires_grad_()
        y = composite.pool(x, self.text)
        dy = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, dy, create_graph=True)
        return torch.autograd.grad(pulled, dy, dx)[0]

    # -- taps and positions

    def _start(self, a: int, axis: Any, like: Tensor) -> Any:
        """Where each output's window starts on that axis, before clipping."""
        o = torch.arange(axis.outputs, device=like.device)
        return axis.start(o).reshape((-1,) + (1,) * (-a - 1))

    def _unravelled(self, places: Tensor) -> list[tuple[int, Any, Tensor]]:
        """Each axis with the position of the winners on it."""
        found = []
        for a, axis in reversed(self.axes):
            found.append((a, axis, places % axis.size))
            places = places // axis.size
        return found[::-1]

    def _places(self, residual: Tensor) -> Tensor:
        """Flat row-major positions among the pooled axes; -1 where nothing is read."""
        tap = residual.long() & ((1 << 8 * residual.element_size()) - 1)  # torch has few unsigned types
        places, step = torch.zeros_like(tap), 1
        reads = torch.ones_like(tap, dtype=torch.bool)
        for a, axis in reversed(self.axes):
            position = self._start(a, axis, tap) + tap % axis.taps * axis.dilation
            places, tap, step = places + position * step, tap // axis.taps, step * axis.size
            reads = reads & (axis.span(torch.arange(axis.outputs, device=tap.device))[1] > 0).reshape(
                (-1,) + (1,) * (-a - 1)
            )
        return torch.where(reads, places, -1)

    def _flat(self, t: Tensor) -> Tensor:
        """The pooled axes as the last one."""
        rows = tuple(a for a, _ in self.axes)
        return t.movedim(rows, tuple(range(-len(rows), 0))).flatten(-len(rows))

    def _shaped(self, t: Tensor, shape: tuple[int, ...]) -> Any:
        rows = tuple(a for a, _ in self.axes)
        return t.unflatten(-1, [shape[a] for a in rows]).movedim(tuple(range(-len(rows), 0)), rows)


def _aside(run: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """On a thread of its own, where autograd is not switched off as it is around kernels; on the same stream.

    Without autograd's own threads: one per GPU walks every graph, and in a backward it is the one that waits here.
    """
    device = tensors[0].device
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def there() -> Tensor:
        with torch.autograd.set_multithreading_enabled(False), torch.cuda.stream(stream):
            return run(*tensors)

    with ThreadPoolExecutor(1) as aside:
        return aside.submit(there).result()
