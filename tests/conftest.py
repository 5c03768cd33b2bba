"""Before all tests. How much is tried where inputs are made up: enough at every run; more with HYPOTHESIS_PROFILE=soak.

Every run makes up the same inputs, so that a change is judged by what it changed; the long runs look for new ones, and
find the tests that make inputs up by the mark `made_up`. How long an input takes is no finding: on a busy machine it
would fail tests of what is in order.

A run that a shell put into the background ignores Ctrl-C, and so would every program it starts; tests press it.

What the shell of a developer says about their own hub, their proxy or their colours is not about the hubs of tests.

The tests themselves are a million objects that live to the end: the garbage collector leaves them alone, in which it
would spend a sixth of the processor time of a run.

After all of them: one line that says how many were skipped, and what to install.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import needs
from tests.support.spread import spread

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", UNTIMED, max_examples=15, derandomize=True)
settings.register_profile("soak", UNTIMED, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

PERSONAL = re.compile(
    r"DRAGOMAN_.*|(https?|all|no|grpc)_proxy|NO_COLOR|(CLI|FORCE_?)COLOR.*|PYTHONDONTWRITEBYTECODE", re.I
)
for name in [name for name in os.environ if PERSONAL.fullmatch(name)]:
    del os.environ[name]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("made_up")
    yield
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = spread(items, workers, is_long=lambda item: "long" in item.keywords, file=lambda item: item.path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips = (report.longrepr for report in terminalreporter.getreports("skipped"))
    reasons = [str(skip[2]).removeprefix("Skipped: ") for skip in skips if isinstance(skip, tuple)]
    if said := needs.shortfall(reasons, needs.missing()):
        terminalreporter.write_line(said, yellow=True)
