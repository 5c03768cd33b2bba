"""The command line as a person types it: a process, its exit code, its two streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

from tests.support.hubproc import HubProcess


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def dragoman(*arguments: str, hub: HubProcess | None = None, stdin: str = "", **environment: str) -> Said:
    """One command, beside a hub if one is given."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
    where = {} if hub is None else {"DRAGOMAN_DATA": str(hub.data)}
    done = subprocess.run(
        [sys.executable, "-m", "dragoman.cli", *arguments],
        env={**inherited, "NO_COLOR": "1", "COLUMNS": "200", **where, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=40,
    )
    return Said(done.returncode, done.stdout, done.stderr)
