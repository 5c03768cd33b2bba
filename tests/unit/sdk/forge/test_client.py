"""A client that speaks forge, and a scripted orchestrator."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.sdk.forge.harness import FakeForge, plain
from tests.unit.sdk.harness import PATIENCE, FakeRuntime, settle

from dragoman import (
    Client,
    Conflict,
    HubUnreachable,
    Misconfigured,
    NotFound,
    NotSupported,
    RequestRefused,
    SyncClient,
    TaskCancelled,
)
from dragoman import TaskFailed as Failed
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.types import ErrorBody, Message, TaskUpdated
from dragoman.sdk import trace
from dragoman.sdk.forge.client import Call, ForgeClient

SUBMIT = "request:submit-task"
NOON = datetime(2026, 1, 19, 12, tzinfo=UTC)


@pytest.fixture
def forge_hub(runtime: FakeRuntime) -> FakeForge:
    hub = FakeForge(runtime, is_lines=False)
    hub.answers[SUBMIT] = lambda _: {"task": {"id": "t1", "status": "queued"}}
    return hub


@pytest.fixture
def client(forge_hub: FakeForge, runtime: FakeRuntime) -> Client:
    return Client(backend=ForgeClient(forge_hub.dial_wire, runtime))


def updated(hub: FakeForge, status: Any, id: str | None = None, **said: Any) -> str:
    final = status in ("completed", "failed", "cancelled")
    return hub.notify(TaskUpdated(task_id="t1", status=status, final=final, **said), id)


async def called(client: Client, hub: FakeForge, *args: Any, **given: Any) -> tuple[asyncio.Future[Any], Message]:
    calling = asyncio.ensure_future(client.call(*(args or ("deployer", "run")), **given))
    request = await hub.next(SUBMIT)
    await settle()
    return calling, request


async def test_a_call_submits_a_task_and_returns_its_result(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling, request = await called(client, forge_hub, "deployer", "run_playbook", playbook="x.yml")
        updated(forge_hub, "completed", result={"a": 1}, output='{"a":1}')
        assert await calling == {"a": 1}
    assert plain(request.payload) == {
        "type": "run_playbook",
        "payload": {"playbook": "x.yml"},
        "agent": "deployer",
    }


async def test_the_text_where_there_is_no_structure(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling, _ = await called(client, forge_hub)
        updated(forge_hub, "completed", output="hello")
        assert await calling == "hello"


async def test_an_output_in_pieces_is_put_together(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling, _ = await called(client, forge_hub)
        updated(forge_hub, "running", "d0", output="said before, ")
        updated(forge_hub, "running", "d1/1", output="one ")
        updated(forge_hub, "running", "d1/2", output="two ")
        updated(forge_hub, "completed", "d1", output="three")
        assert await calling == "one two three"


async def test_what_was_streamed_is_the_answer_where_the_end_has_none(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling, _ = await called(client, forge_hub)
        for id, piece in (("d1", "one "), ("d2", "two"), ("d2", "two")):  # the last is told twice
            updated(forge_hub, "running", id, output=piece)
        updated(forge_hub, "completed")
        assert await calling == "one two"


async def test_a_kind_is_addressed_where_no_agent_is_called_so(client: Client, forge_hub: FakeForge) -> None:
    nobody = ErrorBody(code="NOT_FOUND", message="no agent", details={"reason": "unavailable", "retryable": True})
    forge_hub.answers[SUBMIT] = lambda asked: nobody if asked.payload.agent else {"task": {"id": "t1"}}
    async with client, asyncio.timeout(PATIENCE):
        for _ in range(2):
            calling, _ = await called(client, forge_hub, "infra", "run")
            updated(forge_hub, "completed", output="done")
            assert await calling == "done"
    said = [(m.payload.agent, m.payload.kind) for m in forge_hub.said if m.type == SUBMIT]
    assert said == [("infra", None), (None, "infra"), (None, "infra")]


async def test_failures_raise_with_their_facts(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling, _ = await called(client, forge_hub)
        details = {"reason": "work_failed", "exit_code": 3}
        updated(forge_hub, "failed", error={"code": "INTERNAL_ERROR", "message": "no image", "details": details})
        with pytest.raises(Failed, match="no image") as caught:
            await calling
        assert (caught.value.kind, caught.value.exit_code, caught.value.task_id) == ("work_failed", 3, "t1")
        calling, _ = await called(client, forge_hub)
        updated(forge_hub, "cancelled", error={"code": "INVALID_REQUEST", "message": "enough"})
        with pytest.raises(TaskCancelled, match="enough"):
            await calling


async def test_refusals_raise_and_passing_ones_are_asked_again(client: Client, forge_hub: FakeForge) -> None:
    limited = ErrorBody(code="INVALID_REQUEST", message="slowly", details={"reason": "RATE_LIMITED"})
    unknown = ErrorBody(code="INVALID_REQUEST", message="nobody does it", details={"reason": "unsupported_work"})
    answers = iter([limited, unknown])
    forge_hub.answers[SUBMIT] = lambda _: next(answers)
    async with client, asyncio.timeout(PATIENCE):
        calling, first = await called(client, forge_hub)
        await forge_hub.runtime.advance(3)
        assert (await forge_hub.next(SUBMIT)) == first
        with pytest.raises(RequestRefused, match="nobody does it") as caught:
            await calling
    assert caught.value.kind == "unsupported_work"


async def test_events_are_followed_in_the_hubs_form(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        events = client.stream("deployer", "run")
        first = asyncio.ensure_future(anext(events))
        await forge_hub.next(SUBMIT)
        await settle()
        updated(forge_hub, "running", progress=0.5, step=forge.Step(number=2, name="build"), output="x\n")
        updated(forge_hub, "running", thinking="hm", tool_use=forge.ToolUse(id="u", name="grep", input=1))
        updated(forge_hub, "completed", output="done")
        told = [await first, *[event async for event in events]]
    assert [(event.seq, event.kind) for event in told] == [(1, "progress"), (2, "progress"), (3, "completed")]
    step = {"number": 2, "name": "build"}
    assert told[0].data == {"status": "running", "percent": 50, "output": "x\n", "step": step}
    use = {"id": "u", "name": "grep", "input": 1}
    assert told[1].data == {"status": "running", "thinking": "hm", "tool_use": use}
    assert told[2].data == {"output": "done", "result": None}


async def test_news_that_comes_before_the_answer_is_not_lost(client: Client, forge_hub: FakeForge) -> None:
    forge_hub.answers[SUBMIT] = lambda _: None
    async with client, asyncio.timeout(PATIENCE):
        calling, request = await called(client, forge_hub)
        updated(forge_hub, "completed", output="quick")
        forge_hub.succeed(request, {"task": {"id": "t1"}})
        assert await calling == "quick"


async def test_a_task_without_answer_is_submitted_again_under_the_same_id(client: Client, forge_hub: FakeForge) -> None:
    forge_hub.answers[SUBMIT] = lambda _: None
    async with client, asyncio.timeout(PATIENCE):
        calling, first = await called(client, forge_hub)
        forge_hub.cut()
        await forge_hub.runtime.advance(1)
        again = await forge_hub.next(SUBMIT)
        assert again == first
        forge_hub.succeed(again, {"task": {"id": "t1"}})
        await settle()
        updated(forge_hub, "completed", output="done")
        assert await calling == "done"


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ({"status": "completed", "result": {"a": 1}}, "completed"),
        ({"status": "failed", "error": {"code": "TIMEOUT", "message": "too late"}}, "failed"),
        ({"status": "running", "progress": 0.5}, None),
    ],
)
async def test_what_ended_while_the_connection_was_down_is_seen_over_the_next(
    client: Client, forge_hub: FakeForge, task: dict[str, Any], kind: str | None
) -> None:
    forge_hub.answers["request:get-task"] = lambda asked: {"task": {"id": asked.payload.task_id, **task}}
    async with client, asyncio.timeout(PATIENCE):
        calling, _ = await called(client, forge_hub)
        forge_hub.cut()
        await forge_hub.runtime.advance(1)
        await forge_hub.next("request:get-task")
        await settle()
        if kind is None:
            assert not calling.done()
            updated(forge_hub, "completed", output="done")
            assert await calling == "done"
        elif kind == "failed":
            with pytest.raises(Failed, match="too late"):
                await calling
        else:
            assert await calling == {"a": 1}
    assert forge_hub.count(SUBMIT) == 1


async def test_cancelling_and_looking(client: Client, forge_hub: FakeForge) -> None:
    task = {"id": "t1", "type": "run", "status": "retrying", "progress": 0.25, "payload": {"n": 1}, "attempt": 2}
    forge_hub.answers["request:get-task"] = lambda _: {"task": task}
    late = ErrorBody(code="INVALID_REQUEST", message="over", details={"reason": "conflict"})
    answers = iter([{"task": {}}, late, ErrorBody(code="NOT_FOUND", message="no such task")])
    forge_hub.answers["request:cancel-task"] = lambda _: next(answers)
    async with client, asyncio.timeout(PATIENCE):
        await client.cancel("t1", "enough")
        cancel = await forge_hub.next("request:cancel-task")
        with pytest.raises(Conflict, match="over"):
            await client.cancel("t1")
        with pytest.raises(NotFound):
            await client.cancel("t2")
        info = await client.task("t1")
        with pytest.raises(NotSupported, match="forge cannot"):
            await client.questions()
    assert plain(cancel.payload) == {"taskId": "t1", "reason": "enough"}
    assert (info.status, info.progress, info.input, info.attempts) == ("queued", 25, {"n": 1}, 2)


async def test_what_was_asked_when_the_connection_broke_is_asked_again_over_the_next(
    client: Client, forge_hub: FakeForge, runtime: FakeRuntime
) -> None:
    """Whoever cancelled a task, or looked at one, waited for ever."""
    async with client, asyncio.timeout(PATIENCE):
        cancelling = asyncio.ensure_future(client.cancel("t1", "enough"))
        first = await forge_hub.next("request:cancel-task")
        forge_hub.cut()
        await settle()
        looking = asyncio.ensure_future(client.task("t1"))  # while there is no connection
        await settle()
        forge_hub.answers["request:cancel-task"] = lambda _: {"task": {}}
        forge_hub.answers["request:get-task"] = lambda _: {"task": {"id": "t1", "status": "cancelled"}}
        await runtime.advance(10)
        await cancelling
        assert (await looking).status == "cancelled"
        assert (await forge_hub.next("request:cancel-task")).id == first.id


async def test_a_task_that_cannot_be_looked_at_now_is_looked_at_later(
    client: Client, forge_hub: FakeForge, runtime: FakeRuntime
) -> None:
    """Its end may have been told over the connection that broke, and would not be told again."""
    busy = ErrorBody(code="INTERNAL_ERROR", message="not now", details={"retryable": True, "reason": "overloaded"})
    answers = iter([busy, {"task": {"id": "t1", "status": "completed", "result": {"a": 1}}}])
    forge_hub.answers["request:get-task"] = lambda _: next(answers)
    async with client, asyncio.timeout(PATIENCE):
        calling, _ = await called(client, forge_hub)
        forge_hub.cut()
        await runtime.advance(10)
        assert await calling == {"a": 1}


async def test_options_and_the_trace_go_along(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        span = trace.Span("a" * 32, "b" * 16)
        trace.enter(span)
        options = {"priority": "high", "dependencies": ("t0",), "parent": "t9", "hints": {"max_duration_seconds": 2}}
        assert await client.submit(None, "run", {"n": 1}, required_role="worker", name="A run", **options) == "t1"
        request = await forge_hub.next(SUBMIT)
        with pytest.raises(NotSupported, match="budget"):
            await client.submit("a", "run", budget=3)
        with pytest.raises(Misconfigured, match="cannot send that"):
            await client.submit("a", "run", priority=1.5)
    assert request.meta == {"traceparent": span.traceparent}
    assert plain(request.payload) == {
        "type": "run", "name": "A run", "payload": {"n": 1}, "requiredRole": "worker", "dependencies": ["t0"],
        "priority": 2, "parentId": "t9", "timeout": 2000.0,
    }  # fmt: skip


async def test_a_client_does_no_work(client: Client, forge_hub: FakeForge) -> None:
    async with client, asyncio.timeout(PATIENCE):
        await settle()
        forge_hub.assign("run", task_id="t5")
        update = await forge_hub.next("request:update-task")
    assert (update.payload.task_id, update.payload.status) == ("t5", "failed")


async def test_a_hub_that_is_not_there_is_reported_at_once(client: Client, forge_hub: FakeForge) -> None:
    forge_hub.is_down = True
    with pytest.raises(HubUnreachable, match="nobody there"):
        async with client:
            pass


def test_without_a_token_or_over_pipes_nothing_is_tried() -> None:
    with pytest.raises(Misconfigured, match="no token"):
        Client("forge+ws://127.0.0.1:1")
    with pytest.raises(Misconfigured, match="own pipes"):
        SyncClient("stdio:")


async def test_parts_of_the_result_are_joined_by_the_bytes_they_are() -> None:
    """An agent of another protocol may send its result in several messages, each of which comes as its own."""
    call = Call(forge.SubmitTask(type="x"), forge.Stamp("r", NOON), None)
    for id, start, text, final in (("D1", 0, "one ", False), ("D2", 4, "two ", False), ("D3", 8, "three", True)):
        said = TaskUpdated(task_id="t1", status="completed" if final else "running", final=final, output=text)
        notice = Message(type="notify:task-updated", id=id, timestamp=NOON, payload=said, meta={"part": [start, 0, 13]})
        call.updated(notice, said)
    assert await call.done == "one two three"
    assert [event.kind for event in call.events] == ["completed"]


async def test_parts_that_begin_again_leave_nothing_of_those_before() -> None:
    """Who tried first broke off in the middle of its last word; the next one has less to say."""
    call = Call(forge.SubmitTask(type="x"), forge.Stamp("r", NOON), None)
    told = (("D1", 0, "one ", False), ("D2", 4, "two ", False), ("D3", 0, "a", False), ("D4", 1, "b", True))
    for id, start, text, final in told:
        said = TaskUpdated(task_id="t1", status="completed" if final else "running", final=final, output=text)
        notice = Message(type="notify:task-updated", id=id, timestamp=NOON, payload=said, meta={"part": [start, 0, 2]})
        call.updated(notice, said)
    assert await call.done == "ab"
