"""A hub killed under its forge agents, and children killed under their hub: what was answered is there, what was asked
is answered, nothing is lost and nothing happens twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.killing import HAPPENED
from tests.support.children import PYTHON
from tests.support.fleet import BROKEN
from tests.support.forge import ForgeClient
from tests.support.hubproc import HubProcess, running, until
from tests.support.sse import Reader
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
def test_a_hub_that_must_stop_says_so(cast: Cast) -> None:
    hand = cast.connect("hand")
    hand.ask("query-agents", {})
    assert cast.hub.stop() == 0
    assert hand.notice("shutdown")["reason"] == "Orchestrator stopping"
    with pytest.raises(ConnectionClosed) as caught:
        hand.ws.recv(timeout=60)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012
    assert "Traceback" not in cast.hub.log.read_text()


# -- children: the program is killed, and the hub under it, wherever they are --------------------------------------

CHILD = """
import json, os, sys
def say(type, **payload):
    said = {'type': type, 'id': os.urandom(8).hex(), 'timestamp': '2026-01-01T00:00:00Z', 'payload': payload}
    print(json.dumps(said), flush=True)
    return said['id']
def note(*words):
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, (' '.join(map(str, words)) + '\\n').encode())
    os.fsync(file)
    os.close(file)
def known(id):
    return os.path.exists(sys.argv[1]) and f'effect {id}\\n' in open(sys.argv[1]).read()
asked = {}
note('up', os.getpid())
for line in sys.stdin:
    heard = json.loads(line)
    if heard['type'] == 'notify:shutdown':
        break
    if heard['type'] == 'response:success' and heard['correlationId'] in asked:
        id = asked.pop(heard['correlationId'])
        note('answer', heard['payload']['answer'])
        say('request:update-task', taskId=id, status='completed', result=heard['payload']['answer'])
    if heard['type'] != 'notify:task-assigned':
        continue
    task = heard['payload']['task']
    id, stop = task['id'], task['payload']['stop']
    note('given', task['attempt'])
    if stop == 'question':
        asked[say('request:ask-user', taskId=id, question='Go on?', options=['yes', 'no'], timeout=600000)] = id
        note('asked')
        continue
    first = not known(id)
    if stop == 'assigned' and first:
        note('effect', id)
        continue
    say('event:progress', taskId=id, progress=0.25, output='one ')
    say('event:progress', taskId=id, progress=0.5, output='two ')
    if first:
        note('effect', id)
        if stop == 'streaming':
            continue
    say('request:update-task', taskId=id, status='completed', result={'attempt': task['attempt']})
    note('said')
"""
"""Works up to where it is told to stop, and goes on from there when it is given the same task again: its effects are
in a file, which outlives it."""

STOPS = ("assigned", "streaming", "done")


class Brood:
    """One child of a hub, and the file that it writes."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        self.notes = hub.home / "notes"
        command = [*PYTHON, CHILD, str(self.notes)]
        wish = {"agent_id": "kid", "protocol": "forge", "role": "worker", "command": command, "restart": "always"}
        made = hub.admin.post("/api/v1/agents", wish)
        assert made.status == 201, made

    def noted(self, word: str) -> list[str]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == word]

    def after(self, word: str, count: int = 1) -> None:
        until(lambda: len(self.noted(word)) >= count, f"{word}, {count} times")

    def kill(self) -> None:
        os.kill(int(self.noted("up")[-1]), signal.SIGKILL)

    def give(self, stop: str) -> str:
        made = self.hub.admin.post("/api/v1/tasks", {"type": "work", "agent": "kid", "input": {"stop": stop}})
        assert made.status == 202, made
        return str(made.json["id"])


@pytest.fixture(scope="module")
def brood(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brood]:
    settings = {"DRAGOMAN_RULES__IDLE_SECONDS": "30", "DRAGOMAN_RULES__BREAKER_THRESHOLD": "1000"}
    with running(tmp_path_factory.mktemp("brood"), **settings) as hub:
        yield Brood(hub)
        assert "Traceback" not in hub.log.read_text()


