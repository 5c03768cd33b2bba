"""What a person paused stands still until they say otherwise, whatever its agent asks of others meanwhile."""

from __future__ import annotations

import pytest
from tests.support.conversations import asks, hands, helps, takes, three_who_converse, working

from dragoman.core.commands import Answer, Ask, AskPerson, HelpVerdict, Pause, Resume
from dragoman.core.delivery.model import Cargo
from dragoman.core.errors import Kind
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.tasks.model import Status, Waiting
from dragoman.stores.memory import MemoryStore

HELD, RUNNING, HELP, PERSON = (
    (Status.WAITING, Waiting.HELD),
    (Status.RUNNING, None),
    (Status.WAITING, Waiting.HELP),
    (Status.WAITING, Waiting.PERSON),
)


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await three_who_converse(MemoryStore(immediate=request.param == "peeks"))
    yield world
    await world.intake.stop()


async def stands(world, id):
    task = await world.task(id)
    return task.status, task.waiting


async def steer(world, command, id):
    await world.ask(command(principal=ADMIN, task_id=id))


async def test_a_yes_moves_no_task_that_a_person_paused_meanwhile(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    request = hands(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    await steer(world, Pause, task.id)
    assert (await world.refused(takes(world, "bob", request))).kind is Kind.CONFLICT
    assert (await stands(world, task.id), (await world.task(task.id)).owner) == (HELD, "ann")
    await steer(world, Resume, task.id)
    await world.ask(takes(world, "bob", request))
    assert (await stands(world, task.id), (await world.task(task.id)).owner) == (RUNNING, "bob")


@pytest.mark.parametrize("to", ["bob", "i1", None])
async def test_nobody_is_asked_to_take_over_what_a_person_paused(world, to):
    await world.add("i1", "infra")
    others = [await world.connect(id) for id in ("bob", "i1")]
    ann, task = await working(world)
    await steer(world, Pause, task.id)
    await ann.ack(*ann.take())
    await world.ask(hands(world, "ann", task.id, to=None if to is None else AgentId(to)))
    [told] = ann.take()
    assert (told.delivery.cargo, told.event.answer["accepted"]) == (Cargo.ANSWER, False)
    assert (await stands(world, task.id), [peer.take() for peer in others]) == (HELD, [[], []])


async def test_what_a_person_paused_does_not_go_on_with_help(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    await steer(world, Pause, task.id)
    request = asks(world, "ann", task.id)
    await world.ask(request)
    assert await stands(world, task.id) == HELD
    await bob.ack(*bob.take())
    await world.ask(helps(world, "bob", request, HelpVerdict.ANSWERED, answer={"content": "left"}))
    assert await stands(world, task.id) == HELD
    await steer(world, Resume, task.id)
    assert await stands(world, task.id) == RUNNING


async def test_what_a_person_lets_go_on_before_its_help_came_waits_for_that(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    await steer(world, Pause, task.id)
    request = asks(world, "ann", task.id)
    await world.ask(request)
    await steer(world, Resume, task.id)
    assert await stands(world, task.id) == HELP
    await bob.ack(*bob.take())
    await world.ask(helps(world, "bob", request, HelpVerdict.ANSWERED, answer={"content": "left"}))
    assert await stands(world, task.id) == RUNNING


@pytest.mark.parametrize("answered_first", [True, False])
async def test_so_it_is_with_a_question_to_a_person(world, answered_first):
    _, task = await working(world)
    await steer(world, Pause, task.id)
    asked = await world.ask(
        AskPerson(principal=AgentId("ann"), request_id="q", ask=Ask(question="which?"), task_id=task.id)
    )
    assert await stands(world, task.id) == HELD
    steps = [
        (Answer(principal=ADMIN, question=asked.id, answer="x"), HELD),
        (Resume(principal=ADMIN, task_id=task.id), PERSON),
    ]
    first, second = steps if answered_first else reversed(steps)
    await world.ask(first[0])
    assert await stands(world, task.id) == first[1]
    await world.ask(second[0])
    assert await stands(world, task.id) == RUNNING
