"""Before all tests. How much is tried where inputs are made up: enough at every run; more with HYPOTHESIS_PROFILE=soak.

Every run makes up the same inputs, so that a change is judged by what it changed; the long runs look for new ones, and
find the tests that make inputs up by the mark `made_up`. How long an input takes is no finding: on a busy machine it
would fail tests of what is in order.

A run that a shell put into the background ignores Ctrl-C, and so would every program it starts; tests press it.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", UNTIMED, max_examples=15, derandomize=True)
settings.register_profile("soak", UNTIMED, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("made_up")
