"""Attributes that are computed when they are first asked for.

functools.cached_property does it under a lock of its own until Python 3.12, one for all instances: a process that forks
while another thread computes such an attribute has a child that waits for it for ever. Here two threads may compute the
same value, and either will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):
    """
    >>> class Circle:
    ...     def __init__(self, radius): self.radius = radius
    ...     @lazy
    ...     def area(self): print("computed"); return 3 * self.radius**2
    >>> circle = Circle(2)
    >>> circle.area, circle.area
    computed
    (12, 12)
    """

    def __init__(self, compute: Callable[[Any], T]):
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: Any = None) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> T: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        found = instance.__dict__[self.name] = self.compute(instance)  # from now on Python finds it there
        return found
