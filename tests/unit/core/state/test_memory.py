"""How much memory a task may need, and how much an agent has: a hint of chiffon's for the scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.world import World

from dragoman.core.commands import RegisterAgent
from dragoman.core.errors import Kind
from dragoman.core.ids import AgentId
from dragoman.core.tasks.model import Status
from dragoman.stores.memory import MemoryStore
from dragoman.transports.api.tasks import explain


@pytest.fixture(params=["loads first", "peeks"])
async def world(request: pytest.FixtureRequest) -> Any:
    world = await World(MemoryStore(immediate=request.param == "peeks")).start()
    await world.add("boss", "orchestrator")
    for name, memory in (("small", 512), ("large", 2048)):
        await world.add(name, "infra")
        await world.ask(RegisterAgent(principal=AgentId(name), memory_mb=memory))
        await world.connect(name)
    yield world
    await world.intake.stop()


def wants(megabytes: int) -> dict[str, Any]:
    return {"constraints": {"max_memory_mb": megabytes}}


@pytest.mark.requirement("CH-REQ-4")
async def test_work_goes_to_who_has_the_memory_for_it(world: World) -> None:
    tasks = [await world.submit(**wants(n)) for n in (1000, 1000, 500)]
    assert [task.owner for task in tasks] == ["large", "large", "small"]
    free = await world.submit()
    assert free.owner == "small"  # whoever asks for nothing is not counted


async def test_it_waits_until_there_is_room_and_leaves_with_the_commit_that_makes_it(world: World) -> None:
    first = await world.submit(**wants(1500))
    waits = await world.submit(**wants(1000))
    assert (first.owner, waits.status) == ("large", Status.QUEUED)
    told = await explain(SimpleNamespace(intake=world.intake, store=world.store), waits)  # type: ignore[arg-type]
    large = next(one for one in told.candidates if one.agent == "large")
    assert "548 of 2048 MB of memory free" in large.reasons[0].text
    await world.finish("large", first.id)
    await world.settle()
    assert (await world.task(waits.id)).owner == "large"


async def test_what_nobody_could_ever_bear_is_refused_with_the_numbers(world: World) -> None:
    fault = await world.refused(world.request(**wants(4096)))
    assert (fault.kind, fault.field) == (Kind.RESOURCES, "constraints.max_memory_mb")
    assert {name: fault.facts[name] for name in ("resource", "asked", "remaining")} == {
        "resource": "memory_mb", "asked": 4096, "remaining": 2048,
    }  # fmt: skip
    await world.add("unsaid", "infra")  # it did not say what it has
    await world.connect("unsaid")
    assert (await world.submit(**wants(4096))).owner == "unsaid"


async def test_an_agent_that_registers_anew_without_it_takes_any(world: World) -> None:
    await world.ask(RegisterAgent(principal=AgentId("small")))
    assert (await world.submit(**wants(4096))).owner == "small"


async def test_a_restart_forgets_nothing_of_it(world: World) -> None:
    await world.submit(**wants(1500))
    await world.restart()
    for name in ("small", "large"):
        await world.connect(name)
    assert (await world.submit(**wants(1000))).status is Status.QUEUED


async def test_memory_is_a_matter_of_routes_and_not_of_budgets(world: World) -> None:
    """As one, every task with the hint was looked at again whenever another ended."""
    task = await world.submit(**wants(100))
    assert task.reserved is None
    small = await world.submit(**wants(1000))
    waits = await world.submit(**wants(1900))
    told = await explain(SimpleNamespace(intake=world.intake, store=world.store), waits)  # type: ignore[arg-type]
    assert (small.owner, waits.status) == ("large", Status.QUEUED)
    by_name = {one.agent: one for one in told.candidates}
    assert (by_name["small"].able, by_name["small"].reasons[0].code) == (False, "lacks_memory")
    assert (by_name["large"].able, by_name["large"].reasons[0].code) == (True, "no_room")
