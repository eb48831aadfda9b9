"""A result in the making: it lies beside its place until it is finished, with a journal, and then moves there.

`unfinished-NAME` is what is being written, and `unfinished-NAME.journal` says which tiles of it are finished. So what
has the name of a result is a whole one, at any moment, and work that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..errors import PoolError
from .journal import Journal
from .store import remove


@dataclass(frozen=True)
class Result:
    """What is to lie at `place`; `parts` are the names inside that move one by one where the place is there already."""

    place: Path
    parts: tuple[str, ...] = ()

    @property
    def partial(self) -> Path:
        """Where it is made."""
        return self.place.with_name(f"unfinished-{self.place.name}")

    @property
    def moves(self) -> list[tuple[Path, Path]]:
        """From where to where everything goes at the end."""
        if not self.parts:
            return [(self.partial, self.place)]
        return [(self.partial / part, self.place / part) for part in self.parts]

    def journal(self, make: bool) -> Journal:
        return Journal(self.partial.with_name(f"{self.partial.name}.journal"), make)

    @property
    def is_moving(self) -> bool:
        """Of a result whose tiles are all finished: whether some of it has gone to its place."""
        return not all(made.exists() for made, _ in self.moves)

    def check_folder(self) -> None:
        """Raise if there is no folder to write to."""
        if not self.place.parent.is_dir():
            raise PoolError(f"the folder {self.place.parent} is not there; make it first")

    def check(self, overwrite: bool) -> None:
        """Raise if something would be overwritten that may not be."""
        for _, there in self.moves:
            if there.exists() and not overwrite:
                raise PoolError(
                    f"{there} is there already; use another name, or overwrite it (overwrite=True, --overwrite)"
                )

    def move(self) -> None:
        """Everything to its place. Parts that a process moved before it was killed stay where they are."""
        for made, there in self.moves:
            aside = made.with_name(f"{made.name}.replaced")
            if made.exists():
                _replace(made, there, aside)
            elif not there.exists():
                raise self.gone()
            remove(aside)
        if self.parts:
            remove(self.partial)

    def gone(self) -> PoolError:
        return PoolError(
            f"{self.partial} is gone, but its journal is there; begin anew (overwrite=True, --overwrite, no resume)"
        )


def _replace(made: Path, there: Path, aside: Path) -> None:
    """Put a file or folder where another one may be, which is whole until the new one is there."""
    if there.exists() and (there.is_dir() or made.is_dir()):
        remove(aside)
        os.rename(there, aside)
    os.replace(made, there)


def resumed(
    journal: Journal, result: Result, facts: dict[str, Any], overwrite: bool, resume: bool
) -> dict[str, Any] | None:
    """The header of work that goes on, which has the same facts; None if the work begins."""
    before = journal.header
    if overwrite and not resume:
        return None
    if journal.damaged:
        raise PoolError(
            f"{journal.path} is damaged; begin anew (overwrite=True, --overwrite, no resume), or remove it and "
            f"{result.partial}"
        )
    if before is None:
        if result.partial.exists():
            raise PoolError(f"{result.partial} is in the way and has no journal; remove it, or use another name")
        return None
    if not resume:
        raise PoolError(
            f"{result.partial} is there from work that was interrupted; go on with it (resume=True, --resume), or "
            "begin anew (overwrite=True, --overwrite)"
        )
    for fact, now in json.loads(json.dumps(facts)).items():
        if before.get(fact) != now:
            was, is_now = _apart(before.get(fact), now)
            raise PoolError(
                f"{result.partial} cannot go on: {fact} was {was} and is {is_now}; use what it was, or begin anew "
                "(overwrite=True, --overwrite, no resume)"
            )
    return before


def _apart(was: Any, now: Any) -> Iterator[str]:
    """Both as text, of long ones what is around the first difference."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in (was, now)]
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    begin = max(0, alike - 40)
    for text in texts:
        yield f"{'...' if begin else ''}{text[begin : begin + 100]}{'...' if text[begin + 100 :] else ''}"


def unfinished(error: BaseException, done: int, total: int) -> BaseException:
    """The error that ended the work, with what can be done."""
    kind = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
    what = str(error) if isinstance(error, (OSError, PoolError)) else ": ".join(filter(None, (kind, str(error))))
    text = f"{what}; {done} of {total} tiles are finished, and the work can go on from there (resume=True, --resume)"
    return KeyboardInterrupt(text) if isinstance(error, KeyboardInterrupt) else Interrupted(text)


class Interrupted(PoolError):
    """Work that ended before its end, for a reason that is named; it can go on."""
