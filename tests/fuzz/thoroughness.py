"""How long and how hard made-up input is tried."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings

SECONDS = float(os.environ.get("FUZZ_SECONDS", "10"))
#: A busy machine is no failure, and what is found is told as it was found: shrinking takes the longest.
UNTIMED = settings(deadline=None, suppress_health_check=list(HealthCheck))
THOROUGH = settings(UNTIMED, max_examples=300, database=None, phases=(Phase.explicit, Phase.generate, Phase.shrink))


def for_a_while(attempt: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        attempt()
