"""A client of the management API, against scripted HTTP answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from tests.unit.sdk.harness import PATIENCE, FakeRuntime

from dragoman import (
    Client,
    Conflict,
    HubUnreachable,
    Misconfigured,
    NotAllowed,
    RequestRefused,
    SyncClient,
    TaskCancelled,
    TaskFailed,
)
from dragoman.sdk import trace
from dragoman.sdk.address import Address
from dragoman.sdk.calling.api import ApiClient
from dragoman.sdk.runtime import SystemRuntime

ADDRESS = Address(protocol="api", transport="http", base="http://127.0.0.1:1", token="a" * 32)

Script = Callable[[httpx2.Request], httpx2.Response]


class Eager(FakeRuntime):
    """Sleeping takes no time here, but it is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


def client_of(script: Script, runtime: Any = None) -> Client:
    return Client(backend=ApiClient(ADDRESS, runtime or Eager(), transport=httpx2.MockTransport(script)))


def task(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "t1", "type": "run", "status": status, "output": "", "result": None, "unknown_field": 1, **more}


class Hub:
    """Answers as told, and keeps the requests."""

    def __init__(self, *answers: Any) -> None:
        self.requests: list[httpx2.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if request.url.path.startswith("/api/v1/agents/"):
            return httpx2.Response(200 if request.url.path.endswith("/deployer") else 404, json={"detail": "no"})
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx2.Response) else httpx2.Response(200, json=answer)

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests if request.method == "POST"]


async def test_a_call_submits_once_waits_and_returns_the_result() -> None:
    hub = Hub(httpx2.Response(202, json=task("queued")), task("running"), task(result={"a": 1}))
    async with client_of(hub) as client, asyncio.timeout(PATIENCE):
        assert await client.call("deployer", "run", n=1) == {"a": 1}
    assert hub.bodies() == [{"type": "run", "input": {"n": 1}, "agent": "deployer"}]
    assert hub.requests[0].headers["authorization"] == f"Bearer {'a' * 32}"
    assert hub.requests[-1].url.params["wait"] == "60"


async def test_patience_counts_from_when_the_hub_is_gone_and_not_from_the_question() -> None:
    runtime, hub = Eager(), Hub(task("running"), httpx2.ReadError("killed"), task(result=1))

    def slow(request: httpx2.Request) -> httpx2.Response:
        runtime.time += 59.0  # a poll may be kept open for longer than patience lasts
        return hub(request)

    async with client_of(slow, runtime) as client, asyncio.timeout(PATIENCE):
        assert await client.result("t1") == 1


async def test_a_name_that_is_no_agent_is_a_kind() -> None:
    hub = Hub(httpx2.Response(202, json=task("queued")))
    async with client_of(hub) as client:
        assert await client.submit("infra", "run", priority="high") == "t1"
    assert hub.bodies() == [{"type": "run", "input": {}, "kind": "infra", "priority": "high"}]


async def test_a_repeated_submission_has_the_same_key() -> None:
    hub = Hub(
        httpx2.Response(503, json={"detail": "draining", "kind": "overloaded"}),
        httpx2.ConnectError("refused"),
        httpx2.Response(202, json=task("queued")),
    )
    runtime = Eager()
    async with client_of(hub, runtime) as client:
        await client.submit("deployer", "run")
    keys = {request.headers.get("idempotency-key") for request in hub.requests if request.method == "POST"}
    assert (len(keys), None in keys, len(runtime.slept)) == (1, False, 2)


async def test_failures_raise_with_their_facts() -> None:
    error = {"kind": "unavailable", "message": "stream closed", "facts": {"agent_id": "d"}, "retryable": True}
    hub = Hub(
        task("failed", error=error, attempts=4, agent="d"),
        task("cancelled", error={"kind": "cancelled", "message": "enough"}),
        task(
            "failed", error={"kind": "work_failed", "message": "ValueError: b", "facts": {"exit_code": 1}}, output="a\n"
        ),
    )
    async with client_of(hub) as client:
        with pytest.raises(TaskFailed, match="stream closed") as caught:
            await client.result("t1")
        assert (caught.value.kind, caught.value.facts) == (
            "unavailable",
            {"attempts": 4, "agent": "d", "agent_id": "d"},
        )
        with pytest.raises(TaskCancelled, match="enough"):
            await client.result("t1")
        with pytest.raises(TaskFailed, match="ValueError: b") as caught:
            await client.result("t1")
        assert caught.value.exit_code == 1


async def test_what_no_hub_would_take_is_refused_before_anything_is_sent() -> None:
    hub = Hub()
    async with client_of(hub) as client:
        for call, error, why in (
            (client.call("deployer", "run", n=2**64), ValueError, "the input cannot be sent: integer of more than 64"),
            (client.call("run", {"at": object()}), TypeError, "the input cannot be sent: object has no JSON form"),
            (
                client.submit("deployer", "run", ["a"]),
                TypeError,
                "an input is a dict, a dataclass or a Struct, not list",
            ),  # type: ignore[arg-type]
            (client.submit("deployer", "run", {}, priority="urgent"), Misconfigured, "there is no priority 'urgent'"),
            (
                client.submit("deployer", "run", {}, dependancies=["t0"]),
                Misconfigured,
                "did you mean `dependencies`",
            ),
        ):
            with pytest.raises(error, match=why):
                await call
    assert hub.requests == []


