"""A task changes hands while parts of it are done by others: who hears of them, and whose they are."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.conversations import hands, takes, three_who_converse, working
from tests.support.world import Peer, World

from dragoman.core.commands import Cancel, RemoveAgent
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import Status, Task
from dragoman.core.queries.state import StateView
from dragoman.messages.faults import Kind
from dragoman.stores.memory import MemoryStore

ANN, BOB, CID = AgentId("ann"), AgentId("bob"), AgentId("cid")


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await three_who_converse(MemoryStore(immediate=request.param == "peeks"))
    await world.add("i1", "infra", concurrent=9)
    await world.connect("i1")
    yield world
    await world.intake.stop()


async def part_of(world: World, task: Task, by: AgentId = ANN, **fields) -> Task:
    return await world.submit(principal=by, protocol="agentmsg", parent=task.id, **fields)


async def handed(world: World, task: Task, giver: str, taker: Peer) -> list:
    """The task goes to somebody else; returns what that one is told."""
    request = hands(world, giver, task.id, to=taker.agent)
    await world.ask(request)
    await taker.ack(*taker.take())
    await world.ask(takes(world, taker.agent, request))
    return await read(taker)


async def read(peer: Peer) -> list:
    """All that waits for it: what is about one task comes one by one."""
    heard = []
    while outgoing_messages := peer.take():
        heard += outgoing_messages
        await peer.ack(*outgoing_messages)
    return heard


def outcomes(outgoing_messages: list) -> dict:
    ends = {MessageKind.RESULT, MessageKind.FAILURE}
    return {
        p.task.id: msgspec.json.decode(p.content.body).get("result")
        for p in outgoing_messages
        if p.delivery.kind in ends
    }


async def test_the_present_owner_hears_of_subtasks_beside_the_agent_that_asked_for_them(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    before, after = await part_of(world, task), await part_of(world, task)
    await world.finish("i1", before.id, body=b'{"result":1}')
    assert outcomes(await read(ann)) == {before.id: 1}
    taken = await handed(world, task, "ann", bob)
    assert outcomes(taken) == {before.id: 1}  # what is done already is theirs to know, too
    [order] = [outgoing for outgoing in taken if outgoing.delivery.kind is MessageKind.HANDOFF]
    named = msgspec.json.decode(order.content.body)["handover"]["parts"]
    assert {part["task_id"]: part["status"] for part in named} == {before.id: "completed", after.id: "assigned"}
    await read(ann)
    await world.finish("i1", after.id, body=b'{"result":2}')
    assert outcomes(await read(bob)) == outcomes(await read(ann)) == {after.id: 2}


async def test_an_owner_that_was_removed_takes_no_result_along(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    part = await part_of(world, task)
    await handed(world, task, "ann", bob)
    await world.ask(RemoveAgent(principal=ADMIN, agent=ANN))
    await world.finish("i1", part.id, body=b'{"result":1}')
    assert outcomes(await read(bob)) == {part.id: 1}


async def test_an_owner_that_is_silent_holds_up_nobody_and_finds_its_results_when_it_is_back(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world)
    part = await part_of(world, task)
    await handed(world, task, "ann", bob)
    await ann.close()
    await world.finish("i1", part.id, body=b'{"result":1}')
    assert outcomes(await read(bob)) == {part.id: 1}
    back = await world.connect("ann", acknowledges=True)
    assert outcomes(await read(back)) == {part.id: 1}


async def test_through_several_hands_the_parts_of_all_follow_to_the_last(world):
    bob = await world.connect("bob", acknowledges=True)
    cid = await world.connect("cid", acknowledges=True)
    ann, task = await working(world)
    anns = await part_of(world, task)
    await handed(world, task, "ann", bob)
    bobs = await part_of(world, task, BOB)
    await handed(world, task, "bob", cid)
    for peer in (ann, bob):
        await read(peer)
    for part in (anns, bobs):
        await world.finish("i1", part.id, body=b'{"result":1}')
    assert set(outcomes(await read(cid))) == {anns.id, bobs.id}
    assert set(outcomes(await read(bob))) == {bobs.id}
    assert set(outcomes(await read(ann))) == {anns.id}


async def test_when_the_new_owner_is_lost_the_next_owner_hears_of_the_subtasks(world):
    bob = await world.connect("bob", acknowledges=True)
    task = await world.submit(None, principal=AgentId("boss"), required_capabilities=("code_review",), type="write")
    await bob.ack(*bob.take())
    part = await part_of(world, task, BOB)
    ann = await world.connect("ann", acknowledges=True)
    await handed(world, task, "bob", ann)
    await ann.close()
    await world.ask(RemoveAgent(principal=ADMIN, agent=ANN))
    await world.finish("i1", part.id, body=b'{"result":1}')  # while nobody has the task
    await bob.close()
    cid = await world.connect("cid", acknowledges=True)
    await world.advance(2)
    assert (await world.task(task.id)).owner == "cid"
    assert outcomes(await read(cid)) == {part.id: 1}


async def test_the_parts_are_whose_the_task_is_to_read_to_steer_and_to_build_on(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    part, other = await part_of(world, task), await part_of(world, task)
    await world.finish("i1", other.id, body=b'{"result":1}')
    seen = StateView(world.store, world.intake, world.rules)
    cancel = Cancel(principal=BOB, task_id=part.id)
    assert (await world.refused(cancel)).kind is Kind.NOT_FOUND
    assert "result" not in (await seen.one(Registry.TASK, other.id, BOB)).value
    await handed(world, task, "ann", bob)
    assert (await seen.one(Registry.TASK, other.id, BOB)).value["result"] == 1
    next_one = world.request(principal=BOB, parent=task.id, dependencies=(part.id,), own_dependencies=True)
    assert (await world.ask(next_one)).status is Status.WAITING
    assert (await world.ask(cancel)).status is Status.CANCELLED


async def test_a_namesake_of_the_heir_inherits_nothing(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    part = await part_of(world, task)
    await handed(world, task, "ann", bob)
    await world.finish("bob", task.id)
    await world.ask(RemoveAgent(principal=ADMIN, agent=BOB))
    await world.advance(1)
    await world.add("bob", protocol="agentmsg")
    second = await world.connect("bob", acknowledges=True)
    await world.finish("i1", part.id, body=b'{"result":1}')
    assert second.take() == []
    seen = StateView(world.store, world.intake, world.rules)
    assert "result" not in (await seen.one(Registry.TASK, part.id, BOB)).value


async def test_what_the_caller_of_the_task_asked_for_beside_it_stays_the_callers(world):
    bob = await world.connect("bob", acknowledges=True)
    await world.connect("boss")
    _, task = await working(world, principal=AgentId("boss"))
    part = await part_of(world, task, AgentId("boss"))
    taken = await handed(world, task, "ann", bob)
    await world.finish("i1", part.id, body=b'{"result":1}')
    assert outcomes(taken) == outcomes(await read(bob)) == {}


async def test_a_work_order_names_no_more_parts_than_it_can_and_those_first_that_are_under_way(world):
    bob = await world.connect("bob", acknowledges=True)
    _, task = await working(world)
    done = []
    for _ in range(205):
        done.append(await part_of(world, task))
        await world.finish("i1", done[-1].id, body=b'{"result":1}')
    going = [await part_of(world, task) for _ in range(3)]
    taken = await handed(world, task, "ann", bob)
    [order] = [outgoing for outgoing in taken if outgoing.delivery.kind is MessageKind.HANDOFF]
    named = [part["task_id"] for part in msgspec.json.decode(order.content.body)["handover"]["parts"]]
    assert (len(named), set(named[:3])) == (200, {part.id for part in going})
    assert set(outcomes(taken)) == {part.id for part in done}  # all of them are told


async def test_an_agent_of_another_protocol_finds_the_parts_in_its_work_order(world):
    await world.add("i2", "ops")
    i2 = await world.connect("i2")
    _, task = await working(world)
    part = await part_of(world, task)
    await world.ask(hands(world, "ann", task.id, to=AgentId("i2")))
    [order] = i2.take()
    [named] = msgspec.json.decode(order.content.body)["handover"]["parts"]
    assert (named["task_id"], named["type"], named["agent"]) == (part.id, part.type, "i1")
    await world.finish("i1", part.id, body=b'{"result":1}')
    assert i2.take() == []
