"""How long a cluster has no leader: from the fault to the first task that another node accepts.

    failover-kill        kill -9 of the leader
    failover-stop        SIGSTOP of the leader: nobody is told, so the lease has to end
    failover-promotion   PostgreSQL's primary dies, and its standby is promoted: from the end of the promotion

Two real nodes over a real PostgreSQL with a synchronous standby, all on this machine. A client asks the node that is
left for a task, again and again, and the time counts until one is accepted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from tests.support.chiffon import Door
from tests.support.cluster import Cluster, Node, cluster
from tests.support.fleet import BROKEN
from tests.support.hubproc import until
from tests.support.postgres import Server, binaries, private_directory

from bench.figures import Figure, Settings

RUNS = 5
LONGEST = 30.0


def measure(settings: Settings) -> Iterable[Figure]:
    if binaries() is None:
        return
    runs = 1 if settings.repeats == 1 else RUNS
    primary = Server(private_directory("bench-primary"), durable=True).start()
    standby = primary.add_standby(private_directory("bench-standby"))
    try:
        hosts = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        with tempfile.TemporaryDirectory(prefix="cluster-") as scratch, cluster(Path(scratch), hosts, "ab") as hub:
            hub.token("i1", "infra")
            yield _figure("failover-kill", [_killed(hub) for _ in range(runs)])
            yield _figure("failover-stop", [_stopped(hub) for _ in range(runs)])

            def promote() -> None:
                primary.kill()
                standby.promote()

            yield _figure("failover-promotion", [_after(hub, list(hub.nodes.values()), promote)])
    finally:
        primary.remove()
        standby.remove()


def _killed(hub: Cluster) -> float:
    leader, other = hub.leader(), hub.follower()
    took = _after(hub, [other], leader.kill)
    leader.return_to_its_port()
    until(lambda: leader.is_ready, "the killed node is back")
    return took


def _stopped(hub: Cluster) -> float:
    leader, other = hub.leader(), hub.follower()
    took = _after(hub, [other], leader.freeze)
    leader.thaw()
    until(lambda: leader.is_ready and not leader.leads, "the stopped node follows")
    return took


def _after(hub: Cluster, nodes: list[Node], fault: Callable[[], None]) -> float:
    """Seconds from the end of the fault to a task that one of these nodes accepted."""
    fault()
    began = time.monotonic()
    while time.monotonic() < began + LONGEST:
        for node in nodes:
            try:
                answer = Door(node.url, hub.ready["admin_token"]).ask(
                    "POST", "/api/v1/tasks", _BODY, timeout=max(0.1, began + LONGEST - time.monotonic())
                )
            except BROKEN:
                continue
            if answer.status == 202:
                return time.monotonic() - began
        time.sleep(0.005)
    return LONGEST


_BODY = b'{"type": "noop", "input": {}, "kind": "infra"}'


def _figure(suite: str, seconds: list[float]) -> Figure:
    return Figure(
        suite=suite,
        operations=len(seconds),
        errors=sum(one >= LONGEST for one in seconds),
        extra={"seconds": median(seconds), "slowest": max(seconds)},
    )
