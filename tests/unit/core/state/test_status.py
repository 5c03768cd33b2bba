"""How agents are: by their reports, by their silence, by their errors."""

from __future__ import annotations

import pytest

from dragoman.core.commands import Beat, OpenLink, RemoveAgent, ReportError, ReportStatus, Severity
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, SessionId, rfc3339
from dragoman.core.model.agents import BreakerState
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Fault, Kind

I1, I2 = AgentId("i1"), AgentId("i2")


@pytest.fixture
async def pair(world):
    for id in (I1, I2):
        await world.join(id, kind="worker")
    world.i1, world.i2 = await world.connect(I1), await world.connect(I2)
    return world


async def report(world, id=I1, state="IDLE", next_available=None, **status):
    command = ReportStatus(principal=id, status={"state": state, **status}, next_available=next_available)
    return await world.ask(command)


async def state_of(world, id=I1):
    return (await world.view.one(Registry.AGENT, id)).value["state"]


# -- reports -------------------------------------------------------------------------------------------------------


async def test_a_report_is_the_agents_entry_with_the_last_ones_before_it(pair):
    assert (await pair.view.one(Registry.AGENT, I1)).version == 0
    for n in range(40):
        pair.time = Instant(pair.time + SECOND)
        version = await report(pair, error_rate=n / 100)
    assert version == 40
    entity = await pair.view.one(Registry.AGENT, I1)
    assert (entity.version, entity.value["error_rate"], len(entity.past)) == (40, 0.39, 32)
    history = pair.view.status_history(I1)
    assert [entry["error_rate"] for entry in history] == [n / 100 for n in range(7, 40)]
    assert history[-1]["at"] == rfc3339(pair.time)


async def test_a_report_that_makes_no_sense_is_refused_with_its_field(pair):
    command = ReportStatus(principal=I1, status={"state": "IDLE", "error_rate": 7})
    fault = await pair.refused(command)
    assert (fault.kind, fault.field) == (Kind.INVALID, "changes.error_rate")


async def test_a_heartbeat_is_kept_nowhere(pair):
    await pair.ask(Beat(principal=I1))
    before = dict(pair.store._tables[type(pair.intake.agent(I1))]), pair.intake.state_cursor
    for _ in range(20):
        pair.time = Instant(pair.time + SECOND)
        await pair.ask(Beat(principal=I1))
    assert (dict(pair.store._tables[type(pair.intake.agent(I1))]), pair.intake.state_cursor) == before
    assert (await pair.view.one(Registry.AGENT, I1)).value["last_heartbeat"] == rfc3339(pair.time)


async def test_a_heartbeat_with_another_state_is_a_report(pair):
    await pair.ask(Beat(principal=I1, state="MAINTENANCE"))
    assert (await pair.submit("worker")).owner == I2
    assert await state_of(pair) == "MAINTENANCE"
    await pair.ask(Beat(principal=I1, state="IDLE"))
    assert await state_of(pair) == "IDLE"


# -- routing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["MAINTENANCE", "ERROR", "OFFLINE"])
async def test_an_agent_that_reported_to_be_away_is_passed_over_until_it_is_back(pair, state):
    await pair.i2.close(lost=False)
    await report(pair, state=state)
    task = await pair.submit("worker")
    assert task.status is Status.QUEUED
    await report(pair)
    assert (await pair.task(task.id)).owner == I1


async def test_an_agent_that_named_a_time_gets_work_from_then_on(pair):
    await pair.i2.close(lost=False)
    await report(pair, next_available=Instant(pair.time + 12 * SECOND))
    task = await pair.submit("worker")
    assert task.status is Status.QUEUED
    await pair.advance(11)
    assert (await pair.task(task.id)).status is Status.QUEUED
    await pair.advance(2)
    assert (await pair.task(task.id)).owner == I1


async def test_of_equally_loaded_ones_who_fails_least_then_who_is_most_capable_is_asked(pair):
    await report(pair, I1, error_rate=0.5, capability_level=90)
    await report(pair, I2, error_rate=0.1, capability_level=10)
    assert (await pair.submit("worker")).owner == I2
    assert (await pair.submit("worker")).owner == I1  # load comes first
    await report(pair, I1, error_rate=0.1, capability_level=90)
    assert (await pair.submit("worker")).owner == I1


# -- silence -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("agentmsg-D12")
async def test_an_agent_silent_for_three_heartbeats_is_offline_and_its_work_goes_to_another(pair):
    task = await pair.submit("worker")
    owner, other = (I1, I2) if task.owner == I1 else (I2, I1)
    await getattr(pair, owner).ack(*getattr(pair, owner).take())
    for _ in range(2):
        await pair.advance(10)
        await pair.ask(Beat(principal=other))
    assert (await pair.task(task.id)).owner == owner
    await pair.advance(9.9)
    assert await state_of(pair, owner) == "BUSY"
    await pair.ask(Beat(principal=other))
    await pair.advance(0.2)
    assert await state_of(pair, owner) == "OFFLINE"
    await pair.advance(2)
    assert (await pair.task(task.id)).owner == other
    assert pair.intake.agent(owner).silent_since is not None


@pytest.mark.requirement("agentmsg-D12")
async def test_any_message_brings_a_silent_agent_back(pair):
    await pair.i2.close(lost=False)
    await report(pair)
    await pair.advance(31)
    assert await state_of(pair) == "OFFLINE"
    task = await pair.submit("worker")
    assert task.status is Status.QUEUED
    await pair.ask(Beat(principal=I1))
    assert (await pair.task(task.id)).owner == I1
    assert await state_of(pair) in ("IDLE", "BUSY")
    assert [entry["state"] for entry in pair.view.status_history(I1)][-2:] == ["OFFLINE", "IDLE"]


