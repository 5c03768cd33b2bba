"""Work for agents of which none is connected (ADR 6): how soon its caller hears of it, and whom the hub waits for."""

from __future__ import annotations

import pytest

from dragoman.core.commands import Beat
from dragoman.core.ids import SECOND, AgentId, Instant, rfc3339
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Kind


@pytest.fixture
async def infra(world):
    """Three agents that could, added and never connected."""
    for id in ("i1", "i2", "i3"):
        await world.add(id, "infra")
    return world


async def failed_after(world, task) -> float:
    """Seconds until a task has failed."""
    began = world.time
    while (await world.task(task.id)).status is Status.QUEUED:
        await world.advance(0.5)
        assert world.time - began < 300 * SECOND, await world.history(task.id)
    return (world.time - began) / SECOND


@pytest.mark.requirement("chiffon-D6", "chiffon-D7")
async def test_where_nobody_is_connected_the_attempts_follow_at_once_and_the_caller_hears_of_it(infra):
    world, boss = infra, await infra.connect("boss")
    await world.add("alone", "solo")
    task = await world.submit("solo")
    seen = world.intake.agent(AgentId("alone")).last_seen_at
    assert await failed_after(world, task) == 7.0
    ended = await world.task(task.id)
    assert (ended.status, ended.attempt.count) == (Status.FAILED, 4)
    assert (ended.outcome.fault.kind, ended.outcome.fault.facts) == (
        Kind.UNAVAILABLE,
        {"agent_id": "alone", "last_heartbeat": rfc3339(seen)},
    )
    assert [outgoing.delivery.kind for outgoing in boss.take()] == [MessageKind.FAILURE]
    assert [letter.task for letter in await world.store.dead_letters(limit=10)] == [task.id]


@pytest.mark.requirement("chiffon-D6")
@pytest.mark.parametrize(("hint", "seconds"), [(300, 7.0), (5, 5.0), (3, 3.0), (0.5, 0.5)])
async def test_the_hint_bounds_the_whole(infra, hint, seconds):
    task = await infra.submit(total_seconds=hint)
    assert await failed_after(infra, task) == seconds
    assert (await infra.task(task.id)).outcome.fault.kind is Kind.UNAVAILABLE


@pytest.mark.requirement("chiffon-D6")
async def test_the_hint_bounds_the_whole_also_where_an_agent_polled_a_moment_ago(infra):
    """It counts as connected for a minute, and nobody knows whether it comes again."""
    await infra.poll("i1", 1)
    hinted, other = await infra.submit(total_seconds=3), await infra.submit()
    assert await failed_after(infra, hinted) == 3.0
    assert (await infra.task(hinted.id)).outcome.fault.kind is Kind.UNAVAILABLE
    assert (await infra.task(other.id)).status is Status.QUEUED
    [outgoing] = await infra.poll("i1", 1)
    assert outgoing.task.id == other.id
    busy = await infra.submit(total_seconds=3)  # its agent works, and will poll when it is done
    await infra.advance(5)
    assert (await infra.task(busy.id)).status is Status.QUEUED


@pytest.mark.parametrize("after", [0.2, 2.0, 6.5])
async def test_an_agent_that_comes_in_between_is_given_it_at_once_with_all_its_attempts(infra, after):
    task = await infra.submit()
    await infra.advance(after)
    agent = await infra.connect("i1")
    assert agent.work == [task.id]
    assert (await infra.task(task.id)).attempt.count == 1


async def test_a_polling_agent_is_connected_for_a_minute_after_its_poll(infra):
    await infra.poll("i1")
    await infra.advance(20)
    task = await infra.submit()
    await infra.advance(39)
    assert (await infra.task(task.id)).status is Status.QUEUED
    assert [outgoing.delivery.task for outgoing in await infra.poll("i1")] == [task.id]


async def test_work_waits_for_an_agent_that_is_there_and_busy(infra):
    await infra.add("one", "solo", concurrent=1)
    await infra.connect("one")
    first, second = await infra.submit("solo"), await infra.submit("solo")
    for _ in range(6):
        await infra.advance(20)
        await infra.progress("one", first.id)
    await infra.finish("one", first.id)
    assert (await infra.task(second.id)).status is Status.ASSIGNED


async def test_work_that_an_agent_has_begun_waits_longer_for_it(infra):
    agent = await infra.connect("i1")
    task = await infra.submit()
    await infra.progress("i1", task.id)
    await agent.close()
    await infra.advance(60)  # a slow deployment
    agent = await infra.connect("i1")
    assert agent.work == [task.id]
    assert (await infra.task(task.id)).attempt.count == 2  # waiting for it cost none
    await infra.finish("i1", task.id)


async def test_the_hub_waits_for_an_agentmsg_agent_that_spoke_lately(infra):
    await infra.add("ann", "talkers", protocol="agentmsg")
    await infra.ask(Beat(principal=AgentId("ann")))
    task = await infra.submit("talkers")
    await infra.advance(25)
    assert [outgoing.delivery.task for outgoing in await infra.poll("ann")] == [task.id]


@pytest.mark.parametrize("why", ["a deadline of its own", "a time to live", "forge keeps a queue", "the hub starts it"])
async def test_the_hub_is_patient_where_caller_or_protocol_allow_it(infra, why):
    world, how = infra, {}
    if why == "a deadline of its own":
        how = {"firm": True, "total_seconds": 600}
    elif why == "a time to live":
        how = {"expires_at": Instant(world.time + 600 * SECOND)}
    elif why == "forge keeps a queue":
        how = {"protocol": "forge"}
    else:
        await world.add("kid", "kids", details={"child": {"command": ["x"]}})
    task = await world.submit("kids" if not how else "infra", **how)
    await world.advance(60)
    assert (await world.task(task.id)).status is Status.QUEUED
    agent = await world.connect("i1" if how else "kid")
    assert agent.work == [task.id]


async def test_after_its_own_start_the_hub_gives_agents_that_it_knew_the_time_to_come_back(infra):
    world = infra
    await (await world.connect("i1")).close()
    world.time = Instant(world.time + 60 * SECOND)
    await world.restart()
    task = await world.submit()
    await world.advance(29)
    assert (await world.task(task.id)).attempt.count == 0
    await world.add("late", "new")
    soon = await world.submit("new")
    assert await failed_after(world, soon) == 7.0  # it was added since, and never here
    assert (await world.connect("i1")).work == []
    assert (await world.task(task.id)).status is Status.FAILED
