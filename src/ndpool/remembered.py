"""The one cache of plans: (record, signature of an array) -> what runs that record on such arrays.

A record looks its plans up in a dict of its own. Equal records share it, so a record that is made anew for each call is
as fast as one that is kept. All records together remember MOST arrays, a few kilobytes each whatever the array's size;
the oldest is forgotten first.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import WeakValueDictionary

MOST = 2048


class Plans(dict[Any, Any]):
    """What runs equal records: by the signature of arrays."""

    __slots__ = ("__weakref__",)


_shared: WeakValueDictionary[Any, Plans] = WeakValueDictionary()  # gone with the last record that has them
_order: deque[tuple[Plans, Any]] = deque()  # the oldest first


def plans_of(*record: Any) -> Plans:
    """The plans of a record, of which its type and arguments are given."""
    try:
        return _shared.setdefault(record, Plans())
    except TypeError:  # an argument that has no hash
        return Plans()


def remember(plans: Plans, signature: Any, plan: Any) -> None:
    """Put a plan among its record's. No lock: a plan that another thread drops is made again."""
    plans[signature] = plan
    _order.append((plans, signature))
    while len(_order) > MOST:
        _drop_oldest()


def forget() -> None:
    """Drop all plans, for instance because another engine is to make them."""
    while _order:
        _drop_oldest()


def _drop_oldest() -> None:
    try:
        plans, signature = _order.popleft()
    except IndexError:  # another thread was faster
        return
    plans.pop(signature, None)
