"""The management API beside the protocols: submit, watch, steer, and get large outputs back whole."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.callback import Callback, callback_server
from tests.support.chiffon import Orchestrator, new_id, task_of, work_result, work_status
from tests.support.coven_process import AgentProcess
from tests.support.hubproc import HubProcess, until

BLOCK = 262_144
_numbers = itertools.count()


@pytest.fixture
def boss(hub: HubProcess) -> Orchestrator:
    """One for each test: what a test leaves unheard is nobody else's."""
    return hub.orchestrator(f"boss-{next(_numbers)}")


def test_a_task_submitted_over_the_api_is_done_by_a_chiffon_agent(hub: HubProcess) -> None:
    agent = hub.worker("api-1", "api")
    made = hub.admin.post("/api/v1/tasks", {"type": "run", "input": {"a": 1}, "kind": "api", "priority": "high"})
    assert made.status == 202
    task = made.json
    assert {"id", "type", "name", "status", "priority", "agent", "progress", "output", "result", "error", "created_at",
            "updated_at", "trace_id", "attempts", "protocol_in", "protocol_out"} <= task.keys()  # fmt: skip
    work = agent.work()
    assert (work["payload"]["task_id"], work["payload"]["parameters"]) == (task["id"], {"a": 1})
    agent.send(work_result(work, output="text", x_custom_fields={"result": {"url": "x"}}))
    done = hub.admin.get(f"/api/v1/tasks/{task['id']}?wait=60").json
    assert (done["status"], done["output"], done["result"]) == ("completed", "text", {"url": "x"})
    assert task["id"] in [t["id"] for t in hub.tasks(status="completed")]


def test_a_new_process_of_an_agent_takes_as_many_tasks_as_it_says_and_else_as_it_was_added_with(
    hub: HubProcess,
) -> None:
    agent = hub.worker("seats", "seats", limits={"max_concurrent": 1, "max_memory_mb": 64})
    for limits, takes in (({}, 8), ({"max_concurrent": 2}, 2), ({"max_memory_mb": 64}, 8)):
        agent.register(limits=limits)
        assert hub.admin.get("/api/v1/agents/seats").json["max_concurrent"] == takes


def test_an_idempotency_key_gives_the_first_task_again(hub: HubProcess) -> None:
    hub.worker("idem", "idem")
    key = {"Idempotency-Key": new_id()}
    body = {"type": "run", "kind": "idem"}
    first, again = hub.admin.post("/api/v1/tasks", body, **key), hub.admin.post("/api/v1/tasks", body, **key)
    assert first.json["id"] == again.json["id"]
    assert hub.admin.post("/api/v1/tasks", body | {"type": "other"}, **key).status == 409


@pytest.mark.requirement("CH-LRG-4")
@pytest.mark.parametrize("where", ["status", "result"])
def test_a_chunked_output_above_a_megabyte_is_whole_at_the_api(hub: HubProcess, boss: Orchestrator, where: str) -> None:
    agent = hub.worker(f"large-{where}", f"large-{where}")
    request, _ = boss.submit(to_agent=f"large-{where}")
    work = agent.work()
    text = "".join(f"{n:08d}é\n" for n in range(130_000))  # 11 bytes each, with a code point of two
    data = text.encode()
    at, number = 0, 0
    while at < len(data):
        end = min(at + BLOCK, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        label = f"bytes {at}-{end} of {len(data)}"
        piece = data[at:end].decode()
        if where == "status":
            message = work_status(work, 100, number=5, output=piece, output_chunk=label)
        else:
            message = work_result(work, output=piece, payload={"output_chunk": label})
        assert agent.send(message).status == 202, number
        at, number = end, number + 1
    if where == "status":
        agent.send(work_result(work, output=""))
    assert number == 6
    task = hub.task(task_of(request))
    assert task["status"] == "completed"
    assert task["output"] == text
    told: list[dict[str, Any]] = []
    until(lambda: told.extend(boss.take(1)) or len(told) >= number + (where == "status"), "every piece")
    pieces = [m["payload"].get("step", m["payload"])["output"] for m in told]
    assert "".join(pieces) == text  # and the orchestrator can put it together as well


def test_blocks_that_arrive_out_of_order_are_joined_and_a_gap_that_stays_is_refused(
    hub: HubProcess, boss: Orchestrator
) -> None:
    agent = hub.worker("gap", "gap")
    for missing in ("bbbb", None):
        request, _ = boss.submit(to_agent="gap")
        work = agent.work()
        assert agent.send(work_status(work, output="cccc", output_chunk="bytes 8-12 of 12")).status == 202
        assert agent.send(work_status(work, output="aaaa", output_chunk="bytes 0-4 of 12")).status == 202
        if missing is not None:
            assert agent.send(work_status(work, output=missing, output_chunk="bytes 4-8 of 12")).status == 202
        ended = agent.send(work_result(work, output=""))
        assert (ended.status == 202) is (missing is not None)
        if missing is None:
            assert ended.code == 5003
        else:
            assert hub.task(task_of(request))["output"] == "aaaabbbbcccc"


# -- server-sent events -----------------------------------------------------------------------------------------


class Stream:
    """A minimal EventSource."""

    def __init__(self, hub: HubProcess, task: str, last: str | None = None) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=60)
        headers = {"Authorization": f"Bearer {hub.ready['admin_token']}"}
        self._connection.request(
            "GET", f"/api/v1/tasks/{task}/events", None, headers | ({"Last-Event-ID": last} if last else {})
        )
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        assert self._answer.headers["content-type"].startswith("text/event-stream")

    def __iter__(self) -> Iterator[dict[str, str]]:
        event: dict[str, str] = {}
        for line in iter(self._answer.readline, b""):
            text = line.decode().rstrip("\n")
            if not text:
                if "data" in event:
                    yield event
                event = {}
            elif not text.startswith(":"):
                name, _, value = text.partition(": ")
                event[name] = value

    def close(self) -> None:
        self._connection.close()


