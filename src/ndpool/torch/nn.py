"""Pooling modules. Those that torch.nn has are subclasses of torch's: the same arguments, attributes, repr, state and
pickles, and every isinstance check holds; ndpool's own take the arguments of its functions.

Names end in 1d, 2d, 3d, or Nd for any rank. The classes are made from the tables of `functional`, none by hand.
"""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling as tracing
from torch.nn import Module, Parameter

from ..op import function_name
from ..record_text import NAMED
from . import functional
from .functional import MADE, ORDER, RANKS

__all__: list[str] = []

# what torch.nn's classes do not have, with ndpool's defaults
EXTRA: dict[str, dict[str, Any]] = {
    "MaxPool": {"ties": "first", "nan": "propagate"},
    "AdaptiveMaxPool": {"ties": "first", "nan": "propagate"},
}
TORCH: dict[type[Module], type[Module]] = {}  # torch's class -> ours


class Drop(Module):
    """What makes a subclass of torch's module pool here."""

    function: ClassVar[str]
    order: ClassVar[tuple[str, ...]]
    extra: ClassVar[dict[str, Any]]
    usual: ClassVar[tuple[Any, ...]]  # the defaults of `extra`
    given: ClassVar[Any]  # reads a module's values of `order`, and then of `extra`

    def __init__(self, *args: Any, **kwargs: Any):
        own = {name: kwargs.pop(name) for name in self.extra if name in kwargs}
        super().__init__(*args, **kwargs)
        for name, value in own.items():  # as an attribute of the class it has its default, in converted modules too
            setattr(self, name, value)

    def forward(self, input: Tensor) -> Any:
        n = len(self.order)
        # tracers do not look into an attrgetter, and a loop takes as long as a small call
        values = tuple([getattr(self, k) for k in (*self.order, *self.extra)]) if tracing() else self.given(self)
        run = getattr(functional, self.function)
        if values[n:] == self.usual:
            return run(input, *values[:n])
        return run(input, *values[:n], **dict(zip(self.extra, values[n:], strict=True)))

    def extra_repr(self) -> str:
        others = [f"{n}={getattr(self, n)!r}" for n, usual in self.extra.items() if getattr(self, n) != usual]
        return ", ".join([super().extra_repr(), *others])


class Unpool(Module):
    """What makes a subclass of torch.nn.MaxUnpool put values back here."""

    function: ClassVar[str]
    kernel_size: Any
    stride: Any
    padding: Any

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        put = getattr(functional, self.function)
        return put(input, indices, self.kernel_size, self.stride, self.padding, output_size)  # type: ignore[no-any-return]


class Own(Module):
    """A function of `functional` with its arguments, as a module."""

    function: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()
        given = inspect.signature(getattr(functional, self.function)).bind(None, *args, **kwargs).arguments
        self.arguments = {name: functional.fixed(value) for name, value in given.items() if name != "input"}
        MADE[self.function](**self.arguments)  # raises on bad ones

    def forward(self, input: Tensor) -> Any:
        return getattr(functional, self.function)(input, **self.arguments)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())


class Smooth(Own):
    """A smooth max whose `beta` is a number, a tensor (one for each channel, say), or with `learnable` a parameter."""

    beta: Any

    def __init__(self, *args: Any, beta: float | Tensor = 1.0, learnable: bool = False, **kwargs: Any):
        super().__init__(*args, beta=1.0, **kwargs)
        del self.arguments["beta"]
        if learnable:
            self.beta = Parameter(torch.as_tensor(beta, dtype=torch.get_default_dtype()).detach().clone())
        elif isinstance(beta, Tensor):
            self.register_buffer("beta", beta)
        else:
            MADE[self.function](**self.arguments, beta=beta)
            self.beta = beta

    def forward(self, input: Tensor) -> Any:
        return getattr(functional, self.function)(input, beta=self.beta, **self.arguments)

    def extra_repr(self) -> str:
        beta = self.beta.detach() if isinstance(self.beta, Tensor) else self.beta
        shape = tuple(getattr(beta, "shape", ()))
        shown = f"beta of shape {shape}" if shape else f"beta={float(beta):.4g}"
        return f"{super().extra_repr()}, {shown}{', learnable' if isinstance(self.beta, Parameter) else ''}"


def _values(*names: str) -> Any:
    """What reads these attributes."""
    read = attrgetter(*names)
    return staticmethod(read if len(names) > 1 else lambda module: (read(module),))


def _class(name: str, bases: tuple[type, ...], **fields: Any) -> type[Module]:
    made = type(name, bases, {"__module__": __name__, **fields})
    globals()[name] = made
    __all__.append(name)
    return made


for _name in NAMED:
    _stem = function_name(_name)
    for _rank in (None, *RANKS):
        _full = f"{_name.replace('LpPool', 'LPPool')}{_rank or 'N'}d"
        _function = _stem if _rank is None else f"{_stem}{_rank}d"
        _doc = f"`functional.{_function}` as a module. {functional.described(NAMED[_name])}"
        _theirs = getattr(torch.nn, _full, None)
        if _theirs is None:
            _base = Smooth if _stem.endswith("smooth_max_pool") else Own
            _class(_full, (_base,), function=_function, __doc__=_doc)
        else:
            _own = inspect.signature(_theirs).parameters
            _order = tuple(n for n in ORDER.get(_stem, ("output_size",)) if n in _own)
            _more = EXTRA.get(_name, {})
            TORCH[_theirs] = _class(
                _full, (Drop, _theirs), function=_function, order=_order, extra=_more, usual=tuple(_more.values()),
                given=_values(*_order, *_more), __doc__=_doc, **_more,
            )  # fmt: skip
for _rank in RANKS:
    _theirs = getattr(torch.nn, f"MaxUnpool{_rank}d")
    TORCH[_theirs] = _class(_theirs.__name__, (Unpool, _theirs), function=f"max_unpool{_rank}d")

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[Module]: ...
