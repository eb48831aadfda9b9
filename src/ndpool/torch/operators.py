"""The modes of an engine as torch operators: `forward`, `winners`, `jvp`, `vjp`, `jvp_by_winner`, `vjp_by_winner` and
`positions`.

They are closed under differentiation: the derivative of each is made of the others, so every order and every mixture of
forward and reverse mode is there. Reading order: the derivatives (a `Rule` per operator), the kernels and the shapes of
what they give, how an operator is registered, the operators, and at the end a trial of their derivatives.

Why not `torch.library.custom_op`: its forward mode is silently wrong and functorch's grad fails on it. An operator with
an autograd.Function on its Autograd key, entered at one functorch level at a time, passes every transform; it takes a
few private names of torch (`private`). Where one is missing, or where `passes` finds a derivative wrong, there are no
operators, and `composite` serves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual
from torch.func import grad

from ..engines import native, triton
from . import composite, private
from .memory import dense, lies_last, residual_dtype
from .pooling import read
from .private import Function, below_autograd, forward_mode_enabled, set_forward_mode, single_level, transforms_active

AVAILABLE = (native.available() or triton.available()) and not private.MISSING
Sizes = Sequence[int]

# the operators, registered below
forward: Any
winners: Any
jvp: Any
vjp: Any
jvp_by_winner: Any
vjp_by_winner: Any
positions: Any


# -- derivatives -------------------------------------------------------------------------------------------------------
#
# Laws that are not linear and have no one winner are quasi-arithmetic, phi(y) = sum phi(x_t): with the weights
# w_t = phi'(x_t) / phi'(y),
#
#     jvp(x, v) = sum_t w_t v_t,    vjp(x, g) its transpose,    c = phi'' / phi'
#     d jvp(x, v) along u  =  jvp(x, c(x) u v) - c(y) jvp(x, u) jvp(x, v)
#     d <jvp(x, v), g> / dx  =  c(x) v vjp(x, g) - vjp(x, c(y) g jvp(x, v))
#
# c is beta for smooth max and (p - 1) / x for Lp. Shared winners do not move, and nor does c for them: it is None.


def _curvature(x: Tensor, text: str) -> tuple[Tensor, Any, Any, Any] | None:
    """x, c(x), c(y), and 1 where there is a second derivative; x is nudged off 0: a weight cancels the pole of c."""
    law = read(text).law
    if law.curvature is None:
        return None
    if not law.pole_at_zero:
        return x, law.curvature(x), law.curvature(x), 1
    tiny = torch.finfo(x.dtype).tiny ** 0.5
    x = torch.where(x == 0, tiny, x)
    y = forward(x, text)
    return x, law.curvature(x), law.curvature(y), (y > 1e3 * tiny).to(y.dtype)  # there is a kink where y is 0


def _jvp_along(x: Tensor, v: Tensor, u: Tensor, text: str) -> Any:
    """The derivative of jvp(x, v) in x along u."""
    found = _curvature(x, text)
    if found is None:
        return None
    x, cx, cy, there = found
    return (jvp(x, cx * u * v, text) - cy * jvp(x, u, text) * jvp(x, v, text)) * there


def _vjp_along(x: Tensor, v: Tensor, g: Tensor, text: str, sizes: Sizes, last: bool) -> Any:
    """The derivative of <jvp(x, v), g> in x."""
    found = _curvature(x, text)
    if found is None:
        return None
    x, cx, cy, there = found
    g = g * there
    return cx * v * vjp(x, g, text, sizes, last) - vjp(x, cy * g * jvp(x, v, text), text, sizes, last)


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


@dataclass(frozen=True)
class Rule:
    """How one operator is differentiated.

    `keep(inputs, output)` says what is needed of them: tensors, and the rest; `vjp(tensors, rest, needs, g)` gives the
    cotangents of the tensor arguments, `jvp(tensors, rest, *tangents)` the tangent of the (first) result.
    """

    keep: Callable[[Any, Any], tuple[tuple[Tensor | None, ...], Any]]
    vjp: Callable[..., tuple[Tensor | None, ...]]
    jvp: Callable[..., Tensor | None]
    tensors: int = 1  # arguments
    outputs: int = 1


def back(x: Tensor, text: str, axes: tuple[int, ...] | None = None) -> tuple[str, list[int], bool]:
    """What a transpose asks of an input it does not see: sizes of the pooled axes, and whether channels lie last."""
    return text, [x.shape[a] for a in axes or read(text).axes], lies_last(x.shape, x.stride())


def _ahead(x: Tensor | None, dx: Tensor, text: str) -> Any:
    """The transpose of `vjp`, which sees no x for a linear law."""
    return forward(dx, text) if x is None else jvp(x, dx, text)


def _vjp_of_jvp(kept: Any, rest: Any, needs: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, dx = kept
    return _vjp_along(x, dx, g, *rest) if needs[0] else None, vjp(x, g, *rest) if needs[1] else None


def _jvp_of_jvp(kept: Any, rest: Any, u: Tensor | None, t: Tensor | None) -> Tensor | None:
    x, dx = kept
    along = None if u is None else _jvp_along(x, dx, u, rest[0])
    t = torch.zeros_like(dx) if t is None and along is None else t  # winners that are shared do not move
    return _plus(along, None if t is None else jvp(x, t, rest[0]))


def _vjp_of_vjp(kept: Any, rest: Any, needs: Any, h: Tensor) -> tuple[Tensor | None, ...]:
    x, dy = kept
    return _vjp_along(x, h, dy, *rest) if needs[0] else None, _ahead(x, h, rest[0]) if needs[1] else None


def _jvp_of_vjp(kept: Any, rest: Any, u: Tensor | None, t: Tensor | None) -> Tensor | None:
    x, dy = kept
    along = None if u is None else _vjp_along(x, u, dy, *rest)
    t = torch.zeros_like(dy) if t is None and along is None else t
    return _plus(along, None if t is None else vjp(x, t, *rest))


FORWARD = Rule(
    lambda args, y: ((None if read(args[1]).law.linear else args[0],), back(*args)),
    lambda kept, rest, needs, g: (vjp(*kept, g, *rest),),
    lambda kept, rest, dx: _ahead(kept[0], dx, rest[0]),
)
WINNERS = Rule(
    lambda args, results: ((results[1],), back(*args)),
    lambda kept, rest, needs, g: (vjp_by_winner(*kept, g, *rest),),
    lambda kept, rest, dx: jvp_by_winner(*kept, dx, rest[0]),
    outputs=2,
)
JVP_BY_WINNER = Rule(
    lambda args, dy: ((args[0],), back(*args[1:])),
    lambda kept, rest, needs, g: (None, vjp_by_winner(*kept, g, *rest)),
    lambda kept, rest, _, t: jvp_by_winner(*kept, t, rest[0]),
    tensors=2,
)
VJP_BY_WINNER = Rule(
    lambda args, dx: ((args[0],), args[2:]),
    lambda kept, rest, needs, g: (None, jvp_by_winner(*kept, g, rest[0])),
    lambda kept, rest, _, t: vjp_by_winner(*kept, t, *rest),
    tensors=2,
)
JVP = Rule(lambda args, dy: (args[:2], back(args[0], args[2])), _vjp_of_jvp, _jvp_of_jvp, tensors=2)
VJP = Rule(
    lambda args, dx: ((args[0], args[1] if args[0] is not None else None), args[2:]), _vjp_of_vjp, _jvp_of_vjp, 2
)
POSITIONS = Rule(lambda args, places: ((), ()), lambda *_: (), lambda *_: None)


# -- kernels, and the shapes of what they give -----------------------------------------------------------------------


def _forward(x: Tensor, text: str) -> Tensor:
    return read(text).bind(tuple(x.shape), x.stride(), x.dtype, x.device.type).forward(x)


def _winners(x: Tensor, text: str) -> tuple[Tensor, Tensor]:
    return read(text).bind(tuple(x.shape), x.stride(), x.dtype, x.device.type).winners(x)


def _jvp(x: Tensor, dx: Tensor, text: str) -> Tensor:
    return read(text).bind(tuple(x.shape), x.stride(), dx.dtype, x.device.type).jvp(x, dx)


def _vjp(x: Tensor | None, dy: Tensor, text: str, sizes: Sizes, last: bool) -> Tensor:
    if x is not None:
        return read(text).bind(tuple(x.shape), x.stride(), dy.dtype, x.device.type).vjp(x, dy)
    return read(text).bind_dense(dy.shape, sizes, last, dy.dtype, dy.device.type).vjp(None, dy)


def _jvp_by_winner(residual: Tensor, dx: Tensor, text: str) -> Tensor:
    return read(text).bind(tuple(dx.shape), dx.stride(), dx.dtype, dx.device.type).jvp_by_winner(residual, dx)


def _vjp_by_winner(residual: Tensor, dy: Tensor, text: str, sizes: Sizes, last: bool) -> Tensor:
    return read(text).bind_dense(dy.shape, sizes, last, dy.dtype, dy.device.type).vjp_by_winner(residual, dy)


def _positions(residual: Tensor, text: str, sizes: Sizes, last: bool) -> Tensor:
    return read(text).bind_dense(residual.shape, sizes, last, torch.float32, residual.device.type).positions(residual)


def _outputs_of(x: Tensor, text: str, *dtypes: torch.dtype) -> list[Tensor]:
    shape, last = read(text).outputs(x.shape), lies_last(x.shape, x.stride())
    return [torch.empty_strided(shape, dense(shape, last), dtype=d, device=x.device) for d in dtypes or (x.dtype,)]


def _inputs_of(dy: Tensor, text: str, sizes: Sizes, last: bool) -> Tensor:
    shape = read(text).inputs(dy.shape, sizes)
    last = lies_last(shape, dense(shape, last))
    return torch.empty_strided(shape, dense(shape, last), dtype=dy.dtype, device=dy.device)


def _fake_winners(x: Tensor, text: str) -> tuple[Tensor, Tensor]:
    y, residual = _outputs_of(x, text, x.dtype, residual_dtype(read(text).op.axes_over(tuple(x.shape))))
    return y, residual


def _fake_vjp(x: Tensor | None, dy: Tensor, text: str, sizes: Sizes, last: bool) -> Tensor:
    if x is None:
        return _inputs_of(dy, text, sizes, last)
    return torch.empty_strided(x.shape, dense(x.shape, lies_last(x.shape, x.stride())), dtype=dy.dtype, device=x.device)


def _fake_positions(residual: Tensor, text: str, sizes: Sizes, last: bool) -> Tensor:
    shape = read(text).inputs(residual.shape, sizes)
    strides = dense(residual.shape, lies_last(shape, dense(shape, last)))
    return torch.empty_strided(residual.shape, strides, dtype=torch.int64, device=residual.device)


# -- registration ------------------------------------------------------------------------------------------------------

if AVAILABLE:
    _library = torch.library.Library("ndpool", "DEF")


def _register(name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], rule: Rule) -> Any:
    """The operator `ndpool::name`: its kernel on devices with an engine, shapes, derivatives, itself under vmap."""
    if not AVAILABLE:
        return None
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(torch.ops.ndpool, name).default
    for key, engine in (("CPU", native), ("CUDA", triton)):
        if engine.available():
            _library.impl(name, kernel, key)
    torch.library.register_fake(f"ndpool::{name}", fake, lib=_library)
    _library.impl(name, _autograd(name, op, rule), "Autograd")

    def batched(info: Any, dims: Any, *args: Any) -> Any:
        front = [
            arg if not isinstance(arg, Tensor) else arg.expand(info.batch_size, *arg.shape) if d is None
            else arg.movedim(d, 0)
            for arg, d in zip(args, dims, strict=True)
        ]  # fmt: skip
        return op(*front), 0 if rule.outputs == 1 else (0,) * rule.outputs

    torch.library.register_vmap(f"ndpool::{name}", batched, lib=_library)
    return op


def _autograd(name: str, op: Any, rule: Rule) -> Callable[..., Any]:
    """What runs on the Autograd key: an autograd.Function at the functorch level that the dispatcher is at."""

    class Differentiated(Function):  # type: ignore[misc]
        @staticmethod
        def forward(modes: Any, *args: Any) -> Any:
            if modes is None:
                with below_autograd():
                    return op(*args)
            # apply() has switched both modes off; the levels below this one still need them
            with torch.set_grad_enabled(modes[0]), set_forward_mode(modes[1]), below_autograd():
                return op(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.modes = inputs[0]
            tensors, ctx.rest = rule.keep(inputs[1:], output)
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.set_materialize_grads(False)
            if rule.outputs > 1:
                ctx.mark_non_differentiable(*output[1:])

        @staticmethod
        def backward(ctx: Any, g: Any, *_: Any) -> Any:
            needs = ctx.needs_input_grad[1:]
            found = () if g is None else rule.vjp(ctx.saved_tensors, ctx.rest, needs, g)
            return None, *found, *[None] * (len(needs) - len(found))

        @staticmethod
        def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
            tensors, tangents = ctx.saved_tensors, tangents[: rule.tensors]
            if ctx.modes is None:
                found = rule.jvp(tensors, ctx.rest, *tangents)
            else:  # forward mode is off here too, but the levels below may be in it: a jvp of a jvp
                still = [
                    t if t is None or not t.is_floating_point() else unpack_dual(t, level=0).primal for t in tensors
                ]
                with set_forward_mode(ctx.modes[1]):
                    found = rule.jvp(still, ctx.rest, *tangents)
            return found if rule.outputs == 1 else (found, *[None] * (rule.outputs - 1))

    Differentiated.__name__ = Differentiated.__qualname__ = name
    apply = Differentiated.apply

    def call(*args: Any) -> Any:
        if transforms_active():
            with single_level():
                return apply((torch.is_grad_enabled(), forward_mode_enabled()), *args)
        return apply(None, *args)

    return call


_TRANSPOSED = "str op, SymInt[] sizes, bool last"
forward = _register("forward", "(Tensor x, str op) -> Tensor", _forward, lambda x, op: _outputs_of(x, op)[0], FORWARD)
winners = _register("winners", "(Tensor x, str op) -> (Tensor, Tensor)", _winners, _fake_winners, WINNERS)
jvp = _register(
    "jvp", "(Tensor x, Tensor dx, str op) -> Tensor", _jvp, lambda x, dx, op: _outputs_of(x, op, dx.dtype)[0], JVP
)
vjp = _register("vjp", f"(Tensor? x, Tensor dy, {_TRANSPOSED}) -> Tensor", _vjp, _fake_vjp, VJP)
jvp_by_winner = _register(
    "jvp_by_winner",
    "(Tensor residual, Tensor dx, str op) -> Tensor",
    _jvp_by_winner,
    lambda _, dx, op: _outputs_of(dx, op)[0],
    JVP_BY_WINNER,
)
vjp_by_winner = _register(
    "vjp_by_winner", f"(Tensor residual, Tensor dy, {_TRANSPOSED}) -> Tensor", _vjp_by_winner,
    lambda _, dy, *back: _inputs_of(dy, *back), VJP_BY_WINNER,
)  # fmt: skip
positions = _register(
    "positions", f"(Tensor residual, {_TRANSPOSED}) -> Tensor", _positions, _fake_positions, POSITIONS
)


# -- a trial -----------------------------------------------------------------------------------------------------------

_SMOOTH = "SmoothMaxPool(kernel_size=2, beta=1.0, axes=(-1,))"
_MAX = "MaxPool(kernel_size=2, axes=(-1,))"


def _by_autograd(f: Callable[[Tensor], Any], x: Tensor, _: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    return [g, *torch.autograd.grad(g[0], x)]


def _by_grad(f: Callable[[Tensor], Any], x: Tensor, _: Tensor) -> list[Tensor]:
    return [grad(f)(x), grad(lambda x: grad(f)(x)[0])(x)]


def _by_jvp(f: Callable[[Tensor], Any], x: Tensor, dx: Tensor) -> list[Tensor]:
    return [torch.func.jvp(h, (x,), (dx,))[1] for h in (f, grad(f), lambda x: torch.func.jvp(f, (x,), (dx,))[1])]


TRIALS = {"torch.autograd": _by_autograd, "torch.func.grad": _by_grad, "torch.func.jvp": _by_jvp}


def passes(trial: str) -> bool:
    """Whether the operators have the derivatives of that kind that `composite` has; tried once, in milliseconds."""
    if trial not in _PASSED:
        _PASSED[trial] = True  # what is tried asks, too
        try:
            # aside, where no transform, mode or tracer is about; torch warns of its own names
            with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(1) as aside:
                why = aside.submit(_tried, TRIALS[trial]).result()
        except Exception as error:
            if "Nested forward mode" in str(error):  # its levels are the process's: another time
                del _PASSED[trial]
                return True
            why = f"{type(error).__name__}: {error}"
        if why:
            _PASSED[trial] = False
            private.tell(f"derivatives by {trial} fail ({why}), so torch's own operations pool")
    return _PASSED[trial]


_PASSED: dict[str, bool] = {}


@private.constant
def usable() -> bool:
    """Whether the operators are there, and have the derivatives that may be asked for now."""
    return (
        AVAILABLE
        and passes("torch.autograd")
        and (not transforms_active() or passes("torch.func.grad"))
        and (getattr(forward_ad, "_current_level", -1) < 0 or passes("torch.func.jvp"))
    )


def _tried(derivatives: Callable[..., list[Tensor]]) -> str:
    """What is wrong; empty if nothing is."""
    if not native.available():
        return ""
    x, dx = torch.tensor([[0.25, -0.5], [1.0, 0.0]], dtype=torch.float64, device="cpu")
    for text, run in ((_MAX, lambda x: winners(x, _MAX)[0]), (_SMOOTH, lambda x: forward(x, _SMOOTH))):
        got, want = (
            derivatives(lambda x, f=f: (f(x) ** 2).sum(), x, dx)
            for f in (run, lambda x, text=text: composite.pool(x, text))
        )
        if not all(torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(got, want, strict=True)):
            return f"{text} has {got}, not {want}"
    return ""