def test_events_stream_and_resume_where_they_were_left(hub: HubProcess, boss: Orchestrator) -> None:
    agent = hub.worker("sse", "sse")
    request, _ = boss.submit(to_agent="sse")
    work = agent.work()
    stream = Stream(hub, task_of(request))
    events = iter(stream)
    seen = [next(events), next(events)]
    assert [event["event"] for event in seen] == ["submitted", "assigned"]
    agent.send(work_status(work, 10))
    seen.append(next(events))  # as it happens
    assert seen[-1]["event"] == "progress"
    stream.close()

    agent.send(work_status(work, 20))
    agent.send(work_result(work))
    resumed = list(Stream(hub, task_of(request), last=seen[-1]["id"]))
    assert [event["event"] for event in resumed] == ["progress", "completed", "end"]
    numbers = [int(event["id"]) for event in [*seen, *resumed[:-1]]]
    assert numbers == list(range(1, len(numbers) + 1))  # nothing lost, nothing twice
    assert json.loads(resumed[-1]["data"])["status"] == "completed"


def test_events_stream_to_the_end_for_a_client_that_closed_its_side(hub: HubProcess, boss: Orchestrator) -> None:
    agent = hub.worker("half", "half")
    request, _ = boss.submit(to_agent="half")
    work = agent.work()
    address = urlsplit(hub.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60) as client:
        line = f"GET /api/v1/tasks/{task_of(request)}/events HTTP/1.0\r\nHost: localhost\r\n"
        client.sendall(f"{line}Authorization: Bearer {hub.admin.token}\r\n\r\n".encode())
        client.shutdown(socket.SHUT_WR)
        told = client.recv(65536)
        agent.send(work_result(work))
        while piece := client.recv(65536):
            told += piece
    assert b"event: completed" in told
    assert b"event: end" in told


# -- callbacks --------------------------------------------------------------------------------------------------


@pytest.fixture
def callback() -> Iterator[Callback]:
    with callback_server() as server:
        yield server


@pytest.mark.requirement("chiffon-D10")
def test_an_agent_with_a_callback_url_is_called(hub: HubProcess, boss: Orchestrator, callback: Callback) -> None:
    agent = hub.worker("pushed", "pushed", callback_url=callback.url)
    request, _ = boss.submit(to_agent="pushed")
    until(lambda: callback.got, "the work is posted")
    (work,) = callback.got
    assert work["request_id"] == request["request_id"]
    assert "authorization" not in callback.headers[0]
    assert str(agent.token) not in json.dumps([work, callback.headers])
    assert agent.send(work_result(work)).status == 202
    assert boss.next()["type"] == "work_result"
    assert agent.register().status == 200  # without a URL: it is called no more


def test_a_callback_that_fails_or_redirects_is_retried(hub: HubProcess, boss: Orchestrator, callback: Callback) -> None:
    callback.answers = [503, 307]
    agent = hub.worker("flaky", "flaky", callback_url=callback.url)
    request, _ = boss.submit(to_agent="flaky")
    until(lambda: callback.got, "the third time")
    assert callback.answers == []
    agent.send(work_result(callback.got[0]))
    assert boss.next()["type"] == "work_result"
    assert hub.task(task_of(request))["attempts"] == 3


