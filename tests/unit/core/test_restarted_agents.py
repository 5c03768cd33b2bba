"""An agent whose process is another one than before, with nothing in its memory: how the hub learns of it, and what
becomes of the work that the process before had."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.world import Peer, World

from dragoman.core.commands import Answer, AskPerson, OpenLink
from dragoman.core.ids import ADMIN, AgentId, SessionId
from dragoman.core.model.agents import BreakerState
from dragoman.core.model.tasks import Task
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Ask


@pytest.fixture
async def world() -> World:
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    return world


async def ask(world: World, task: Task, request: str = "q-1", question: str = "Go on?") -> Any:
    said = AskPerson(principal=AgentId("i1"), request_id=request, ask=Ask(question=question), task_id=task.id)
    return await world.ask(said)


async def answer(world: World, question: Any) -> None:
    await world.ask(Answer(principal=ADMIN, question=question.id, answer="yes"))


async def state(world: World, task: Task) -> tuple[str, int]:
    now = await world.task(task.id)
    return now.status.value, now.attempt.count


def answers(peer: Any) -> list[Any]:
    return [outgoing.question.answer for outgoing in peer.take() if outgoing.delivery.kind == "answer"]


@pytest.mark.parametrize("vouches", [True, False])
async def test_another_process_of_an_agent_is_given_its_work_again_and_finds_the_answer(world, vouches):
    first = await world.connect("i1", instance="one", vouches=vouches)
    task = await world.submit()
    question = await ask(world, task)
    await first.close()
    await world.advance(300)  # no clock runs for a task that waits for a person
    await answer(world, question)
    second = await world.connect("i1", instance="two", vouches=vouches)
    assert second.work == [task.id]
    assert answers(second) == []  # nobody asked it yet
    again = await ask(world, task, "q-2")
    assert (again.id, again.answer) == (question.id, "yes")
    assert answers(second) == ["yes"]
    assert await state(world, task) == ("assigned", 1)
    assert world.intake.agent(AgentId("i1")).breaker.failures == 0


async def test_the_same_process_keeps_its_work_over_a_new_connection(world):
    first = await world.connect("i1", instance="one")
    task = await world.submit()
    question = await ask(world, task)
    await first.close()
    second = await world.connect("i1", instance="one")
    assert second.work == []
    await answer(world, question)
    assert answers(second) == ["yes"]


@pytest.mark.parametrize("vouches", [True, False])
async def test_the_hub_does_not_wait_for_ever_for_an_agent_that_does_not_name_its_process(world, vouches):
    """A link vouches for what was given or spoken of over it, not for what an earlier one had."""
    first = await world.connect("i1", vouches=vouches)
    task = await world.submit()
    question = await ask(world, task)
    await first.close()
    second = await world.connect("i1", vouches=vouches)
    await answer(world, question)
    assert answers(second) == ["yes"]
    await world.advance(29)
    assert await state(world, task) == ("running", 1)
    await world.advance(2)
    assert second.work == [task.id]
    assert await state(world, task) == ("assigned", 1)  # the attempt was not to blame


async def test_an_answer_while_the_agent_is_away_gives_it_the_grace_time_to_come_back(world):
    first = await world.connect("i1", vouches=True)
    task = await world.submit()
    question = await ask(world, task)
    await first.close()
    await answer(world, question)
    assert await state(world, task) == ("running", 1)
    await world.advance(6)
    assert await state(world, task) == ("queued", 0)
    second = await world.connect("i1", vouches=True)
    assert second.work == [task.id]
    assert await state(world, task) == ("assigned", 1)


async def test_work_that_an_agent_was_at_when_it_ended_costs_an_attempt(world):
    first = await world.connect("i1", instance="one")
    task = await world.submit()
    await world.progress("i1", task.id)
    await first.close()
    second = await world.connect("i1", instance="two")
    assert (await world.task(task.id)).status.value == "queued"
    await world.advance(1)
    assert second.work == [task.id]
    assert await state(world, task) == ("assigned", 2)


async def test_a_child_that_ends_while_it_waits_costs_no_attempt_and_one_that_ends_at_work_does(world):
    first = await world.connect("i1", fresh=True, vouches=True)
    waits, works = await world.submit(), await world.submit()
    await ask(world, waits)
    await world.progress("i1", works.id)
    await first.close(fault=Fault(kind=Kind.UNAVAILABLE, message="it ended", retryable=True))
    await world.advance(2)
    second = await world.connect("i1", fresh=True, vouches=True)
    assert sorted(second.work) == sorted([waits.id, works.id])
    assert (await state(world, waits))[1] == 1
    assert (await state(world, works))[1] == 2


async def test_another_process_that_polls_is_given_the_work_and_the_poll_of_the_first_nothing(world):
    poll = await parked(world, "one")
    task = await world.submit()
    [order] = poll.take()
    await world.ask_ack("i1", [order])
    await ask(world, task)
    old = await parked(world, "one")
    new = await parked(world, "two")
    await world.settle()
    assert (old.work, new.work) == ([], [task.id])
    assert old.hung_up is not None
    assert await state(world, task) == ("assigned", 1)


async def test_two_processes_that_poll_under_one_id_take_no_work_from_each_other(world):
    poll = await parked(world, "one")
    task = await world.submit()
    [order] = poll.take()
    await world.ask_ack("i1", [order])
    await world.progress("i1", task.id)
    for _ in range(6):
        for instance in ("two", "one"):
            assert (await parked(world, instance)).work == []
    assert await state(world, task) == ("running", 1)
    await ask(world, task)
    for _ in range(6):
        for instance in ("two", "one"):
            assert (await parked(world, instance)).work == []
    assert await state(world, task) == ("waiting", 1)
    third = await parked(world, "three")
    await world.settle()
    assert third.work == [task.id]


async def parked(world: World, instance: str) -> Any:
    peer = Peer(world, AgentId("i1"), SessionId(world.mint()))
    world.intake.attach(peer.session, peer)
    opening = OpenLink(principal=peer.agent, session=peer.session, ordered=False, credit=1, instance=instance)
    await world.ask(opening)
    return peer


async def test_an_agent_that_is_started_again_and_again_while_it_waits_is_not_taken_for_a_broken_one(world):
    peer = await world.connect("i1", instance="0")
    task = await world.submit()
    for n in range(1, 8):
        await ask(world, task, f"q-{n}")
        await peer.close()
        peer = await world.connect("i1", instance=str(n))
        assert peer.work == [task.id]
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED
    assert await state(world, task) == ("assigned", 1)
    assert len([one for one in await world.store.questions() if one.status.value == "open"]) == 1