async def test_a_name_that_was_nobodys_may_be_somebodys_later() -> None:
    names, asked = [404, 404, 200], []

    def hub(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            asked.append(request.url.raw_path)
            return httpx2.Response(names.pop(0), json={"detail": "no"})
        if "kind" in json.loads(request.content):
            return httpx2.Response(503, json={"detail": "nobody", "kind": "unavailable"})
        return httpx2.Response(202, json=task())

    async with client_of(hub) as client:
        for _ in range(2):
            with pytest.raises(RequestRefused, match="nobody"):
                await client.submit("late/../comer?", "run")
        for _ in range(2):  # found, and remembered
            assert await client.submit("late/../comer?", "run") == "t1"
    assert asked == [b"/api/v1/agents/late%2F..%2Fcomer%3F"] * 3


async def test_refusals_become_exceptions() -> None:
    hub = Hub(httpx2.Response(401, json={"detail": "no token"}), httpx2.Response(409, json={"detail": "answered"}))
    async with client_of(hub) as client:
        with pytest.raises(NotAllowed, match="no token"):
            await client.task("t1")
        with pytest.raises(Conflict, match="answered"):
            await client.answer("q1", "yes")


async def test_a_hub_never_reached_is_reported_at_once_and_one_that_went_away_is_waited_for() -> None:
    runtime = Eager()
    async with client_of(Hub(httpx2.ConnectError("refused")), runtime) as client:
        with pytest.raises(HubUnreachable, match="Is the hub running"):
            await client.task("t1")
    assert runtime.slept == []
    hub = Hub(task(), *[httpx2.ConnectError("refused")] * 200)
    async with client_of(hub, runtime) as client:
        await client.task("t1")
        with pytest.raises(HubUnreachable):
            await client.task("t1")
    assert 120 < sum(runtime.slept) < 150  # a stop that waits for agents, and a start, fit in


def sse(*events: tuple[int, str], end: bool = False) -> bytes:
    text = "retry: 1000\n\n: heartbeat\n\n"
    for seq, kind in events:
        data = {
            "task_id": "t1",
            "seq": seq,
            "at": "2026-01-01T00:00:00Z",
            "kind": kind,
            "agent": None,
            "body": {"n": seq},
        }
        text += f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
    return (text + ('event: end\ndata: {"task_id":"t1","status":"completed"}\n\n' if end else "")).encode()


class Breaking(httpx2.AsyncByteStream):
    """A body that ends with a broken connection."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content
        raise httpx2.ReadError("reset")


EVENT_STREAM = {"content-type": "text/event-stream"}


async def test_a_stream_goes_on_where_it_broke_off_without_gap_or_repetition() -> None:
    hub = Hub(
        httpx2.Response(200, headers=EVENT_STREAM, stream=Breaking(sse((1, "submitted"), (2, "assigned")))),
        httpx2.ConnectError("restarting"),
        httpx2.Response(200, headers=EVENT_STREAM, content=sse((2, "assigned"), (3, "progress"))),
        httpx2.Response(200, headers=EVENT_STREAM, content=sse((4, "completed"), end=True)),
    )
    async with client_of(hub) as client, asyncio.timeout(PATIENCE):
        events = [event async for event in client.events("t1")]
    assert [(event.seq, event.kind, event.data) for event in events] == [
        (1, "submitted", {"n": 1}),
        (2, "assigned", {"n": 2}),
        (3, "progress", {"n": 3}),
        (4, "completed", {"n": 4}),
    ]
    assert [request.headers.get("last-event-id") for request in hub.requests] == [None, "2", "2", "3"]


async def test_what_a_handler_calls_for_is_part_of_its_task_and_trace() -> None:
    hub = Hub(
        httpx2.Response(202, json=task("queued")),
        httpx2.Response(404, json={"detail": "no such task"}),
        httpx2.Response(202, json=task("queued")),
    )
    async with client_of(hub) as client:
        trace.enter(trace.Span("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "parent-1"))
        await client.submit("deployer", "run")
        await client.submit("deployer", "run")
    posts = [request for request in hub.requests if request.method == "POST"]
    assert [json.loads(request.content).get("parent") for request in posts] == ["parent-1", "parent-1", None]
    assert {request.headers["traceparent"] for request in posts} == {
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    }


def test_the_synchronous_twin_calls_and_streams() -> None:
    question = {"id": "q", "task_id": "t", "agent": "a", "question": "?", "options": [], "default": None}
    hub = Hub(
        httpx2.Response(202, json=task("queued")),
        task(result=[1]),
        httpx2.Response(202, json=task("queued")),
        httpx2.Response(200, headers=EVENT_STREAM, content=sse((1, "submitted"), (2, "completed"), end=True)),
        {"questions": [{**question, "options": ["yes"]}], "next": "q"},
        {"questions": [{**question, "id": "r"}], "next": None},
    )
    backend = ApiClient(ADDRESS, SystemRuntime(), transport=httpx2.MockTransport(hub))
    with SyncClient(backend=backend) as client:
        assert client.call("deployer", "run") == [1]
        assert [event.kind for event in client.stream("deployer", "run")] == ["submitted", "completed"]
        assert [question.options for question in client.questions()] == [("yes",), ()]
