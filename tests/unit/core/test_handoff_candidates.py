"""The agents that the hub asks to take a task over, and those that it does not."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.conversations import allots, hands, takes, three_who_converse, working

from dragoman.core.commands import Handing, RegisterAgent, RemoveAgent, ReportStatus
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant
from dragoman.core.model.agents import RESOURCES, Offer
from dragoman.messages.faults import Fault, Kind
from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await three_who_converse(MemoryStore(immediate=request.param == "peeks"))
    yield world
    await world.intake.stop()


@pytest.mark.parametrize(
    ("reason", "chosen"),
    [(Handing.LOAD_BALANCING, "cid"), (Handing.CAPABILITY_LIMIT, "bob"), (Handing.ERROR_RECOVERY, "cid")],
)
async def test_the_reason_decides_who_is_asked(world, reason, chosen):
    await world.connect("bob", acknowledges=True)
    await world.connect("cid", acknowledges=True)
    await world.ask(msgspec.structs.replace(world.registration("bob"), capabilities=("code_review", "python", "sql")))
    await world.submit(None, pinned="bob")
    _, task = await working(world)
    fault = Fault(kind=Kind.TIMEOUT, message="slow") if reason is Handing.ERROR_RECOVERY else None
    asked = await world.ask(hands(world, "ann", task.id, reason, fault=fault))
    assert asked.asked_of == chosen
    assert world.intake.agent("ann").breaker.failures == (1 if fault else 0)


@pytest.mark.parametrize("wanted", [{"required_capabilities": ("sql",)}, {"required_role": "coder"}])
async def test_the_hub_asks_only_those_whom_the_caller_wanted(world, wanted):
    for id in ("dot", "eve"):
        await world.add(id, protocol="agentmsg", capabilities=("sql",), role="coder")
    for id in ("bob", "eve"):
        await world.connect(id, acknowledges=True)
    _, task = await working(world, "dot", **wanted)
    request = hands(world, "dot", task.id)
    assert (await world.ask(request)).asked_of == "eve"
    kept = await world.ask(takes(world, "eve", request, accepted=False))
    assert kept.answer["accepted"] is False


async def test_where_it_is_left_open_who_has_not_had_it_comes_before_who_gave_it_away(world):
    bob = await world.connect("bob", acknowledges=True)
    await world.connect("cid", acknowledges=True)
    _, task = await working(world)
    request = hands(world, "ann", task.id, to=AgentId("bob"))
    await world.ask(request)
    await bob.ack(*bob.take())
    await world.ask(takes(world, "bob", request))
    await world.submit(None, pinned="cid")  # else idle agents come first
    asked = await world.ask(hands(world, "bob", task.id))
    assert asked.asked_of == "cid"


async def test_an_agent_without_room_for_a_task_is_not_asked_to_take_it_over(world):
    bob, cid = [await world.connect(id, acknowledges=True) for id in ("bob", "cid")]
    _, task = await working(world, constraints={"budget_usd": 1})
    await allots(world, "bob:budget", limit=0.5)
    await world.submit(None, pinned="cid")  # else idle agents come first
    cid.take()
    asked = await world.ask(hands(world, "ann", task.id))
    assert (asked.asked_of, asked.asked_before, bob.take()) == ("cid", ("bob",), [])


@pytest.mark.parametrize("resource", RESOURCES, ids=[resource.name for resource in RESOURCES])
async def test_the_hub_does_not_ask_an_agent_that_has_too_little_memory_for_a_task_to_take_it_over(world, resource):
    for id in ("bob", "cid"):
        await world.connect(id, acknowledges=True)
    await world.ask(msgspec.structs.replace(world.registration("bob"), **{resource.name: 100}))
    _, task = await working(world, constraints={resource.constraint: 101})
    await world.submit(None, pinned="cid")  # else idle agents come first
    assert (await world.ask(hands(world, "ann", task.id))).asked_of == "cid"


async def test_a_named_agent_without_room_is_answered_for_at_once(world):
    bob = await world.connect("bob", acknowledges=True)
    ann, task = await working(world, constraints={"budget_usd": 1})
    await allots(world, "bob:budget", limit=0.5)
    await world.ask(hands(world, "ann", task.id, to=AgentId("bob")))
    [told] = ann.take()
    assert (told.question.answer["accepted"], bob.take()) == (False, [])
    assert told.question.answer["error"] == "bob has no budget for it now; the task stays yours"
    await world.finish("ann", task.id)


async def test_an_agent_that_takes_no_work_now_is_not_asked_to_take_any_over(world):
    for id in ("bob", "cid"):
        await world.connect(id, acknowledges=True)
    later = Instant(world.time + 60 * SECOND)
    await world.ask(ReportStatus(principal=AgentId("bob"), status={"state": "IDLE"}, next_available=later))
    _, task = await working(world)
    assert (await world.ask(hands(world, "ann", task.id))).asked_of == "cid"


async def test_of_equals_who_fails_least_is_asked_to_take_a_task_over(world):
    for id, rate in (("bob", 0.5), ("cid", 0.1)):
        await world.connect(id, acknowledges=True)
        await world.ask(ReportStatus(principal=AgentId(id), status={"state": "IDLE", "error_rate": rate}))
    _, task = await working(world)
    assert (await world.ask(hands(world, "ann", task.id))).asked_of == "cid"


async def handed(world, task, *others) -> str:
    """Who has a task after its owner handed it to whoever can; the others are there."""
    for id in others:
        await world.connect(id)
    await world.ask(hands(world, "ann", task.id))
    return (await world.task(task.id)).owner


@pytest.mark.parametrize("named", [None, "ann2"], ids=["any of the kind", "one of the kind, by name"])
async def test_an_open_handoff_goes_to_the_kind_that_the_caller_asked_for(world, named):
    for id in ("bob", "cid"):
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(id)))
    await world.add("ann2", "writer", protocol="agentmsg", concurrent=4)
    await world.connect("ann2", acknowledges=True)
    task = await world.submit("writer", pinned=named)
    await world.add("other", "painter", work_types=("run_playbook",))
    await world.connect("other")
    request = hands(world, "ann2", task.id)
    assert (await world.ask(request)).answer["accepted"] is False
    await world.add("peer", "writer", work_types=("run_playbook",))
    await world.connect("peer")
    await world.ask(hands(world, "ann2", task.id))
    assert (await world.task(task.id)).owner == "peer"


async def test_an_open_handoff_goes_first_to_agents_that_declared_such_work(world):
    for id in ("bob", "cid"):
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(id)))
    _, task = await working(world)
    await world.add("any", "a kind", work_types=None)
    await world.add("zoe", "b kind", work_types=("run_playbook",))
    await world.add("yak", "c kind", work_types=("paint",))
    assert await handed(world, task, "any", "yak", "zoe") == "zoe"


@pytest.mark.parametrize(
    ("offer", "more"),
    [
        (Offer(intent="run_playbook", input_schema={"type": "object", "required": ["host"]}), {}),
        (Offer(intent="run_playbook", required_capabilities=("root",)), {}),
        (Offer(intent="run_playbook", pii=True), {}),
        (Offer(intent="paint"), {"work_types": ("paint",)}),
    ],
    ids=["other input", "a grant that the caller lacks", "personal work only", "other work"],
)
async def test_nobody_is_chosen_whose_terms_the_task_does_not_meet(world, offer, more):
    """An agent that declared how it works cannot go on with what does not fit that."""
    for id in ("bob", "cid"):
        await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId(id)))
    ann, task = await working(world)
    await world.add("lab", protocol="a2acp")
    await world.ask(RegisterAgent(principal=AgentId("lab"), offers=(offer,), **{"work_types": (offer.intent,), **more}))
    assert await handed(world, task, "lab") == "ann"
    [told] = ann.take()
    assert told.question.answer["accepted"] is False
    await ann.ack(told)
    await world.ask(hands(world, "ann", task.id, to=AgentId("lab")))
    [told] = ann.take()
    no = "lab does not do 'run_playbook', or not on the terms of this task; the task stays yours"
    assert told.question.answer["error"] == no
