"""Attempts over a stop of the hub, in order or not: nobody is blamed for it, and nothing is done twice or never."""

from __future__ import annotations

import pytest

from dragoman.core.ids import SECOND, AgentId
from dragoman.core.model.tasks import Status
from dragoman.core.ports import TaskFilter
from dragoman.messages.faults import Fault, Kind


async def test_after_a_restart_agents_have_a_fresh_idle_clock_and_pending_work_goes_on(world):
    await world.add("i1", "infra", concurrent=2)
    await world.connect("i1")
    running = await world.submit()
    tasks = [await world.submit() for _ in range(5)]
    world.time += 3600 * SECOND // 2
    await world.restart()
    await world.settle()
    assert (await world.task(running.id)).status is Status.ASSIGNED
    await world.finish("i1", running.id)
    i1 = await world.connect("i1")
    await world.advance(31)
    for _ in range(20):
        for id in dict.fromkeys(i1.work):
            if not (await world.task(id)).final:
                await world.finish("i1", id)
        await world.advance(5)
    rows, _ = await world.store.tasks(TaskFilter(), after=None, limit=100)
    assert {t.id: t.status for t in rows} == {t.id: Status.COMPLETED for t in (running, *tasks)}


async def test_an_assignment_that_died_with_the_hub_leaves_again_over_the_next_connection(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(idle_seconds=600, total_seconds=600)
    await world.restart()
    i1 = await world.connect("i1")
    assert i1.work == [task.id]  # at once, not when the idle clock runs out ten minutes later
    assert (await world.task(task.id)).attempt.count == 1
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


@pytest.mark.parametrize("back", ["never", "heard", "polls"])
async def test_the_hub_waits_no_longer_than_usual_for_an_agent_that_does_not_return_after_a_restart(world, back):
    await world.add("i1", "infra")
    await world.add("i2", "infra", concurrent=1)
    if back == "polls":
        task = await world.submit(idle_seconds=600, total_seconds=900, pinned=None)
        await world.poll("i1")
    else:
        i1 = await world.connect("i1")
        task = await world.submit(idle_seconds=600, total_seconds=900)
        await i1.ack(*i1.take())
    assert (await world.task(task.id)).owner == "i1"
    world.time += 100 * SECOND
    await world.restart()
    i2 = await world.connect("i2")
    await world.advance(20)
    if back == "heard":
        await world.progress("i1", task.id)
    await world.advance(9)
    assert (await world.task(task.id)).owner == "i1"
    await world.advance(5)
    assert (i2.work == [task.id]) == (back == "never")
    await world.advance(60)
    assert ((await world.task(task.id)).owner == "i1") == (back != "never")
    if back == "never":  # whoever was given up is fenced off
        assert (await world.refused_finish("i1", task.id)).kind is Kind.NOT_FOUND


async def test_an_agent_that_was_connected_when_the_hub_died_is_missed_also_if_it_polled_beside(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(idle_seconds=3600)
    await world.progress("i1", task.id)
    await world.advance(20)
    await world.poll("i1")
    await world.restart()
    await world.advance(31)
    assert (await world.task(task.id)).status is Status.QUEUED


async def test_the_time_in_which_the_hub_was_stopped_is_nobodys_silence(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await i1.ack(*i1.take())
    world.intake.part()
    await i1.close()
    world.time += 100 * SECOND
    await world.restart()
    await world.advance(25)
    assert ((await world.task(task.id)).owner, world.intake.agent(AgentId("i1")).breaker.failures) == ("i1", 0)
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED


async def test_work_that_the_hub_cuts_short_by_stopping_costs_neither_the_task_nor_the_agent_anything(world):
    """However often it is stopped: the attempt is the same again."""
    await world.add("i1", "infra")
    task = await world.submit()
    gone = Fault(kind=Kind.UNAVAILABLE, message="its stream ended", retryable=True)
    for _ in range(6):
        i1 = await world.connect("i1", fresh=True, vouches=True)
        await world.advance(1)
        assert i1.work == [task.id]
        assert (await world.task(task.id)).attempt.count == 1
        await i1.ack(*i1.take())
        world.intake.part()
        await i1.close(fault=gone)
        await world.restart()
    assert world.intake.agent(AgentId("i1")).breaker.failures == 0
    assert "the hub was stopped" in (await world.task(task.id)).outcome.fault.message


async def test_a_hub_that_is_about_to_stop_gives_out_nothing_and_hears_everything(world):
    await world.add("i1", "infra", concurrent=1)
    i1 = await world.connect("i1")
    first, second = await world.submit(), await world.submit()
    world.intake.part()
    await world.finish("i1", first.id)
    assert i1.work == [first.id]
    await i1.close()
    await world.restart()
    assert [(await world.task(id)).status for id in (first.id, second.id)] == [Status.COMPLETED, Status.QUEUED]
    assert (await world.connect("i1")).work == [second.id]


@pytest.mark.parametrize("says", ["the result", "nothing"])
async def test_a_deadline_that_passed_while_the_hub_was_down_takes_no_result_and_blames_nobody(world, says):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit(total_seconds=60)
    await i1.ack(*i1.take())
    world.time += 600 * SECOND
    await world.restart()
    await world.connect("i1")
    await world.advance(20)
    assert (await world.task(task.id)).owner == "i1"
    if says == "the result":
        await world.finish("i1", task.id)
    await world.advance(20)
    assert (await world.task(task.id)).status is (Status.COMPLETED if says == "the result" else Status.FAILED)
    assert world.intake.agent(AgentId("i1")).breaker.failures == 0


@pytest.mark.parametrize("says", ["nothing", "a word"])
async def test_an_agent_that_returns_after_a_restart_and_reports_nothing_is_assigned_its_task_again(world, says):
    """It may be a new process. If it is the old one, it knows the request, and what it says counts."""
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit(idle_seconds=600, total_seconds=900)
    await i1.ack(*i1.take())
    world.time += 100 * SECOND
    await world.restart()
    i1 = await world.connect("i1")
    await world.advance(20)
    if says == "a word":
        await world.progress("i1", task.id)
    assert i1.work == []
    await world.advance(11 + 15)  # the retry waits a while, too
    assert i1.work == ([] if says == "a word" else [task.id])
    again = await world.task(task.id)
    assert (again.owner, again.attempt.count) == ("i1", 1 if says == "a word" else 2)
    await world.finish("i1", task.id)
    assert (await world.task(task.id)).status is Status.COMPLETED
