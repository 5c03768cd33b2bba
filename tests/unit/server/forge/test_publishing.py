"""Logs, floods, publish and subscribe, registration."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.forge import ForgeHub, ForgePeer

from dragoman.core.model.tasks import EventKind


async def at_work(hub: ForgeHub, id: str = "worker-1") -> tuple[ForgePeer, str]:
    planner, worker = await hub.connect("planner-1"), await hub.connect(id)
    task = (await planner.ask("submit-task", type="x", agent=id))["task"]["id"]
    await worker.notice("task-assigned")
    return worker, task


async def log_lines(hub: ForgeHub, task: Any) -> list[tuple[str, str]]:
    lines = [
        line
        for event in await hub.world.store.events(task)
        if event.kind is EventKind.LOG
        for line in json.loads(bytes(event.body))["lines"]
    ]
    return [(line["level"], line["message"]) for line in lines]


@pytest.mark.requirement("FG-EVT-3", "FG-BCK-1", "forge-D3")
async def test_what_is_logged_and_what_is_no_message_is_kept_with_the_task(hub: ForgeHub) -> None:
    worker, task = await at_work(hub)
    await worker.tell("log", level="warn", message="Completed migration", context={"rows": 1000})
    await worker.say("Compiling…")
    await worker.say('{"level": "info"}')
    await worker.tell("mood", mood="good")
    await worker.tell("error", error="hiccup", stack="at x", taskId=task)
    await worker.tell("progress", taskId="not mine", progress=0.5)
    await worker.ask("query-agents")
    await worker.ask("query-agents")
    lines = await log_lines(hub, task)
    assert lines[:3] == [("warn", "Completed migration"), ("info", "Compiling…"), ("info", '{"level": "info"}')]
    assert json.loads(lines[3][1])["type"] == "event:mood"
    assert lines[4] == ("error", "hiccup")
    assert lines[5][0] == "warn"
    assert lines[5][1].startswith("event:progress was refused: no such task")


@pytest.mark.requirement("forge-D9")
async def test_beyond_the_burst_requests_are_refused_and_events_dropped_and_counted(hub: ForgeHub) -> None:
    worker, task = await at_work(hub)
    for _ in range(150):
        await worker.tell("progress", taskId=task, progress=0.5)
    answers = [await worker.ask("query-agents") for _ in range(60)]
    refused = [answer for answer in answers if "code" in answer]
    assert len(refused) == 10
    assert refused[0]["code"] == "INVALID_REQUEST"
    assert refused[0]["details"]["reason"] == "RATE_LIMITED"
    for _ in range(5):
        await worker.tell("log", level="info", message="dropped")
    # One bucket for the agent, whatever connection it comes by.
    await worker.close()
    worker = await hub.connect("worker-1")
    assert (await worker.ask("query-agents"))["details"]["reason"] == "RATE_LIMITED"
    hub.ticks += 1.0
    assert "agents" in await worker.ask("query-agents")
    [told] = [line for line in await log_lines(hub, task) if "messages a second" in line[1]]
    assert told[0] == "warn"
    assert told[1].endswith("10 requests refused, 5 events dropped")
    noted = [outcome for who, action, outcome in await hub.audited() if action == "forge.frame"]
    assert noted == ["refused", "refused"]  # once for each connection's flood, not for each message


@pytest.mark.requirement("forge-D9")
async def test_what_comes_too_fast_is_refused_however_slowly_the_rest_is_answered(hub: ForgeHub) -> None:
    """A request that reads waits for the one before it; its place in the measure does not."""
    worker = await hub.connect("worker-1")
    held, ask = asyncio.Event(), hub.handler.hub.execute

    async def slow(command: Any) -> Any:
        await held.wait()
        return await ask(command)

    hub.handler.hub.execute = slow  # type: ignore[method-assign]
    messages = [worker.message("request:query-agents", {}) for _ in range(230)]
    for message in messages:
        await worker.say(message)
    late = [(await worker.response(message["id"]))["details"]["reason"] for message in messages[201:]]
    held.set()
    assert late == ["RATE_LIMITED"] * 29
    answers = [await worker.response(message["id"]) for message in messages[:201]]
    assert ["agents" in answer for answer in answers] == [True] * 200 + [False]


async def test_the_parts_of_a_batch_go_before_what_came_after_it(hub: ForgeHub) -> None:
    worker, task = await at_work(hub)
    pieces = [worker.message("event:progress", {"taskId": task, "output": piece}) for piece in ("b", "c")]
    look = worker.message("request:get-task", {"taskId": task})
    padding = worker.message("event:log", {"level": "info", "message": "x" * 5000})
    await worker.say(look)
    await worker.say(json.dumps([look, pieces[0], padding, look, pieces[1]]))
    await worker.say(worker.message("event:progress", {"taskId": task, "output": "d"}))
    assert (await worker.ask("get-task", taskId=task))["task"]["output"] == "bcd"


@pytest.mark.requirement("FG-FUT-4", "forge-D12")
async def test_agents_publish_and_subscribe(hub: ForgeHub) -> None:
    one, two, three = [await hub.connect(id) for id in ("worker-1", "worker-2", "reviewer-1")]
    assert await one.ask("subscribe", topic="builds.done") == {"topic": "builds.done", "subscribed": True, "new": True}
    await one.ask("subscribe", topic="builds.*")
    await two.ask("subscribe", topic="builds.*")
    message = three.message("request:publish", {"topic": "builds.done", "data": {"ok": True}}, agentId="worker-1")
    await three.say(message)
    assert await three.response(message["id"]) == {"topic": "builds.done", "delivered": 2}
    for peer in (one, two):
        told = await peer.notice("published")
        assert told == {"topic": "builds.done", "publisher": "reviewer-1", "data": {"ok": True}}
    await two.ask("unsubscribe", topic="builds.*")
    assert (await three.ask("publish", topic="builds.failed", data=1))["delivered"] == 1
    await one.close()
    async with asyncio.timeout(60):
        while len(hub.endpoint._links) > 2:  # until the hub has seen the connection's end
            await asyncio.sleep(0)
    assert (await three.ask("publish", topic="builds.done", data=1))["delivered"] == 0
    for topic in ("a*b", "*a"):
        assert (await three.ask("subscribe", topic=topic))["code"] == "INVALID_REQUEST"
    assert (await three.ask("publish", topic="a.*"))["code"] == "INVALID_REQUEST"


@pytest.mark.requirement("FG-FUT-4", "forge-all-D5")
async def test_what_is_published_again_under_its_id_is_delivered_once(hub: ForgeHub) -> None:
    """An agent that lost the answer sends it again, perhaps over another connection; nothing is delivered twice."""
    reader, talker = await hub.connect("worker-1"), await hub.connect("worker-2")
    await reader.ask("subscribe", topic="t")
    for _ in range(2):
        for _ in range(2):
            assert await talker.ask("publish", id="p-1", topic="t", data=1) == {"topic": "t", "delivered": 1}
        talker = await hub.connect("worker-2")
    refused = await talker.ask("publish", id="p-1", topic="t", data=2)
    assert (refused["code"], refused["details"]["reason"]) == ("INVALID_REQUEST", "mismatch")
    await talker.ask("publish", topic="t", data=3)
    assert [(await reader.notice("published"))["data"] for _ in range(2)] == [1, 3]


@pytest.mark.requirement("FG-FUT-4")
async def test_a_subscriber_that_does_not_read_loses_messages_and_holds_up_nobody(hub: ForgeHub) -> None:
    slow, talker = await hub.connect("worker-1", patient=False), await hub.connect("worker-2")
    await slow.ask("subscribe", topic="t")
    big, sent = "x" * 200_000, 0
    while (await talker.ask("publish", topic="t", data=[sent, big]))["delivered"]:
        hub.ticks += 1
        sent += 1
        assert sent < 500
    lost = sent
    got = [(await slow.notice("published"))["data"][0] for _ in range(sent)]
    assert got == list(range(sent))
    async with asyncio.timeout(60):
        while not (await talker.ask("publish", topic="t", data=["after"]))["delivered"]:
            hub.ticks += 1
            lost += 1
    told = await slow.notice("published")
    assert (told["data"], told["missed"]) == (["after"], lost - sent + 1)
    assert hub.bus.lost == told["missed"]


@pytest.mark.requirement("forge-D9")
async def test_a_flood_of_one_agent_is_not_the_others_trouble(hub: ForgeHub) -> None:
    flooder, other = await hub.connect("worker-1"), await hub.connect("worker-2")
    for number in range(3000):
        await flooder.say(f"line {number}")
    assert "agents" in await other.ask("query-agents")
    assert (await flooder.ask("query-agents"))["details"]["reason"] == "RATE_LIMITED"
    assert hub.handler.dropped > 2500


async def test_an_agent_introduces_itself_but_does_not_promote_itself(hub: ForgeHub) -> None:
    await hub.add("plain-1")
    plain = await hub.connect("plain-1")
    answer = await plain.ask("register", name="Plain", capabilities=["go"], workTypes=["build"], maxConcurrent=3)
    assert (answer["agent"]["name"], answer["agent"]["capabilities"]) == ("Plain", ["go"])
    assert answer["agent"]["workTypes"] == ["build"]
    assert (await plain.ask("register", version="2"))["agent"]["workTypes"] == ["build"]  # what it does not name stays
    assert hub.world.intake.agent("plain-1").max_concurrent == 3
    refused = await plain.ask("register", role="planner")
    assert refused["code"] == "UNAUTHORIZED"
    worker = await hub.connect("worker-1")
    assert (await worker.ask("register", role="reviewer"))["code"] == "UNAUTHORIZED"
    assert (await worker.ask("register", role="worker"))["agent"]["role"] == "worker"


@pytest.mark.requirement("FG-EVT-3", "forge-D3", "forge-D9")
async def test_what_belongs_to_no_task_is_kept_in_the_agents_own_log(hub: ForgeHub) -> None:
    noted: list[tuple[str, str]] = []

    class AgentLog:
        def add(self, at: int, stream: str, message: str, *, level: str, context: dict[str, Any]) -> None:
            noted.append((level, message))

    hub.handler.agent_log = lambda agent: AgentLog()
    worker = await hub.connect("worker-1")
    await worker.tell("log", level="warn", message="nothing to do", context={})
    await worker.say("plain text")
    await worker.tell("progress", taskId="task-123", progress=0.5)
    await worker.tell("log", level="info", message="about another's task", taskId="task-123")
    await worker.ask("query-agents")
    await worker.ask("query-agents")
    assert sorted(noted) == [
        ("info", "about another's task"),
        ("info", "plain text"),
        ("warn", "event:progress was refused: no such task, or not yours (task_id) [not_found]"),
        ("warn", "nothing to do"),
    ]
