"""A person pauses an agent: it gets no new work, finishes what it has, and stays so over a restart of the hub."""

from __future__ import annotations

import pytest
from tests.support.world import World

from dragoman.core.commands import PauseAgent, ResumeAgent
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.tasks import Status
from dragoman.core.queries.obstacles import AgentFacts, candidate
from dragoman.core.queries.people import AgentStatus, agent_status
from dragoman.core.routing.routes import Route
from dragoman.messages.faults import Kind, Refused
from dragoman.stores.memory import MemoryStore

WORKER, OTHER = AgentId("i1"), AgentId("i2")


@pytest.fixture
async def world():
    world = await World(MemoryStore()).start()
    await world.add("boss", "orchestrator")
    for id in (WORKER, OTHER):
        await world.add(id, "infra")
    yield world
    await world.intake.stop()


async def pause(world: World, id: AgentId = WORKER) -> None:
    await world.ask(PauseAgent(principal=ADMIN, agent=id))


async def test_a_paused_agent_keeps_what_it_has_and_gets_nothing_new(world: World) -> None:
    await world.connect(WORKER)
    first = await world.submit()
    assert (first.status, first.owner) == (Status.ASSIGNED, WORKER)
    await pause(world)
    waiting = await world.submit()
    assert (await world.task(first.id)).owner == WORKER
    assert (waiting.status, waiting.owner) == (Status.QUEUED, None)
    await world.connect(OTHER)
    assert (await world.task(waiting.id)).owner == OTHER


async def test_a_resumed_agent_gets_at_once_what_waits(world: World) -> None:
    await world.connect(WORKER)
    await pause(world)
    waiting = await world.submit()
    assert waiting.owner is None
    await world.ask(ResumeAgent(principal=ADMIN, agent=WORKER))
    assert (await world.task(waiting.id)).owner == WORKER


async def test_only_people_pause_an_agent(world: World) -> None:
    with pytest.raises(Refused) as refused:
        await world.ask(PauseAgent(principal=OTHER, agent=WORKER))
    assert refused.value.fault.kind is Kind.FORBIDDEN
    with pytest.raises(Refused) as refused:
        await pause(world, AgentId("nobody"))
    assert refused.value.fault.kind is Kind.NOT_FOUND


async def test_its_status_and_the_reason_say_so(world: World) -> None:
    await world.connect(WORKER)
    await pause(world)
    agent = world.intake.agent(WORKER)
    assert agent is not None
    assert agent_status(agent, reachable=True, load=1) is AgentStatus.PAUSED
    assert agent_status(agent, reachable=False, load=0) is AgentStatus.OFFLINE
    told = candidate(AgentFacts(agent=agent, reachable=True, load=0), Route(type="x"), world.intake.now())
    assert [(one.code, one.text, one.next) for one in told.reasons] == [
        ("paused", "paused by a person", "let it get work again: dragoman agent resume i1")
    ]


async def test_it_stays_paused_over_a_restart(world: World) -> None:
    await pause(world)
    await world.restart()
    await world.connect(WORKER)
    assert (await world.submit()).owner is None
