"""What clients and networks do: repeat themselves, die in the middle, stop breathing, lose answers.

One hub serves the whole file, and an impatient one who falls silent; every test has its own kind of agent.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.chiffon import HttpClient, kinds, new_id, task_of, work_request, work_result, work_status
from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, running, until

from dragoman.protocols.chiffon import chunks


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("impatient"), DRAGOMAN_RULES__IDLE_SECONDS="2") as hub:
        yield hub


def test_the_same_request_a_hundred_times_at_once_has_one_effect_over_http(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("boss-http"), hub.worker("hundred-http", "hundred-http")
    request = work_request(to_agent="hundred-http")
    body = json.dumps(request).encode()
    ready = threading.Barrier(100)

    def send(_: int) -> int:
        client = HttpClient(hub.url, boss.token)
        ready.wait(60)
        return client.ask("POST", "/api/agent/message", body).status

    with ThreadPoolExecutor(100) as senders:
        assert list(senders.map(send, range(100))) == [202] * 100
    work = worker.work()
    assert worker.poll() == []
    worker.send(work_result(work))
    assert kinds(boss.take()) == ["work_result"]
    assert boss.poll() == []
    assert hub.task(task_of(request))["attempts"] == 1


def test_the_same_request_a_hundred_times_at_once_has_one_effect_over_websocket(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("boss-ws"), hub.worker("hundred-ws", "hundred-ws")
    request = work_request(to_agent="hundred-ws")
    with boss.websocket(receipts=True) as sender, worker.websocket() as receiver:
        for _ in range(100):
            sender.send(request)
        accepted = 0
        while accepted < 100:
            accepted += len(sender.recv()["accepted"])
        work = receiver.recv()
        with pytest.raises(TimeoutError):
            receiver.recv(0.2)
        receiver.send(work_result(work))
        told = sender.recv()
        sender.ack(told)
        assert told["type"] == "work_result"
        with pytest.raises(TimeoutError):
            sender.recv(0.2)
    assert [t["id"] for t in hub.tasks(agent="hundred-ws")] == [task_of(request)]


def test_a_caller_that_lost_its_connection_over_many_results_gets_all_of_them_again(hub: HubProcess) -> None:
    boss, many = hub.orchestrator("boss-many"), 150
    worker = hub.worker("many", "many", limits={"max_concurrent": many})
    with boss.websocket() as first, worker.websocket() as receiver:
        asked = [work_request(to_agent="many") for _ in range(many)]
        for request in asked:
            first.send(request)
        for _ in asked:
            receiver.send(work_result(receiver.recv()))
        for _ in asked:
            first.recv()
        first.cut()
        with boss.websocket() as second:
            told = [second.recv() for _ in asked]
            second.ack(*told)
    assert sorted(map(task_of, told)) == sorted(map(task_of, asked))


def test_another_content_under_the_same_request_id_is_refused(hub: HubProcess) -> None:
    boss, _ = hub.orchestrator("boss-other"), hub.worker("other", "other")
    request, _ = boss.submit(to_agent="other")
    request["payload"]["parameters"] = {"playbook": "another.yml"}
    answer = boss.send(request)
    assert (answer.status, answer.code) == (409, 5003)


def test_work_of_an_agent_that_dies_goes_to_another_in_order(hub: HubProcess) -> None:
    boss = hub.orchestrator("boss-dies")
    first = hub.worker("dies-1", "dies").websocket()
    request, _ = boss.submit(to_agent="dies")
    work = first.recv()
    first.send(work_status(work, 30, number=1))
    assert boss.next()["payload"]["progress_percent"] == 30
    first.cut()  # without a word

    second = hub.worker("dies-2", "dies")
    again = second.work()
    assert again["request_id"] == work["request_id"] == request["request_id"]
    assert second.send(work_result(again)).status == 202
    assert kinds(boss.take()) == ["work_result"]
    task = hub.task(task_of(request))
    assert (task["status"], task["agent"], task["attempts"]) == ("completed", "dies-2", 2)


def test_work_of_a_polling_agent_that_is_gone_comes_to_it_again_after_its_restart(impatient: HubProcess) -> None:
    boss, worker = impatient.orchestrator("boss-gone"), impatient.worker("gone", "gone")
    request, _ = boss.submit(to_agent="gone")
    assert worker.work()["request_id"] == request["request_id"]  # taken, acknowledged, and then it died

    def finished() -> bool:
        again = worker.work()
        assert again["request_id"] == request["request_id"]
        return worker.send(work_result(again)).status == 202  # or it was slow, and silent for too long once more

    until(finished, "it comes again, and is done")
    assert kinds(boss.take()) == ["work_result"]
    assert impatient.task(task_of(request))["attempts"] >= 2


FROZEN = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1], additional_headers={"Authorization": "Bearer " + sys.argv[2]}, legacy=True) as connection:
    work = json.loads(connection.recv())
    print("working", flush=True)
    sys.stdin.readline()
    connection.send(sys.argv[3].replace("TASK", work["payload"]["task_id"]).replace("REQUEST", work["request_id"]))
    try:
        while True:
            print(json.dumps(json.loads(connection.recv())["payload"]), flush=True)
    except Exception as gone:
        print("closed", flush=True)
"""


