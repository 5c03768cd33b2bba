"""`python -m dragoman.cli`."""

import sys

from dragoman.cli.main import main

sys.exit(main())
