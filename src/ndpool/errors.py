"""What ndpool raises: a fact deep inside, wrapped once at the edge with the name that the user typed."""

from __future__ import annotations

import sys
import warnings


class PoolError(ValueError):
    """A pooling call that has no meaning; the message names the argument, the rule, the value and a fix."""


class PoolTypeError(PoolError, TypeError):
    """A `PoolError` about the kind of a value rather than its size; also a `TypeError`."""


class PoolWarning(UserWarning):
    """A pooling call that has a meaning, but hardly the one that was meant; the message says how to say either."""


_warned: set[str] = set()  # the functions that have warned


def warn_once(function: str, text: str) -> None:
    """A `PoolWarning` of a function at the line that called ndpool, unless that function has warned in this process."""
    if function not in _warned:
        _warned.add(function)  # before the warning: where warnings are errors, the next call must work
        frame, up = sys._getframe(1), 2
        while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] == "ndpool":
            frame, up = frame.f_back, up + 1
        warnings.warn(f"{function}: {text}", PoolWarning, stacklevel=up)
