"""An op record as text, and back: what graphs of other frameworks hold, for every adapter.

The text is the record's own repr. It is read as data, never evaluated: an exported graph may come from anywhere.
"""

from __future__ import annotations

import ast

from .errors import PoolError
from .op import Op
from .ops import RECORDS

NAMED = {record.__name__: record for record in RECORDS if "law" not in record.__dataclass_fields__}  # not one's own


def write(op: Op) -> str:
    """The record as text.

    >>> from ndpool import MaxPool
    >>> write(MaxPool(3, stride=2))
    'MaxPool(kernel_size=3, stride=2)'
    """
    return repr(op)


def read(text: str) -> Op:
    """The record that `write` made that text of.

    >>> read("MaxPool(kernel_size=3, stride=2)")
    MaxPool(kernel_size=3, stride=2)
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a call")
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return NAMED[call.func.id](**given)
    except (KeyError, SyntaxError, TypeError, ValueError) as error:
        raise PoolError(f"{text!r} is not an op of ndpool; was the graph made by another version?") from error
