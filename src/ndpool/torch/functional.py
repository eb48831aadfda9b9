"""`torch.nn.functional`'s pooling functions and ndpool's, on tensors. Names with 1d, 2d and 3d take torch's arguments
in torch's order and keep torch's rules; names without a rank take ndpool's and keep ndpool's.

A function is a record and a table row: `ORDER` lists its positional arguments. Nothing is written once a rank.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from .. import ops
from ..arguments import entries, sizes
from ..errors import PoolError, PoolTypeError
from ..op import Op, function_name
from ..record_text import NAMED
from . import composite, private, routing, unpool
from .pooling import Pooling
from .routing import Call, PoolRuntimeError, eager

__all__ = ["max_unpool"]

# what torch takes by position; ndpool's other arguments are keywords
ORDER = {
    "max_pool": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "min_pool": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "sum_pool": ("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    "avg_pool": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "lp_pool": ("norm_type", "kernel_size", "stride", "ceil_mode"),
    "smooth_max_pool": ("kernel_size", "stride", "padding"),
    "adaptive_max_pool": ("output_size", "return_indices"),
    "adaptive_min_pool": ("output_size", "return_indices"),
    "adaptive_lp_pool": ("norm_type", "output_size"),
}
RANKS = (1, 2, 3)


def _made(record: type[Op], rank: int | None) -> Callable[..., Call]:
    """What reads the arguments of a function, and remembers those it has read."""
    own = inspect.signature(record)
    name = function_name(record.__name__)
    positional = tuple(p.name for p in own.parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY)
    order = positional if rank is None else ORDER.get(name, positional)

    @lru_cache(maxsize=1024, typed=True)
    def made(*args: Any, **kwargs: Any) -> Call:
        if rank is None:
            return Call(record(*args, **kwargs))
        given = dict(zip(order, args, strict=False)) | kwargs
        if len(args) > len(order) or len(given) < len(args) + len(kwargs):
            inspect.Signature([own.parameters[n] for n in order]).bind(*args, **kwargs)  # raises in Python's words
        divisor: Any = given.get("divisor_override")
        negated = isinstance(divisor, int) and divisor < 0  # torch takes it
        if negated:
            given["divisor_override"] = -divisor
        return Call(record(**_torchs(name, given, rank), axes=tuple(range(-rank, 0))), rank, negated)

    return made


def _torchs(name: str, given: dict[str, Any], rank: int) -> dict[str, Any]:
    """Arguments as torch reads them: one entry stands for all axes, `stride=()` for the kernel, and by its rules unless
    padding is given for each side, which torch has no form for."""
    for argument, value in given.items():
        if isinstance(value, tuple) and len(value) == 1:
            given[argument] = value[0]
        elif argument == "stride" and value == ():
            given[argument] = None
    padding = given.get("padding", 0)
    each_side = isinstance(padding, str) or (isinstance(padding, tuple) and any(isinstance(p, tuple) for p in padding))
    if each_side or "empty" in given:
        return given
    if "kernel_size" in given and padding != 0:
        kernel, dilation = sizes("kernel_size", given["kernel_size"], 1), sizes("dilation", given.get("dilation", 1), 1)
        columns = entries("kernel_size", kernel, rank), entries("dilation", dilation, rank)
        for k, d, p in zip(*columns, entries("padding", sizes("padding", padding, 0), rank), strict=True):
            if 2 * p > d * (k - 1) + 1:
                raise PoolRuntimeError(
                    f"padding={p} is more than half of the {d * (k - 1) + 1} positions that kernel_size={k} spans; use "
                    f"padding <= {(d * (k - 1) + 1) // 2}, or padding=(({p}, {p}), ...) for each side, which may be any"
                )
    return given | {"empty": "error"}


MADE: dict[str, Callable[..., Call]] = {}  # by the function's name


def _function(record: type[Op], rank: int | None) -> Callable[..., Any]:
    """`function(input, *args)` is `record(*args)` on a tensor."""
    stem = function_name(record.__name__)
    name = stem if rank is None else f"{stem}{rank}d"
    made = MADE[name] = _made(record, rank)

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            if is_dynamo_compiling():
                args, kwargs = fixed(args), {key: fixed(value) for key, value in kwargs.items()}
                found = _constant_call(name, args, tuple(kwargs.items()))
                dtype = _constant_dtype(name, args, tuple(kwargs.items()), input.dtype)
                input = input if dtype is None else input.to(dtype)
                pooling = _constant_pooling(name, args, tuple(kwargs.items()), input.dtype, input.ndim)
                return routing.traced(found, pooling, input)
            try:
                found = made(*args, **kwargs)
            except TypeError:  # a list has no hash, nor has a tracer's symbol
                found = made(*fixed(args), **{key: fixed(value) for key, value in kwargs.items()})
            return eager(found, input if found.dtype is None else found.taken(input))
        except PoolError as error:
            raise _told(name, stem, error) from None

    if issubclass(record, ops._SmoothMax):
        return _dressed(_learnable(call, name), record, name, stem, rank)
    return _dressed(call, record, name, stem, rank)


def _learnable(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A smooth max whose beta may be a tensor: a number, or one for each channel or sample.

        (1/beta) log sum exp(beta x)  =  pool(beta x, beta=1) / beta

    so autograd finds its derivatives in beta, of any order and in both modes.
    """

    def smooth(input: Tensor, *args: Any, beta: Any = 1.0, **kwargs: Any) -> Any:
        if not isinstance(beta, Tensor):
            return call(input, *args, beta=beta, **kwargs)
        keeps = kwargs.pop("keepdims", True)
        axes = _constant_axes(name, fixed(args), tuple([(k, fixed(v)) for k, v in kwargs.items()]), input.ndim)
        if any(beta.ndim >= -a and beta.shape[a] != 1 for a in axes):
            raise PoolRuntimeError(
                f"{name}: beta has shape {tuple(beta.shape)}, so it varies in a window; give it size 1 on axes {axes}"
            )
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        y = (call(wide * beta, *args, beta=1.0, **kwargs) / beta).to(input.dtype)
        return y if keeps else y.squeeze(axes)

    return smooth