async def test_an_agent_that_sends_anything_is_not_silent(pair):
    for _ in range(10):
        await pair.advance(9)
        await report(pair)
    assert await state_of(pair) == "IDLE"


async def test_a_waiting_poll_and_a_connection_that_vouches_are_lasting_signs_of_life(world):
    await world.join(I1)
    await world.join(I2)
    await world.ask(OpenLink(principal=I1, session=SessionId("poll"), ordered=False, credit=1))
    await world.connect(I2, vouches=True)
    await world.advance(100)
    assert [await state_of(world, id) for id in (I1, I2)] == ["IDLE", "IDLE"]


async def test_after_a_restart_the_time_counts_from_there(pair):
    await report(pair)
    await pair.advance(25)
    await pair.restart()
    await pair.advance(25)
    assert pair.intake.agent(I1).silent_since is None
    await pair.advance(6)
    assert await state_of(pair) == "OFFLINE"
    await pair.restart()
    assert pair.intake._directory.silent == {I1, I2}


async def test_an_agent_that_never_came_is_not_offline_but_not_there(world):
    await world.join(I1)
    await world.advance(3600)
    assert world.intake.agent(I1).silent_since is None
    assert world.intake.state_cursor == 0


async def test_agents_of_other_protocols_owe_no_heartbeat(world):
    await world.add("old", "infra")
    await world.connect("old")
    await world.advance(100)
    assert (await world.submit("infra")).owner == "old"


async def test_a_removed_agent_takes_its_entries_along(pair):
    await report(pair)
    await pair.allot("i1:tokens", limit=5)
    await pair.ask(RemoveAgent(principal=ADMIN, agent=I1))
    assert [entity.name for entity in pair.intake.entities()] == []


# -- errors --------------------------------------------------------------------------------------------------------


def error(severity, kind=Kind.INTERNAL, task=None, id="e1", who=I1):
    return ReportError(
        principal=who,
        fault=Fault(kind=kind, message="it broke"),
        severity=Severity(severity),
        report={"error_id": id, "error_type": "INTERNAL_ERROR", "suggested_actions": ["look"]},
        task_id=task,
    )


async def test_an_error_report_is_kept_with_the_task_and_the_agent(pair):
    task = await pair.submit("worker", pinned=I1)
    await pair.ask(error("medium", task=task.id))
    assert await pair.history(task.id) == ["submitted", "assigned", "error_reported"]
    value = (await pair.view.one(Registry.AGENT, I1)).value
    assert [(e["error_id"], e["severity"], e["task_id"]) for e in value["errors"]] == [("e1", "medium", task.id)]
    assert value["last_error"] == rfc3339(pair.time)
    assert pair.intake.agent(I1).breaker.failures == 0
    await report(pair)  # a status does not wipe it out
    assert len((await pair.view.one(Registry.AGENT, I1)).value["errors"]) == 1


async def test_the_same_report_again_counts_once_and_only_the_last_are_kept(pair):
    for _ in range(2):
        await pair.ask(error("high"))
    assert pair.intake.agent(I1).breaker.failures == 1
    for n in range(30):
        await pair.ask(error("low", id=f"n{n}"))
    errors = (await pair.view.one(Registry.AGENT, I1)).value["errors"]
    assert [e["error_id"] for e in errors] == [f"n{n}" for n in range(10, 30)]


async def test_high_ones_open_the_breaker(pair):
    for n in range(3):
        await pair.ask(error("high", id=str(n)))
    assert pair.intake.agent(I1).breaker.state is BreakerState.OPEN
    assert (await pair.submit("worker")).owner == I2


@pytest.mark.parametrize(("kind", "status"), [(Kind.TIMEOUT, Status.QUEUED), (Kind.INVALID, Status.FAILED)])
async def test_a_critical_one_about_its_task_ends_the_attempt(pair, kind, status):
    task = await pair.submit("worker", pinned=I1)
    await pair.ask(error("critical", kind, task.id))
    now = await pair.task(task.id)
    assert (now.status, now.outcome.fault.kind) == (status, kind)
    assert pair.intake.agent(I1).breaker.failures == 1


async def test_a_report_about_another_agents_task_counts_only_for_its_sender(pair):
    task = await pair.submit("worker", pinned=I2)
    assert await pair.ask(error("critical", task=task.id)) is None
    assert (await pair.task(task.id)).status is Status.ASSIGNED
    assert await pair.history(task.id) == ["submitted", "assigned"]


async def test_work_that_an_agent_does_not_know_of_any_more_is_given_out_again(pair):
    zed = AgentId("zed")
    await pair.add(zed, protocol="agentmsg")
    peer = await pair.connect(zed, acknowledges=True)
    task = await pair.submit(None, pinned=zed)
    await peer.ack(*peer.take())
    for _ in range(4):
        await pair.advance(10)
        await pair.ask(ReportStatus(principal=zed, status={"state": "BUSY"}, current_tasks=(task.id,)))
    assert "attempt_failed" not in await pair.history(task.id)
    await pair.ask(ReportStatus(principal=zed, status={"state": "IDLE"}))
    assert "attempt_failed" in await pair.history(task.id)
