"""Contracts that are over, and questions that belong to no task, are forgotten as finished tasks are."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.adapters import records
from tests.support.world import World

from dragoman.app import intake
from dragoman.core.commands import (
    AnswerHandshake,
    AskHelp,
    Discard,
    EndContract,
    Forget,
    GiveHelp,
    HelpVerdict,
    Past,
    RegisterAgent,
    ShakeHands,
)
from dragoman.core.ids import ADMIN, DAY, AgentId, Instant
from dragoman.core.model.agents import Offer
from dragoman.core.model.contracts import Contract
from dragoman.core.model.tasks import QuestionStatus
from dragoman.core.ports import Changes
from dragoman.core.rules import Rules
from dragoman.core.tasks.forgetting import PAGE
from dragoman.messages.faults import Kind
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite.store import SqliteStore

MONTH = Rules().keep_finished
LAB, DATA = AgentId("lab"), AgentId("data")


@pytest.fixture(params=["embedded", "over a wire", "on a disk"])
async def world(request, tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "FORGET_PAUSE", 0)
    monkeypatch.setattr(intake, "FORGETTABLE_WITHIN", 0)
    on_disk = request.param == "on a disk"
    store = SqliteStore(tmp_path / "hub.db") if on_disk else MemoryStore(immediate=request.param == "embedded")
    world = await World(store).start()
    await world.add("lab", protocol="a2acp")
    await world.add("data", protocol="a2acp")
    await world.ask(RegisterAgent(principal=DATA, offers=(Offer(intent="provision"),)))
    world.peers = [await world.connect("lab"), await world.connect("data")]
    yield world
    await world.intake.stop()


async def heard(world: World) -> None:
    for peer in world.peers:
        while outgoing_messages := peer.take():
            await peer.ack(*outgoing_messages)


async def agreed(world: World, **fields) -> Contract:
    asks = ShakeHands(
        principal=LAB, protocol="a2acp", request_id=world.uuid(), digest="d", target=DATA, intent="provision",
        domain="default", version="1.0.0", **fields,
    )  # fmt: skip
    question = await world.ask(asks)
    done = await world.ask(AnswerHandshake(principal=DATA, question=question.id, accepted=True))
    found = await world.store.contract(done.answer["contract_id"])
    assert found is not None
    assert found.handshake == question.id
    return found


async def round_of(world: World) -> dict[str, int]:
    """A whole round: what it forgot, by the audit record."""
    before = len(await world.store.audit())
    for what in Past:
        await world.ask(Forget(what=what))
    records = (await world.store.audit())[before:]
    return {one.action: int(one.reason.split()[0]) for one in records if one.action.endswith(".forget")}


async def there(world: World) -> tuple[list[str], list[str]]:
    return [row.id for row in await world.store.contracts()], [row.id for row in await world.store.questions()]


async def insert(world: World, *rows, **more) -> None:
    async with world.store.unit() as unit:
        await unit.commit(Changes(added=rows, **more))


async def test_an_expired_contract_and_its_handshake_go_after_their_time(world):
    contract = await agreed(world)
    await heard(world)
    before = list(await world.store.audit())
    assert await world.intake.contract(contract.id)
    world.time = Instant(contract.created_at + MONTH + 1)
    assert await round_of(world) == {"question.forget": 1}  # the contract lasted a day
    world.time = Instant(contract.expires_at + MONTH)
    assert await round_of(world) == {}
    world.time += 1
    assert await round_of(world) == {"contract.forget": 1}
    assert await there(world) == ([], [])
    assert list(await world.store.audit())[: len(before)] == before
    assert await world.intake.contract(contract.id) is None
    on_it = world.request(None, principal="lab", protocol="a2acp", type="provision", contract=contract.id)
    assert (await world.refused(on_it)).kind is Kind.CONTRACT
    ends = EndContract(principal=LAB, collaboration=contract.collaboration)
    assert (await world.refused(ends)).kind is Kind.NOT_FOUND


async def test_the_alarm_goes_on_from_tasks_to_what_has_none(world):
    for _ in range(PAGE + 1):
        ended = await agreed(world)
        await world.ask(EndContract(principal=LAB, collaboration=ended.collaboration))
        await heard(world)
    young = records.contract("young", created_at=world.time, expires_at=world.time + 2 * MONTH, since=world.time)
    await insert(world, young)
    world.time += MONTH + 1
    for peer in world.peers:
        await peer.close()
    await world.intake.wake_due()
    async with asyncio.timeout(60):
        while await there(world) != (["young"], []):
            await asyncio.sleep(0)


async def test_what_is_kept_for_ever_stays(tmp_path):
    world = await World(rules=Rules(keep_finished=0)).start()
    await insert(world, records.contract("c"), records.question("q", None, status=QuestionStatus.ANSWERED))
    world.time += 100 * MONTH
    assert (await round_of(world), await there(world)) == ({}, (["c"], ["q"]))
    await world.intake.stop()


async def undelivered_answer(world):
    """The one who shook hands was never told. The contract waits with the question."""
    contract = await agreed(world)
    [lab, data] = world.peers
    await data.ack(*data.take())
    return contract, lambda: lab.ack(*lab.take())


async def undelivered_news(world):
    contract = await agreed(world)
    await heard(world)
    await world.ask(EndContract(principal=LAB, collaboration=contract.collaboration))
    return contract, lambda: heard(world)


async def dead_letter(world):
    contract = await agreed(world)
    await heard(world)
    await insert(world, records.dead_letter("letter", contract.id))
    return contract, lambda: world.ask(Discard(principal=ADMIN, dead_letter="letter"))


async def kept_task(world):
    contract = await agreed(world)
    asked = {"principal": "lab", "protocol": "a2acp", "type": "provision", "contract": contract.id}
    task = await world.submit(None, **asked)
    await world.finish("data", task.id)
    await heard(world)
    task = await world.task(task.id)
    await insert(world, changed=[msgspec.structs.replace(task, finished_at=world.time + 2 * MONTH)])
    return contract, lambda: insert(world, changed=[task])


@pytest.mark.parametrize("need", [undelivered_answer, undelivered_news, dead_letter, kept_task])
async def test_a_contract_that_something_needs_is_kept_until_it_does_not(world, need):
    contract, let_go = await need(world)
    world.time += MONTH + 2 * DAY
    await round_of(world)
    assert (await there(world))[0] == [contract.id]
    await let_go()
    await round_of(world)
    assert await there(world) == ([], [])


async def test_the_newest_contract_of_a_collaboration_goes_last(world):
    first = await agreed(world)
    await heard(world)
    world.time += 1
    second = await agreed(world, collaboration=first.collaboration)
    await heard(world)
    task = await world.submit(None, principal="lab", protocol="a2acp", type="provision", contract=first.id)
    await world.finish("data", task.id)
    await heard(world)
    task = await world.task(task.id)
    await insert(world, changed=[msgspec.structs.replace(task, finished_at=world.time + 2 * MONTH)])
    world.time += MONTH + 2 * DAY
    await round_of(world)
    assert sorted((await there(world))[0]) == sorted([first.id, second.id])
    await insert(world, changed=[task])
    assert await round_of(world) == {"task.forget": 1, "contract.forget": 2}


async def test_help_that_was_given_long_ago_is_forgotten_and_what_is_asked_is_not(world):
    for id, can in (("ada", ()), ("bob", ("code",))):
        await world.add(id, protocol="agentmsg", capabilities=can)
    letter = world.direct_message("ada", kind="HELP_REQUEST")
    asked = AskHelp(principal=AgentId("ada"), direct_message=letter, question="which way?", topic="code")
    question = await world.ask(asked)
    told = GiveHelp(
        principal=AgentId("bob"), request_id=letter.message_id, verdict=HelpVerdict.ANSWERED,
        direct_message=world.direct_message("bob", "left", kind="HELP_RESPONSE"),
    )  # fmt: skip
    open_question = records.question("open", None, created_at=world.time)
    await insert(world, open_question)
    world.time += MONTH + 1
    assert await round_of(world) == {}
    world.time = Instant(question.created_at + 1)
    await world.ask(told)
    world.time += MONTH
    assert await round_of(world) == {}
    world.time += 1
    assert await round_of(world) == {"question.forget": 1}
    assert (await there(world))[1] == ["open"]
    assert await world.ask(asked)  # it is a new request
