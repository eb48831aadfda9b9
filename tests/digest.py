"""Every bit the native engine makes of a fixed list of cases, in one line: the same for every compiler, instruction set
and processor.

    python -m tests.digest                 the line
    python -m tests.digest --isa v3        with one of the instruction sets built in
    python -m tests.digest --each          and a line per case, to find those that differ

The cases are the fuzzer's, and all floats of two bytes. A NaN is a NaN: processors give it different signs. Inputs have
a digest of their own: where that differs, NumPy drew other numbers, and the results say nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from ndpool.engines import native
from ndpool.spec import SUM, Window, each, lp, minimum, whole

from . import fuzz
from .cases import BFLOAT16, FLOATS

SEED = 15
FLOAT16 = np.dtype(np.float16)
Case = tuple[str, list[Any], list[Any]]  # its name, what it reads, what is made of it


def main(arguments: list[str] | None = None, out: Callable[[str], Any] = print) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.digest", description="the bits of the native engine's results"
    )
    parser.add_argument("--cases", type=int, default=400, help="how many of the fuzzer's")
    parser.add_argument("--isa", default="", help="one of the instruction sets built in; the best, if it is not given")
    parser.add_argument("--each", action="store_true", help="a line per case, too")
    given = parser.parse_args(arguments)
    if not native.available():
        out(f"the native engine is not in use: {native.reason()}")
        return 1
    before = native.isa()
    native.use(given.isa or native.isas()[0])
    read, made = hashlib.sha256(), hashlib.sha256()
    with np.errstate(all="ignore"):
        for name, inputs, results in chain(conversions(), drawn(given.cases)):
            digest = hashlib.sha256(b"".join(map(fixed, results)))
            read.update(b"".join(map(fixed, inputs)))
            made.update(digest.digest())
            if given.each:
                out(f"{digest.hexdigest()[:16]} {name}")
    native.use(before)
    out(f"inputs {read.hexdigest()[:16]}, results {made.hexdigest()[:16]}")
    return 0


def conversions() -> Iterator[Case]:
    """All floats of two bytes as longer ones; back again, and results that are rounded to them."""
    rng = np.random.default_rng(SEED)
    for dtype in (FLOAT16, BFLOAT16):
        x = np.arange(2**16, dtype=np.uint16).view(dtype)
        pairs = np.stack([x, rng.permutation(x)], 1)
        apart = np.stack([pairs, pairs], 2)[..., 0]  # not beside one another: converted one by one
        window = Window((each(x.size), whole(2)))
        for law in (minimum(), SUM, lp(2.0)):  # computed with as themselves, as float and as double
            results = [native.forward(window, law, a) for a in (np.repeat(x, 2).reshape(-1, 2), pairs, apart)]
            yield f"{law.name} of every {dtype}", [pairs], results


def drawn(count: int) -> Iterator[Case]:
    """Cases of the fuzzer."""
    for number in range(count):
        case = fuzz.draw(np.random.default_rng((SEED, number)))
        results = sorted(fuzz.run(case, native).items())
        yield f"{number} {case.law.name} {case.x.dtype}", [case.x, case.dx, case.dy], [result for _, result in results]


def fixed(result: Any) -> bytes:
    """Its bytes, and the same ones for every NaN."""
    if isinstance(result, str):
        return result.encode()
    if result.dtype in FLOATS:
        result = np.where(result != result, result.dtype.type(np.nan), result)
    return f"{result.dtype} {result.shape}".encode() + result.tobytes()


if __name__ == "__main__":
    sys.exit(main())
