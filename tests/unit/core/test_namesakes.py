"""An agent that was removed, and one that is added under its name later: nothing of the first is the second one's."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import AddAgent, AskHelp, AskPerson, Cancel, ChangeState, GiveHelp, HelpVerdict, RemoveAgent
from dragoman.core.ids import ADMIN, AgentId, TaskId
from dragoman.core.model.state import Operation, Registry
from dragoman.core.model.tasks import QuestionStatus
from dragoman.core.queries.state import StateView
from dragoman.messages.faults import Kind
from dragoman.messages.tasks import Ask
from dragoman.server.forge.queries import may_see

ANN, BOB = AgentId("ann"), AgentId("bob")


@pytest.fixture
async def world():
    world = await World().start()
    for id in (ANN, BOB):
        await world.add(id, protocol="agentmsg")
    yield world
    await world.intake.stop()


async def replaced(world: World, id: AgentId) -> None:
    await world.ask(RemoveAgent(principal=ADMIN, agent=id))
    await world.advance(1)
    await world.add(id, protocol="agentmsg")


def seen(world: World, task: TaskId, reader: AgentId):
    return StateView(world.store, world.intake, world.rules).one(Registry.TASK, task, reader)


async def test_what_the_first_asked_for_and_did_is_not_the_seconds_to_read_or_to_steer(world):
    await world.connect("bob", acknowledges=True)
    request = world.request(None, principal=ANN, pinned=BOB)
    done = await world.ask(request)
    await world.finish("bob", done.id, body=b'{"result":"private"}')
    under_way = await world.submit(None, principal=ANN, pinned=BOB)
    for reader in (ANN, BOB):
        assert (await seen(world, done.id, reader)).value["result"] == "private"
    await replaced(world, ANN)
    assert "result" not in (await seen(world, done.id, ANN)).value
    assert not may_see(world.intake.agent(ANN), await world.task(done.id))
    again = await world.refused(request)
    assert (again.kind, again.field) == (Kind.MISMATCH, "request_id")
    assert (await world.refused(Cancel(principal=ANN, task_id=under_way.id))).kind is Kind.NOT_FOUND
    await replaced(world, BOB)
    assert "result" not in (await seen(world, done.id, BOB)).value
    taken_up = await world.connect("bob", acknowledges=True)
    await world.advance(1)
    assert set(taken_up.work) == {under_way.id}  # it is meant for whoever has that name
    assert "metadata" in (await seen(world, under_way.id, BOB)).value["context"]


async def test_nothing_can_be_added_to_what_the_first_asked_for(world):
    await world.connect("bob", acknowledges=True)
    task = await world.submit(None, principal=ANN, protocol="agentmsg", pinned=BOB)
    await replaced(world, ANN)
    for part in ({"parent": task.id}, {"dependencies": (task.id,), "own_dependencies": True}):
        fault = await world.refused(world.request(None, principal=ANN, pinned=BOB, **part))
        assert (fault.kind, fault.field) == (Kind.NOT_FOUND, next(iter(part)))
    changes = {"context": {"metadata": {"mine": True}}}
    change = ChangeState(
        principal=ANN, operation=Operation.UPDATE, entity=Registry.TASK, entity_id=task.id, changes=changes, version=1
    )
    assert (await world.refused(change)).kind is Kind.FORBIDDEN
    report = msgspec.structs.replace(world.tell("ann", "bob"), lane=task.id, reports=True)
    assert (await world.refused(report)).kind is Kind.NOT_FOUND


async def test_what_the_first_asked_is_answered_to_nobody(world):
    for id in (ANN, BOB):
        await world.connect(id, acknowledges=True)
    letter = world.direct_message("ann", kind="HELP_REQUEST")
    request = AskHelp(
        principal=ANN, direct_message=letter, question="how?", topic="x", task_id=TaskId(world.uuid()), to=BOB
    )
    await world.ask(request)
    words = Ask(question="left or right?")
    loose = [await world.ask(AskPerson(principal=ANN, request_id=f"q{n}", ask=words)) for n in range(100)]
    await replaced(world, ANN)
    subtask_owner = await world.connect("ann", acknowledges=True)
    answer = GiveHelp(
        principal=BOB,
        request_id=letter.message_id,
        direct_message=world.direct_message("bob"),
        verdict=HelpVerdict.ANSWERED,
        answer={},
    )
    assert (await world.refused(answer)).kind is Kind.CONFLICT
    assert {(await world.store.question(one.id)).status for one in loose} == {QuestionStatus.WITHDRAWN}
    assert subtask_owner.take() == []


async def test_messages_to_a_removed_agent_are_dead_letters_though_another_has_its_name_at_once(world):
    await world.ask(world.tell("bob", "ann", "between us"))
    await world.advance(1)
    second = msgspec.structs.replace(world.intake.agent(ANN), created_at=world.time)
    await asyncio.gather(  # in one commit
        world.ask(RemoveAgent(principal=ADMIN, agent=ANN)), world.ask(AddAgent(principal=ADMIN, agent=second))
    )
    await world.settle()
    subtask_owner = await world.connect("ann", acknowledges=True)
    assert subtask_owner.take() == []
    assert [dead.receiver for dead in await world.store.dead_letters(limit=10)] == [ANN]


@pytest.mark.parametrize("dies", [False, True])
async def test_nothing_stays_on_its_way_to_who_was_removed(world, dies, monkeypatch):
    """Also what a poll of it had taken; and though the hub dies before it comes to that."""
    await world.ask(world.tell("bob", "ann", "taken"))
    assert len(await world.poll("ann")) == 1
    await world.ask(world.tell("bob", "ann", "waiting"))
    if dies:
        monkeypatch.setattr(world.intake, "enqueue_and_forget", lambda command: None)
    await world.ask(RemoveAgent(principal=ADMIN, agent=ANN))
    if dies:
        await world.restart()
    await world.settle()
    assert await world.store.deliveries(receiver=ANN) == []
    assert [dead.receiver for dead in await world.store.dead_letters(limit=10)] == [ANN, ANN]


async def test_an_agent_is_as_old_as_the_commit_that_adds_it(world):
    """What was said between the request and its commit was said to, and by, the one before it."""
    second = world.intake.agent(ANN)
    await world.advance(1)
    await world.ask(world.tell("bob", "ann", "between us"))
    await world.advance(1)
    await asyncio.gather(
        world.ask(RemoveAgent(principal=ADMIN, agent=ANN)), world.ask(AddAgent(principal=ADMIN, agent=second))
    )
    await world.settle()
    subtask_owner = await world.connect("ann", acknowledges=True)
    assert subtask_owner.take() == []
