"""Agentmsg as a stranger would try it: `dragoman serve`, its command line, curl and a plain WebSocket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.support.chiffon import Answer
from tests.support.cli import dragoman
from tests.support.hubproc import PATIENCE, HubProcess, until
from tests.support.nest import Hatched, nest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

SETTINGS = """
data = "data"

[server]
port = 0
grpc_port = 0
"""


class Served(HubProcess):
    """`dragoman serve` with a file and nothing else: every rule at its own pace."""

    def launch(self, **settings: str | None) -> Hatched:
        (self.home / "dragoman.toml").write_text(SETTINGS)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        given = {name: value for name, value in settings.items() if value is not None}
        command = ("serve", "-c", "dragoman.toml", "--ready-json")
        with open(self.log, "ab") as log:
            self.process = nest().hatch(command, cwd=self.home, env=inherited | given, stderr=log)
        return self.process


class Curl(Plain):
    """An agent that was added on the command line, and speaks by curl."""

    def __init__(self, hub: HubProcess, id: str | None = None, *options: str) -> None:
        id = id or f"a-{uuid.uuid4().hex[:8]}"
        made = dragoman("agent", "add", id, "--protocol", "agentmsg", *options, "-o", "json", hub=hub)
        assert made.code == 0, made
        assert set(made.json) >= {"agent_id", "token"}
        super().__init__(hub, id, made.json["token"])

    def _curl(self, method: str, path: str, body: Any = None) -> Answer:
        command = ["curl", "-sS", "-m", str(PATIENCE), "-X", method, f"{self.hub.url}/agentmsg{path}"]
        command += ["-H", f"Authorization: Bearer {self.token}", "-w", "\n%{http_code}"]
        said = None
        if body is not None:
            command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
            said = json.dumps(body).encode()
        out = subprocess.run(command, input=said, capture_output=True, check=True, timeout=PATIENCE + 5).stdout
        content, _, status = out.rpartition(b"\n")
        return Answer(int(status), {}, content)

    def post(self, path: str, body: Any) -> Answer:
        return self._curl("POST", path, body)

    def get(self, path: str) -> Answer:
        return self._curl("GET", path)


def started(home: Path) -> Iterator[HubProcess]:
    hub = Served(home)
    try:
        yield hub.start()
        assert "Traceback" not in hub.log.read_text()
        assert hub.stop() == 0
    finally:
        hub.kill()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    yield from started(tmp_path_factory.mktemp("served"))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[HubProcess]:
    """A hub that a test may kill."""
    yield from started(tmp_path)


def task_name() -> str:
    return f"task {uuid.uuid4().hex[:6]}"


def test_an_agent_that_was_just_added_speaks_and_polls_at_once(hub: HubProcess) -> None:
    ada, bob = Curl(hub), Curl(hub)
    assert bob.poll(0, 1) == []
    task = task_name()
    ada.say("TASK_ASSIGNMENT", bob.id, words.assignment(task, description="look"), priority="high")
    [order] = bob.poll(60, 1)
    assert order["message"]["payload"]["task"]["task_id"] == task
    assert order["message"]["payload"]["task"]["description"] == "look"
    ack = bob.message("ACK", "hub", {}, correlation_id=order["message"]["id"])
    assert bob.send(ack).status == 202
    bob.say("TASK_UPDATE", ada.id, {"task_id": task, "progress": 50, "message": "half"})
    bob.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": {"ok": True}})
    done = ada.hears("TASK_COMPLETE")
    assert (done["from"], done["payload"]) == (bob.id, {"task_id": task, "result": {"ok": True}})
    listed = dragoman("task", "ls", "-o", "json", hub=hub).json
    assert "completed" in {one["status"] for one in listed["tasks"] if one["agent"] == bob.id}


@pytest.mark.parametrize("to", ["*", "hub"])
def test_work_for_any_agent_finds_one(hub: HubProcess, to: str) -> None:
    skill = f"skill-{uuid.uuid4().hex[:6]}"
    ada, bob = Curl(hub), Curl(hub, None, "--capability", skill)
    task = str(uuid.uuid4()).upper()
    ada.say("TASK_ASSIGNMENT", to, words.assignment(task, constraints=words.constraints(required_capabilities=[skill])))
    order = bob.hears("TASK_ASSIGNMENT")
    assert order["payload"]["task"]["task_id"] == task.lower()
    bob.say("TASK_COMPLETE", to, {"task_id": task, "result": 1})
    assert ada.hears("TASK_COMPLETE")["payload"]["result"] == 1


def test_a_plain_websocket_carries_the_same(hub: HubProcess) -> None:
    ada, bob = Curl(hub), Curl(hub)
    task = task_name()
    with bob.link() as link:
        ada.say("TASK_ASSIGNMENT", bob.id, words.assignment(task))
        order = link.hears("TASK_ASSIGNMENT")
        again = link.hears("TASK_ASSIGNMENT")  # nobody acknowledged it
        assert (again["id"], again["metadata"]["retry_count"]) == (order["id"], 1)
        link.ack(order)
        link.acked(link.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": "by wire"}))
    assert ada.hears("TASK_COMPLETE")["payload"]["result"] == "by wire"


def test_a_handoff_is_rejected_and_another_accepted(hub: HubProcess) -> None:
    ada, bob, cid = Curl(hub), Curl(hub), Curl(hub)
    task = task_name()
    bob.works(ada, task, context=words.context(task, metadata={"branch": "main"}))
    no = bob.say("TASK_HANDOFF", cid.id, words.handoff(task, bob.id, cid.id, reason="RATE_LIMIT"))
    assert cid.hears("TASK_HANDOFF")["id"] == no["id"]
    cid.say("TASK_HANDOFF", bob.id, words.no(cid.id, "not today"), correlation_id=no["id"])
    told = bob.hears("TASK_HANDOFF")
    assert (told["payload"]["error"], told["metadata"]["correlation_id"]) == ("not today", no["id"])
    assert ada.task(task)["assigned_agent"] == bob.id

    yes = bob.say("TASK_HANDOFF", cid.id, words.handoff(task, bob.id, cid.id, reason="ESCALATION"))
    cid.hears("TASK_HANDOFF")
    cid.say("TASK_HANDOFF", bob.id, words.yes(cid.id), correlation_id=yes["id"])
    order = cid.hears("TASK_ASSIGNMENT")["payload"]["task"]
    assert (order["task_id"], order["context"]["metadata"]["branch"]) == (task, "main")
    assert bob.hears("TASK_HANDOFF")["payload"]["accepted"] is True
    assert ada.task(task)["assigned_agent"] == cid.id
    assert bob.refused("TASK_COMPLETE", "hub", {"task_id": task, "result": 0})[0] == 404
    cid.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": 1})
    assert ada.hears("TASK_COMPLETE")["from"] == cid.id


def test_help_comes_from_an_agent(hub: HubProcess) -> None:
    ada, bob, cid = Curl(hub), Curl(hub), Curl(hub, None, "--capability", "DEBUGGING_ASSISTANCE")
    task = task_name()
    bob.works(ada, task)
    with cid.link() as link:
        link.settled()
        payload = words.help_request(bob.id, task, help_type="DEBUGGING_ASSISTANCE", urgency="high")
        asked = bob.say("HELP_REQUEST", "hub", payload)
        request = link.hears("HELP_REQUEST")
        assert (request["id"], request["payload"]) == (asked["id"], payload)
        link.ack(request)
        link.acked(link.say("HELP_RESPONSE", bob.id, words.help_response(cid.id, request["id"], content="look there")))
    told = bob.hears("HELP_RESPONSE")
    assert (told["from"], told["payload"]["content"]) == (cid.id, "look there")
    bob.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": 1})


def test_help_comes_from_a_person_at_the_command_line(hub: HubProcess) -> None:
    ada, bob = Curl(hub), Curl(hub)
    task = task_name()
    bob.works(ada, task)
    payload = words.help_request(bob.id, task, help_type="RESOURCE_SHARING", description=f"a key for {task}?")
    asked = bob.say("HELP_REQUEST", "*", payload)
    listed = dragoman("ask", "ls", "-o", "json", hub=hub).json["questions"]
    [question] = [one for one in listed if one["question"] == f"a key for {task}?"]
    assert question["agent"] == bob.id
    answered = dragoman("ask", "answer", question["id"], "under the mat", hub=hub)
    assert answered.code == 0, answered
    told = bob.hears("HELP_RESPONSE")
    assert told["payload"]["request_id"] == asked["id"]
    assert told["payload"]["content"] == "under the mat"
    assert dragoman("ask", "answer", question["id"], "no", hub=hub).code != 0  # the first counts
    bob.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": 1})


def test_shared_state_by_curl(hub: HubProcess) -> None:
    ada, bob = Curl(hub), Curl(hub)
    name = task_name()

    def change(who: Curl, operation: str, version: int, changes: dict[str, Any]) -> Answer:
        return who.post("/state", words.change(operation, "TASK", name, changes, version, words.now()))

    def watch(cursor: int, count: int) -> list[tuple[int, str, int]]:
        """curl reads the stream; it is ended when enough came."""
        url = f"{hub.url}/agentmsg/state/watch?entity_type=TASK"
        command = ["curl", "-sSN", "-m", str(PATIENCE), "-H", f"Authorization: Bearer {ada.token}"]
        found: list[tuple[int, str, int]] = []
        with subprocess.Popen([*command, "-H", f"Last-Event-ID: {cursor}", url], stdout=subprocess.PIPE) as stream:
            assert stream.stdout is not None
            for line in stream.stdout:
                if line.startswith(b"data: ") and (told := json.loads(line[6:]))["entity_id"] == name:
                    found.append((told["cursor"], told["operation"], told["version"]))
                    if len(found) == count:
                        break
            stream.kill()
        return found

    start = ada.get("/state").json["cursor"]
    made = change(ada, "CREATE", 0, {"status": "pending", "context": {"a": 1}})
    assert (made.status, made.json["version"], made.json["entity_id"]) == (200, 1, name)
    assert change(bob, "UPDATE", 1, {"status": "failed"}).status == 403  # not his
    assert change(ada, "UPDATE", 1, {"assigned_agent": bob.id, "context": {"a": None}}).json["version"] == 2
    late = change(bob, "UPDATE", 1, {"status": "in_progress"})
    assert (late.status, late.json["context"]["details"]["version"]) == (409, 2)
    assert change(bob, "UPDATE", 2, {"status": "in_progress"}).status == 200
    first = watch(start, 2)
    assert [told[1:] for told in first] == [("CREATE", 1), ("UPDATE", 2)]
    change(ada, "UPDATE", 3, {"status": "completed"})
    assert [told[1:] for told in watch(first[-1][0], 2)] == [("UPDATE", 3), ("UPDATE", 4)]
    assert change(ada, "DELETE", 4, {}).status == 200
    assert ada.get(f"/state/TASK/{name.replace(' ', '%20')}").status == 404


def test_a_budget_refuses_with_its_numbers(own: HubProcess) -> None:
    ada, bob = Curl(own), Curl(own)
    admin = Plain(own, "admin", own.ready["admin_token"])
    policy = admin.get("/state/POLICY/policy").json
    limits = {"budget_limits": {"per_task": 2, "total": 3}}
    changed = admin.post("/state", words.change("UPDATE", "POLICY", "policy", limits, policy["version"], words.now()))
    assert (changed.status, changed.json["value"]["budget_limits"]["total"]) == (200, 3)

    def paid(usd: float) -> dict[str, Any]:
        return words.assignment(task_name(), constraints=words.constraints(budget_usd=usd))

    status, report = ada.refused("TASK_ASSIGNMENT", bob.id, paid(2.5))
    assert (status, report["error_type"]) == (422, "RESOURCE_EXHAUSTED")
    told = report["context"]["details"]
    assert (told["asked"], told["limit"], told["consumed"], told["remaining"]) == (2.5, 2, 0, 2)
    assert bob.poll() == []
    order = paid(2)
    ada.say("TASK_ASSIGNMENT", bob.id, order)
    name = bob.hears("TASK_ASSIGNMENT")["payload"]["task"]["task_id"]
    value = ada.get("/state").json["resource_allocations"]
    assert value[f"{bob.id}:budget"]["allocated"] == value["hub:budget"]["allocated"] == 2
    bob.say("TASK_COMPLETE", ada.id, {"task_id": name, "result": 1, "usage": {"cost_usd": 1.75, "tokens_used": 9}})
    value = ada.get("/state").json["resource_allocations"]
    assert (value["hub:budget"]["allocated"], value["hub:budget"]["consumed"]) == (0, 1.75)
    status, report = ada.refused("TASK_ASSIGNMENT", bob.id, paid(2))
    assert (status, report["context"]["details"]["remaining"]) == (422, 1.25)
    assert "1.25" in report["message"]


def test_nothing_is_lost_when_the_hub_is_killed_between_accepting_and_delivering(own: HubProcess) -> None:
    ada, bob = Curl(own), Curl(own)
    task = task_name()
    order = ada.say("TASK_ASSIGNMENT", bob.id, words.assignment(task))
    letter = ada.say("ERROR_REPORT", bob.id, words.error(ada.id, message="remember"))
    made = words.change("CREATE", "TASK", "plan", {}, 0, words.now())
    assert ada.post("/state", made).json["version"] == 1
    own.restart()
    assert ada.send(letter).status == 202  # the sender does not know: once more does no harm
    assert ada.send(order).status == 202
    heard: list[dict[str, Any]] = []

    def both() -> bool:
        heard.extend(bob.hear())
        return len(heard) >= 2

    until(both, "the order and the letter")
    assert sorted(one["type"] for one in heard) == ["ERROR_REPORT", "TASK_ASSIGNMENT"]
    assert letter["id"] in {one["id"] for one in heard}
    bob.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": 1})
    own.restart()
    assert ada.hears("TASK_COMPLETE")["payload"]["result"] == 1
    assert ada.get("/state/TASK/plan").json["version"] == 1
    assert (ada.hear(), bob.hear()) == ([], [])
