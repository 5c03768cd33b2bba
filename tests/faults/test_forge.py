"""A hub killed under its forge agents: what was answered is there, what was asked is answered, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.forge import ForgeClient
from tests.support.hubproc import HubProcess, running, until
from websockets.exceptions import ConnectionClosed

JOB = {"type": "build", "requiredRole": "worker", "payload": {"n": 1}}


class Cast:
    """Agents of a hub that comes and goes, each with the token it was given."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        self._tokens: dict[str, str] = {}
        for id, role in (("boss", "planner"), ("hand", "worker")):
            made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "forge", "role": role})
            assert made.status == 201, made
            self._tokens[id] = made.json["token"]

    def connect(self, id: str) -> ForgeClient:
        return ForgeClient(self.hub.url, id, self._tokens[id])


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    with running(tmp_path) as hub:
        yield Cast(hub)


@pytest.mark.requirement("forge-all-D5")
def test_what_was_answered_is_there_after_a_kill_and_once(cast: Cast) -> None:
    boss = cast.connect("boss")
    tasks = {f"r-{n}": boss.ask("submit-task", JOB, f"r-{n}")["task"]["id"] for n in range(20)}
    boss.say("request:submit-task", JOB, "r-20")  # under way: there or not, but never twice
    cast.hub.restart()
    boss = cast.connect("boss")
    for n in range(21):
        id = boss.ask("submit-task", JOB, f"r-{n}")["task"]["id"]
        assert tasks.setdefault(f"r-{n}", id) == id
    hand = cast.connect("hand")
    done = []
    for _ in tasks:
        id = hand.notice("task-assigned")["taskId"]
        assert hand.ask("update-task", {"taskId": id, "status": "completed", "result": id})["task"]["id"] == id
        done.append(id)
    assert sorted(done) == sorted(tasks.values())
    told = [boss.until(_ended)["payload"] for _ in tasks]
    assert sorted(news["result"] for news in told) == sorted(done)


def _ended(message: dict[str, Any]) -> bool:
    return message["type"] == "notify:task-updated" and message["payload"]["final"]


@pytest.mark.requirement("forge-D8")
def test_a_question_survives_the_hub_and_is_answered_exactly_once(cast: Cast) -> None:
    boss, hand = cast.connect("boss"), cast.connect("hand")
    boss.ask("submit-task", JOB)
    task = hand.notice("task-assigned")["taskId"]
    asked = hand.say("request:ask-user", {"question": "Go on?", "options": ["yes", "no"], "taskId": task})
    until(lambda: cast.hub.admin.get("/api/v1/questions?status=open").json["questions"], "the question")
    cast.hub.restart()
    hand = cast.connect("hand")
    [question] = cast.hub.admin.get("/api/v1/questions?status=open").json["questions"]
    address = f"/api/v1/questions/{question['id']}/answer"
    assert cast.hub.admin.post(address, {"answer": "yes"}).status == 200
    assert cast.hub.admin.post(address, {"answer": "no"}).status == 409
    assert hand.response(asked)["answer"] == "yes"
    assert hand.ask("update-task", {"taskId": task, "status": "completed"})["task"]["status"] == "completed"


def test_work_under_way_goes_on_when_the_hub_is_back(cast: Cast) -> None:
    boss, hand = cast.connect("boss"), cast.connect("hand")
    task = boss.ask("submit-task", JOB)["task"]["id"]
    hand.notice("task-assigned")
    hand.ask("update-task", {"taskId": task, "status": "running", "output": "half of "})
    cast.hub.restart()
    hand = cast.connect("hand")
    answer = hand.ask("update-task", {"taskId": task, "status": "completed", "result": {"ok": True}})
    assert answer["task"]["status"] == "completed"
    boss = cast.connect("boss")
    assert boss.until(_ended)["payload"]["result"] == {"ok": True}
    assert cast.hub.task(task)["attempts"] == 1


@pytest.mark.requirement("FG-NOT-4")
def test_a_hub_that_is_told_to_stop_says_so(cast: Cast) -> None:
    hand = cast.connect("hand")
    hand.ask("query-agents", {})
    assert cast.hub.stop() == 0
    assert hand.notice("shutdown")["reason"] == "Orchestrator stopping"
    with pytest.raises(ConnectionClosed) as caught:
        hand.ws.recv(timeout=5)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012
    assert "Traceback" not in cast.hub.log.read_text()