def described(record: type[Op]) -> str:
    """What the record's docstring says, without its examples, which are of lists."""
    return str(record.__doc__).partition(">>>")[0].strip()


def _dressed(call: Any, record: type[Op], name: str, stem: str, rank: int | None) -> Callable[..., Any]:
    """The signature and the docstring that the function has in effect."""
    own = inspect.signature(record).parameters
    first = inspect.Parameter("input", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Tensor)
    if rank is None:
        rest = list(own.values())
        call.__doc__ = f"`ndpool.{stem}` on a tensor: {described(record)}"
    else:
        order = ORDER.get(stem, tuple(n for n, p in own.items() if p.kind is not p.KEYWORD_ONLY))
        rest = [own[n].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in order]
        others = [p for n, p in own.items() if n not in (*order, "axes", "layout")]
        rest += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others]
        call.__doc__ = f"Over the last {rank} axes: {described(record)}"
    call.__signature__ = inspect.Signature([first, *rest])
    call.__name__ = call.__qualname__ = name
    call.__module__ = __name__
    __all__.append(name)
    return call  # type: ignore[no-any-return]


def fixed(value: Any) -> Any:
    """Lists as tuples, and a tracer's symbols as the numbers they are: a graph is made for one geometry."""
    if isinstance(value, (tuple, list)):
        return tuple([fixed(entry) for entry in value])
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return operator.index(value)
    return value


@private.constant
def _constant_call(name: str, args: tuple[Any, ...], kwargs: tuple[Any, ...]) -> Call:
    return MADE[name](*args, **dict(kwargs))


@private.constant
def _constant_dtype(
    name: str, args: tuple[Any, ...], kwargs: tuple[Any, ...], given: torch.dtype
) -> torch.dtype | None:
    return _constant_call(name, args, kwargs).converts(given)


@private.constant
def _constant_pooling(
    name: str, args: tuple[Any, ...], kwargs: tuple[Any, ...], dtype: torch.dtype, ndim: int
) -> Pooling:
    composite.let_in()  # here and not before, because it imports the compiler
    call = _constant_call(name, args, kwargs)
    call.accept_kind(dtype, ndim)
    return call.pooling(ndim)


@private.constant
def _constant_axes(name: str, args: tuple[Any, ...], kwargs: tuple[Any, ...], ndim: int) -> tuple[int, ...]:
    return _constant_call(name, args, kwargs).pooling(ndim).axes


def _told(name: str, stem: str, error: PoolError) -> PoolError:
    """The error in the name that the user typed, and of torch's kind."""
    kind = type(error) if isinstance(error, (PoolTypeError, RuntimeError)) else PoolRuntimeError
    return kind(f"{name}: {str(error).removeprefix(f'{stem}: ')}")


def max_unpool(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    try:
        return unpool.max_unpool(input, *args, **kwargs)
    except PoolError as error:
        raise _told("max_unpool", "max_unpool", error) from None


def _unpool(rank: int) -> Callable[..., Tensor]:
    name = f"max_unpool{rank}d"

    def call(
        input: Tensor,
        indices: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
        *,
        duplicates: str = "last",
    ) -> Tensor:
        kernel_size, stride, padding, output_size = (fixed(v) for v in (kernel_size, stride, padding, output_size))
        try:
            if isinstance(input, Tensor) and isinstance(output_size, tuple) and len(output_size) == input.ndim:
                output_size = output_size[-rank:]  # torch does not read its other entries
            if output_size is not None and isinstance(input, Tensor):
                unpool.check_output_size(tuple(input.shape), kernel_size, stride or None, padding, output_size, rank)
            return unpool.max_unpool(
                input,
                indices,
                kernel_size,
                stride or None,
                padding,
                output_size,
                axes=tuple(range(-rank, 0)),
                duplicates=duplicates,
            )
        except PoolError as error:
            raise _told(name, "max_unpool", error) from None

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Over the last {rank} axes: {unpool.max_unpool.__doc__}"
    __all__.append(name)
    return call


max_unpool.__doc__ = unpool.max_unpool.__doc__
max_unpool.__signature__ = inspect.signature(unpool.max_unpool)  # type: ignore[attr-defined]

for _rank in (None, *RANKS):
    _functions = [_function(record, _rank) for record in NAMED.values()] + ([_unpool(_rank)] if _rank else [])
    globals().update({function.__name__: function for function in _functions})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Any]: ...
