"""Did you mean: the name that a misspelt one stands for, by the habits of other libraries, then by its spelling."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any

from .errors import PoolTypeError

# what other libraries call an argument
ARGUMENTS = {
    "axes": ("axis", "dim", "dims", "dimension", "dimensions"),
    "ceil_mode": ("ceil",),
    "count_include_pad": ("include_pad", "exclusive"),
    "dilation": ("dilations", "rate", "rates", "dilation_rate", "window_dilation"),
    "divisor_override": ("divisor",),
    "keepdims": ("keepdim", "keep_dim", "keep_dims"),
    "kernel_size": ("kernel", "kernel_shape", "ksize", "pool_size", "size", "window", "window_shape", "window_size"),
    "layout": ("data_format", "input_layout", "format"),
    "norm_type": ("norm", "ord", "p"),
    "output_size": ("out", "out_size", "output", "output_shape", "size"),
    "padding": ("pad", "pads"),
    "return_indices": ("indices", "return_index", "with_indices"),
    "stride": ("strides", "step", "window_strides"),
}
# what they call a kind of pooling
WORDS = {
    "pooling": "pool", "average": "avg", "mean": "avg", "maximum": "max", "minimum": "min", "logsumexp": "smoothmax",
    "lse": "smoothmax", "softmax": "smoothmax", "norm": "lp",
}  # fmt: skip


def argument(name: str, known: Iterable[str]) -> str | None:
    """The argument that `name` stands for.

    >>> argument("strides", ["kernel_size", "stride"]), argument("paddin", ["padding"]), argument("speed", ["padding"])
    ('stride', 'padding', None)
    """
    known = list(known)
    habits = [right for right, others in ARGUMENTS.items() if name.lower() in others and right in known]
    return next(iter(habits or get_close_matches(name.lower(), known, 1, 0.7)), None)


def attribute(name: str, known: Iterable[str]) -> str | None:
    """The function for a function's name, the record for a record's.

    >>> attribute("average_pool", ["max_pool", "avg_pool", "AvgPool"]), attribute("MeanPool", ["avg_pool", "AvgPool"])
    ('avg_pool', 'AvgPool')
    """
    alike = {_plain(right): right for right in known if right[:1].isupper() == name[:1].isupper()}
    found = [plain] if (plain := _plain(name)) in alike else get_close_matches(plain, alike, 1, 0.8)
    return alike[found[0]] if found else None


def _plain(name: str) -> str:
    """The words of a name in ndpool's terms, without case and underscores.

    >>> _plain("GlobalAveragePooling2D"), _plain("max_pool2d")
    ('globalavgpool2d', 'maxpool2d')
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", name)
    return "".join(WORDS.get(word.lower(), word.lower()) for word in words)


def suggesting(init: Callable[..., None], name: str) -> Callable[..., None]:
    """A record's `__init__` that names the argument which an unknown one stands for; errors call the record `name`."""
    known = list(inspect.signature(init).parameters)[1:]

    @wraps(init)
    def checked(*args: Any, **kwargs: Any) -> None:
        try:
            init(*args, **kwargs)
        except TypeError:
            for given in kwargs:
                if given not in known:
                    meant = argument(given, known)
                    fix = f"did you mean {meant}?" if meant else f"it takes {', '.join(known)}"
                    raise PoolTypeError(f"{name}: got an unexpected keyword argument {given!r}; {fix}") from None
            raise

    return checked
