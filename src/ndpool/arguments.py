"""Reading what the user typed: sizes (one, or one per axis), checked once. Each error names the argument and a fix."""

from __future__ import annotations

import operator
from typing import Any

from .errors import PoolError, PoolTypeError

Size = int | tuple[int, ...]
Axes = Any  # one axis or several, by number or by name; or None
LIMIT = 2**63 - 1
APART = "NBC"  # letters of a layout whose axes are not pooled


class named:
    """Put the name that the user called in front of every error from inside."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if isinstance(error, PoolError):
            text = str(error)
            if not text.startswith(f"{self.name}: "):
                raise type(error)(f"{self.name}: {text}") from error.__cause__
        elif isinstance(error, (TypeError, ArithmeticError)):  # a scalar without >, /, exp, ..., or out of range
            raise PoolTypeError(f"{self.name}: this op is not defined on these scalars: {error}") from error


def integer(name: str, value: Any, least: int) -> int:
    """`value` as an int that is at least `least`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError as error:
        if type(error).__name__.startswith("Tracer"):  # of JAX, which this file does not import
            raise PoolTypeError(
                f"{name} is a traced value, but a window is fixed when a program is traced; "
                f"give {name} as Python numbers, or name it in static_argnames of jax.jit"
            ) from None
        raise PoolTypeError(f"{name}={value!r} is not a whole number; use an int >= {least}") from None
    if number < least:
        raise PoolError(f"{name}={number} is below {least}; use {name} >= {least}")
    if number > LIMIT:
        raise PoolError(f"{name}={number} is beyond 2**63 - 1; use a smaller {name}")
    return number


def choice(name: str, value: Any, rules: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the named rules."""
    if not isinstance(value, str) or value not in rules:
        raise PoolError(f"{name}={value!r} is not a rule; use one of {', '.join(map(repr, rules))}")


def number(name: str, value: Any) -> Any:
    """`value`, if it is one scalar of any kind: not a list, a string or a truth value."""
    if isinstance(value, (bool, str, bytes, complex)) or value is None or hasattr(value, "__len__"):
        learnt = f", or to learn {name} the functions of ndpool.jax or ndpool.torch" if hasattr(value, "dtype") else ""
        raise PoolTypeError(f"{name}={value!r} is not a real number; use a float{learnt}")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise PoolTypeError(f"{name}={value!r} is not a truth value; use True or False")
    return value


def sizes(name: str, value: Any, least: int) -> Size:
    """One int for all axes, or a tuple with one per axis."""
    if isinstance(value, (tuple, list)):
        return tuple(integer(name, entry, least) for entry in value)
    return integer(name, value, least)


def paddings(value: Any) -> Any:
    """One int, one int per axis, or (before, after) per axis; or "same"."""
    if isinstance(value, str):
        if value != "same":
            raise PoolError(f'padding={value!r} is not a rule; use ints or "same"')
        return value
    if isinstance(value, (tuple, list)) and any(isinstance(entry, (tuple, list)) for entry in value):
        if not all(isinstance(entry, (tuple, list)) and len(entry) == 2 for entry in value):
            raise PoolError(f"padding={value!r} mixes forms; give (before, after) for every axis")
        return tuple((integer("padding", a, 0), integer("padding", b, 0)) for a, b in value)
    return sizes("padding", value, 0)


def numbered(value: Any) -> Any:
    """`paddings` where only numbers have a meaning."""
    if isinstance(value, str):
        raise PoolTypeError(f"padding={value!r} has no meaning here; use ints")
    return paddings(value)


def sides(padding: Any) -> tuple[int, int]:
    """Before and after, of one axis."""
    return padding if isinstance(padding, tuple) else (padding, padding)


def axes_tuple(value: Any, names: bool = False) -> tuple[Any, ...] | None:
    """Axes as the user numbered them, negative ones from the end; with `names` also as an array names its axes."""
    if value is None:
        return None
    given = value if isinstance(value, (tuple, list)) else (value,)
    if names and given and all(isinstance(a, str) for a in given):
        axes = tuple(given)
    else:
        axes = tuple(integer("axes", a, -LIMIT) for a in given)
    _all_different(axes, axes)
    return axes


def _all_different(axes: tuple[Any, ...], typed: tuple[Any, ...]) -> None:
    if len(set(axes)) < len(axes):
        raise PoolError(f"axes={typed} names an axis twice; name each once")


def layout_letters(value: Any) -> str | None:
    """What each axis is, a letter each: N, B (batch) and C (channels) are not pooled, all others are.

    >>> layout_letters("NHWC")
    'NHWC'
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise PoolTypeError(f"layout={value!r} is not letters; use a string like 'NHWC'")
    if not (value.isascii() and value.isalpha() and value.isupper()):
        raise PoolError(f"layout={value!r} is not one capital letter per axis; use letters like 'NCHW' or 'NHWC'")
    if len(set(value)) < len(value):
        raise PoolError(f"layout={value!r} has a letter twice; use each once")
    if not set(value) - set(APART):
        raise PoolError(f"layout={value!r} pools nothing, as N, B and C are not pooled; use letters like H and W, too")
    return value


def pooled_letters(layout: str) -> tuple[str, ...]:
    """The letters of the pooled axes."""
    return tuple(letter for letter in layout if letter not in APART)


def resolve_layout(layout: str, ndim: int) -> tuple[int, ...]:
    """The axes to pool of an array with these axes."""
    if len(layout) != ndim:
        raise PoolError(f"layout={layout!r} has {len(layout)} letters, but x has {ndim} axes; use one letter per axis")
    return tuple(i for i, letter in enumerate(layout) if letter not in APART)


def resolve_axes(axes: tuple[Any, ...] | None, rank: int | None, ndim: int) -> tuple[int, ...]:
    """The axes to pool, in the order that the other arguments list them.

    Without `axes`: the last `rank`, and without a rank the last two (the only one of a 1-D array).
    """
    if axes and isinstance(axes[0], str):
        raise PoolTypeError(f"axes={axes} are names, but x has none; use numbers, or an xarray.DataArray")
    if axes is None:
        rank = min(2, ndim) if rank is None else rank
        if rank > ndim:
            raise PoolError(f"the arguments name {rank} spatial axes, but x has {ndim}; pass fewer entries")
        return tuple(range(ndim - rank, ndim))
    found = tuple(a + ndim if a < 0 else a for a in axes)
    for typed, a in zip(axes, found, strict=True):
        if not 0 <= a < ndim:
            raise PoolError(f"axes={axes} names axis {typed}, but x has {ndim} axes; use {-ndim} to {ndim - 1}")
    _all_different(found, axes)
    return found


def entries(name: str, value: Any, count: int) -> tuple[Any, ...]:
    """`value` for each of `count` axes."""
    if not isinstance(value, tuple):
        return (value,) * count
    if len(value) != count:
        raise PoolError(f"{name}={value} has {len(value)} entries for {count} axes; give one, or one per axis")
    return value


def rank_of(**arguments: Any) -> int | None:
    """How many axes the tuples among the arguments name; None if all are single numbers."""
    lengths = {name: len(value) for name, value in arguments.items() if isinstance(value, tuple)}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name}={arguments[name]} ({n})" for name, n in lengths.items())
        raise PoolError(f"the arguments name different numbers of axes: {said}; give each one number, or one per axis")
    return next(iter(lengths.values())) if lengths else None  # in words that torch.compile of torch 2.8 knows


def fits(what: str, size: int) -> None:
    if size > LIMIT:
        raise PoolError(f"{what} is {size}, beyond 2**63 - 1; use smaller sizes")
