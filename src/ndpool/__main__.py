"""`python -m ndpool` is the command `ndpool`."""

from .cli import main

raise SystemExit(main())
