"""Nodes of a cluster that die, sleep and hand over, and a PostgreSQL that dies and is replaced: judged by the ledger.

Real hub processes over a real PostgreSQL. Clients come to any node, and go on after every broken connection.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.agentmsg.plain import Plain
from tests.support.callback import Callback, callback_server, has_connection_from
from tests.support.chiffon import HttpClient, task_of, work_result
from tests.support.cluster import cluster
from tests.support.cluster_load import LONG, Load, audit_is_whole, command
from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, until
from tests.support.postgres import Server, need_postgres, private_directory

from dragoman.security.certificates import Authority


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    need_postgres()
    server = Server(private_directory("cluster")).start()
    yield server
    server.remove()


@pytest.fixture
def store(server: Server, request: pytest.FixtureRequest) -> str:
    return server.create_database(f"d{abs(hash(request.node.name))}")


@pytest.mark.long
def test_nothing_acknowledged_is_lost_when_leaders_die_sleep_and_hand_over(tmp_path: Path, store: str) -> None:
    """kill -9 and SIGSTOP of the leader, SIGSTOP of another node, `step-down` and a restart of every node, in turn,
    under load. The nodes show each other certificates."""
    authority = Authority(tmp_path / "tls", datetime.now(UTC))
    authority.server(["a", "b", "c"], now=datetime.now(UTC))
    for name in "abc":
        authority.client(name, now=datetime.now(UTC))
    with cluster(tmp_path, store, "abc", DRAGOMAN_CLUSTER__TLS=str(tmp_path / "tls"), **LONG) as hub:
        with Load(hub) as load:
            dead = hub.leader()
            epoch = hub.epoch()
            dead.kill()
            began = time.monotonic()
            heir = hub.leader()
            assert time.monotonic() - began < 3.0, "nobody waited for the end of the lease"
            assert hub.epoch() > epoch
            load.more()
            dead.return_to_its_port()

            heir.freeze()
            third = hub.leader()
            heir.thaw()
            until(lambda: heir.is_ready and not heir.leads, "the leader that slept is fenced, and follows")
            load.more()

            epoch, other = hub.epoch(), hub.follower()
            other.freeze()
            load.more(20)
            other.thaw()
            until(lambda: other.is_ready, "a node that slept follows again")
            assert hub.epoch() == epoch

            done = command(hub, "cluster", "step-down", "--hub", hub.follower().url, "-o", "json")
            assert done.returncode == 0, done.stdout + done.stderr
            assert hub.leader() is not third
            load.more()

            for node in hub.nodes.values():  # a rolling restart
                assert node.stop() == 0
                node.return_to_its_port()
                until(lambda: node.is_ready, "the node is back")  # noqa: B023
                load.more(2)
        audit_is_whole(hub)


def test_a_killed_postgresql_costs_no_acknowledged_task_and_the_nodes_say_what_they_wait_for(tmp_path: Path) -> None:
    server = Server(private_directory("dies"), durable=True).start()
    try:
        with cluster(tmp_path, server.url(host="127.0.0.1"), **LONG) as hub:
            with Load(hub) as load:
                server.kill()
                for node in hub.nodes.values():
                    says = (503, f"{node.name} waits: PostgreSQL does not answer")
                    until(lambda: node.ready_detail == says, "it says so")  # noqa: B023
                    answer = HttpClient(node.url, hub.ready["admin_token"]).get("/api/v1/agents")
                    assert (answer.status, answer.json["kind"]) == (503, "overloaded")
                    assert "retry-after" in answer.headers
                    assert HttpClient(node.url).get("/livez").status == 200
                server.start()
                load.more()
            audit_is_whole(hub)
    finally:
        server.remove()


def test_nothing_is_acknowledged_without_a_synchronous_standby_and_nothing_lost_when_it_is_promoted(
    tmp_path: Path,
) -> None:
    primary = Server(private_directory("primary"), durable=True).start()
    standby = primary.add_standby(private_directory("standby"))
    try:
        hosts = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        with cluster(tmp_path, hosts, **LONG) as hub:
            with Load(hub) as load:
                standby.freeze()
                time.sleep(0.3)  # what the standby had before it stood still is acknowledged
                before = len(load.ledger.acknowledged)
                time.sleep(1.0)
                assert len(load.ledger.acknowledged) == before
                standby.thaw()
                load.more()

                primary.kill()
                standby.promote()
                load.more()
            audit_is_whole(hub)
    finally:
        primary.remove()
        standby.remove()


def test_what_is_promised_at_most_once_is_never_delivered_twice_over_a_failover(tmp_path: Path, store: str) -> None:
    with cluster(tmp_path, store, "ab", **LONG) as hub:
        ada, bob = Plain(hub, "ada"), Plain(hub, "bob")

        def send(message: dict[str, Any]) -> None:
            """Until a node takes it."""

            def taken() -> bool:
                try:
                    return bool(ada.send(message).status == 202)
                except BROKEN:
                    return False

            until(taken, "it is taken")

        sent = [ada.message("HEARTBEAT", "bob", {"agent_id": "ada"}, priority="low") for _ in range(10)]
        for message in sent:
            send(message)
        first = [one["message"]["id"] for one in bob.poll(60, 4)]  # and nobody acknowledges
        assert first
        dead = hub.leader()
        dead.kill()
        hub.leader()
        for message in sent:
            send(message)  # the same again is the same, also at the next leader
        rest: list[str] = []
        while got := bob.poll():
            rest += (one["message"]["id"] for one in got)
        assert set(first) & set(rest) == set()
        assert len(first) + len(rest) == len({*first, *rest})
        assert {*first, *rest} <= {message["id"] for message in sent}


def test_the_leader_alone_posts_to_a_callback_url_and_the_next_one_goes_on(tmp_path: Path, store: str) -> None:
    """Also when another node starts, or takes the registration."""
    quick = LONG | {"DRAGOMAN_CHIFFON__ALLOW_PRIVATE_CALLBACKS": "true"}
    room = {"limits": {"max_concurrent": 20}}
    with cluster(tmp_path, store, "abc", **quick) as hub, callback_server() as first, callback_server() as second:
        boss = hub.orchestrator()
        agent = hub.worker("pushed", "pushed", callback_url=first.url, **room)
        first.answering.clear()
        second.answering.clear()

        def posted(callback: Callback, count: int = 1) -> dict[str, Any]:
            """The last of so many messages, each posted once, by the leader."""
            until(lambda: len(callback.got) >= count, "it is posted")
            assert len(callback.got) == count
            poster = next(node for node in hub.running if has_connection_from(node.pid, callback.ports[-1]))
            assert poster is hub.leader()
            return callback.got[-1]

        def submit() -> str:
            boss.url = hub.url
            request, answer = boss.submit(to_agent="pushed")
            assert answer.status == 202
            return str(request["request_id"])

        one = submit()
        assert posted(first)["request_id"] == one
        other = hub.follower()
        other.kill()
        other.return_to_its_port()
        until(lambda: other.is_ready, "a node has started")
        two = submit()
        assert posted(first, 2)["request_id"] == two
        first.answering.set()

        agent.url = other.url
        assert agent.register(callback_url=second.url, **room).status == 200
        three = submit()
        assert posted(second)["request_id"] == three
        hub.leader().kill()
        assert posted(second, 2)["request_id"] == three  # for all the next leader knows, it did not arrive
        second.answering.set()
        four = submit()
        until(lambda: len(second.got) == 3, "the next leader goes on")
        assert second.got[-1]["request_id"] == four
        assert len(first.got) == 2


WALL = """
import os, time
seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + int(os.environ["AHEAD"])
time.time_ns = lambda: nanoseconds() + int(os.environ["AHEAD"]) * 10**9
"""


@pytest.mark.soak
def test_time_goes_on_after_a_leader_whose_clock_is_behind_and_one_that_is_far_off_never_leads(
    tmp_path: Path, store: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WALL)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with cluster(tmp_path, store, "ab", **LONG) as hub:
        a, b = hub.nodes.values()
        b.stop()
        b.wrap = ("env",)
        boss, worker = hub.orchestrator(), hub.worker()
        b.start(PYTHONPATH=path, AHEAD="-4")
        until(lambda: b.is_ready, "it follows")
        first, _ = boss.submit()
        assert worker.send(work_result(worker.work())).status == 202
        a.kill()
        assert hub.leader() is b
        for party in (boss, worker):
            party.url = b.url
        second, _ = boss.submit()
        assert worker.send(work_result(worker.work())).status == 202
        times = [hub.task(task_of(one))["created_at"] for one in (first, second)]
        assert times == sorted(times)
        b.kill()
        a.start()
        b.start(PYTHONPATH=path, AHEAD="-60")
        a.kill()
        until(lambda: b.ready_detail[0] == 503 and "clock is off" in b.ready_detail[1], "it does not lead")
        a.start()
        until(lambda: a.leads and b.is_ready, "a leads, and b follows")


def test_realms_on_one_postgresql_run_side_by_side(tmp_path: Path, server: Server, store: str) -> None:
    """A commit of one realm that stands still leaves the other alone."""
    with (
        cluster(tmp_path / "one", store, "a", **LONG) as one,
        cluster(tmp_path / "two", store, "a", realm="team", **LONG) as two,
    ):
        one.worker()
        other = two.orchestrator()
        database = store.partition("@/")[2].partition("?")[0]
        stall = "BEGIN; SELECT 1 FROM dragoman_default.lease FOR UPDATE; SELECT pg_sleep(1.5); COMMIT"
        stalled = threading.Thread(target=lambda: server.sql(stall, database))
        stalled.start()
        try:
            until(
                lambda: server.sql(
                    "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1.5)%' AND pid <> pg_backend_pid()",
                    database,
                ),
                "a stalled realm",
            )
            two.worker("x1")
            for _ in range(10):
                began = time.monotonic()
                other.submit()
                assert time.monotonic() - began < 1.0
            assert stalled.is_alive()
        finally:
            stalled.join()
        assert {agent["id"] for agent in one.admin.get("/api/v1/agents").json["agents"]} == {"i1"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("SOAK_SEEDS", "5"))))
def test_nothing_acknowledged_is_lost_over_many_random_kills_of_nodes_and_postgresql(seed: int, tmp_path: Path) -> None:
    """`KILLS` (42) for each seed, of any node and of PostgreSQL; in between nodes are stopped for a while, or told to
    stop. A node that was killed starts again while the next one is."""
    rng, kills = random.Random(seed), int(os.environ.get("KILLS", "42"))
    server = Server(private_directory(f"soak{seed}"), durable=True).start()
    returns: dict[str, Future[HubProcess]] = {}
    try:
        with (
            cluster(tmp_path, server.url(host="127.0.0.1"), "abc", **LONG) as hub,
            Load(hub, seed) as load,
            ThreadPoolExecutor(3) as starting,
        ):
            while kills:
                time.sleep(rng.random() / 2)
                what = rng.choice((*("kill",) * 12, "postgres", "postgres", "postgres", "freeze", "stop"))
                if what == "postgres":
                    for back in returns.values():
                        back.result()  # a node that starts needs it
                    server.kill()
                    server.start()
                    kills -= 1
                    load.more(1)
                    continue
                node = rng.choice(list(hub.nodes.values()))
                if node.name in returns:
                    returns.pop(node.name).result()
                if what == "freeze":
                    node.freeze()
                    time.sleep(rng.random() * 5)
                    node.thaw()
                else:
                    if what == "kill":
                        node.kill()
                        kills -= 1
                    else:
                        node.stop()
                    returns[node.name] = starting.submit(node.return_to_its_port)
                load.more(1)
            for back in returns.values():
                back.result()
            until(lambda: all(node.is_ready for node in hub.nodes.values()), "all nodes serve")
            audit_is_whole(hub)
    finally:
        server.remove()
