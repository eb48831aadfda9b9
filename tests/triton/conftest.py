"""These tests run in a pytest of their own, from `make unit`: Triton reads TRITON_INTERPRET as it is imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

interpreted = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("torch") and find_spec("triton")
collect_ignore_glob = [] if interpreted else ["test_*.py"]
