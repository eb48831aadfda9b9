"""What ndpool raises: a fact deep inside, wrapped once at the edge with the name that the user typed."""

from __future__ import annotations


class PoolError(ValueError):
    """A pooling call that has no meaning; the message names the argument, the rule, the value and a fix."""


class PoolTypeError(PoolError, TypeError):
    """A `PoolError` about the kind of a value rather than its size; also a `TypeError`."""


class PoolWarning(UserWarning):
    """A pooling call that has a meaning, but hardly the one that was meant; the message says how to say either."""
