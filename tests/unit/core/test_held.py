"""What a person paused stands still until they say otherwise, whatever its agent asks of others meanwhile."""

from __future__ import annotations

import pytest
from tests.support.conversations import asks, hands, helps, question, takes, three_who_converse, working

from dragoman.core.commands import Answer, AskPerson, HelpVerdict, Pause, Resume
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import QuestionStatus, Status, Waiting
from dragoman.messages.faults import Kind
from dragoman.messages.tasks import Ask
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


@pytest.mark.parametrize("to", ["bob", None])
async def test_a_yes_to_what_a_person_paused_meanwhile_is_an_end_of_it(world, to):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    request = hands(world, "ann", task.id, to=None if to is None else AgentId(to))
    asked = await world.ask(request)
    await bob.ack(*bob.take())
    await steer(world, Pause, task.id)
    await ann.ack(*ann.take())
    assert (await world.refused(takes(world, "bob", request))).kind is Kind.CONFLICT
    assert (await stands(world, task.id), (await world.task(task.id)).owner) == (HELD, "ann")
    [told] = ann.take()
    assert (told.question.answer["accepted"], "paused" in told.question.answer["error"]) == (False, True)
    closed = await question(world, asked.id)
    assert (closed.status, closed.wake_at) == (QuestionStatus.ANSWERED, None)
    await steer(world, Resume, task.id)
    assert (await world.refused(takes(world, "bob", request))).kind is Kind.CONFLICT
    again = hands(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(again)
    await world.ask(takes(world, "bob", again))
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
    assert (told.delivery.kind, told.question.answer["accepted"]) == (MessageKind.ANSWER, False)
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


# -- its work order


@pytest.fixture
async def infra(world):
    await world.add("i1", "infra")
    return world


async def gone_and_back(world, how, peer):
    """Its agent's link after the hub died, or after the link broke, with the order unacknowledged."""
    if how == "hub killed":
        world.time = Instant(world.time + SECOND)
        await world.restart()
    else:
        await peer.close()
    return await world.connect(peer.agent, acknowledges=True)


def kind(outgoing_messages):
    return [outgoing.delivery.kind for outgoing in outgoing_messages]


@pytest.mark.parametrize("agent", ["i1", "bob"])
@pytest.mark.parametrize("how", ["hub killed", "link broken"])
async def test_the_order_of_a_paused_task_leaves_again_only_when_it_goes_on(infra, how, agent):
    peer = await infra.connect(agent, acknowledges=True)
    task = await infra.submit(None, pinned=agent)
    assert kind(peer.take()) == [MessageKind.WORK]
    await steer(infra, Pause, task.id)
    peer = await gone_and_back(infra, how, peer)
    await infra.advance(20)
    assert (peer.take(), await stands(infra, task.id)) == ([], HELD)
    await steer(infra, Resume, task.id)
    told = []
    while taken := peer.take():  # one after the other, to one who converses
        told += taken
        await peer.ack(*taken)
    assert kind(told) == [MessageKind.WORK, MessageKind.PAUSE, MessageKind.RESUME]
    now = await infra.task(task.id)
    assert (now.status, now.attempt.count, now.attempt.delivery) == (Status.RUNNING, 1, None)
    assert await infra.store.deliveries() == []


@pytest.mark.parametrize("how", ["hub killed", "link broken"])
async def test_an_agent_that_has_a_paused_task_is_asked_to_hold_when_it_reports(infra, how):
    i1 = await infra.connect("i1")
    task = await infra.submit(None, pinned="i1")
    await steer(infra, Pause, task.id)
    i1 = await gone_and_back(infra, how, i1)
    await infra.progress("i1", task.id)
    assert (kind(i1.take()), await stands(infra, task.id)) == ([MessageKind.PAUSE], HELD)
    await steer(infra, Resume, task.id)
    assert (kind(i1.take()), await stands(infra, task.id)) == ([MessageKind.RESUME], RUNNING)


async def test_the_order_of_a_paused_task_that_a_poll_lost_is_offered_again_only_when_it_goes_on(infra):
    await infra.poll("i1")
    task = await infra.submit(None, pinned="i1", idle_seconds=600)
    assert kind(await infra.poll("i1")) == [MessageKind.WORK]
    await steer(infra, Pause, task.id)
    await infra.advance(300)
    assert await infra.poll("i1") == []
    await steer(infra, Resume, task.id)
    await infra.advance(30)
    assert kind(await infra.poll("i1")) == [MessageKind.WORK, MessageKind.PAUSE, MessageKind.RESUME]
    assert (await infra.task(task.id)).attempt.count == 1


@pytest.mark.parametrize("how", [None, "hub killed", "link broken"])
async def test_an_order_of_the_round_before_an_answer_does_not_stay_for_ever(infra, how):
    i1 = await infra.connect("i1")
    task = await infra.submit(None, pinned="i1")
    await steer(infra, Pause, task.id)
    if how is not None:
        i1 = await gone_and_back(infra, how, i1)
    await infra.ask(Resume(principal=ADMIN, task_id=task.id, answer="left", has_answer=True))
    await infra.finish("i1", task.id)
    await i1.ack(*i1.take())
    assert {row.receiver for row in await infra.store.deliveries()} <= {"boss"}
