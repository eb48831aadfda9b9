"""Settings: what the environment, `set_threads` and `set_kept_memory` say, read and checked here alone.

    NDPOOL_THREADS       the most threads of a run      a whole number up to 1024; 0 for one per core
    NDPOOL_KEPT_MEMORY   bytes kept for later results   a size: 268435456, 256MB, 1.5GiB
    NDPOOL_ENGINE        native or portable

A variable is read when it is first needed. One that cannot be used is named once in a RuntimeWarning, the default takes
its place, and `ndpool doctor` shows it. Nothing here knows an engine.
"""

from __future__ import annotations

import operator
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import PoolError, PoolTypeError

MOST_THREADS, MOST_BYTES = 1024, 2**63 - 1
KEPT_MEMORY_DEFAULT = 256 << 20
ENGINES = ("native", "portable")
UNITS = {
    "": 1, "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}{tail}": 1024**power for power, letter in enumerate("kmgt", 1) for tail in ("", "ib")},
}  # fmt: skip


class Held(threading.local):
    """What every run reads from HELD: an attribute costs less than a call. The class has what holds for all threads of
    the program, HELD what one of them has set for itself."""

    threads = 0  # 0: not asked for yet


HELD = Held()


# -- the environment ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variable:
    """A variable of the environment: `parse` gives what its text means, or None."""

    name: str
    rule: str
    parse: Callable[[str], Any]
    default: Callable[[], Any]
    shown: Callable[[Any], str] = str

    def read(self) -> tuple[Any, str]:
        """What to use, and "" or why it is not what the variable says."""
        given = os.environ.get(self.name, "").strip()
        value = self.parse(given) if given else self.default()
        if value is not None:
            return value, ""
        value = self.default()
        return value, f"{self.name}={given[:60]!r} is not {self.rule}; using {self.shown(value)} instead"

    def value(self) -> Any:
        """What to use; and one warning for all variables that cannot be used, if this process has not given it yet."""
        warn_once([problem for variable in VARIABLES if (problem := variable.read()[1])])
        return self.read()[0]

    def report(self) -> str:
        """One line for `ndpool doctor`."""
        value, problem = self.read()
        given = os.environ.get(self.name, "").strip()
        return problem or f"{self.name}{'=' + given if given else ' is not set'}: {self.shown(value)}"


def _whole(text: str, most: int) -> int | None:
    """Digits as a number; a long run of them is not worth a conversion."""
    return number if re.fullmatch("[0-9]{1,30}", text) and (number := int(text)) <= most else None


def _threads(text: str) -> int | None:
    number = _whole(text, MOST_THREADS)
    return _cores() if number == 0 else number


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_THREADS)


def _bytes(text: str) -> int | None:
    """256MB is 256 * 1000**2 bytes; 256MiB and 256M are 256 * 1024**2."""
    found = re.fullmatch(r"([0-9]{1,30})(?:\.([0-9]{1,9}))? ?([a-z]*)", text.lower())
    unit = UNITS.get(found[3]) if found else None
    if found is None or unit is None or (found[2] and unit == 1):
        return None
    size = int(found[1]) * unit + int(found[2] or 0) * unit // 10 ** len(found[2] or "")
    return size if size <= MOST_BYTES else None


THREADS = Variable(
    "NDPOOL_THREADS",
    f"a number of threads from 0 (one per core) to {MOST_THREADS}",
    _threads,
    _cores,
    "{} threads".format,
)
KEPT_MEMORY = Variable(
    "NDPOOL_KEPT_MEMORY", "a size up to 2**63 - 1 bytes, like 268435456, 256MB or 1GiB",
    _bytes, lambda: KEPT_MEMORY_DEFAULT, "{} bytes".format,
)  # fmt: skip
ENGINE = Variable(
    "NDPOOL_ENGINE", " or ".join(ENGINES),
    lambda text: text.lower() if text.lower() in ENGINES else None,
    lambda: "", lambda name: name or "native where it is built",
)  # fmt: skip
VARIABLES = (THREADS, KEPT_MEMORY, ENGINE)


_told: set[str] = set()
_telling = threading.RLock()
if hasattr(os, "register_at_fork"):  # a lock that another thread holds would never be free in the child
    os.register_at_fork(before=_telling.acquire, after_in_parent=_telling.release, after_in_child=_telling.release)


def warn_once(problems: list[str]) -> None:
    """One RuntimeWarning that names those problems that this process has not named before, if there are any."""
    with _telling:
        news = [problem for problem in problems if problem not in _told]
        _told.update(news)  # before the warning: where warnings are errors, the next call must work
    if news:
        warnings.warn(f"ndpool: {'. '.join(news)}", RuntimeWarning, stacklevel=3)


# -- threads and kept memory -------------------------------------------------------------------------------------------


def threads() -> int:
    """The most threads a run uses: NDPOOL_THREADS, or one per core."""
    if not HELD.threads:
        Held.threads = THREADS.value()
    return HELD.threads


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Runs that the calling thread begins here use no other; those of other threads are not touched."""
    before = vars(HELD).get("threads", 0)
    HELD.threads = 1
    try:
        yield
    finally:
        vars(HELD).update(threads=before) if before else vars(HELD).clear()


def set_threads(n: int) -> None:
    """Let a run use up to `n` threads; 0 for the default. The results have the same bits whatever the number."""
    Held.threads = _checked("set_threads", "n", n, MOST_THREADS, "threads")


def memory_to_keep(n: int) -> int:
    """The argument of `set_kept_memory`, checked."""
    return _checked("set_kept_memory", "n", n, MOST_BYTES, "bytes")


def bytes_in(name: str, value: Any) -> int:
    """The size that an argument says: a number of bytes, or text like 2GB."""
    if isinstance(value, str):
        size = _bytes(value.strip())
    else:
        size = value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
    if size is None:
        raise PoolError(f"{name}={value!r} is not a size; use a number of bytes, or text like '2GB' or '512MiB'")
    return size


def _checked(function: str, name: str, value: Any, most: int, unit: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise PoolTypeError(f"{function}: {name}={value!r} is not a whole number of {unit}; use an int >= 0") from None
    if not 0 <= number <= most:
        raise PoolError(f"{function}: {name}={number} is not a number of {unit}; use an int from 0 to {most}")
    return number
