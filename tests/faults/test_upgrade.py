"""A rolling upgrade from the version before, and back again, under load: judged by the ledger.

The version before is a commit of this repository. Its nodes run the sources of that commit, which are what its wheel
holds, with the packages of this environment. A clone without that commit (a shallow one) skips this.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.chiffon import Orchestrator, Worker, task_of, work_result
from tests.support.cluster import Cluster, Node
from tests.support.cluster_load import LONG, Load, audit_is_whole
from tests.support.hubproc import PATIENCE, until
from tests.support.postgres import Server, need_postgres, private_directory

BEFORE = {"the version before": "df1b1420", "one of another stream": "16b06520"}
"""Commits. When a version is released, its commit takes the first place. The second one speaks version 1 of the stream
between nodes, which this version does not."""

ROOT = Path(__file__).parents[2]
SHAPE = "from dragoman.app.cluster.link import messages; print(messages.VERSION, getattr(messages, 'shape', str)())"
OLDER = re.compile(r"does not follow \w: .* upgrade the older one$")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    need_postgres()
    server = Server(private_directory("upgrade")).start()
    yield server
    server.remove()


def sources(commit: str, place: Path) -> Path:
    """The package as it was at a commit. Skips the test where git does not have it."""
    done = subprocess.run(["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, timeout=PATIENCE)
    if done.returncode:
        pytest.skip(f"needs the commit {commit} (a clone with its history): {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place


def speaks(tree: Path) -> str:
    """What its nodes compare when they meet."""
    environment = {"PYTHONPATH": str(tree / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", SHAPE], capture_output=True, text=True, timeout=PATIENCE, env=environment, check=True
    )
    return done.stdout


def run_as(node: Node, tree: Path | None) -> None:
    """From its next start on: the sources there, or, without any, those of this version."""
    node.wrap = () if tree is None else ("env", f"PYTHONPATH={tree / 'src'}")


def replaced(node: Node, tree: Path | None) -> Node:
    """In order: it is stopped, and starts as the other version at its address."""
    assert node.stop() == 0
    run_as(node, tree)
    node._port = int(node.url.rpartition(":")[2])
    node.launch()
    return node


def work_from_one_to_the_other(hub: Cluster, caller: Node, at: Node) -> None:
    """A caller at one node, an agent at another one."""
    boss = Orchestrator(caller.url, hub.token("visitor", "orchestrator"), "visitor")
    agent = Worker(at.url, hub.token("smith", "blacksmith"), "smith", "blacksmith")
    assert agent.register().status == 200
    request, answer = boss.submit(to_agent="blacksmith")
    assert answer.status == 202, answer
    assert agent.send(work_result(agent.work())).status == 202
    assert [task_of(message) for message in boss.take()] == [task_of(request)]


@pytest.mark.soak
@pytest.mark.parametrize("version", BEFORE)
def test_nodes_are_upgraded_and_rolled_back_one_by_one_under_load(version: str, tmp_path: Path, server: Server) -> None:
    """As docs/howto/cluster.md has it: those that follow first, the leader last. Nodes whose streams fit work side by
    side. Those whose streams do not fit say what to do, while those that fit the leader go on."""
    before = sources(BEFORE[version], tmp_path / "before")
    fits = speaks(before) == speaks(ROOT)
    hub = Cluster(tmp_path, server.create_database(f"upgrade{list(BEFORE).index(version)}"), "abc", **LONG)
    for node in hub.nodes.values():
        run_as(node, before)
    try:
        hub.start_all()
        with Load(hub) as load:
            for to in (None, before):
                leader = hub.leader()
                first, second = (node for node in hub.nodes.values() if node is not leader)
                for node in (first, second):
                    replaced(node, to)
                    if fits:
                        until(lambda: node.is_ready, "it follows")  # noqa: B023
                        work_from_one_to_the_other(hub, node, leader)
                    else:
                        until(lambda: node.ready_detail[0] == 503, "it waits")  # noqa: B023
                        if to is None:
                            until(lambda: OLDER.search(node.ready_detail[1]), "it says what to do")  # noqa: B023
                    assert leader.leads
                    load.more()
                replaced(leader, to)
                until(lambda: all(node.is_ready for node in hub.nodes.values()), "all serve as the other version")
                work_from_one_to_the_other(hub, first, leader)
                load.more()
        audit_is_whole(hub)
    finally:
        hub.kill_all()
