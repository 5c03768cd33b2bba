"""For fault tests: the hub kills itself at a named step. The writer has such steps of its own."""

from __future__ import annotations

import os
import signal
from functools import cache


@cache
def _crash_plan() -> tuple[str, list[None]]:
    """`DRAGOMAN_CRASH_AT=before_commit[:N]`: die there, the Nth time."""
    step, _, count = os.environ.get("DRAGOMAN_CRASH_AT", "").partition(":")
    return step, [None] * (int(count) if count.isdigit() else 1)


def crash_point(step: str) -> None:
    planned, left = _crash_plan()
    if planned == step:
        left.pop()
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
