"""Networks between nodes and PostgreSQL that lose packets in silence, in one direction: judged by the ledger.

Each node has a network namespace of its own. Nothing is reset: who sends gets no error, and who waits gets no end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.cluster import Cluster
from tests.support.cluster_load import LONG, Load, audit_is_whole
from tests.support.hubproc import until
from tests.support.netns import Network, network
from tests.support.postgres import Server, need_postgres, private_directory

from dragoman.security.certificates import Authority

NAMES = "ab"
SOAK = pytest.mark.soak


class Apart:
    """A cluster whose nodes have networks of their own, and PostgreSQL at an address of its own."""

    def __init__(self, home: Path, net: Network, server: Server) -> None:
        self.net = net
        authority = Authority(home / "tls", datetime.now(UTC))
        authority.server([*NAMES], now=datetime.now(UTC))
        for name in NAMES:
            authority.client(name, now=datetime.now(UTC))
        server.trust(f"{net.here.rpartition('.')[0]}.0/24")
        self.hub = Cluster(home, server.url(host=server.host), NAMES, **LONG)
        for name, node in self.hub.nodes.items():
            node.wrap = net.enter(name)
            node.settings |= {
                "DRAGOMAN_SERVER__HOST": net.address(name),
                "DRAGOMAN_SERVER__ALLOW_PLAIN": "true",
                "DRAGOMAN_CLUSTER__HOST": net.address(name),
                "DRAGOMAN_CLUSTER__TLS": str(home / "tls"),
            }

    def start(self) -> None:
        self.hub.start_all()

    def cut(self, *ways: tuple[str, str]) -> None:
        for name, to in ways:
            self.net.cut(name, to)

    def mend(self, *ways: tuple[str, str]) -> None:
        for name, to in ways:
            self.net.mend(name, to)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    need_postgres()
    with network(NAMES) as net:
        server = Server(private_directory("apart"), host=net.extra).start()
        try:
            made = Apart(tmp_path_factory.mktemp("apart"), net, server)
            try:
                made.start()
                yield made
            finally:
                made.hub.kill_all()
        finally:
            server.remove()


def test_a_leader_that_postgresql_does_not_hear_any_more_is_replaced(apart: Apart) -> None:
    """It leads no more when another one does, and follows when it is heard again."""
    hub = apart.hub
    with Load(hub) as load:
        alone = hub.leader()
        epoch = hub.epoch()
        way = (alone.name, apart.net.extra)
        apart.cut(way)
        others = [node for node in hub.nodes.values() if node is not alone]
        until(lambda: any(node.leads for node in others), "another node leads")
        until(lambda: not alone.leads, "the one that is cut off does not")
        load.more()
        apart.mend(way)
        until(lambda: alone.is_ready, "it serves again")
        assert not alone.leads, "it follows"
        assert hub.epoch() > epoch
        load.more()
    audit_is_whole(hub)


@pytest.mark.parametrize(
    "direction", ["to the leader", pytest.param("from the leader", marks=SOAK), pytest.param("both", marks=SOAK)]
)
def test_a_node_and_the_leader_that_lose_each_other_cost_neither_the_lead_nor_a_task(
    direction: str, apart: Apart
) -> None:
    """The node says that it is not ready; the leader leads on."""
    hub = apart.hub
    with Load(hub) as load:
        leader, node = hub.leader(), hub.follower()
        epoch = hub.epoch()
        there = (node.name, apart.net.address(leader.name))
        back = (leader.name, apart.net.address(node.name))
        ways = {"to the leader": (there,), "from the leader": (back,), "both": (there, back)}[direction]
        apart.cut(*ways)
        says = (503, f"{node.name} waits: it does not reach {leader.name}, which leads")
        until(lambda: node.ready_detail == says, "it says that it serves nobody")
        load.more()
        assert leader.leads
        apart.mend(*ways)
        until(lambda: node.is_ready, "it follows again")
        load.more()
        assert (hub.leader(), hub.epoch()) == (leader, epoch)
    audit_is_whole(hub)
