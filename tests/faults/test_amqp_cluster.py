"""Agents on RabbitMQ and a hub of several nodes: leaders, the nodes that consume, and the broker die under load. Judged
by the ledger: what the broker confirmed has its effect, once, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support import rabbitmq
from tests.support.amqp_fleet import QueueFleet
from tests.support.cluster import Cluster, Node, cluster
from tests.support.hubproc import HubProcess, running, until
from tests.support.ledger import Ledger
from tests.support.postgres import Server, need_postgres, private_directory
from tests.support.rabbitmq import Broker, Host

LONG = {
    "DRAGOMAN_RULES__IDLE_SECONDS": "600",
    "DRAGOMAN_RULES__GRACE_SECONDS": "600",
    "DRAGOMAN_RULES__UNREACHABLE_DELAYS_SECONDS": "60,60,60,60",
}
"""The agents stay at the broker, so the next leader finds them there, and no work is lost: a task that it takes for
lost would wait for longer than the test does."""
SHORT = {
    "DRAGOMAN_RULES__IDLE_SECONDS": "10",
    "DRAGOMAN_RULES__GRACE_SECONDS": "5",
    "DRAGOMAN_RULES__UNREACHABLE_DELAYS_SECONDS": "1,1,1,1,1,1,1,1",
}
"""A broker that is gone for long takes its agents along; then work is given again, to either."""
Find = Callable[[Host, Cluster], Node]
AGENTS = {"orchestrator": "orchestrator", "i0": "infra", "i1": "infra"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    need_postgres()
    server = Server(private_directory("amqp")).start()
    yield server
    server.remove()


@pytest.fixture
def host() -> Iterator[Host]:
    with rabbitmq.host() as made:
        yield made


def tokens(hub: HubProcess) -> dict[str, str]:
    return {id: hub.token(id, kind) for id, kind in AGENTS.items()}


def consumer(host: Host, hub: Cluster) -> Node:
    """The node to which the broker gives the messages."""

    def found() -> Node | None:
        details = host.broker.ask("GET", f"/api/consumers/{host.name}")
        ports = {
            one["channel_details"]["peer_port"]
            for one in details
            if one["queue"]["name"] == "chiffon.hub" and one["active"]
        }
        return next((node for node in hub.running if ports & ports_of(node.pid)), None)

    return until(found, "a node that consumes")


def ports_of(pid: int) -> set[int]:
    """The local ports of a process's TCP connections."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()).partition("socket:[")[2].rstrip("]"))
        except OSError:
            continue
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[9] in inodes}


async def judged(fleet: QueueFleet, hub: HubProcess) -> None:
    await fleet.drained()
    await asyncio.to_thread(until, lambda: hub.pending == 0, "nothing is pending")
    assert fleet.ledger.verdict(await asyncio.to_thread(hub.dead_letters)) == []


def leader(host: Host, hub: Cluster) -> Node:
    return hub.leader()


async def rounds(tmp_path: Path, store: str, host: Host, *ends: tuple[Find, str], seed: int = 1) -> None:
    """Under load, one node after the other ends and comes back. The broker gives the messages to another one."""
    with cluster(tmp_path, store, "abc", DRAGOMAN_AMQP__URL=host.url, **LONG) as hub:
        async with QueueFleet(host.url, await asyncio.to_thread(tokens, hub), Ledger(), seed) as fleet:
            await fleet.more()
            for find, end in ends:
                node = await asyncio.to_thread(find, host, hub)
                await asyncio.to_thread(node.kill if end == "kill" else node.stop)
                await fleet.more()
                assert await asyncio.to_thread(consumer, host, hub) is not node
                await asyncio.to_thread(node.return_to_its_port)
                await fleet.more()
            await judged(fleet, hub)
        assert await asyncio.to_thread(host.peek, "chiffon.dead") == []


@pytest.mark.soak
async def test_agents_on_a_broker_lose_nothing_when_the_leader_and_the_node_that_consumes_die(
    tmp_path: Path, server: Server, host: Host
) -> None:
    await rounds(tmp_path, server.create_database("amqp"), host, (leader, "kill"), (consumer, "kill"))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
async def test_agents_on_a_broker_lose_nothing_over_many_ends_of_leaders_and_consumers(
    tmp_path: Path, server: Server, host: Host, seed: int
) -> None:
    rng = random.Random(seed)
    ends = [(rng.choice((leader, consumer)), rng.choice(("kill", "kill", "stop"))) for _ in range(8)]
    await rounds(tmp_path, server.create_database(f"amqp{seed}"), host, *ends, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
async def test_a_broker_that_is_killed_under_load_loses_nothing_that_it_confirmed(tmp_path: Path, seed: int) -> None:
    """kill -9, with messages on their way through every queue, and again after it is back. Reports may come twice,
    and a late one is refused, so what lies in `chiffon.dead` is not judged."""
    rabbitmq.need_rabbitmq()
    broker = Broker(rabbitmq.private_directory(f"load{seed}"))
    try:
        await asyncio.to_thread(broker.start)
        host = rabbitmq.make_host(broker)
        with running(tmp_path, DRAGOMAN_AMQP__URL=host.url, **SHORT) as hub:
            async with QueueFleet(host.url, await asyncio.to_thread(tokens, hub), Ledger(), seed) as fleet:
                try:
                    for _ in range(3):
                        await fleet.more()
                        await asyncio.to_thread(broker.kill)
                        await asyncio.to_thread(broker.start)
                    await fleet.more()
                    await judged(fleet, hub)
                except AssertionError:
                    await rabbitmq.skip_if_broken(host)
                    raise
    finally:
        await asyncio.to_thread(broker.remove)
