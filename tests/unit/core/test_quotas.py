"""What one agent may have lying in the hub: bytes, direct messages, shared entities, messages a minute, streams."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.nodes import FollowedWorld
from tests.support.world import World

from dragoman.core.commands import Cancel, ChangeState, EndContract, Tell
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.holdings import Holding
from dragoman.core.model.state import Operation, Registry
from dragoman.core.rules import Rules
from dragoman.core.streams import Streams
from dragoman.messages.faults import Kind, Refused
from dragoman.messages.tasks import Request

BOSS = AgentId("boss")
STATE = {
    "status": "pending",
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
    "context": {"task_type": "x", "priority": "normal", "metadata": {}, "dependencies": [], "history": []},
}


async def peopled(**rules: Any) -> World:
    world = await World(rules=Rules(**rules)).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    return world


def held(world: World, id: AgentId = BOSS) -> Holding | None:
    return world.intake._directory.holdings.get(id)


async def test_requests_of_unfinished_tasks_count_until_they_are_over_also_after_a_restart() -> None:
    world = await peopled(bytes_per_agent=1000)
    large = msgspec.structs.replace(world.request(), content=Request(input="x" * (798 - len(b'{"input":}'))), raw=None)
    first = await world.ask(large)
    assert held(world) == Holding(bytes=800)
    await world.restart()
    assert held(world) == Holding(bytes=800)
    fault = await world.refused(msgspec.structs.replace(large, request_id="another", task_id=None))
    assert (fault.kind, fault.retryable, fault.facts["scope"]) == (Kind.RATE_LIMITED, True, "bytes")
    assert fault.message.startswith(
        "the hub keeps 800 bytes of requests, direct messages and state that are not done with, this message has 800 "
        "more, and the hub takes 1000 at most; "
    )
    assert (await world.ask(large)).id == first.id  # the same again is no more
    await world.ask(Cancel(principal=BOSS, task_id=first.id))
    assert held(world) is None
    await world.ask(msgspec.structs.replace(large, request_id="another", task_id=None))


async def test_the_first_request_is_taken_whatever_its_size_and_people_have_no_quota() -> None:
    world = await peopled(bytes_per_agent=10)
    large = msgspec.structs.replace(world.request(), content=Request(input="x" * (800 - len(b'{"input":}'))), raw=None)
    await world.ask(large)
    for n in range(3):
        await world.ask(msgspec.structs.replace(large, principal=ADMIN, request_id=f"r{n}", task_id=None))


async def test_direct_messages_count_until_they_are_acknowledged_also_after_a_restart() -> None:
    world = await peopled(direct_messages_per_agent=2)
    await world.add("friend", protocol="agentmsg")
    await world.add("writer", protocol="agentmsg")
    writer = AgentId("writer")

    first, second, third = (
        Tell(principal=writer, to=AgentId("friend"), direct_message=world.direct_message("writer")) for _ in range(3)
    )
    await world.ask(first)
    await world.ask(second)
    await world.restart()
    size = len(first.direct_message.raw) + len(second.direct_message.raw)
    assert held(world, writer) == Holding(bytes=size, direct_messages=2)
    fault = await world.refused(third)
    assert (fault.kind, fault.retryable, fault.facts["scope"]) == (Kind.RATE_LIMITED, True, "letters")
    await world.ask(second)  # the same again is no more
    friend = await world.connect("friend", acknowledges=True)
    await friend.ack(*friend.take())
    assert held(world, writer) is None
    await world.ask(third)


async def test_entities_of_the_shared_state_count_until_they_are_deleted_also_after_a_restart() -> None:
    world = await peopled(entities_per_agent=1)

    def change(name: str, operation: Operation, version: int = 0) -> ChangeState:
        kept = STATE | {"id": name} if operation is Operation.CREATE else {}
        return ChangeState(
            principal=BOSS, entity=Registry.TASK, entity_id=name, operation=operation, version=version, changes=kept
        )

    made = await world.ask(change("a", Operation.CREATE))
    await world.restart()
    found = held(world)
    assert found is not None
    assert found.entities == 1
    fault = await world.refused(change("b", Operation.CREATE))
    assert (fault.kind, fault.facts["scope"]) == (Kind.RATE_LIMITED, "entities")
    await world.ask(change("a", Operation.DELETE, made.version))
    assert held(world) is None
    await world.ask(change("b", Operation.CREATE))


async def test_an_agent_of_forge_has_one_pace_over_all_nodes_and_none_in_other_protocols() -> None:
    world = await FollowedWorld(rules=Rules(paces=(("forge", 3),))).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    asked = msgspec.structs.replace(world.request(), protocol="forge")
    other = await world.follow("n3")
    try:
        for number, node in enumerate((world.intake, other, world.leader)):
            await node.execute(msgspec.structs.replace(asked, request_id=f"r{number}", task_id=None))
        for node in (world.intake, other, world.leader):
            with pytest.raises(Refused) as refused:
                await node.execute(msgspec.structs.replace(asked, request_id="r4", task_id=None))
            assert refused.value.fault.kind is Kind.RATE_LIMITED
        await world.ask(world.request())
        await world.advance(62)
        await world.ask(msgspec.structs.replace(asked, request_id="r4", task_id=None))
    finally:
        await world.stop()


async def test_an_agent_has_one_bucket_of_messages_over_all_protocols_and_others_have_their_own() -> None:
    world = await peopled(messages_per_agent=6)  # it has registered
    for protocol in ("chiffon", "agentmsg", "forge", "a2acp", "coven"):
        await world.ask(msgspec.structs.replace(world.request(), protocol=protocol))
    fault = await world.refused(world.request())
    assert (fault.kind, fault.retryable, fault.facts["scope"]) == (Kind.RATE_LIMITED, True, "principal")
    assert 1 <= fault.facts["retry_after"] <= 60
    ended = await world.refused(EndContract(principal=BOSS, collaboration="none"))
    assert ended.kind is not Kind.RATE_LIMITED
    await world.add("another", "orchestrator")
    await world.ask(msgspec.structs.replace(world.request(), principal=AgentId("another")))
    await world.advance(62)
    await world.ask(world.request())


def test_streams_are_capped_for_each_and_for_all() -> None:
    streams = Streams(each=1, most=2)
    with streams.one(BOSS):
        with pytest.raises(Refused) as refused:
            streams.check(BOSS)
        assert refused.value.fault.kind is Kind.RATE_LIMITED
        with streams.one(ADMIN):
            with pytest.raises(Refused) as refused:
                streams.check(ADMIN)
            assert refused.value.fault.kind is Kind.OVERLOADED
    assert streams.open == 0
    with streams.one(BOSS):
        pass
