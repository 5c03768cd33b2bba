"""For fault tests: the hub, or its writer, kills itself at a named step.

`DRAGOMAN_CRASH_AT=before_commit[:N]` kills the hub there, the Nth time. Steps of the writer begin with `writer:`; they
kill the hub as well, except for `writer:before_answer`, which kills the writer alone, and so the next one.

Imported by the writer: the standard library only.
"""

from __future__ import annotations

import os
import signal
from functools import cache

WRITER_ALONE = "writer:before_answer"


@cache
def _plan() -> tuple[str, list[None]]:
    """The step, and as many entries as times it is still to be passed."""
    setting = os.environ.get("DRAGOMAN_CRASH_AT", "")
    step, _, count = setting.rpartition(":")
    return (step, [None] * int(count)) if count.isdigit() else (setting, [None])


def crash_point(step: str) -> None:
    planned, left = _plan()
    if planned == step:
        left.pop()
        if not left:
            if step.startswith("writer:") and step != WRITER_ALONE:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
