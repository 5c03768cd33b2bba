"""A hub, a spawner or a child dies: nothing that a child started is left, and the work goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.children import (
    DAEMON,
    PYTHON,
    children_of,
    runs,
    stat,
    worker,
    zombies_of,
)
from tests.support.hubproc import HubProcess, until
from tests.support.kids import Kids


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    hub = HubProcess(tmp_path / "hub", DRAGOMAN_GRPC_PORT="0")
    try:
        yield hub.start()
    finally:
        hub.kill()


@pytest.fixture
def kids(hub: HubProcess) -> Kids:
    return Kids(hub)


@pytest.fixture
def brood(kids: Kids, tmp_path: Path) -> list[int]:
    """The processes of a child with a child of its own and a daemon that broke away."""
    note = tmp_path / "daemon"
    kids.run("parent", "sh", "-c", 'sleep 600 & echo $!; "$@"; wait', "sh", *PYTHON, DAEMON, str(note),
             grace_seconds=0.2)  # fmt: skip
    until(note.exists, "the daemon runs")
    until(lambda: kids.printed("parent"))
    found = [kids.pid("parent"), int(kids.printed("parent")[0]), int(note.read_text())]
    assert all(map(runs, found))
    return found


def test_killing_the_hub_leaves_no_child_and_no_grandchild(kids: Kids, brood: list[int]) -> None:
    spawner = kids.spawner()
    kids.hub.kill()
    until(lambda: not any(map(runs, (*brood, spawner))), "all of them die")


def test_killing_hub_and_spawner_at_once_leaves_nothing_after_the_next_start(kids: Kids, brood: list[int]) -> None:
    os.kill(kids.spawner(), signal.SIGKILL)
    kids.hub.kill()
    until(lambda: not runs(brood[0]), "the child dies with the spawner")
    kids.hub.start()
    until(lambda: not any(map(runs, brood)), "the next hub finds the rest")


def test_stopping_the_hub_leaves_nothing(kids: Kids, brood: list[int]) -> None:
    spawner = kids.spawner()
    assert kids.hub.stop() == 0
    until(lambda: not any(map(runs, (*brood, spawner))), "all of them have ended")


def test_killing_the_spawner_costs_an_attempt_and_no_more(kids: Kids, brood: list[int]) -> None:
    kids.run("w", *worker, restart="always", max_concurrent=2)
    kids.works("w", 1)
    first = kids.spawner()
    held = kids.submit("w", hang=True)
    until(lambda: kids.hub.status(held) in ("assigned", "running"))
    os.kill(first, signal.SIGKILL)
    until(lambda: not any(map(runs, brood)), "its children and theirs die")
    until(lambda: kids.child("w")["restarts"] == 1, "and are started again")
    assert kids.done(kids.submit("w", n=0))["status"] == "completed"
    assert kids.spawner() != first
    until(lambda: kids.hub.task(held)["attempts"] >= 2, "the order leaves again")


def test_no_process_is_left_a_zombie(kids: Kids) -> None:
    for number in range(20):
        kids.run(f"brief{number}", "sh", "-c", "sleep 0 & sleep 0 & exit 0")
    until(lambda: all(kids.state(f"brief{number}") == "stopped" for number in range(20)))
    spawner = kids.spawner()
    until(lambda: not zombies_of(spawner) and not zombies_of(kids.hub.pid))
    until(lambda: not children_of(spawner), "nor left at all")


def test_children_come_back_with_the_hub_and_their_work_goes_on(kids: Kids) -> None:
    kids.run("w", *worker, restart="always", env={"A": "b"}, max_concurrent=2)
    kids.works("w", 1)
    held = kids.submit("w", hang=True)
    log = kids.hub.data / "logs" / "w.jsonl"
    until(lambda: log.read_bytes().count(b"working on") == 2, "it is printed, and on the disk")
    old = kids.pid("w")
    kids.hub.restart()
    assert kids.pid("w") != old
    until(lambda: len(kids.printed("w")) == 3, "the order leaves again; what was printed before is still there")
    until(lambda: kids.hub.status(held) == "assigned")
    assert kids.done(kids.submit("w", n=0))["status"] == "completed"
    assert kids.child("w")["env"] == ["A"]


def test_agents_of_the_configuration_come_change_and_go(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path / "hub", DRAGOMAN_GRPC_PORT="0")
    config = hub.home / "dragoman.toml"
    kids = Kids(hub)

    def declare(text: str, value: str) -> None:
        config.write_text(
            f'[[agents]]\nid = "c1"\ncommand = ["sh", "-c", "{text}; exec sleep 600"]\nenv = {{ X = "{value}" }}\n'
        )

    try:
        declare("echo $X", "one")
        hub.start()
        until(lambda: kids.printed("c1") == ["one"])
        assert kids.child("c1")["origin"] == "config"
        waiting = kids.submit("c1")
        declare("echo $X", "two")  # only a value
        hub.restart()
        until(lambda: kids.printed("c1")[-1:] == ["two"])
        assert hub.status(waiting) in ("queued", "assigned")
        config.write_text("")
        hub.restart()
        assert hub.admin.get("/api/v1/agents/c1").status == 404
    finally:
        hub.kill()


def test_the_hub_asks_its_children_to_end_and_they_may_finish(kids: Kids, tmp_path: Path) -> None:
    note = tmp_path / "farewell"
    kids.run(
        "polite",
        *PYTHON,
        f"""
import json, sys
for line in sys.stdin:
    heard = json.loads(line)
    if heard['type'] == 'notify:shutdown':
        open({str(note)!r}, 'w').write(json.dumps(heard['payload']))
        break
""",
    )
    kids.pid("polite")
    assert kids.hub.stop() == 0
    assert note.read_text() == '{"gracePeriod": 10000, "reason": "Orchestrator stopping"}'


def test_the_hub_itself_has_no_children_but_its_helpers(kids: Kids) -> None:
    kids.run("w", *worker)
    pid = kids.pid("w")
    found = stat(pid)
    assert found is not None
    assert found[1] == kids.spawner()
    assert pid not in children_of(kids.hub.pid)
