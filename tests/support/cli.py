"""The command line as a person types it: a process, its exit code, its two streams."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from tests.support.hubproc import HubProcess
from tests.support.nest import nest


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"exit code {self.code} and no JSON: {self.out!r}; stderr: {self.err!r}") from None


def dragoman(*arguments: str, hub: HubProcess | None = None, stdin: str = "", **environment: str) -> Finished:
    """One command, beside a hub if one is given."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
    where = {} if hub is None else {"DRAGOMAN_DATA": str(hub.data)}
    finished = nest().run(
        arguments,
        env={**inherited, "NO_COLOR": "1", "COLUMNS": "200", **where, **environment},
        stdin=stdin,
        timeout=120,
    )
    return Finished(*finished)
