"""Direct messages, status and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.sdk.agentmsg.harness import FakeAgentmsg, Serving, plain
from tests.unit.sdk.harness import PATIENCE, settle

import dragoman
from dragoman import Agent, DirectMessage, Misconfigured, RequestRefused, Task
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.errors import new_report
from dragoman.protocols.agentmsg.records import ErrorType


async def test_direct_messages_are_handled_by_their_type_and_once(agent: Agent, hub: FakeAgentmsg) -> None:
    heard: list[DirectMessage] = []
    others: list[DirectMessage] = []
    agent.on_message("ERROR_REPORT")(heard.append)

    @agent.on_message()
    async def rest(letter: DirectMessage) -> None:
        others.append(letter)

    async with Serving(agent, hub):
        trouble = hub.say(_trouble(hub), sender="peer")
        hub.say_again(trouble)
        hub.say(agentmsg.Heartbeat(agent_id="peer"), sender="peer")
        async with asyncio.timeout(PATIENCE):
            while not (heard and others and len(hub.acked) >= 1):
                await asyncio.sleep(0)
    assert [(letter.sender, letter.type, letter.payload["message"]) for letter in heard] == [
        ("peer", "ERROR_REPORT", "broken")
    ]
    assert [(letter.type, letter.payload) for letter in others] == [("HEARTBEAT", {"agent_id": "peer"})]
    assert set(hub.acked) == {trouble.id}


def _trouble(hub: FakeAgentmsg) -> Any:
    return new_report(ErrorType.NETWORK_ERROR, "broken", error_id=hub.runtime.mint(), agent_id="peer")


async def test_an_agent_sends_others_a_direct_message(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("write")(lambda: None)
    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        await agent.tell("peer", {"note": "chapter 3 is ready"})
        note = await hub.next("STATUS_UPDATE")
        await agent.tell("peer", {"state": "MAINTENANCE"}, type="HEARTBEAT", priority="high", ttl=5)
        beat = await hub.next("HEARTBEAT")
        hub.accepts = False
        telling = asyncio.ensure_future(agent.tell("peer", {"note": "x"}, priority="critical"))
        hub.refuse(await hub.next("STATUS_UPDATE"), ErrorType.VALIDATION_ERROR, "peer speaks chiffon")
        with pytest.raises(RequestRefused, match="peer speaks chiffon"):
            await telling
        with pytest.raises(Misconfigured, match="HEARTBEAT"):
            await agent.tell("peer", {"state": "ASLEEP"}, type="HEARTBEAT")
        for retry in ({"max_attempts": 0}, {"attempts": 5}):
            with pytest.raises(Misconfigured, match="retry"):
                await agent.tell("peer", {"note": "x"}, retry=retry)
    assert (note.to, hub.trees[note.id]["payload"]["note"]) == ("peer", "chapter 3 is ready")
    assert (beat.to, beat.payload.state, beat.metadata.ttl_ms) == ("peer", "MAINTENANCE", 5000)


async def test_an_agent_sets_how_its_message_is_sent_again(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("write")(lambda: None)
    retry = {"max_attempts": 6, "base_delay_ms": 200, "jitter": False}
    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        await agent.tell("peer", {"note": "now"}, priority="high", retry=retry)
        note = await hub.next("STATUS_UPDATE")
    assert note.metadata.max_retries == 5
    assert hub.trees[note.id]["metadata"]["retry_config"] == retry


async def test_what_cannot_be_encoded_is_the_callers_mistake_and_is_not_kept(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("work")(lambda: None)
    async with Serving(agent, hub):
        for note, error in ((object(), TypeError), (2**64, ValueError), ("\ud800", ValueError)):
            with pytest.raises(error):
                await agent.tell("peer", {"note": note}, priority="high")
        for said in ({"state": "ASLEEP"}, {"cost_usd": "much"}, {"cpu_usage": object()}):
            with pytest.raises((TypeError, ValueError)):
                await agent.status(**said)
        hub.cut()  # what is kept is said again over the next connection
        await settle()
        await hub.runtime.advance(10)
        await agent.status()
        assert (await hub.next("STATUS_UPDATE")).payload.resource_usage.cost_usd == 0


async def test_the_status_is_filled_in_and_reported_fields_stay(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("work")
    async def work(task: Task, fail: bool) -> None:
        await hub.runtime.sleep(2)
        if fail:
            raise ValueError("no")
        task.used(tokens=7)

    async with Serving(agent, hub):
        for fail in (False, True):
            hub.assign("work", {"fail": fail})
            await settle()
            await hub.runtime.advance(2)
        await settle()
        await agent.status("MAINTENANCE", tokens_remaining=500, next_available=60)
        said = (await hub.next("STATUS_UPDATE")).payload
        await agent.status()
        again = (await hub.next("STATUS_UPDATE")).payload
    assert (said.status.state, said.status.error_rate, said.status.avg_response_time_ms) == ("MAINTENANCE", 0.5, 2000)
    assert (said.resource_usage.tokens_used, said.resource_usage.tokens_remaining) == (7, 500)
    assert (said.health_metrics.error_count, said.health_metrics.uptime_seconds) == (1, 4)
    assert said.current_tasks == ()
    assert (again.status.state, again.resource_usage.tokens_remaining) == ("MAINTENANCE", 500)


async def test_an_error_is_reported_whole(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("work")(lambda: None)
    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        await agent.report_error(
            OSError("disk full"),
            error_type="RESOURCE_EXHAUSTED",
            severity="critical",
            details={"disk": "/var"},
            attempts=[{"strategy": "delete old logs"}],
            actions=["Add a disk."],
        )
        told = await hub.next("ERROR_REPORT")
    said = plain(told.payload)
    assert said.pop("error_id")
    assert said["recovery_attempts"][0].pop("timestamp")
    assert said == {
        "agent_id": "worker",
        "error_type": "RESOURCE_EXHAUSTED",
        "severity": "critical",
        "message": "OSError: disk full",
        "context": {"details": {"disk": "/var"}},
        "recovery_attempts": [
            {"attempt_number": 1, "strategy": "delete old logs", "outcome": "failure", "details": ""}
        ],
        "suggested_actions": ["Add a disk."],
    }


async def test_an_agent_that_does_not_run_cannot_send(agent: Agent) -> None:
    with pytest.raises(Misconfigured, match="not at work"):
        await agent.status("BUSY")
    with pytest.raises(Misconfigured, match="not at work"):
        _ = agent.state
    with pytest.raises(Misconfigured, match="no help called"):
        agent.on_help("COFFEE")(print)  # type: ignore[arg-type]


def test_the_former_name_of_a_direct_message_goes_on_working() -> None:
    with pytest.warns(DeprecationWarning, match="DirectMessage"):
        former = dragoman.Letter
    assert former is DirectMessage
