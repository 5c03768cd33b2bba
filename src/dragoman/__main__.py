"""The command `dragoman`, also as `python -m dragoman`.

`pip install dragoman` brings what agents and clients need, and this script with it. The commands need the hub's
packages: without them it says in one sentence how to get them.
"""

from __future__ import annotations

import sys

HUB = "error: this command needs the hub, and only the SDK is installed. Run: pip install 'dragoman[hub]'\n"


def main() -> int:
    try:
        from dragoman.cli.main import main as run

        return run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "dragoman":
            raise
        sys.stderr.write(HUB)
        return 2


if __name__ == "__main__":
    sys.exit(main())
