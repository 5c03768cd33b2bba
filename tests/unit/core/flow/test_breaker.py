"""Agents that fail again and again are left alone for a while."""

from __future__ import annotations

import pytest

from dragoman.core.ids import SECOND, AgentId
from dragoman.core.model.agents import BreakerState
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Kind


@pytest.mark.requirement("CH-BRK-1")
@pytest.mark.requirement("CH-BRK-3")
async def test_five_timeouts_open_the_breaker_and_an_answered_health_check_closes_it(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    tasks = [await world.submit() for _ in range(5)]
    await world.advance(30)
    agent = world.intake.agent(AgentId("i1"))
    assert agent.breaker.state is BreakerState.OPEN
    i1.take()
    await world.advance(59.9)
    assert i1.take() == []  # the retries stay away
    await world.advance(0.1)
    [probe] = i1.take()
    assert probe.task.type == "health_check"
    await world.finish("i1", probe.task.id)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED
    await world.settle()
    assert set(i1.work) == {task.id for task in tasks}


async def test_a_failed_health_check_opens_the_breaker_again(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    for _ in range(5):
        await world.submit()
    await world.advance(30 + 60)
    assert i1.inbox[-1].task.type == "health_check"
    await world.advance(30)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.OPEN


@pytest.mark.requirement("CH-BRK-2")
async def test_work_under_way_goes_on_while_the_breaker_is_open(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    kept = await world.submit(total_seconds=900, idle_seconds=900)
    for _ in range(5):
        await world.submit()
    await world.advance(30)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.OPEN
    await world.finish("i1", kept.id)
    assert (await world.task(kept.id)).status is Status.COMPLETED
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.OPEN  # only a health check closes it


@pytest.mark.requirement("chiffon-D7")
async def test_faults_of_the_work_or_of_the_caller_never_open_the_breaker(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    for kind in (Kind.RESOURCES, Kind.UNSUPPORTED_WORK, Kind.INVALID, Kind.WORK_FAILED) * 3:
        task = await world.submit()
        await world.fault("i1", task.id, kind)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED


@pytest.mark.requirement("chiffon-D7")
async def test_an_answer_in_between_resets_the_count_of_failures(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    for _ in range(3):
        for _ in range(4):
            task = await world.submit()
            await world.fault("i1", task.id, Kind.UNAVAILABLE)
        await world.finish("i1", (await world.submit()).id)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED


async def test_one_broken_connection_is_one_failure_however_much_work_was_on_it(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    for _ in range(7):
        await world.submit()
    await i1.close()
    await world.advance(6)
    assert world.intake.agent(AgentId("i1")).breaker.failures == 1


async def test_a_broken_connection_whose_agent_reports_in_time_is_no_failure(world):
    """Nor is one that a newer connection of the same agent replaced."""
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    for how in ("broken", "replaced") * 4:
        if how == "broken":
            await i1.close()
        i1 = await world.connect("i1")
        await world.progress("i1", task.id)
        await world.advance(6)
    assert (await world.task(task.id)).owner == "i1"
    assert world.intake.agent(AgentId("i1")).breaker.failures == 0


async def test_an_agent_that_dies_over_its_work_and_restarts_at_once_has_failed(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    for _ in range(3):
        await world.submit()
    await i1.close()
    await world.connect("i1", fresh=True)
    await world.advance(6)
    assert world.intake.agent(AgentId("i1")).breaker.failures == 1


@pytest.mark.parametrize("away", [1, 100])
async def test_a_health_check_that_died_with_the_hub_is_sent_again_and_is_no_failure(world, away):
    """Else the agent would be half open for ever: the one it was asked is over, and no other follows."""
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    for _ in range(5):
        await world.submit()
    await world.advance(30 + 60)
    await i1.ack(*i1.take())
    failures = world.intake.agent(AgentId("i1")).breaker.failures
    world.time += away * SECOND
    await world.restart()
    i1 = await world.connect("i1")
    await world.advance(29)
    breaker = world.intake.agent(AgentId("i1")).breaker
    assert (breaker.state, breaker.failures) == (BreakerState.HALF_OPEN, failures)
    [again] = i1.take()
    await world.finish("i1", again.task.id)
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED
