"""A machine that has nothing left, no descriptor or no memory: what is new is refused, and what is there is served.

All is well when there is something again.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.chiffon import Door, Orchestrator, kinds, task_of, work_request, work_result
from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, running, until

SPARE = 4
MIB = 1 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_RULES__IDLE_SECONDS="60") as hub:
        yield hub
        assert hub.stop() == 0


@contextmanager
def at_most(hub: HubProcess, what: int, most: int) -> Iterator[None]:
    before = resource.prlimit(hub.pid, what)
    resource.prlimit(hub.pid, what, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(hub.pid, what, before)


def descriptors(hub: HubProcess) -> int:
    return len(os.listdir(f"/proc/{hub.pid}/fd"))


def address_space(hub: HubProcess) -> int:
    pages, *_ = Path(f"/proc/{hub.pid}/statm").read_text().split()
    return int(pages) * resource.getpagesize()


def lets_in(hub: HubProcess) -> bool:
    """Of the crowd not everybody may be gone yet."""
    try:
        return Door(hub.url).get("/livez").status == 200
    except BROKEN:
        return False


def test_without_descriptors_newcomers_are_turned_away_and_everybody_else_is_served(hub: HubProcess) -> None:
    boss = Orchestrator(hub.url, hub.token("boss", "orchestrator"), keep=True)
    people = Door(hub.url, hub.admin.token, keep=True)
    worker = hub.worker("i1", "infra")
    with worker.websocket() as link:
        for door in (boss, people):
            door.get("/livez")  # a connection each
        address = ("127.0.0.1", int(hub.url.rpartition(":")[2]))
        with at_most(hub, resource.RLIMIT_NOFILE, descriptors(hub) + SPARE):
            crowd = [socket.create_connection(address, timeout=60) for _ in range(3 * SPARE)]
            until(lambda: descriptors(hub) == resource.prlimit(hub.pid, resource.RLIMIT_NOFILE)[0], "nothing left")
            with pytest.raises(BROKEN):
                Door(hub.url).get("/livez")
            request, answer = boss.submit()
            assert answer.status == 202
            work = link.recv()
            assert work["request_id"] == request["request_id"]
            refused = people.ask("POST", "/api/v1/files?name=a", b"abc")  # a file cannot even be opened
            assert (refused.status, "try again" in refused.json["detail"].lower()) == (503, True)
            for one in crowd:
                one.close()
            until(lambda: descriptors(hub) < resource.prlimit(hub.pid, resource.RLIMIT_NOFILE)[0], "some are back")
            until(lambda: lets_in(hub), "newcomers are let in again")
        assert people.ask("POST", "/api/v1/files?name=a", b"abc").status == 201
        link.send(work_result(work))
        assert kinds(boss.take()) == ["work_result"]
    assert "Traceback" not in hub.log.read_text()


def test_without_memory_what_is_large_is_refused_and_everything_else_is_served(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("boss-of-much"), hub.worker("i2", "much")
    large = work_request(to_agent="much", parameters={"filler": "x" * 7 * MIB})
    with at_most(hub, resource.RLIMIT_AS, address_space(hub) + 4 * MIB):
        refused = boss.send(large)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        small, answer = boss.submit(to_agent="much")
        assert answer.status == 202
        work = worker.work()
        assert work["request_id"] == small["request_id"]
    assert boss.send(large).status == 202
    worker.send(work_result(work))
    assert kinds(boss.take()) == ["work_result"]
    assert hub.status(task_of(large)) == "queued"
