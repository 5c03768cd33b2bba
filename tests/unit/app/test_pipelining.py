"""Pipelined messages about one task: none overtakes one that was refused for now, over the intake and over a socket."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets
from tests.support.nodes import FollowedWorld
from tests.support.scripted import elsewhere, soon
from tests.support.world import World

from dragoman.app import intake
from dragoman.app.cluster.link import remote_intake
from dragoman.core.commands import AddAgent, RegisterAgent, ReportProgress, Span
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, SessionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.pipelining import Pipeline, Pipelined
from dragoman.core.ports import StoreFailed
from dragoman.core.queries.state import StateView
from dragoman.messages.faults import Refused
from dragoman.security.tokens import token_hash
from dragoman.server.agentmsg import http as agentmsg
from dragoman.server.agentmsg.handler import AgentmsgHandler
from dragoman.server.chiffon import http as chiffon
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer

TOKEN = "0" * 32


class Sender:
    """A connection that hands in messages about a task, and what they came to, in order."""

    def __init__(self, world: World, task: TaskId) -> None:
        self.world = world
        self.task = task
        self.pipeline = Pipeline(SessionId(world.mint()))
        self.heard: list[tuple[str, str]] = []
        self.sent = 0

    def send(self, *ids: str, lane: str | None = None) -> None:
        for id in ids:
            self.send_one(id, self.report(id), lane=lane)

    def report(self, id: str, **fields: Any) -> ReportProgress:
        return ReportProgress(principal=AgentId("worker"), task_id=self.task, message_id=id, step=id, **fields)

    def send_one(self, id: str, command: ReportProgress, lane: str | None = None, **how: Any) -> None:
        def then(outcome: Any, refusal: Refused | None) -> None:
            self.heard.append((id, "accepted" if refusal is None else refusal.fault.kind.value))

        self.sent += 1
        self.world.intake.enqueue_then(command, Pipelined(self.pipeline, lane or self.task, id, then, **how))

    async def outcomes(self) -> str:
        """`A B! C`: B was refused for now."""
        async with asyncio.timeout(60):
            while len(self.heard) < self.sent:
                await asyncio.sleep(0)
        heard, self.heard, self.sent = self.heard, [], 0
        return " ".join(id if said == "accepted" else f"{id}!" for id, said in heard)


@pytest.fixture(params=[World, FollowedWorld], ids=["hub", "node"])
async def sender(request: pytest.FixtureRequest) -> AsyncIterator[Sender]:
    """The connection is at the hub that decides, or at a node that follows it."""
    world = await request.param().start()
    await world.add("boss", "orchestrator")
    await world.add("worker", "infra")
    await world.connect("worker")
    yield Sender(world, (await world.submit()).id)
    await world.stop()


async def test_what_waits_behind_a_unit_that_failed_does_not_overtake_it(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LARGEST_UNIT", 2)  # the third stands in the next unit, whose commit succeeds
    sender.world.store.fail_next_commit()
    sender.send("A", "B", "C")
    assert await sender.outcomes() == "A! B! C!"
    sender.send("D")  # it left before its sender knew
    assert await sender.outcomes() == "D!"
    sender.send("B", "A", "B", "C", "D", "E")  # the first of these too early
    assert await sender.outcomes() == "B! A B C D E"
    sender.send("F")
    assert (await sender.outcomes(), sender.pipeline.expected) == ("F", {})


async def test_one_that_fails_again_keeps_its_place(sender: Sender) -> None:
    sender.world.store.fail_next_commit()
    sender.send("A")
    await sender.outcomes()
    sender.send("B")
    await sender.outcomes()
    sender.world.store.fail_next_commit()
    sender.send("A", "B")
    assert await sender.outcomes() == "A! B!"
    sender.send("B")
    assert await sender.outcomes() == "B!"
    sender.send("A", "B", "C")
    assert await sender.outcomes() == "A B C"


async def test_other_tasks_and_other_connections_are_not_held_up(sender: Sender) -> None:
    sender.world.store.fail_next_commit()
    sender.send("A")
    await sender.outcomes()
    sender.send("B", lane="another task")
    other = Sender(sender.world, sender.task)
    other.send("C")
    assert (await sender.outcomes(), await other.outcomes()) == ("B", "C")


async def test_a_sender_that_gave_up_is_kept_out_for_a_few_seconds_only(sender: Sender) -> None:
    sender.world.store.fail_next_commit()
    sender.send("A")
    await sender.outcomes()
    await sender.world.advance(4.9)
    sender.send("B")
    assert await sender.outcomes() == "B!"
    await sender.world.advance(0.2)
    sender.send("C", "D")
    assert await sender.outcomes() == "C D"


async def test_what_is_refused_for_good_is_not_waited_for(sender: Sender) -> None:
    wrong = ReportProgress(principal=AgentId("worker"), task_id=TaskId("no such task"), message_id="A")
    sender.send_one("A", wrong)
    sender.send("B")
    assert await sender.outcomes() == "A! B"


@pytest.mark.parametrize("sender", [World], indirect=True)
async def test_an_overloaded_hub_takes_nothing_that_would_overtake(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "DEEPEST", 1)
    sender.send("A", "B")
    monkeypatch.setattr(intake, "DEEPEST", 10)
    sender.send("C")
    assert await sender.outcomes() == "B! A C!"
    sender.send("B", "C")
    assert await sender.outcomes() == "B C"


@pytest.mark.parametrize("sender", [FollowedWorld], indirect=True)
async def test_what_an_overloaded_node_refuses_is_not_overtaken_at_the_leader(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_intake, "MOST_UNANSWERED", 1)
    sender.send("A", "B")
    monkeypatch.setattr(remote_intake, "MOST_UNANSWERED", 10)
    sender.send("C")
    assert await sender.outcomes() == "B! A C!"
    sender.send("B", "C")
    assert await sender.outcomes() == "B C"


@pytest.mark.parametrize("sender", [FollowedWorld], indirect=True)
async def test_a_message_of_several_commands_is_held_back_at_the_leader_as_a_whole(sender: Sender) -> None:
    sender.world.store.fail_next_commit()
    sender.send("A")
    assert await sender.outcomes() == "A!"
    outcomes: list[bool] = []
    whole = Pipelined(sender.pipeline, sender.task, "B", lambda outcome, refusal: outcomes.append(refusal is None))
    sender.world.intake.enqueue_then(sender.report("B"), whole)
    sender.world.intake.enqueue_then(sender.report("B, too"), whole)
    sender.send("A")  # comes again between the two: they stay behind it
    assert await sender.outcomes() == "A"
    assert outcomes == [False, False]


async def test_a_split_output_may_begin_again_under_other_ids(sender: Sender) -> None:
    def piece(id: str, start: int) -> None:
        span = Span(start, start + 1, 2)
        report = sender.report(id, output="x", stream="step-1", span=span)
        sender.send_one(id, report, stream="step-1", begins=start == 0)

    piece("first", 0)
    assert await sender.outcomes() == "first"
    sender.world.store.fail_next_commit()
    piece("second", 1)
    assert await sender.outcomes() == "second!"
    sender.send("A")
    assert await sender.outcomes() == "A!"
    piece("first again", 0)
    piece("second again", 1)
    sender.send("A")
    assert await sender.outcomes() == "first again second again A"


# -- over a socket ----------------------------------------------------------------------------------------------


@pytest.fixture
async def hub() -> AsyncIterator[tuple[World, str]]:
    world = await World().start()
    await world.add("boss", "orchestrator")
    agent = Agent(id=AgentId("infra-1"), protocol="chiffon", created_at=world.time, token_hash=token_hash(TOKEN))
    await world.ask(AddAgent(principal=ADMIN, agent=agent))
    await world.ask(RegisterAgent(principal=AgentId("infra-1"), kind="infra", max_concurrent=4))
    endpoints = chiffon.endpoints(ChiffonHandler(world.intake, world.store, limits=Limits()))
    async with HttpServer(world.intake, endpoints, fallback=elsewhere, port=0) as serving:
        yield world, serving.url.replace("http", "ws") + "/api/agent/ws?receipts=1"


def status(task: TaskId, request: str, percent: int) -> dict[str, Any]:
    return {
        "protocol_version": "1.0",
        "message_id": str(uuid.UUID(int=percent, version=4)),
        "from_agent": "infra",
        "to_agent": "orchestrator",
        "timestamp": "2026-01-19T04:21:04Z",
        "trace_id": str(uuid.uuid4()),
        "request_id": request,
        "type": "work_status",
        "payload": {"task_id": task, "status": "running", "progress_percent": percent},
        "x_custom_fields": {},
    }


async def test_after_a_refused_status_the_next_does_not_overtake_it(hub: tuple[World, str]) -> None:
    """The refusal names the message, for many have the same request id."""
    world, url = hub
    async with websockets.connect(url, additional_headers={"authorization": f"Bearer {TOKEN}"}, proxy=None) as socket:

        async def hear() -> dict[str, Any]:
            heard: dict[str, Any] = json.loads(await soon(socket.recv()))
            return heard

        task = await world.submit()
        request = (await hear())["request_id"]
        said = {percent: status(task.id, request, percent) for percent in (10, 20, 30)}
        world.store.fail_next_commit(StoreFailed("no space left"))
        await socket.send(json.dumps(said[10]))
        refused = await hear()
        assert (refused["payload"]["error_code"], refused["request_id"]) == (5002, request)
        assert refused["x_custom_fields"]["refused_message_id"] == said[10]["message_id"]
        await socket.send(json.dumps(said[20]))  # sent before its sender knew
        refused = await hear()
        assert refused["payload"]["error_code"] == 5002
        assert "send that one again first" in refused["payload"]["error_message"]
        assert refused["x_custom_fields"]["refused_message_id"] == said[20]["message_id"]
        accepted: list[str] = []
        for percent in (10, 20, 30):
            await socket.send(json.dumps(said[percent]))
            accepted += (await hear())["accepted"]
        assert accepted == [said[percent]["message_id"] for percent in (10, 20, 30)]
        events = [event for event in await world.store.events(task.id) if event.kind == "progress"]
        assert [json.loads(bytes(event.body))["percent"] for event in events] == [10, 20, 30]


# -- agentmsg, whose updates are promised at most once ------------------------------------------------------------


@pytest.fixture
async def conversing() -> AsyncIterator[tuple[World, str]]:
    world = await World().start()
    await world.add("boss", "orchestrator")
    agent = Agent(id=AgentId("ada"), protocol="agentmsg", created_at=world.time, token_hash=token_hash(TOKEN))
    await world.ask(AddAgent(principal=ADMIN, agent=agent))
    limits = Limits()
    view = StateView(world.store, world.intake, world.rules)
    handler = AgentmsgHandler(world.intake, world.store, view, limits=limits, admin_hash=None)
    endpoints = agentmsg.endpoints(handler)
    async with HttpServer(world.intake, endpoints, fallback=elsewhere, port=0) as serving:
        yield world, serving.url.replace("http", "ws") + "/agentmsg/ws"


def report(kind: str, number: int, **payload: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.UUID(int=number, version=4)),
        "timestamp": "2026-01-19T04:21:04Z",
        "from": "ada",
        "to": "hub",
        "type": kind,
        "payload": payload,
        "metadata": {"priority": "normal", "retry_count": 0, "max_retries": 3},
    }


async def test_over_agentmsg_a_result_does_not_overtake_an_update_that_was_refused(
    conversing: tuple[World, str],
) -> None:
    world, url = conversing
    async with websockets.connect(url, additional_headers={"authorization": f"Bearer {TOKEN}"}, proxy=None) as socket:

        async def refused() -> str:
            heard: dict[str, Any] = json.loads(await soon(socket.recv()))
            assert (heard["type"], heard["payload"]["context"]["details"]["retryable"]) == ("ERROR_REPORT", True)
            return str(heard["metadata"]["correlation_id"])

        task = await world.submit(kind=None, pinned=AgentId("ada"))
        assert json.loads(await soon(socket.recv()))["type"] == "TASK_ASSIGNMENT"
        first, second = (
            report("TASK_UPDATE", percent, task_id=task.id, progress=percent, status="in_progress")
            for percent in (10, 20)
        )
        done = report("TASK_COMPLETE", 100, task_id=task.id, result="ok")
        world.store.fail_next_commit(StoreFailed("no space left"))
        await socket.send(json.dumps(first))
        assert await refused() == first["id"]
        for behind in (second, done):  # sent before its sender knew
            await socket.send(json.dumps(behind))
            assert await refused() == behind["id"]
        for message in (first, second, done):
            await socket.send(json.dumps(message))
        ack = json.loads(await soon(socket.recv()))
        assert (ack["type"], ack["metadata"]["correlation_id"]) == ("ACK", done["id"])
        told = [event.kind for event in await world.store.events(task.id)]
        assert told[-3:] == ["progress", "progress", "completed"]
        events = [event for event in await world.store.events(task.id) if event.kind == "progress"]
        assert [json.loads(bytes(event.body))["percent"] for event in events] == [10, 20]


async def test_over_agentmsg_an_update_that_never_comes_again_is_waited_for_a_few_seconds_only(
    conversing: tuple[World, str],
) -> None:
    world, url = conversing
    async with websockets.connect(url, additional_headers={"authorization": f"Bearer {TOKEN}"}, proxy=None) as socket:
        task = await world.submit(kind=None, pinned=AgentId("ada"))
        assert json.loads(await soon(socket.recv()))["type"] == "TASK_ASSIGNMENT"
        world.store.fail_next_commit(StoreFailed("no space left"))
        await socket.send(json.dumps(report("TASK_UPDATE", 1, task_id=task.id, progress=10)))
        assert json.loads(await soon(socket.recv()))["type"] == "ERROR_REPORT"
        world.time = Instant(world.time + 6 * SECOND)
        await socket.send(json.dumps(report("TASK_COMPLETE", 2, task_id=task.id, result="ok")))
        assert json.loads(await soon(socket.recv()))["type"] == "ACK"