@pytest.mark.parametrize("whom", ["child", "hub"])
@pytest.mark.parametrize("stop", ["idle", *STOPS])
def test_a_kill_loses_and_doubles_nothing(brood: Brood, stop: str, whom: str) -> None:
    hub = brood.hub
    ups = len(brood.noted("up")) or 1
    brood.after("up", ups)
    effects = len(brood.noted("effect"))
    task, reader = "", None
    if stop != "idle":
        task = brood.give(stop)
        reader = Reader(task)
        thread = threading.Thread(target=reader.read, args=(hub.url, hub.ready["admin_token"]), daemon=True)
        thread.start()
        until(lambda: reader.seen, "the reader reads")
        brood.after("effect", effects + 1)
        if stop == "streaming":
            until(lambda: hub.task(task)["output"] == "one two ", "what was said is there")
    if whom == "child":
        brood.kill()
    else:
        hub.restart()
    brood.after("up", ups + 1)
    task = task or brood.give("done")
    until(lambda: hub.status(task) == "completed", "the task is done")
    done = hub.task(task)
    assert done["attempts"] == (1 if stop == "idle" else done["result"]["attempt"])
    assert done["attempts"] <= 2
    assert done["output"] == "one two "
    assert brood.noted("effect")[effects:] == [task]
    reader = reader or Reader(task)
    until(lambda: reader.read(hub.url, hub.ready["admin_token"]).ended, "the end of the events")
    assert reader.seen == Reader(task).read(hub.url, hub.ready["admin_token"]).seen
    assert reader.numbers == list(range(1, len(reader.numbers) + 1))
    until(lambda: hub.pending == 0, "nothing is pending")


@pytest.mark.requirement("forge-D8")
def test_a_question_outlives_child_and_hub_and_is_answered_exactly_once(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_RULES__IDLE_SECONDS="30") as hub:
        brood = Brood(hub)
        task = brood.give("question")

        def questions(status: str) -> list[dict[str, Any]]:
            return list(hub.admin.get(f"/api/v1/questions?status={status}").json["questions"])

        brood.after("asked", 1)
        (question,) = until(lambda: questions("open"), "the question")
        brood.kill()
        brood.after("asked", 2)  # the new process is given the task, and asks the same
        hub.restart()
        brood.after("asked", 3)
        assert [one["id"] for one in questions("open")] == [question["id"]]
        brood.kill()  # nobody is there when the answer comes
        address = f"/api/v1/questions/{question['id']}/answer"
        assert hub.admin.post(address, {"answer": "yes"}).status == 200
        assert hub.admin.post(address, {"answer": "no"}).status == 409
        until(lambda: hub.status(task) == "completed", "the answer arrived, and the task is done")
        assert hub.task(task)["result"] == "yes"
        assert brood.noted("answer") == ["yes"]
        assert questions("open") == []
        hub.restart()
        assert [one["id"] for one in questions("answered")] == [question["id"]]
        assert hub.status(task) == "completed"
        until(lambda: hub.pending == 0, "nothing is pending")


def test_a_kill_of_the_hub_while_it_asks_its_child_to_end_gives_the_work_back(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        brood = Brood(hub)
        task = brood.give("streaming")
        until(lambda: hub.task(task)["output"] == "one two ", "what was said is there")
        assert hub.process is not None
        hub.process.send_signal(signal.SIGTERM)
        hub.restart()
        until(lambda: hub.status(task) == "completed", "the task is done")
        assert hub.task(task)["output"] == "one two "
        assert brood.noted("effect") == [task]
        until(lambda: hub.pending == 0, "nothing is pending")


def walk(home: Path, step: str) -> bool:
    """Whether the hub came by this step, and died of it."""
    with running(home, DRAGOMAN_RULES__IDLE_SECONDS="30") as hub:
        brood = Brood(hub)
        hub.restart(DRAGOMAN_CRASH_AT=step)
        wish = {"type": "work", "agent": "kid", "input": {"stop": "done"}}

        def submitted() -> str:
            return str(hub.admin.post("/api/v1/tasks", wish, **{"Idempotency-Key": "one"}).json["id"])

        try:
            task = submitted()
            until(lambda: hub.status(task) == "completed", "done, or dead")
            killed = False
        except BROKEN:
            assert hub.died() == -signal.SIGKILL, step
            killed = True
        hub.restart()
        task = submitted()
        until(lambda: hub.status(task) == "completed", "the task is done")
        assert [one["id"] for one in hub.tasks()] == [task]
        assert brood.noted("effect") == [task]
        assert hub.task(task)["output"] == "one two "
        until(lambda: hub.pending == 0, "nothing is pending")
        return killed


def test_nothing_is_lost_or_doubled_by_a_kill_at_the_send(tmp_path: Path) -> None:
    assert walk(tmp_path, "after_send")


@pytest.mark.soak
@pytest.mark.parametrize("step", HAPPENED)
def test_nothing_is_lost_or_doubled_by_a_kill_at_any_commit(step: str, tmp_path: Path) -> None:
    """At the first, the second, …, until there is no such commit on the whole road."""
    kills = 0
    while walk(tmp_path / str(kills), f"{step}:{kills + 1}"):
        kills += 1
    assert kills > 2
