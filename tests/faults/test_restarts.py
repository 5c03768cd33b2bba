"""Stops and starts: a drain that answers everybody, a restart with ten thousand waiting, connections by the
thousand."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from pathlib import Path

import pytest
from tests.support.chiffon import Orchestrator, kinds, task_of, work_request, work_result
from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, running, until
from tests.support.world import World
from websockets.asyncio.client import connect

from dragoman.core.ids import SECOND


def test_sigterm_answers_what_is_under_way_and_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        token = hub.orchestrator().token
        worker = hub.worker()
        acknowledged: list[str] = []
        refused: list[int] = []
        sending = threading.Event()
        sending.set()

        def send() -> None:
            boss = Orchestrator(hub.url, str(token), keep=True)
            while sending.is_set():
                request = work_request()
                try:
                    answer = boss.send(request)
                except BROKEN:
                    return  # no new connections, and no further request on an old one: the hub stops
                (acknowledged.append(task_of(request)) if answer.status == 202 else refused.append(answer.status))

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        polled: list[object] = []
        idle = hub.orchestrator("idle")
        poll = threading.Thread(target=lambda: polled.append(idle.poll(wait=60)))
        poll.start()
        until(lambda: hub.admin.get("/api/v1/agents/idle").json["status"] == "idle", "it polls")
        socket = hub.worker("w2", "other").websocket()
        until(lambda: len(acknowledged) > 50, "traffic")
        assert hub.stop() == 0
        sending.clear()
        for thread in [*threads, poll]:
            thread.join(60)
        assert polled == [[]]  # the parked poll was answered, not cut
        with pytest.raises(Exception, match="1012"):
            socket.recv()
        assert set(refused) <= {503}
        # A kept connection may be closed between two requests, never after one was read: whatever was acknowledged is
        # there, and nothing else.
        hub.start()
        there = {task["id"] for task in hub.tasks()}
        assert there == set(acknowledged)
        worker.url = hub.url
        assert worker.work()["type"] == "work_request"
        assert "Traceback" not in hub.log.read_text()


async def submit_all(url: str, token: str, requests: list[dict[str, object]]) -> None:
    """Pipelined over one WebSocket, each acknowledged by the hub."""
    async with connect(
        url.replace("http", "ws") + "/api/agent/ws?receipts=1",
        additional_headers={"Authorization": f"Bearer {token}"},
        compression=None,
        max_size=None,
    ) as link:

        async def send() -> None:
            for request in requests:
                await link.send(json.dumps(request))

        sending = asyncio.create_task(send())
        left = {str(request["message_id"]) for request in requests}
        while left:
            left -= set(json.loads(await asyncio.wait_for(link.recv(), 60))["accepted"])
        await sending


async def drain_all(url: str, worker: str, boss: str, expected: int) -> tuple[list[str], list[str]]:
    """An agent does everything, the orchestrator hears everything: the tasks each of them saw, in order."""
    done: list[str] = []
    heard: list[str] = []
    address = url.replace("http", "ws") + "/api/agent/ws"

    async def work() -> None:
        async with connect(address, additional_headers={"Authorization": f"Bearer {worker}"}, compression=None) as link:
            async for frame in link:
                request = json.loads(frame)
                done.append(task_of(request))
                await link.send(json.dumps(work_result(request)))

    async def hear() -> None:
        headers = {"Authorization": f"Bearer {boss}"}
        async with connect(address, additional_headers=headers, compression=None) as link:
            while len(heard) < expected:
                message = json.loads(await asyncio.wait_for(link.recv(), 60))
                heard.append(task_of(message))
                await link.send(json.dumps({"ack": [message["x_custom_fields"]["delivery_id"]]}))

    working = asyncio.create_task(work())
    try:
        await hear()
    finally:
        working.cancel()
    return done, heard


@pytest.mark.parametrize("pending", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_restart_with_thousands_of_pending_tasks_loses_and_doubles_none(tmp_path: Path, pending: int) -> None:
    slow = {"DRAGOMAN_RULES__IDLE_SECONDS": "60", "DRAGOMAN_RULES__GRACE_SECONDS": "10"}
    with running(tmp_path, **slow) as hub:
        boss = hub.token("boss", "orchestrator")
        hub.worker(limits={"max_concurrent": 500})
        requests = [work_request({"n": n}) for n in range(pending)]
        asyncio.run(submit_all(hub.url, boss, requests))
        hub.restart()
        assert hub.gauge("dragoman_tasks") == pending
        done, heard = asyncio.run(drain_all(hub.url, hub.token("i1", "infra"), boss, pending))
        wanted = [task_of(request) for request in requests]
        assert sorted(done) == sorted(wanted)
        assert sorted(heard) == sorted(wanted)
        until(lambda: hub.pending == 0, "nothing left")


def test_agents_and_their_work_survive_a_restart_of_the_hub(tmp_path: Path) -> None:
    """An agent at work when the hub dies goes on, and its result counts when the hub is back."""
    with running(tmp_path) as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        socket = worker.websocket()
        request, _ = boss.submit()
        work = socket.recv()
        hub.restart()
        boss.url = worker.url = hub.url
        with worker.websocket() as again:
            again.send(work_result(work))
            assert kinds(boss.take()) == ["work_result"]
        assert hub.task(task_of(request))["attempts"] == 1


def test_a_hub_that_stops_and_starts_again_takes_no_task_from_its_agent(tmp_path: Path) -> None:
    """To be stopped is no worse than to be killed, and no failure of the agent."""
    with running(tmp_path) as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        socket = worker.websocket()
        request, _ = boss.submit()
        work = socket.recv()
        assert hub.stop() == 0
        hub.start()
        boss.url = worker.url = hub.url
        assert hub.admin.get("/api/v1/agents/i1").json["breaker"]["failures"] == 0
        with worker.websocket() as again:
            again.send(work_result(work))
            assert kinds(boss.take()) == ["work_result"]
        assert hub.task(task_of(request))["attempts"] == 1


async def test_waiting_tasks_are_not_blamed_for_the_hubs_own_absence() -> None:
    """However often and long the hub was down: agents have the idle time to come back before an attempt is lost."""
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    task = await world.submit(total_seconds=24 * 3600)
    for _ in range(10):
        world.time = type(world.time)(world.time + 600 * SECOND)
        await world.restart()
        await world.advance(5)
        waiting = await world.task(task.id)
        assert (waiting.status.value, waiting.attempt.count) == ("queued", 0)
    agent = await world.connect("i1")
    assert agent.work == [task.id]
    assert (await world.task(task.id)).attempt.count == 1


async def test_an_agent_that_lost_its_connection_just_before_the_hub_died_has_time_to_come_back() -> None:
    """The grace time of a broken connection does not run while nobody could be heard."""
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    agent = await world.connect("i1")
    task = await world.submit()
    await agent.ack(*agent.take())
    await agent.close()
    world.time = type(world.time)(world.time + 100 * SECOND)
    await world.restart()
    await world.advance(25)
    waiting = await world.task(task.id)
    assert (waiting.owner, waiting.status.value, waiting.attempt.count) == ("i1", "assigned", 1)
    await world.advance(10)
    assert (await world.task(task.id)).status.value == "queued"


async def test_agents_that_do_not_come_back_after_a_restart_are_given_up_as_ever() -> None:
    world = await World().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    task = await world.submit()
    world.time = type(world.time)(world.time + 60 * SECOND)
    await world.restart()
    await world.advance(300)
    assert (await world.task(task.id)).status.value == "failed"


@pytest.mark.soak
def test_two_thousand_idle_connections_stay_bounded(tmp_path: Path) -> None:
    count = 2000

    def resident(hub: HubProcess) -> int:
        lines = Path(f"/proc/{hub.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    with running(tmp_path) as hub:
        tokens = [hub.token(f"idle-{n}", "idle") for n in range(count)]
        before = resident(hub)
        assert before < 120_000

        async def hold() -> None:
            url = hub.url.replace("http", "ws") + "/api/agent/ws"
            gate = asyncio.Semaphore(100)

            async def one(token: str) -> object:
                async with gate:
                    headers = {"Authorization": f"Bearer {token}"}
                    return await connect(url, additional_headers=headers, compression=None, open_timeout=60)

            links = await asyncio.gather(*map(one, tokens))
            # The handshake is answered before the connection is known to the hub.
            await asyncio.to_thread(until, lambda: hub.gauge("dragoman_links_open") == count, "all of them are there")
            assert resident(hub) - before < 400_000
            for link in links:
                link.transport.abort()  # type: ignore[attr-defined]

        asyncio.run(hold())
        until(lambda: hub.gauge("dragoman_links_open") == 0, "all of them are gone", 30)
        hub.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        assert hub.died() == 0
