"""The keeper of a node over a real lease: who takes it when, and what a leader does that cannot renew it.

The steady clock of each node is the test's. PostgreSQL's is real, so leases end by a release, or with a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from dragoman.app.cluster.election import TTL, Stream, Why
from dragoman.app.cluster.keeper import Following, Keeper, Leading, Place, Role, Waiting
from dragoman.app.wiring import running_beside
from dragoman.stores.postgres import lease
from dragoman.stores.postgres.lease import LeaseTable
from tests.support.postgres import shared_url

PATIENCE = 30.0
realms = iter(range(1, 1 << 30))


class Nodes:
    """Nodes of one realm; `wall` is how far each one's clock is ahead."""

    def __init__(self, realm: str, stops: AsyncExitStack) -> None:
        self.realm = realm
        self._stops = stops
        self.tables: dict[str, LeaseTable] = {}
        self.steps: dict[str, float] = {}

    async def start(self, name: str, *, ahead: float = 0.0) -> Keeper:
        table = self.tables[name] = LeaseTable(shared_url(), self.realm)
        self.steps[name] = 0.0
        keeper = Keeper(
            table,
            Place(name, f"http://{name}", f"{name}:2", f"{name}:1"),
            wall=lambda: time.time() + ahead,
            steady=lambda: time.monotonic() + self.steps[name],
        )
        await self._stops.enter_async_context(running_beside(keeper.run(), name))
        self._stops.push_async_callback(table.close)
        return keeper


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    realm = f"k{next(realms)}"
    await lease.init(shared_url(), realm)
    async with AsyncExitStack() as stops:
        yield Nodes(realm, stops)


async def until(keeper: Keeper, condition: Callable[[Role], bool]) -> Role:
    async with asyncio.timeout(PATIENCE):
        while not condition(keeper.role):
            keeper.changed.clear()
            await keeper.changed.wait()
    return keeper.role


def is_leading(epoch: int) -> Callable[[Role], bool]:
    return lambda role: isinstance(role, Leading) and role.lease.epoch == epoch


def follows(holder: str) -> Callable[[Role], bool]:
    return lambda role: isinstance(role, Following) and role.to.holder == holder


def waits(why: Why) -> Callable[[Role], bool]:
    return lambda role: role == Waiting(why)


async def test_the_first_node_leads_the_second_follows_and_takes_over_what_is_released(nodes: Nodes) -> None:
    a = await nodes.start("a")
    await until(a, is_leading(1))
    b = await nodes.start("b")
    await until(b, follows("a"))
    assert [one.name for one in b.known_nodes] == ["a", "b"]
    await a.release()
    b.stream(1, Stream.BROKEN)
    await until(b, is_leading(2))
    await until(a, follows("b"))


async def test_the_lease_of_a_leader_that_died_is_taken_at_once(nodes: Nodes) -> None:
    """Its session with PostgreSQL is gone and the stream is broken: nobody waits for the end of the lease."""
    async with AsyncExitStack() as life:
        dies = Nodes(nodes.realm, life)
        await until(await dies.start("a"), is_leading(1))
        b = await nodes.start("b")
        await until(b, follows("a"))
        began = time.monotonic()
    b.stream(1, Stream.BROKEN)
    await until(b, is_leading(2))
    assert time.monotonic() - began < TTL


async def test_a_leader_that_slept_past_its_lease_steps_down_and_follows(nodes: Nodes) -> None:
    a = await nodes.start("a")
    await until(a, is_leading(1))
    nodes.steps["a"] += 60
    await until(a, waits(Why.LEASE_ENDS))
    await until(a, is_leading(2))  # nobody else wanted it: this process takes its own lease again


async def test_a_leader_that_another_node_fenced_steps_down(nodes: Nodes) -> None:
    a = await nodes.start("a")
    await until(a, is_leading(1))
    other = LeaseTable(shared_url(), nodes.realm)
    await other.release(1)
    assert await other.take(1, holder="x", url="x:1", ttl=3600) is not None
    await until(a, lambda role: not isinstance(role, Leading))
    await until(a, follows("x"))
    await other.close()


@pytest.mark.parametrize("ahead", [60, -60])
async def test_a_node_whose_clock_is_off_does_not_lead(nodes: Nodes, ahead: float) -> None:
    a = await nodes.start("a", ahead=ahead)
    await until(a, waits(Why.CLOCK))
    b = await nodes.start("b")
    await until(b, is_leading(1))
    await until(a, follows("b"))


async def test_a_store_that_went_on_to_the_next_epoch_keeps_its_lead(nodes: Nodes) -> None:
    a = await nodes.start("a")
    await until(a, is_leading(1))
    other = LeaseTable(shared_url(), nodes.realm)
    taken = await other.take_again(1)
    assert taken is not None
    a.leads_as(lambda: taken.epoch)
    before = a.sure
    async with asyncio.timeout(PATIENCE):
        while a.sure <= before:
            await asyncio.sleep(0.02)
    assert is_leading(1)(a.role)
    await other.close()
