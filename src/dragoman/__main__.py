"""`python -m dragoman`: the command, where no script of it is on the path."""

from __future__ import annotations

import sys

from dragoman.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
