"""What counts once (replays), and what counts in a minute (limits)."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.contracts import PROVISION, agreed, lab_and_clinic, shakes
from tests.support.world import World

from dragoman.core.commands import EndContract, Finish, NoteRead
from dragoman.core.ids import SECOND, AgentId, Instant
from dragoman.core.model.contracts import Standing
from dragoman.core.rules import Rules
from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp.intents import AHEAD, OLDEST
from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await lab_and_clinic(MemoryStore(immediate=request.param == "peeks"))
    yield world
    await world.intake.stop()


async def test_the_same_message_again_is_a_replay_even_after_a_restart(world):
    request = shakes(world, seen="m-1")
    await world.ask(request)
    await world.restart()
    fault = await world.refused(shakes(world, seen="m-1"))
    assert (fault.kind, fault.facts["reason"]) == (Kind.UNAUTHENTICATED, "replayed")


async def test_an_id_counts_once_for_its_sender_and_takes_nothing_from_others(world):
    await world.add("rival", protocol="a2acp", domain="research")
    await world.ask(shakes(world, principal=AgentId("rival"), seen="m-1"))
    await world.ask(shakes(world, seen="m-1"))
    assert (await world.refused(shakes(world, seen="m-1"))).facts["reason"] == "replayed"


async def test_a_message_is_remembered_for_longer_than_it_could_come_again(world):
    await world.ask(shakes(world, seen="m-1"))
    await world.advance((OLDEST + AHEAD).total_seconds())
    fault = await world.refused(shakes(world, seen="m-1"))
    assert (fault.kind, fault.facts["reason"]) == (Kind.UNAUTHENTICATED, "replayed")


@pytest.mark.parametrize("again", ["request", "response", "handshake"])
@pytest.mark.parametrize("first", ["request", "response", "handshake"])
async def test_an_id_counts_once_whatever_it_is_used_for(world, first, again):
    await world.connect("lab")
    contract = await agreed(world)
    work = [await world.submit(None, principal="data", pinned="lab", type="work") for _ in "12"]

    def use(kind, task):
        fields = {"principal": AgentId("lab"), "seen": "m-1"}
        match kind:
            case "request":
                asked = {"type": "provision", "contract": contract.id, "input": {"rows": 1}}
                return world.request(None, request_id="m-1", **fields, **asked)
            case "response":
                return Finish(task_id=task.id, digest="r", **fields)
            case _:
                return shakes(world, **fields)

    await world.ask(use(first, work[0]))
    for _ in "12":
        fault = await world.refused(use(again, work[1]))
        assert (fault.kind, fault.facts["reason"]) == (Kind.UNAUTHENTICATED, "replayed")
        await world.restart()


async def test_a_sliding_minute():
    world = await World(rules=Rules(per_minute=(3, 2, 4))).start()
    for id in ("lab", "other"):
        await world.add(id, protocol="a2acp", domain="d")
    await world.add("data", protocol="a2acp", domain="d", offers=(PROVISION,))

    def ask(who):
        return shakes(world, principal=AgentId(who), domain="d")

    for _ in range(3):
        await world.ask(ask("lab"))
    fault = await world.refused(ask("lab"))
    assert (fault.kind, fault.facts["scope"], fault.retryable) == (Kind.RATE_LIMITED, "agent", True)
    await world.ask(ask("other"))
    assert (await world.refused(ask("other"))).facts["scope"] == "broker"
    world.time = Instant(world.time + 62 * SECOND)
    await world.ask(ask("lab"))
    await world.intake.stop()


async def test_a_minute_holds_as_much_as_the_document_says():
    """A hundred on a contract, a thousand of an agent, ten thousand of all together (a2acp-D16)."""
    world = await World().start()
    await world.add("lab", protocol="a2acp", domain="d")
    await world.add("data", protocol="a2acp", domain="d", offers=(PROVISION,))
    contract = await agreed(world, domain="d")
    on_it = {"principal": AgentId("lab"), "protocol": "a2acp", "type": "provision", "contract": contract.id}

    def asks():
        return world.request(None, input={"rows": 1}, **on_it)

    def reads():
        return NoteRead(principal=AgentId("lab"), protocol="a2acp", what="discover", seen=world.uuid())

    await asyncio.gather(*(world.ask(asks()) for _ in range(100)))
    assert (await world.refused(asks())).facts["scope"] == "collaboration"
    await asyncio.gather(*(world.ask(reads()) for _ in range(1000 - 100 - 1)))  # the handshake was one, too
    assert (await world.refused(reads())).facts["scope"] == "agent"
    assert world.rules.per_minute[2] == 10_000
    await world.intake.stop()


async def test_an_agent_of_a_limited_protocol_has_one_minute_over_all_endpoints():
    world = await World(rules=Rules(per_minute=(3, 0, 0))).start()
    await world.add("lab", protocol="a2acp", domain="d")
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")

    def ask(who, protocol):
        return world.request(principal=AgentId(who), protocol=protocol)

    protocols = ("a2acp", "coven", "chiffon", "forge", "agentmsg")
    for protocol in protocols[:3]:
        await world.ask(ask("lab", protocol))
    for protocol in protocols:
        fault = await world.refused(ask("lab", protocol))
        assert (fault.kind, fault.facts["scope"]) == (Kind.RATE_LIMITED, "agent")
        for _ in range(2):
            await world.ask(ask("boss", protocol if protocol != "a2acp" else "chiffon"))
    await world.intake.stop()


async def test_naming_a_foreign_contract_takes_nothing_from_its_minute():
    world = await World(rules=Rules(per_minute=(100, 2, 1000))).start()
    for id in ("lab", "thief"):
        await world.add(id, protocol="a2acp", domain="d")
    await world.add("data", protocol="a2acp", domain="d", offers=(PROVISION,))
    contract = await agreed(world, domain="d")

    def asks(who):
        said = {"principal": AgentId(who), "protocol": "a2acp", "type": "provision", "contract": contract.id}
        return world.request(None, input={"rows": 1}, **said)

    for _ in range(3):
        assert (await world.refused(asks("thief"))).kind is Kind.CONTRACT
    for _ in range(2):
        await world.ask(asks("lab"))
    fault = await world.refused(asks("lab"))
    assert (fault.kind, fault.facts["scope"]) == (Kind.RATE_LIMITED, "collaboration")
    await world.intake.stop()


async def test_a_party_may_leave_a_collaboration_that_the_other_floods():
    world = await World(rules=Rules(per_minute=(100, 2, 1000))).start()
    await world.add("lab", protocol="a2acp", domain="d")
    await world.add("data", protocol="a2acp", domain="d", offers=(PROVISION,))
    contract = await agreed(world, domain="d")
    said = {"principal": AgentId("lab"), "protocol": "a2acp", "type": "provision", "contract": contract.id}
    for _ in range(2):
        await world.ask(world.request(None, input={"rows": 1}, **said))
    assert (await world.refused(world.request(None, input={"rows": 1}, **said))).kind is Kind.RATE_LIMITED
    over = await world.ask(
        EndContract(principal=AgentId("data"), protocol="a2acp", collaboration=contract.collaboration)
    )
    assert over.standing is Standing.TERMINATED
    await world.intake.stop()
