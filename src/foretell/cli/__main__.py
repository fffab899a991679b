"""`python -m foretell.cli`: the same as the `foretell` command."""

from __future__ import annotations

import sys

from foretell.cli import main

if __name__ == "__main__":
    sys.exit(main())
