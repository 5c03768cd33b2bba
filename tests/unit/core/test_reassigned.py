"""A person gives an unfinished task to another agent, which is not asked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import AskPerson, Finish, Pause, Reassign, RegisterAgent
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import QuestionStatus
from dragoman.messages.faults import Kind
from dragoman.messages.tasks import Ask
from dragoman.stores.memory import MemoryStore


@pytest.fixture
async def world():
    world = await World(MemoryStore()).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    await world.add("other", "research")
    yield world
    await world.intake.stop()


def given(task: Any, agent: str = "other", by: str = ADMIN) -> Reassign:
    return Reassign(principal=AgentId(by), task_id=task.id, agent=AgentId(agent))


async def test_a_task_at_work_goes_to_the_other_and_the_first_is_told_to_stop(world: World) -> None:
    first, other = await world.connect("i1"), await world.connect("other")
    task = await world.submit()
    await world.progress("i1", task.id)
    first.take()
    await world.ask(given(task))
    assert [one.delivery.kind for one in first.take()] == [MessageKind.CANCEL]
    (order,) = other.take()
    assert (order.delivery.kind, order.task.owner) == (MessageKind.WORK, "other")
    request = msgspec.json.decode(order.event.body)
    assert (request["handover"]["from"], request["handover"]["to"]) == ("i1", "other")
    now = await world.task(task.id)
    assert (now.status.value, now.attempt.count, now.attempt.round) == ("assigned", 1, 1)
    late = Finish(principal=AgentId("i1"), task_id=task.id, digest="old", request_id=task.request_id)
    assert (await world.refused(late)).kind in (Kind.CONFLICT, Kind.NOT_FOUND)
    await world.finish("other", task.id, request_id=order.task.request_id)
    assert (await world.task(task.id)).status.value == "completed"
    assert await world.history(task.id) == [
        "submitted", "assigned", "progress", "attempt_failed", "handed_over", "assigned", "completed"
    ]  # fmt: skip


async def test_a_queued_task_goes_to_the_other_or_waits_for_it(world: World) -> None:
    task = await world.submit()
    await world.ask(given(task))
    assert (await world.task(task.id)).status.value == "queued"
    await world.connect("i1")
    assert (await world.task(task.id)).owner is None
    await world.connect("other")
    assert (await world.task(task.id)).owner == "other"


async def test_what_the_first_asked_is_withdrawn(world: World) -> None:
    await world.connect("i1")
    await world.connect("other")
    task = await world.submit()
    await world.ask(AskPerson(principal=AgentId("i1"), request_id="q", ask=Ask(question="Go on?"), task_id=task.id))
    await world.ask(given(task))
    assert [one.status for one in await world.store.questions()] == [QuestionStatus.WITHDRAWN]
    assert (await world.task(task.id)).owner == "other"


async def test_what_cannot_be_given_away_is_refused_with_what_to_do(world: World) -> None:
    await world.connect("i1")
    task = await world.submit()
    assert (await world.refused(given(task, "nobody"))).kind is Kind.NOT_FOUND
    assert (await world.refused(given(task, "i1"))).message == "i1 has the task already; name another agent"
    assert (await world.refused(given(task, by="boss"))).kind is Kind.FORBIDDEN
    await world.ask(RegisterAgent(principal=AgentId("other"), work_types=("read",)))
    assert (await world.refused(given(task))).kind is Kind.UNSUPPORTED_WORK
    await world.ask(Pause(principal=ADMIN, task_id=task.id))
    await world.ask(RegisterAgent(principal=AgentId("other")))
    assert (await world.refused(given(task))).message == "a person paused the task; resume it first"
    await world.finish("i1", (done := await world.submit()).id)
    assert (await world.refused(given(done))).message == "the task is already completed"
