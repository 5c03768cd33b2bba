"""A machine that has nothing left (descriptors, memory), or a disk that stands still: what is new is refused, and what
is there is served.

All is well when there is something again. And what waits for long takes disk, not memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.support.chiffon import Answer, HttpClient, Orchestrator, kinds, task_of, work_request, work_result
from tests.support.fleet import BROKEN
from tests.support.hubproc import PATIENCE, HubProcess, running, until

SPARE = 4
MIB = 1 << 20
MANY = 40
FILLER = {"filler": "x" * 7 * MIB}


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
        return HttpClient(hub.url).get("/livez").status == 200
    except BROKEN:
        return False


def test_without_descriptors_new_connections_are_refused_and_all_others_are_served(hub: HubProcess) -> None:
    boss = Orchestrator(hub.url, hub.token("boss", "orchestrator"), keep=True)
    people = HttpClient(hub.url, hub.admin.token, keep=True)
    worker = hub.worker("i1", "infra")
    with worker.websocket() as link:
        for client in (boss, people):
            client.get("/livez")  # a connection each
        address = ("127.0.0.1", int(hub.url.rpartition(":")[2]))
        with at_most(hub, resource.RLIMIT_NOFILE, descriptors(hub) + SPARE):
            crowd = [socket.create_connection(address, timeout=60) for _ in range(3 * SPARE)]
            until(lambda: descriptors(hub) == resource.prlimit(hub.pid, resource.RLIMIT_NOFILE)[0], "nothing left")
            with pytest.raises(BROKEN):
                HttpClient(hub.url).get("/livez")
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
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json["payload"]["error_code"] == 5002
        small, answer = boss.submit(to_agent="much")
        assert answer.status == 202
        work = worker.work()
        assert work["request_id"] == small["request_id"]
    assert boss.send(large).status == 202
    worker.send(work_result(work))
    assert kinds(boss.take()) == ["work_result"]
    assert hub.status(task_of(large)) == "queued"


def at_once(hub: HubProcess, boss: Orchestrator, messages: int) -> list[Future[Answer]]:
    """Large requests of one agent, each over a connection of its own."""
    crowd = ThreadPoolExecutor(messages)
    sent = [crowd.submit(boss.send, work_request(to_agent="much", parameters=FILLER)) for _ in range(messages)]
    crowd.shutdown(wait=False)
    return sent


def test_many_large_requests_at_once_under_a_limit_of_memory_end_in_refusals_and_not_in_its_death(
    hub: HubProcess,
) -> None:
    boss = hub.orchestrator("boss-of-many")
    hub.worker("i3", "much")
    with at_most(hub, resource.RLIMIT_AS, address_space(hub) + 200 * MIB):
        statuses = Counter(answer.result(60).status for answer in at_once(hub, boss, MANY))
    assert statuses.total() == MANY
    assert set(statuses) <= {202, 429, 503}
    assert hub.alive
    assert boss.send(work_request(to_agent="much", parameters=FILLER)).status == 202
    assert "MemoryError" not in hub.log.read_text()


LETTER = 40_000
FIRST, MORE = 500, 700
"""Direct messages of 40 kB: 20 MB, more than the store's cache holds of them, and then 28 MB."""


def resident(hub: HubProcess) -> int:
    _, pages, *_ = Path(f"/proc/{hub.pid}/statm").read_text().split()
    return int(pages) * resource.getpagesize()


def writer_of(hub: HubProcess) -> int:
    """Its one child."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == hub.pid:
                return int(pid)
    raise AssertionError("the hub has no writer")


def test_behind_a_disk_that_stands_still_memory_is_bounded_and_the_hub_says_that_it_is_not_ready(
    tmp_path: Path,
) -> None:
    limits = {"DRAGOMAN_MEMORY__IN_FLIGHT_BYTES_PER_AGENT": str(21 * MIB), "DRAGOMAN_SERVER__STALLED_SECONDS": "0.5"}
    with running(tmp_path, **limits) as hub:
        boss = hub.orchestrator()
        hub.worker("i1", "much")
        before, writer = resident(hub), writer_of(hub)
        os.kill(writer, signal.SIGSTOP)
        try:
            answers = at_once(hub, boss, MANY)
            until(lambda: sum(answer.done() for answer in answers) == MANY - 2, "all but two are refused")
            refused = [answer.result() for answer in answers if answer.done()]
            assert {(answer.status, answer.json["payload"]["error_code"]) for answer in refused} == {(429, 5005)}
            unready = until(lambda: (told := HttpClient(hub.url).get("/readyz")).status == 503 and told, "it says so")
            assert "a commit has been under way for" in unready.json["detail"]
            assert HttpClient(hub.url).get("/livez").status == 200
            figures = HttpClient(hub.url).get("/metrics").body.decode()
            held = float(figures.partition("\ndragoman_held_bytes ")[2].partition("\n")[0])
            assert 14 * MIB < held < 21 * MIB
            assert resident(hub) - before < MANY // 2 * 7 * MIB  # of 40 requests, not the half
        finally:
            os.kill(writer, signal.SIGCONT)
        kept = [answer.result(60) for answer in answers]
        assert Counter(answer.status for answer in kept) == {429: MANY - 2, 202: 2}
        until(lambda: HttpClient(hub.url).get("/readyz").status == 200, "it goes on")
        assert len(hub.tasks()) == 2


def test_however_much_waits_for_a_slow_receiver_the_memory_stays_flat_and_the_urgent_comes_first(
    tmp_path: Path,
) -> None:
    """Nobody fetches them; then a receiver comes that reads one and no more."""
    with running(tmp_path) as hub:
        ada, bob = Plain(hub, "ada"), Plain(hub, "bob")

        def write(count: int) -> None:
            payload = {"agent_id": "ada", "filler": "x" * LETTER}
            for _ in range(count // 100):
                wire.acked(*[wire.say("HEARTBEAT", "bob", payload, priority="high") for _ in range(100)])

        with ada.link() as wire:
            write(FIRST)
            before = resident(hub)
            write(MORE)
            assert resident(hub) - before < MORE * LETTER / 2
            urgent = ada.say("ERROR_REPORT", "bob", words.error("ada", None, message="now!"))
            with bob.link(max_queue=1) as link:
                assert json.loads(link.socket.recv(timeout=PATIENCE))["id"] == urgent["id"]
                until(lambda: hub.gauge("dragoman_links_open") == 2, "both are there")
                assert resident(hub) - before < MORE * LETTER / 2
                link.socket.socket.close()
        assert hub.gauge("dragoman_deliveries") >= FIRST + MORE  # all of it waits, on the disk