# -- steering ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("chiffon-D13")
def test_cancel_reaches_the_agent_and_the_orchestrator(hub: HubProcess, boss: Orchestrator) -> None:
    agent = hub.worker("cancelled", "cancelled")
    request, _ = boss.submit(to_agent="cancelled")
    work = agent.work()
    answer = boss.post(f"/api/tasks/{task_of(request)}/cancel", {"reason": "not needed"})
    assert (answer.status, answer.json) == (200, {"task_id": task_of(request), "status": "cancelled"})
    for party in (agent, boss):
        told = party.next()
        assert (told["type"], told["payload"]["error_code"]) == ("error", 5900)
        assert told["request_id"] == request["request_id"]
        assert told["x_custom_fields"]["task_id"] == task_of(request)
    late = agent.send(work_result(work))
    assert (late.status, late.code) == (409, 5003)
    again = boss.post(f"/api/tasks/{task_of(request)}/cancel")
    assert (again.status, again.code) == (409, 5003)


@pytest.mark.requirement("chiffon-D13")
def test_pause_and_resume_reach_the_agent(hub: HubProcess, boss: Orchestrator) -> None:
    agent = hub.worker("paused", "paused")
    request, _ = boss.submit(to_agent="paused")
    work = agent.work()
    assert boss.post(f"/api/tasks/{task_of(request)}/pause").json["status"] == "waiting"
    assert agent.next()["payload"]["status"] == "paused"
    assert boss.post(f"/api/tasks/{task_of(request)}/resume").json["status"] == "running"
    assert agent.next()["payload"]["status"] == "running"
    agent.send(work_result(work))
    assert boss.next()["type"] == "work_result"


def test_a_queued_task_that_is_held_is_given_out_when_it_is_resumed(hub: HubProcess, boss: Orchestrator) -> None:
    agent = hub.worker("held", "held")
    request, _ = boss.submit(to_agent="held")
    boss.post(f"/api/tasks/{task_of(request)}/pause")
    assert agent.poll() == []
    boss.post(f"/api/tasks/{task_of(request)}/resume")
    agent.send(work_result(agent.work()))
    assert boss.next()["type"] == "work_result"


def test_a_question_of_an_agent_is_answered_once_by_a_person(hub: HubProcess, boss: Orchestrator) -> None:
    agent = hub.worker("asks", "asks")
    request, _ = boss.submit(to_agent="asks")
    work = agent.work()
    question = {"question": "Restart prod?", "options": ["yes", "no"]}
    assert agent.send(work_status(work, status="paused", x_custom_fields={"question": question})).status == 202
    (asked,) = [
        q for q in hub.admin.get("/api/v1/questions?status=open").json["questions"] if q["task_id"] == task_of(request)
    ]
    assert (asked["question"], asked["options"], asked["agent"]) == ("Restart prod?", ["yes", "no"], "asks")
    assert hub.admin.post(f"/api/v1/questions/{asked['id']}/answer", {"answer": "no"}).status == 200
    assert hub.admin.post(f"/api/v1/questions/{asked['id']}/answer", {"answer": "yes"}).status == 409
    again = agent.work()
    assert again["payload"]["parameters"]["answer"] == "no"
    agent.send(work_result(again))
    assert hub.status(task_of(request)) == "completed"


@pytest.mark.requirement("all-D7")
def test_the_trace_is_one_from_end_to_end(hub: HubProcess) -> None:
    agent = hub.worker("traced", "traced")
    trace = "0af7651916cd43dd8448eb211c80319c"
    made = hub.admin.post(
        "/api/v1/tasks", {"type": "run", "kind": "traced"}, traceparent=f"00-{trace}-b7ad6b7169203331-01"
    )
    assert made.json["trace_id"] == trace
    work = agent.work()
    assert work["trace_id"].replace("-", "") == trace
    assert work["x_custom_fields"]["traceparent"].split("-")[1] == trace


def test_operations_answer(hub: HubProcess) -> None:
    assert hub.admin.get("/readyz").status == 200
    document = hub.admin.get("/openapi.json").json
    assert document["openapi"].startswith("3.")
    assert {"/api/v1/tasks", "/api/agent/message"} <= document["paths"].keys()
    assert hub.admin.get("/schemas/chiffon.json").status == 200
    assert hub.admin.get("/nowhere").status == 404


def test_events_of_a_coven_agent_about_no_request_are_counted(hub: HubProcess) -> None:
    before = unasked_for(hub)
    agent = AgentProcess(hub.ready["grpc"]).register("babbler", "chat")
    try:
        for _ in range(3):
            agent.respond({"request_id": "nobody-asked"}, text="hello?")
        until(lambda: unasked_for(hub) == before + 3, "they are counted")
    finally:
        agent.kill()


def unasked_for(hub: HubProcess) -> float:
    told = hub.admin.get("/metrics").body.decode()
    counted = re.search(r'^dragoman_coven_total\{what="ignored\.unknown_request"\} (\S+)$', told, re.MULTILINE)
    return float(counted[1]) if counted else 0
