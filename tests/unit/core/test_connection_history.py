"""An agent's row keeps the last changes of its connection, for the people who ask why it was away."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import Beat
from dragoman.core.ids import AgentId
from dragoman.core.model.agents import MOST_CONNECTION_CHANGES, Agent, ConnectionEvent
from dragoman.messages.faults import Fault, Kind

CONNECTED, DISCONNECTED, SILENT, BACK = ConnectionEvent


@pytest.fixture
async def world() -> World:
    world = await World().start()
    await world.add("i1", "infra")
    await world.add("talker", protocol="agentmsg")
    return world


def history(world: World, id: str) -> list[tuple[ConnectionEvent, str]]:
    agent = world.intake.agent(AgentId(id))
    assert agent is not None
    return [(change.event, change.why) for change in agent.connections]


async def test_connections_and_their_ends_are_kept_with_the_reason(world):
    first = await world.connect("i1")
    await world.advance(1)
    await world.connect("i1")  # while the first is open
    await first.close()
    second = await world.connect("i1", fresh=True)
    await second.close(fault=Fault(kind=Kind.UNAVAILABLE, message="it exited with 1"))
    assert history(world, "i1") == [
        (CONNECTED, ""),
        (CONNECTED, "it replaces the connection before it"),
        (CONNECTED, "it replaces the connection before it"),
        (DISCONNECTED, "it exited with 1"),
    ]


async def test_an_agent_that_polls_has_no_connection(world):
    await world.poll("i1")
    assert history(world, "i1") == []


async def test_silence_and_its_end_are_kept(world):
    await world.connect("talker")
    await world.ask(Beat(principal=AgentId("talker")))
    await world.advance(120)
    await world.ask(Beat(principal=AgentId("talker")))
    assert [event for event, _ in history(world, "talker")] == [CONNECTED, SILENT, BACK]


async def test_the_history_is_bounded_and_survives_a_restart(world):
    for _ in range(MOST_CONNECTION_CHANGES):
        await (await world.connect("i1")).close()
    before = history(world, "i1")
    assert len(before) == MOST_CONNECTION_CHANGES
    await world.restart()
    assert history(world, "i1") == before


def test_a_row_of_a_version_without_the_history_is_read():
    row = msgspec.json.decode(b'{"id":"i1","protocol":"chiffon","created_at":1,"token_hash":"x"}', type=Agent)
    assert row.connections == ()
