"""A result in the making: it lies beside its place until it is finished, with a journal, and then moves there.

`unfinished-NAME` is what is being written, and `unfinished-NAME.journal` says which tiles of it are finished. So what
has the name of a result is a whole one, at any moment, and work that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
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

    def journal(self) -> Journal:
        return Journal(self.partial.with_name(f"{self.partial.name}.journal"))

    def check(self, overwrite: bool) -> None:
        """Raise if something would be overwritten that may not be, or there is no folder to write to."""
        folder = self.place.parent
        if not folder.is_dir():
            raise PoolError(f"the folder {folder} is not there; make it first")
        for _, there in self.moves:
            if there.exists() and not overwrite:
                raise PoolError(
                    f"{there} is there already; use another name, or overwrite it (overwrite=True, --overwrite)"
                )

    def move(self) -> None:
        """Everything to its place. Parts that a process moved before it was killed stay where they are."""
        for made, there in self.moves:
            if made.exists():
                _replace(made, there)
        if self.parts and self.partial.exists():
            remove(self.partial)


def _replace(made: Path, there: Path) -> None:
    """Put a file or folder where another one may be, which is whole until the new one is there."""
    if not there.is_dir():
        os.replace(made, there)
        return
    old = there.with_name(f"{there.name}.old")
    if old.exists():
        remove(old)
    os.rename(there, old)
    os.rename(made, there)
    remove(old)


def resumed(
    journal: Journal, result: Result, header: dict[str, Any], overwrite: bool, resume: bool
) -> dict[str, Any] | None:
    """The header of work that goes on, which has the same facts as `header`; None if the work begins."""
    before = journal.header
    if before is None:
        if result.partial.exists() and not overwrite:
            raise PoolError(f"{result.partial} is in the way and has no journal; remove it, or use another name")
        return None
    if overwrite and not resume:
        return None
    if not resume:
        raise PoolError(
            f"{result.partial} is there from work that was interrupted; go on with it (resume=True, --resume), or "
            "begin anew (overwrite=True, --overwrite)"
        )
    for fact, now in json.loads(json.dumps(header)).items():
        if before.get(fact) != now:
            raise PoolError(
                f"{result.partial} cannot go on: {fact} was {_short(before.get(fact))} and is {_short(now)}; use what "
                "it was, or begin anew (overwrite=True, --overwrite)"
            )
    return before


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def unfinished(error: Exception, done: int, total: int) -> Exception:
    """The error that ended the work, with what can be done."""
    text = f"{error}; {done} of {total} tiles are finished, and the work can go on from there (resume=True, --resume)"
    return Interrupted(text)


class Interrupted(PoolError):
    """Work that ended before its end, for a reason that is named; it can go on."""