def test_a_frozen_agents_work_is_given_away_and_its_late_result_is_fenced_off(impatient: HubProcess) -> None:
    hub = impatient
    boss, frozen = hub.orchestrator("boss-frozen"), hub.worker("frozen-1", "frozen")
    url = hub.url.replace("http", "ws") + "/api/agent/ws"
    late = work_result(work_request(to_agent="frozen", task_id="TASK") | {"request_id": "REQUEST"}, output="late")
    process = subprocess.Popen(
        [sys.executable, "-c", FROZEN, url, str(frozen.token), json.dumps(late)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        until(lambda: hub.admin.get("/api/v1/agents/frozen-1").json["status"] == "idle", "it is connected")
        request, _ = boss.submit(to_agent="frozen")
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGSTOP)

        other = hub.worker("frozen-2", "frozen")
        again = other.work()  # after the idle clock
        assert again["request_id"] == request["request_id"]

        process.send_signal(signal.SIGCONT)
        process.stdin.write("go\n")
        process.stdin.flush()

        def refused() -> bool:
            assert other.send(work_status(again)).status == 202  # it is not silent meanwhile
            return bool(select.select([process.stdout], [], [], 0)[0])

        until(refused, "an answer to the late result")
        assert json.loads(process.stdout.readline())["error_code"] == 5003  # not its task any more

        assert other.send(work_result(again, output="in time")).status == 202
        while (told := boss.next())["type"] == "work_status":
            pass
        assert told["payload"]["output"] == "in time"
    finally:
        process.kill()
        process.wait()


class DroppingProxy:
    """Carries requests to the hub and swallows every answer: the work was done, and nobody hears of it."""

    def __init__(self, url: str) -> None:
        self._to = url.removeprefix("http://").split(":")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.swallowed = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection((self._to[0], int(self._to[1])), timeout=60) as hub:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = head.split(b"\r\n\r\n", 1)[1]
            while len(body) < size:
                body += client.recv(65536)
            hub.sendall(head.split(b"\r\n\r\n", 1)[0] + b"\r\n\r\n" + body)
            self.swallowed = hub.recv(65536)  # it was answered; the client never hears it


def test_a_result_whose_answer_was_lost_is_repeated_and_counts_once(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("boss-reply"), hub.worker("reply", "reply")
    boss.submit(to_agent="reply")
    result = work_result(worker.work())
    proxy = DroppingProxy(hub.url)
    worker.url = proxy.url
    with pytest.raises(BROKEN):
        worker.send(result)
    assert b"202" in proxy.swallowed.split(b"\r\n")[0]
    worker.url = hub.url
    assert worker.send(result).status == 202
    assert kinds(boss.take()) == ["work_result"]
    assert boss.poll() == []


def test_a_request_whose_answer_was_lost_is_repeated_and_done_once(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("boss-lost"), hub.worker("lost", "lost")
    request = work_request(to_agent="lost")
    boss.url = DroppingProxy(hub.url).url
    with pytest.raises(BROKEN):
        boss.send(request)
    boss.url = hub.url
    assert boss.send(request).status == 202
    worker.send(work_result(worker.work()))
    assert worker.poll() == []
    assert kinds(boss.take()) == ["work_result"]


def test_the_outcome_is_had_again_by_repeating_the_request(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("boss-again"), hub.worker("again", "again")
    request, _ = boss.submit(to_agent="again")
    worker.send(work_result(worker.work(), output="the first outcome"))
    first = boss.next()
    assert boss.poll() == []
    assert boss.send(request).status == 202
    second = boss.next()
    assert second["payload"] == first["payload"]
    assert worker.poll() == []


@pytest.mark.parametrize("exit_code", [0, 3])
@pytest.mark.parametrize("socket", [False, True])
def test_an_outcome_that_came_in_pieces_is_had_again_whole(hub: HubProcess, socket: bool, exit_code: int) -> None:
    """The last piece alone would be of no use to a caller that lost what it had (all-D5)."""
    kind = f"pieces-{socket}-{exit_code}"
    boss, worker = hub.orchestrator(f"boss-{kind}"), hub.worker(kind, kind)
    request, _ = boss.submit(to_agent=kind)
    work = worker.work()
    output = "é\n" * 300_000
    for block in chunks.split(output):
        placed = {"output_chunk": str(block.label), "unknown": "kept"}
        assert worker.send(work_result(work, block.text, exit_code, payload=placed)).status == 202
    told = [boss.next() for _ in chunks.split(output)]
    assert "".join(message["payload"]["output"] for message in told) == output
    assert boss.poll() == []
    for _ in range(2):
        assert boss.send({**request, "message_id": new_id()}).status == 202
        if socket:
            with boss.websocket() as link:
                again = [link.recv() for _ in told]
                link.ack(again[-1])
        else:
            again = boss.take()
        assert [message["payload"] for message in again] == [message["payload"] for message in told]
        assert {message["request_id"] for message in again} == {request["request_id"]}
        assert len({message["message_id"] for message in again}) == len(told)
    assert worker.poll() == []


def test_a_client_that_acknowledges_one_block_of_an_outcome_and_dies_gets_all_of_them_again(hub: HubProcess) -> None:
    boss, worker = hub.orchestrator("boss-blocks"), hub.worker("blocks", "blocks")
    request, _ = boss.submit(to_agent="blocks")
    work = worker.work()
    blocks = list(chunks.split("x" * 1_200_000))
    for block in blocks:
        assert worker.send(work_result(work, block.text, payload={"output_chunk": str(block.label)})).status == 202
    told = [boss.next()["payload"] for _ in blocks]
    assert boss.send({**request, "message_id": new_id()}).status == 202
    for read in (1, len(told) - 1):
        with boss.websocket() as link:
            for _ in range(read):
                link.ack(link.recv())
    hub.restart()
    boss = hub.orchestrator("boss-blocks")
    with boss.websocket() as link:
        again = [link.recv() for _ in told]
        assert [message["payload"] for message in again] == told
        link.ack(again[-1])
    assert boss.poll() == []
