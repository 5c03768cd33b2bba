"""How much memory or GPU memory a task may need, and how much an agent has: hints of chiffon's for the scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.heads import changed
from tests.support.world import World

from dragoman.api.tasks import explain
from dragoman.core.budgets.capacity import account_of
from dragoman.core.commands import RegisterAgent
from dragoman.core.ids import AgentId
from dragoman.core.model.agents import RESOURCES, Agent, Resource
from dragoman.core.model.tasks import Status
from dragoman.core.routing.routes import Route, route_of
from dragoman.messages.faults import Kind
from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=RESOURCES, ids=[resource.name for resource in RESOURCES])
def resource(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["loads first", "peeks"])
async def world(request: pytest.FixtureRequest, resource: Resource) -> Any:
    world = await World(MemoryStore(immediate=request.param == "peeks")).start()
    await world.add("boss", "orchestrator")
    for name, memory in (("small", 512), ("large", 2048)):
        await world.add(name, "infra")
        await world.ask(RegisterAgent(principal=AgentId(name), **{resource.name: memory}))  # type: ignore[arg-type]
        await world.connect(name)
    yield world
    await world.intake.stop()


@pytest.fixture
def wants(resource: Resource) -> Any:
    return lambda megabytes: {"constraints": {resource.constraint: megabytes}}


@pytest.mark.requirement("CH-REQ-4")
async def test_work_goes_to_who_has_the_memory_for_it(world: World, wants: Any) -> None:
    tasks = [await world.submit(**wants(n)) for n in (1000, 1000, 500)]
    assert [task.owner for task in tasks] == ["large", "large", "small"]
    free = await world.submit()
    assert free.owner == "small"  # whoever asks for nothing is not counted


async def test_it_waits_until_there_is_room_and_leaves_with_the_commit_that_makes_it(
    world: World, wants: Any, resource: Resource
) -> None:
    first = await world.submit(**wants(1500))
    waits = await world.submit(**wants(1000))
    assert (first.owner, waits.status) == ("large", Status.QUEUED)
    told = await explain(SimpleNamespace(intake=world.intake, store=world.store), waits)  # type: ignore[arg-type]
    large = next(one for one in told.candidates if one.agent == "large")
    assert f"548 of 2048 {resource.unit} free" in large.reasons[0].text
    assert f"(limits.{resource.constraint})" in str(large.reasons[0].next)
    await world.finish("large", first.id)
    await world.settle()
    assert (await world.task(waits.id)).owner == "large"


async def test_what_nobody_could_ever_bear_is_refused_with_the_numbers(
    world: World, wants: Any, resource: Resource
) -> None:
    fault = await world.refused(world.request(**wants(4096)))
    assert (fault.kind, fault.field) == (Kind.RESOURCES, f"constraints.{resource.constraint}")
    assert {name: fault.facts[name] for name in ("resource", "asked", "remaining")} == {
        "resource": resource.name, "asked": 4096, "remaining": 2048,
    }  # fmt: skip
    await world.add("unsaid", "infra")  # it did not say what it has
    await world.connect("unsaid")
    assert (await world.submit(**wants(4096))).owner == "unsaid"


async def test_an_agent_that_registers_again_without_a_limit_takes_any_task(world: World, wants: Any) -> None:
    await world.ask(RegisterAgent(principal=AgentId("small")))
    assert (await world.submit(**wants(4096))).owner == "small"


async def test_a_restart_forgets_nothing_of_it(world: World, wants: Any) -> None:
    await world.submit(**wants(1500))
    await world.restart()
    for name in ("small", "large"):
        await world.connect(name)
    assert (await world.submit(**wants(1000))).status is Status.QUEUED


async def test_memory_is_a_matter_of_routes_and_not_of_budgets(world: World, wants: Any, resource: Resource) -> None:
    """As one, every task with the hint was looked at again whenever another ended."""
    task = await world.submit(**wants(100))
    assert task.spending.reserved is None
    small = await world.submit(**wants(1000))
    waits = await world.submit(**wants(1900))
    told = await explain(SimpleNamespace(intake=world.intake, store=world.store), waits)  # type: ignore[arg-type]
    assert (small.owner, waits.status) == ("large", Status.QUEUED)
    by_name = {one.agent: one for one in told.candidates}
    assert (by_name["small"].able, by_name["small"].reasons[0].code) == (False, resource.lacking)
    assert (by_name["large"].able, by_name["large"].reasons[0].code) == (True, "no_room")


OF_BOTH = pytest.mark.parametrize("resource", RESOURCES[:1], ids=["both"], indirect=True)
"""`small` and `large` said how much memory they have; in these tests they `declare` what they have of both."""


@OF_BOTH
async def test_a_task_is_given_to_an_agent_that_has_enough_of_each(world: World) -> None:
    await declare(world, small=(512, 8000), large=(2048, 1000))
    assert [(await world.submit(constraints=needs(*each))).owner for each in ((500, 8000), (2000, 1000))] == [
        "small",
        "large",
    ]


@OF_BOTH
async def test_it_waits_for_the_one_of_which_too_little_is_free(world: World) -> None:
    await declare(world, small=(512, 0), large=(2048, 1000))
    first = await world.submit(constraints=needs(100, 900))
    waits = await world.submit(constraints=needs(200, 200))
    assert (first.owner, waits.status) == ("large", Status.QUEUED)
    assert (await world.submit(constraints=needs(1900, 0))).owner == "large"  # it asks for no GPU
    await world.finish("large", first.id)
    await world.settle()
    assert (await world.task(waits.id)).owner is None  # now the memory is taken
    told = await explain(SimpleNamespace(intake=world.intake, store=world.store), waits)  # type: ignore[arg-type]
    by_name = {one.agent: one for one in told.candidates}
    assert (by_name["small"].able, by_name["small"].reasons[0].code) == (False, "lacks_gpu_memory")
    assert [reason.facts["resource"] for reason in by_name["large"].reasons] == ["memory_mb"]


@OF_BOTH
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ((100, 9000), ("gpu_vram_mb", "large", 1000, 9000)),
        ((4096, 1), ("memory_mb", "large", 2048, 4096)),
        ((2000, 9000), ("gpu_vram_mb", "large", 1000, 9000)),  # `small` lacks both
        ((4096, 9000), ("memory_mb", "large", 2048, 4096)),
    ],
)
async def test_a_refusal_names_the_limit_of_the_agent_that_comes_nearest(
    world: World, asked: tuple[int, int], named: tuple[str, str, int, int]
) -> None:
    await declare(world, small=(512, 0), large=(2048, 1000))
    fault = await world.refused(world.request(constraints=needs(*asked)))
    assert fault.kind is Kind.RESOURCES
    assert tuple(fault.facts[name] for name in ("resource", "whose", "remaining", "asked")) == named


@OF_BOTH
async def test_an_agent_without_a_gpu_may_say_so(world: World) -> None:
    await declare(world, small=(512, 0), large=(2048, 0))
    fault = await world.refused(world.request(constraints=needs(0, 1)))
    assert (fault.facts["resource"], fault.facts["limit"], fault.facts["asked"]) == ("gpu_vram_mb", 0, 1)
    assert "0 MB of GPU memory" in fault.message
    assert (await world.submit(constraints=needs(0, 0))).owner is not None


async def declare(world: World, **agents: tuple[int, int]) -> None:
    for name, (memory, gpu) in agents.items():
        await world.ask(RegisterAgent(principal=AgentId(name), memory_mb=memory, gpu_vram_mb=gpu))


def needs(memory: int, gpu: int) -> dict[str, int]:
    return {"max_memory_mb": memory, "max_gpu_vram_mb": gpu}


def test_routes_that_were_stored_before_gpu_memory_was_counted_keep_their_queue() -> None:
    """A task that waits through an upgrade of the hub stands in one queue with those that come after it."""
    before = '["run","infra",null,null,[],null,false,512,false,[],[],[]]'
    route = Route(type="run", kind="infra", memory_mb=512)
    assert (route_of(before), route.queue) == (route, before)
    large = Route(type="run", kind="infra", memory_mb=512, gpu_vram_mb=10)
    assert (route_of(large.queue), large.queue) == (large, before[:-1] + ",10]")


def test_an_agent_that_was_stored_before_gpu_memory_was_counted_declared_none() -> None:
    row = b'{"id":"a","protocol":"chiffon","created_at":1,"token_hash":"x","memory_mb":512}'
    agent = msgspec.json.decode(row, type=Agent)
    assert (agent.memory_mb, agent.gpu_vram_mb, msgspec.json.encode(agent)) == (512, None, row)


@pytest.mark.parametrize("said", ["much", -5, 1.5, True, None])
async def test_a_stored_need_that_is_no_number_keeps_nobody_else_waiting(
    world: World, wants: Any, resource: Resource, said: object
) -> None:
    """Agents that handed a task over could once say anything of it."""
    held = await world.submit(**wants(1))
    odd = changed(held, constraints={resource.constraint: said})
    agent = msgspec.structs.replace(world.intake.agent(held.owner), **{resource.name: 512})
    assert account_of(agent, resource, (odd, held)).free == 511
