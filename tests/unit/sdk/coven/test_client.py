"""A client that speaks coven: what it sends, how it resumes, and what it raises."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from tests.unit.sdk.coven.gateway import Gateway, Hasty

from dragoman import (
    Client,
    Conflict,
    HubUnreachable,
    Misconfigured,
    NotAllowed,
    NotFound,
    NotSupported,
    RequestRefused,
    SyncClient,
    TaskCancelled,
    TaskFailed,
)
from dragoman.protocols.coven import codec
from dragoman.protocols.coven.types import (
    CancelReply,
    CancelRequest,
    Done,
    Error,
    Fault,
    FileData,
    FollowRequest,
    MessageResponse,
    Progress,
    SendMessage,
    Text,
    Thinking,
    ToolUse,
)
from dragoman.sdk import trace
from dragoman.sdk.coven.calls import CallEvents
from dragoman.sdk.messages import File

TASK = "01a1e1d3-5637-7055-87bd-b96698488266"


def response(event: Any, cursor: int, **more: Any) -> MessageResponse:
    return MessageResponse(request_id="r", event=event, cursor=cursor, task_id=TASK, **more)


HISTORY = [
    response(Thinking("hm"), 3),
    response(Text("one "), 4),
    response(Text("two "), 5),
    response(Thinking("a part"), 0),
    response(Text("three"), 6, progress=Progress(percent=90, step="end", number=2)),
    response(Done(full_response="one two three", result_json='{"n":3}'), 7),
]


class Hub:
    """Sends a history over its streams, each of which breaks off after as many responses as `breaks` says."""

    def __init__(self, gateway: Gateway, history: list[MessageResponse], breaks: list[int] | None = None) -> None:
        self.history = history
        self.breaks = breaks or []
        self.sent: list[SendMessage] = []
        self.followed: list[FollowRequest] = []
        self.refusals: list[tuple[grpc.StatusCode, str, str | None]] = []
        self.metadata: dict[str, Any] = {}
        gateway.send, gateway.follow, gateway.cancel = self.send, self.follow, self.cancel
        self.cancelled: list[CancelRequest] = []

    async def send(self, message: SendMessage, context: Any) -> None:
        self.sent.append(message)
        self.metadata = dict(context.invocation_metadata())
        await self._refuse(context)
        await self._tell(context, 0)

    async def follow(self, request: FollowRequest, context: Any) -> None:
        self.followed.append(request)
        await self._refuse(context)
        await self._tell(context, request.after)

    async def cancel(self, request: bytes, context: Any) -> bytes:
        self.cancelled.append(codec.decode_cancel(request))
        await self._refuse(context)
        return codec.encode_cancel_reply(CancelReply(task_id=TASK, status="cancelled"))

    async def _refuse(self, context: Any) -> None:
        if self.refusals:
            code, words, fault = self.refusals.pop(0)
            await context.abort(code, words, () if fault is None else (("dragoman-fault", fault),))

    async def _tell(self, context: Any, after: int) -> None:
        await context.send_initial_metadata((("dragoman-task-id", TASK),))
        context.set_trailing_metadata((("dragoman-task-id", TASK),))
        events: list[list[MessageResponse]] = [[]]
        for one in self.history:
            events[-1].append(one)
            if one.cursor:
                events.append([])
        rest = [one for event in events if event and event[-1].cursor > after for one in event]
        count = self.breaks.pop(0) if self.breaks else len(rest)
        for one in rest[:count]:
            await context.write(codec.encode_response(one))
        if count < len(rest):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")


def client(gateway: Gateway, **more: Any) -> Client:
    return Client(gateway.url, runtime=Hasty(), **more)


TOLD: list[tuple[int, str, dict[str, Any]]] = [
    (3, "progress", {"thinking": "hm"}),
    (4, "progress", {"output": "one "}),
    (5, "progress", {"output": "two "}),
    (
        6,
        "progress",
        {
            "thinking": "a part",
            "output": "three",
            "status": "running",
            "percent": 90,
            "step": {"number": 2, "name": "end"},
        },
    ),
    (7, "completed", {"output": "one two three", "result": {"n": 3}}),
]


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("second", range(3))
async def test_wherever_streams_break_no_event_is_missed_and_none_comes_twice(
    gateway: Gateway, first: int, second: int
) -> None:
    hub = Hub(gateway, HISTORY, [first, second])
    async with client(gateway) as caller:
        told = [(event.seq, event.kind, event.data) async for event in caller.stream("worker", "chat", content="go")]
    assert told == TOLD
    assert len(hub.sent) == 1


async def test_a_call_says_who_what_and_to_whom(gateway: Gateway) -> None:
    hub = Hub(gateway, HISTORY)
    trace.enter(trace.Span("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"))
    async with client(gateway, token="t", id="planner") as caller:
        files = [File("a", "text/plain", b"x"), {"name": "b", "mime_type": "", "data": b"y"}]
        task_id = await caller.submit(
            "worker", "sum", {"content": "go", "n": 3}, priority="high", thread="th", files=files
        )
        assert await caller.result(task_id) == {"n": 3}
    (sent,) = hub.sent
    assert (sent.content, json.loads(sent.input_json)) == ("go", {"n": 3})  # each once (coven-D9)
    assert (sent.to_agent, sent.work_type, sent.content, sent.sender) == ("worker", "sum", "go", "planner")
    assert (sent.priority, sent.thread_id) == ("high", "th")
    assert sent.attachments == (FileData("a", "text/plain", b"x"), FileData("b", "", b"y"))
    assert sent.traceparent == hub.metadata["traceparent"]
    assert hub.metadata["authorization"] == "Bearer t"
    assert hub.followed == []  # the stream of the request is the stream of its events


async def test_a_request_is_sent_again_under_the_same_id_until_the_hub_has_it(gateway: Gateway) -> None:
    hub = Hub(gateway, HISTORY)
    async with client(gateway) as caller:
        await caller.call("worker", "chat")
        hub.refusals = [
            (grpc.StatusCode.UNAVAILABLE, "connection reset", None),
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", "rate_limited"),
        ]
        assert await caller.call("worker", "chat") == {"n": 3}
    assert len({message.request_id for message in hub.sent[1:]}) == 1
    assert len(hub.sent) == 4


@pytest.mark.parametrize(
    ("code", "fault", "raised"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", NotAllowed),
        (grpc.StatusCode.PERMISSION_DENIED, "forbidden", NotAllowed),
        (grpc.StatusCode.NOT_FOUND, "not_found", NotFound),
        (grpc.StatusCode.FAILED_PRECONDITION, "conflict", Conflict),
        (grpc.StatusCode.UNAVAILABLE, "unavailable", RequestRefused),
        (grpc.StatusCode.INVALID_ARGUMENT, "invalid", RequestRefused),
        (grpc.StatusCode.UNIMPLEMENTED, None, Misconfigured),
    ],
)
async def test_what_the_hub_refuses_is_raised_at_once(
    gateway: Gateway, code: grpc.StatusCode, fault: str | None, raised: type[Exception]
) -> None:
    hub = Hub(gateway, HISTORY)
    async with client(gateway) as caller:
        for call in (
            lambda: caller.call("worker", "chat"),
            lambda: caller.result(TASK),
            lambda: caller.cancel(TASK),
        ):
            hub.refusals = [(code, "because", fault)]
            with pytest.raises(raised, match="because") as caught:
                await call()
            assert getattr(caught.value, "kind", fault) == fault
    assert len(hub.sent) == 1


async def test_a_hub_that_was_never_there_is_reported_at_once() -> None:
    async with Client("coven://127.0.0.1:1") as caller:
        with pytest.raises(HubUnreachable, match="Is the hub running"):
            await caller.call("worker", "chat")


async def test_failures_keep_their_facts(gateway: Gateway) -> None:
    fault = Fault(kind="work_failed", message="no disk", facts_json='{"exit_code":2}')
    hub = Hub(gateway, [response(Text("so far"), 2), response(Error("no disk"), 3, fault=fault)])
    async with client(gateway) as caller:
        with pytest.raises(TaskFailed) as caught:
            await caller.call("worker", "chat")
        failed = caught.value
        assert (failed.task_id, failed.kind, failed.exit_code, failed.output) == (TASK, "work_failed", 2, "so far")
        hub.history = [response(Error("stopped"), 2, fault=Fault(kind="cancelled", message="stopped"))]
        with pytest.raises(TaskCancelled, match="stopped"):
            await caller.call("worker", "chat")


async def test_a_cancel_carries_its_reason_and_the_rest_is_not_supported(gateway: Gateway) -> None:
    hub = Hub(gateway, HISTORY)
    async with client(gateway) as caller:
        await caller.cancel(TASK, "enough")
        for call in (caller.task(TASK), caller.questions(), caller.answer("q", 1)):
            with pytest.raises(NotSupported, match="coven cannot"):
                await call
        with pytest.raises(NotSupported, match="coven has no option `budget`"):
            await caller.submit("worker", "chat", budget=1)
    assert hub.cancelled == [CancelRequest(task_id=TASK, reason="enough")]


async def test_following_begins_after_the_event_that_is_named(gateway: Gateway) -> None:
    hub = Hub(gateway, HISTORY)
    async with client(gateway) as caller:
        assert [event.seq async for event in caller.events(TASK, after=5)] == [6, 7]
    assert hub.followed == [FollowRequest(task_id=TASK, after=5)]


def test_an_attempt_that_failed_takes_its_pieces_with_it() -> None:
    seen = CallEvents(TASK)
    fault = Fault(kind="unavailable", message="gone", retryable=True)
    history = [
        response(Text("lost"), 2),
        response(Thinking("gone. Trying again."), 3, fault=fault),
        response(ToolUse("t", "df", "not json"), 4),
        response(Text("kept"), 5),
        response(Done(), 6),
    ]
    told = [seen.add(one) for one in history]
    assert [event.kind for event in told if event] == [
        "progress",
        "attempt_failed",
        "progress",
        "progress",
        "completed",
    ]
    assert told[2] is not None
    assert told[2].data == {"tool_use": {"id": "t", "name": "df", "input": "not json"}}
    assert seen.outcome() == "kept"


def test_a_part_numbered_like_the_event_before_it_is_not_sent_twice() -> None:
    """The event 5 comes in two parts, and 4 was nothing to tell: its first part has the cursor 4."""
    parts = [response(Thinking("a"), 4), response(Text("b"), 5)]
    seen = CallEvents(TASK, 3)
    assert [event.data for one in parts if (event := seen.add(one))] == [{"thinking": "a"}, {"output": "b"}]
    seen = CallEvents(TASK, 3)
    first = seen.add(parts[0])
    seen.resume()
    told = [first, *(seen.add(one) for one in parts)]
    assert [event.data for event in told if event] == [{"thinking": "a"}, {"output": "b"}]


async def test_the_synchronous_client_does_the_same(gateway: Gateway) -> None:
    Hub(gateway, HISTORY, [2])

    def call() -> tuple[Any, list[int]]:
        with SyncClient(gateway.url, runtime=Hasty()) as caller:
            return caller.call("worker", "chat"), [event.seq for event in caller.stream("worker", "chat")]

    assert await asyncio.to_thread(call) == ({"n": 3}, [3, 4, 5, 6, 7])


def test_beyond_this_machine_a_token_is_needed() -> None:
    with pytest.raises(Misconfigured, match="the client has no token"):
        Client("coven://hub.lan:50051")
