"""Tests of ndpool. `make test` runs those without the mark `long`, `make test-all` all of them."""

import os


def examples(n: int) -> int:
    """How many examples hypothesis tries: n, and more with THOROUGH=1 in the environment, as in `make test-all`."""
    return 4 * n if os.environ.get("THOROUGH") == "1" else n
