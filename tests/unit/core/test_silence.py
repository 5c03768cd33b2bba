"""No task outlives its own promise of silence: which clock runs for a task, what people read of it, and how a person
takes a task from an agent that is stuck."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import Answer, AskPerson, Beat, Finish, Retry
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import QuestionStatus, Task
from dragoman.core.queries import AgentFacts, why
from dragoman.messages.faults import Kind
from dragoman.messages.tasks import Ask


@pytest.fixture
async def world() -> World:
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    return world


async def clock(world: World, task: Task) -> tuple[Any, Any]:
    """Which clock people are told of, and how many seconds it has left."""
    now = await world.task(task.id)
    told = why(now, now=world.time, watched=world.intake.watched(now))
    [reason] = [reason for reason in told.reasons if reason.code == "clock"]
    assert f"{reason.facts['seconds_left']:.1f} s" in reason.text
    return reason.facts["clock"], reason.facts["seconds_left"]


async def test_why_names_the_idle_clock_and_it_ends_the_attempt_then(world):
    await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id)
    await world.advance(12)
    assert await clock(world, task) == ("idle", 18.0)
    await world.advance(17.9)
    assert (await world.task(task.id)).status.value == "running"
    await world.advance(0.1)
    assert (await world.task(task.id)).status.value == "queued"


async def test_why_names_the_connection_that_vouches_and_only_the_deadline(world):
    await world.connect("i1", vouches=True)
    task = await world.submit()
    await world.progress("i1", task.id)
    await world.advance(478)
    assert await clock(world, task) == ("vouched", 3600.0 - 478)
    await world.advance(3600 - 478)
    assert (await world.task(task.id)).status.value == "failed"


async def test_why_names_the_grace_after_a_broken_connection_and_it_ends_the_attempt_then(world):
    peer = await world.connect("i1", vouches=True)
    task = await world.submit()
    await world.progress("i1", task.id)
    await peer.close()
    await world.advance(2)
    assert await clock(world, task) == ("link_lost", 3.0)
    await world.advance(3)
    assert (await world.task(task.id)).status.value == "queued"


async def test_why_names_the_time_to_come_back_after_the_hub_was_down(world):
    await world.connect("i1", vouches=True)
    task = await world.submit()
    await world.progress("i1", task.id)
    world.time = Instant(world.time + 600 * SECOND)
    await world.restart()
    await world.advance(10)
    assert await clock(world, task) == ("hub_stopped", 20.0)
    await world.advance(20)
    assert (await world.task(task.id)).status.value == "queued"


async def test_heartbeats_of_an_agentmsg_agent_are_signs_of_life(world):
    await world.add("ann", "infra", protocol="agentmsg")
    ann = await world.connect("ann")
    task = await world.submit(pinned=AgentId("ann"))
    await ann.ack(*ann.take())
    for _ in range(10):
        await world.advance(9)
        await world.ask(Beat(principal=AgentId("ann")))
    await world.advance(4)
    assert await clock(world, task) == ("idle", 26.0)


async def test_a_task_that_is_stuck_with_its_agent_can_be_retried(world):
    peer = await world.connect("i1", vouches=True)
    task = await world.submit()
    await world.progress("i1", task.id)
    peer.take()
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    stop, order = peer.take()
    assert (stop.delivery.kind, order.delivery.kind) == (MessageKind.CANCEL, MessageKind.WORK)
    assert order.task.request_id != task.request_id
    again = await world.task(task.id)
    assert (again.status.value, again.attempt.count, again.attempt.round) == ("assigned", 1, 1)
    late = Finish(principal=AgentId("i1"), task_id=task.id, digest="old", request_id=task.request_id)
    assert (await world.refused(late)).kind is Kind.CONFLICT
    await world.finish("i1", task.id, request_id=order.task.request_id)
    assert (await world.task(task.id)).status.value == "completed"


async def test_a_retried_task_has_the_seat_that_it_had(world):
    await world.add("one", "solo", concurrent=1)
    peer = await world.connect("one", vouches=True)
    task, behind = await world.submit("solo"), await world.submit("solo")
    await world.progress("one", task.id)
    peer.take()
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    await world.settle()
    assert [(await world.task(one.id)).status.value for one in (task, behind)] == ["assigned", "queued"]
    assert peer.work == [task.id]


async def test_what_the_agent_asked_is_withdrawn_when_its_task_is_retried(world):
    peer = await world.connect("i1")
    task = await world.submit()
    asked = AskPerson(principal=AgentId("i1"), request_id="q", ask=Ask(question="Go on?"), task_id=task.id)
    question = await world.ask(asked)
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    assert [one.status for one in await world.store.questions()] == [QuestionStatus.WITHDRAWN]
    assert (await world.refused(Answer(principal=ADMIN, question=question.id, answer="x"))).kind is Kind.CONFLICT
    assert (await world.task(task.id)).status.value == "assigned"
    assert peer.work == [task.id, task.id]


async def test_a_retry_of_what_no_agent_has_says_what_to_do_instead(world):
    task = await world.submit()
    refused = await world.refused(Retry(principal=ADMIN, task_id=task.id))
    assert (refused.kind, refused.message) == (
        Kind.CONFLICT,
        "the task is queued: the next agent that can do it begins it",
    )
    await world.connect("i1")
    await world.finish("i1", task.id)
    refused = await world.refused(Retry(principal=ADMIN, task_id=task.id))
    assert refused.message == "the task is completed, and its result cannot change; submit a new one"


async def test_the_caller_of_a_task_that_is_retried_hears_only_how_it_ended(world):
    boss = await world.connect("boss")
    await world.connect("i1")
    task = await world.submit()
    await world.ask(Retry(principal=ADMIN, task_id=task.id))
    assert [outgoing.delivery.kind for outgoing in boss.take()] == []
    await world.finish("i1", task.id)
    assert [outgoing.delivery.kind for outgoing in boss.take()] == [MessageKind.RESULT]


async def test_why_names_the_clock_of_a_task_for_which_nobody_is_connected(world):
    task = await world.submit()
    await world.advance(1.5)
    now = await world.task(task.id)
    facts = AgentFacts(agent=world.intake.agent(AgentId("i1")), reachable=False, load=0)
    told = why(now, now=world.time, agents=[facts])
    [reason] = [reason for reason in told.reasons if reason.code == "clock"]
    assert (reason.facts["clock"], reason.facts["seconds_left"]) == ("unreachable", 1.5)
    there = msgspec.structs.replace(facts, reachable=True, load=8)
    assert "clock" not in [reason.code for reason in why(now, now=world.time, agents=[there]).reasons]


@pytest.mark.parametrize(
    ("timeout", "firm", "told"),
    [(None, False, []), (60, False, [("question", 60.0)]), (None, True, [("deadline", 90.0)])],
)
async def test_why_names_the_clock_of_a_task_that_waits(world, timeout, firm, told):
    await world.connect("i1")
    ends = {"firm": True, "deadline": Instant(world.time + 90 * SECOND)} if firm else {}
    task = await world.submit(**ends)
    ask = Ask(question="Go on?", timeout_seconds=timeout)
    question = await world.ask(AskPerson(principal=AgentId("i1"), request_id="q", ask=ask, task_id=task.id))
    reasons = why(await world.task(task.id), now=world.time, question=question).reasons
    clocks = [reason.facts for reason in reasons if reason.code == "clock"]
    assert [(clock["clock"], clock["seconds_left"]) for clock in clocks] == told
