"""Untrusted agents under a real hub: each attack that such a program could try, by its name; and that an honest one
works. Skipped where no sandbox holds on this machine: there the hub refuses to run them, which is shown here as well.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.sandbox.ladder import ladder
from dragoman.sandbox.model import BelowPolicy, Level, Policy, Workload
from tests.faults.test_children import Kids
from tests.support.children import PYTHON, program, runs, worker
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until

LEVELS = (Level.BUBBLEWRAP, Level.LANDLOCK)
NOWHERE = "/nowhere"
"""A PATH on which there is no bubblewrap."""
CANARY = "canary-19c4e7"
_ladder = ladder()


def held(level: Level, workload: Workload = Workload.PROCESS) -> None:
    rung = _ladder.rung(level)
    assert rung is not None
    report = _ladder.report(rung)
    if not report.passed:
        pytest.skip(f"{level}: {report.why_not}; {report.remedy}")


def settings_for(level: Level) -> dict[str, str]:
    """A hub where this level is the strongest."""
    weakest = {"DRAGOMAN_SANDBOX__MINIMUM": str(level), "DRAGOMAN_GRPC_PORT": "0"}
    return weakest if level is Level.BUBBLEWRAP else {**weakest, "PATH": NOWHERE}


@pytest.fixture(scope="module", params=LEVELS, ids=str)
def level(request: pytest.FixtureRequest) -> Level:
    held(request.param)
    return Level(request.param)


@pytest.fixture(scope="module")
def hub(level: Level, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """Its data directory has a neighbour, and its environment a secret."""
    home = tmp_path_factory.mktemp("hub")
    with running(home, TOP_SECRET=CANARY, **settings_for(level)) as hub:
        yield hub


@pytest.fixture
def kids(hub: HubProcess) -> Kids:
    return Kids(hub)


def attack(kids: Kids, id: str, *lines: str, **more: Any) -> list[str]:
    """What an untrusted program printed that tried this, once it has ended."""
    kids.run(id, *program("import os, sys", *lines), untrusted=True, **more)
    until(lambda: kids.state(id) in ("stopped", "crashed"), "it ends", seconds=60)
    printed = kids.printed(id)
    assert printed, kids.child(id)
    return printed


def attempt(what: str) -> str:
    """Python that says `got …` if it succeeds, and `refused …` if it does not."""
    return f"""
try:
    print('got', {what}, flush=True)
except Exception as error:
    print('refused', type(error).__name__, error, flush=True)
"""


# -- what is allowed works


def test_an_honest_agent_does_its_task_and_the_level_is_told_everywhere(kids: Kids, level: Level) -> None:
    kids.run("honest", *worker, untrusted=True)
    task = kids.done(kids.submit("honest", a=1))
    assert (task["status"], task["result"], task["output"]) == ("completed", {"echo": {"a": 1}, "attempt": 1}, "half ")
    assert kids.printed("honest") == ["working on work"]
    assert (kids.look("honest")["untrusted"], kids.look("honest")["sandbox"]) == (True, level)
    history = kids.hub.admin.get(f"/api/v1/tasks/{task['id']}?history=1").json["history"]
    given = [event["body"] for event in history if event["kind"] == "assigned"]
    assert given == [{"agent": "honest", "attempt": 1, "sandbox": level}]
    shown = dragoman("agent", "show", "honest", hub=kids.hub)
    assert (shown.code, str(level) in shown.out) == (0, True)


def test_a_trusted_agent_is_in_no_sandbox_and_none_is_claimed(kids: Kids) -> None:
    kids.run("trusted", *worker)
    kids.works("trusted", 1)
    assert kids.look("trusted")["sandbox"] is None
