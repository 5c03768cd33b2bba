"""Coven's words ⇄ the hub's: the cases a whole gateway does not show."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.heads import task_head

from dragoman.core.commands import Finish, ReportFault, ReportProgress, Routing
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Origin, Priority, Status, Task
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Request
from dragoman.protocols.coven import codec, types
from dragoman.protocols.coven.connection import Completed
from dragoman.protocols.coven.mapping import fault_in
from dragoman.protocols.coven.types import (
    Done,
    Error,
    FileData,
    MessageResponse,
    Progress,
    Question,
    SendMessage,
    Text,
    Thinking,
    ToolUse,
)
from dragoman.server.content import trace_id_in
from dragoman.server.coven import inbound, outbound
from dragoman.server.coven.outbound import content_of

NOW = Instant(1_768_796_464_000_000)
ME, WORK = AgentId("me"), TaskId("550e8400-e29b-41d4-a716-446655440004")
FILE = FileRef(id="f1", name="a.txt", mime_type="text/plain", size=3, sha256="s")


def task(**fields: Any) -> Task:
    given: dict[str, Any] = {
        "id": WORK,
        "type": "summarise",
        "status": Status.RUNNING,
        "origin": Origin(principal=AgentId("boss"), protocol="chiffon", request_id="q1", digest="-"),
        "created_at": NOW,
        "updated_at": NOW,
        "route": "-",
        "deadline": NOW,
        "idle_limit": 1,
        "rank": 0,
        "trace_id": "550e8400e29b41d4a716446655440002",
    }
    return task_head(**(given | fields))


def event(kind: EventKind, body: Any, seq: int = 5, **fields: Any) -> Event:
    return Event(task=WORK, seq=seq, at=NOW, kind=kind, body=msgspec.Raw(msgspec.json.encode(body)), **fields)


def outgoing(body: Any, kind: EventKind = EventKind.SUBMITTED, **fields: Any) -> Outgoing:
    delivery = Delivery(
        id=DeliveryId("01a1e1c9-e5c2-704f-9eaa-27b24ed0e028"),
        task=WORK,
        receiver=ME,
        seq=1,
        kind=MessageKind.WORK,
        event=1,
        rank=0,
        created_at=NOW,
    )
    return Outgoing(delivery, task(**fields), event(kind, body))


def body_of(command: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(command.content))


# --- content for an agent ---


@pytest.mark.parametrize(
    ("body", "content"),
    [
        ({"input": {"content": "hi"}}, "hi"),
        ({"input": {"prompt": "hi"}}, "hi"),
        ({"input": {"message": "hi", "n": 1}}, 'hi\n\n{"n":1}'),
        ({"input": {"text": "b", "content": "a"}}, 'a\n\n{"text":"b"}'),
        ({"input": {"content": 5}}, 'summarise\n\n{"content":5}'),
        ({"input": {}}, "summarise\n\n{}"),
        ({"input": [1, 2]}, "summarise\n\n[1,2]"),
        ({}, "summarise\n\n{}"),
        ({"input": {"content": "hi"}, "answer": "blue"}, "blue"),
        ({"input": {}, "answer": {"n": 1}}, '{"n":1}'),
        ({"input": {}, "answer": None, "expired": True}, "(nobody answered)"),
        ({"input": {"content": "hi"}, "answer": "blue", "asked_by": "me", "question": "Which?"}, "blue"),
    ],
)
def test_what_an_agent_reads(body: Any, content: str) -> None:
    assert outbound.message_of(outgoing(body)).content == content


def test_who_did_not_ask_reads_the_work_and_what_was_asked_and_answered_meanwhile() -> None:
    body = {"input": {"content": "paint it", "n": 1}, "answer": {"colour": "blue"}, "asked_by": "gone"}
    words = 'paint it\n\n{"n":1}\n\n'
    assert outbound.message_of(outgoing(body)).content == words + '{"answer":{"colour":"blue"}}'
    told = outbound.message_of(outgoing({**body, "question": "Which?"}))
    assert told.content == words + '{"question":"Which?","answer":{"colour":"blue"}}'
    assert told.answer_json == '{"colour":"blue"}'


def test_work_without_text_names_its_type_name_and_description() -> None:
    said = content_of(task(description="the log of today"), Request(input={"lines": 3}))
    assert said == 'summarise: the log of today\n\n{"lines":3}'
    assert content_of(task(name="today", description="the log"), Request()) == "summarise: today: the log\n\n{}"


def test_what_is_known_around_work_stands_behind_it_and_not_behind_an_answer() -> None:
    body = {"input": {"content": "hi"}, "context": {"metadata": {"repo": "x", "name": "told elsewhere"}, "history": []}}
    assert outbound.message_of(outgoing(body)).content == 'hi\n\n{"context":{"metadata":{"repo":"x"}}}'
    assert outbound.message_of(outgoing({**body, "answer": "blue"})).content == "blue"


def test_work_becomes_a_message_with_every_field_beside_its_text() -> None:
    message = outbound.message_of(outgoing({"input": {"content": "hi", "n": 1}}, attempts=2))
    assert message == SendMessage(
        request_id=task().request_id,
        thread_id=WORK,
        sender="boss",
        content='hi\n\n{"n":1}',
        task_id=WORK,
        work_type="summarise",
        input_json='{"content":"hi","n":1}',
        attempt=2,
        traceparent="00-550e8400e29b41d4a716446655440002-9eaa27b24ed0e028-01",
    )


def test_the_files_of_a_request_are_found_by_its_event() -> None:
    assert outbound.attachments_in(event(EventKind.SUBMITTED, {"input": {}, "attachments": [FILE]})) == (FILE,)
    assert outbound.attachments_in(event(EventKind.SUBMITTED, {"input": {}})) == ()


# --- an agent's events ---


def test_progress_beside_thinking_is_a_message_and_not_a_thought() -> None:
    said = MessageResponse(
        request_id="r", event=Thinking("compiling"), progress=Progress(percent=40, step="build", number=2, total=5)
    )
    command = inbound.progress_of(ME, WORK, said)
    assert body_of(command) == {
        "status": "running",
        "percent": 40,
        "step": {"number": 2, "name": "build", "total": 5},
        "message": "compiling",
    }
    assert (command.percent, command.step, command.output) == (40, "build", "")


def test_a_tools_input_that_is_no_json_is_kept_as_text() -> None:
    said = MessageResponse(request_id="r", event=ToolUse("t", "n", '{"a": NaN'))
    assert body_of(inbound.progress_of(ME, WORK, said))["tool_use"]["input"] == '{"a": NaN'


def test_bytes_are_kept_only_where_they_hold_something_unknown() -> None:
    plain = MessageResponse(request_id="r", event=Text("x"))
    assert inbound.progress_of(ME, WORK, plain).raw is None
    newer = msgspec.structs.replace(plain, unknown=b"raw")
    assert inbound.progress_of(ME, WORK, newer).raw == b"raw"


@pytest.mark.parametrize(
    ("text", "streamed", "full", "body", "output"),
    [
        ("abc", True, "", {"output": "abc"}, ""),
        ("ABC", False, "ABC", {"output": "ABC"}, "ABC"),
        (None, True, "", {}, ""),
    ],
)
def test_the_whole_answer_is_counted_once(text: str | None, streamed: bool, full: str, body: Any, output: str) -> None:
    ended = Completed(MessageResponse(request_id="r", event=Done(full_response=full)), text, streamed)
    command = inbound.end_of(ME, WORK, ended)
    assert isinstance(command, Finish)
    assert (body_of(command), command.output, command.fault) == (body, output, None)


@pytest.mark.parametrize(("given", "result"), [('{"a": 1}', {"a": 1}), ("not json", "not json")])
def test_a_result_beside_the_answer(given: str, result: Any) -> None:
    ended = Completed(MessageResponse(request_id="r", event=Done(result_json=given)), "", True)
    assert body_of(inbound.end_of(ME, WORK, ended)) == {"output": "", "result": result}


def test_a_question_pauses_the_task_and_carries_text_that_was_not_streamed() -> None:
    asked = Question(question="Which?", options_json='["a"]', timeout_seconds=5.0, default_json='"a"')
    ended = Completed(
        MessageResponse(request_id="r", event=Done(full_response="first this", question=asked)), "first this", False
    )
    command = inbound.end_of(ME, WORK, ended)
    assert isinstance(command, ReportProgress)
    assert command.paused
    assert command.ask is not None
    assert (command.ask.options, command.ask.timeout_seconds, command.ask.default) == (("a",), 5.0, "a")
    assert command.ask.has_default
    assert body_of(command) == {"status": "paused", "message": "Which?", "output": "first this"}


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (None, Fault(kind=Kind.WORK_FAILED, message="no")),
        (
            types.Fault(kind="resources", message="no GPU", retryable=True, facts_json='{"gpu": 0}'),
            Fault(kind=Kind.RESOURCES, message="no GPU", retryable=True, facts={"gpu": 0}),
        ),
        (types.Fault(kind="of another world"), Fault(kind=Kind.WORK_FAILED, message="no")),
        (
            types.Fault(kind="timeout", facts_json="[1]"),
            Fault(kind=Kind.TIMEOUT, message="no", facts={"facts": [1]}),
        ),
    ],
)
def test_an_error_is_a_failure_of_the_work_unless_it_says_more(said: Any, fault: Fault) -> None:
    message = MessageResponse(request_id="r", event=Error("no"), fault=said)
    assert fault_in(message) == fault
    command = inbound.end_of(ME, WORK, Completed(message, "", True))
    assert isinstance(command, ReportFault)
    assert command.fault == fault


# --- a caller's message ---


def submit(message: SendMessage, files: Any = (), **more: Any) -> Any:
    known = {AgentId("worker"): "an agent"}
    return inbound.submit_of(ME, message, files, find=known.get, request_id="q1", **more)  # type: ignore[arg-type]


def test_a_message_becomes_a_task_that_its_caller_follows() -> None:
    said = SendMessage(request_id="q1", content="hi", to_agent="worker", thread_id="th", priority="high")
    command = submit(said, [FILE])
    assert (command.type, command.routing, command.lineage.thread) == ("chat", Routing(pinned=AgentId("worker")), "th")
    assert (command.priority, command.reply.follows, command.files) == (Priority.HIGH, True, (FILE,))
    assert body_of(command) == {"input": {"content": "hi"}, "attachments": [msgspec.to_builtins(FILE)]}


def test_a_name_that_is_no_agents_is_a_kind_and_none_asks_for_a_capability() -> None:
    assert submit(SendMessage(request_id="q", to_agent="coder")).routing.kind == "coder"
    anybody = submit(SendMessage(request_id="q", work_type="review")).routing
    assert (anybody.kind, anybody.pinned, anybody.required_capabilities) == (None, None, ("review",))


def test_fields_of_the_input_stand_beside_the_content() -> None:
    command = submit(SendMessage(request_id="q", content="hi", input_json='{"n": 1}', work_type="sum"))
    assert body_of(command) == {"input": {"n": 1, "content": "hi"}}
    assert body_of(submit(SendMessage(request_id="q", input_json='{"n": 1}'))) == {"input": {"n": 1}}
    assert body_of(submit(SendMessage(request_id="q"))) == {"input": {"content": ""}}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (SendMessage(request_id="q", sender="you"), "sender"),
        (SendMessage(request_id="q", task_id="7"), "task_id"),
        (SendMessage(request_id="q", priority="urgent"), "priority"),
        (SendMessage(request_id="q", input_json="[1]"), "input_json"),
        (SendMessage(request_id="q", input_json='{"a": 1, "a": 2}'), "input_json"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(message: SendMessage, field: str) -> None:
    with pytest.raises(Refused) as refused:
        submit(message)
    assert refused.value.fault.field == field


def test_different_contents_have_different_digests() -> None:
    base = SendMessage(request_id="q", content="a")
    variants = [
        submit(base),
        submit(msgspec.structs.replace(base, content="b")),
        submit(msgspec.structs.replace(base, to_agent="x")),
        submit(msgspec.structs.replace(base, thread_id="t")),
        submit(base, [FILE]),
    ]
    assert len({command.digest for command in variants}) == len(variants)
    assert submit(base).digest == submit(base, traceparent="x").digest


def test_only_a_good_traceparent_counts() -> None:
    good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert trace_id_in(None, "", "nonsense", good) == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace_id_in("00-" + "0" * 32 + "-00f067aa0ba902b7-01") is None


# --- a task's events, for a caller ---


def told(kind: EventKind, body: Any, head: Task | None = None, data: bytes | None = None) -> list[tuple[Any, int]]:
    said = outbound.responses_of(event(kind, body), head or task(), request_id="q1", data=data)
    return [(one.event, one.cursor) for one in said]


def test_one_report_that_says_much_is_several_events_with_one_cursor_at_the_end() -> None:
    said = {"thinking": "hm", "tool_use": {"id": "t", "name": "n", "input": {"a": 1}}, "output": "x", "percent": 3}
    heard = outbound.responses_of(event(EventKind.PROGRESS, said), task(), request_id="q1")
    assert [one.event for one in heard] == [Thinking("hm"), ToolUse("t", "n", '{"a":1}'), Text("x")]
    assert [one.cursor for one in heard] == [0, 0, 5]
    assert [one.progress and one.progress.percent for one in heard] == [None, None, 3]


@pytest.mark.parametrize("odd", [True, -1, 2**63, 1.5, "x", [], {}])
def test_a_malformed_step_can_be_encoded(odd: object) -> None:
    body = {"percent": 5, "step": {"number": odd, "name": odd, "total": odd}}
    for said in outbound.responses_of(event(EventKind.PROGRESS, body), task(), request_id="q1"):
        codec.encode_response(said)


def test_progress_without_a_message_has_one_for_clients_that_know_only_the_document() -> None:
    assert told(EventKind.PROGRESS, {"percent": 40, "step": {"number": 1, "name": "build"}}) == [
        (Thinking("build, 40 %"), 5)
    ]
    assert told(EventKind.PROGRESS, {"status": "running"}) == []


def test_a_file_is_sent_with_its_bytes() -> None:
    assert told(EventKind.PROGRESS, {"file": FILE}, data=b"abc") == [(FileData("a.txt", "text/plain", b"abc"), 5)]
    assert outbound.file_in(event(EventKind.PROGRESS, {"file": FILE})) == FILE
    assert outbound.file_in(event(EventKind.PROGRESS, {"output": 'a "file"'})) is None


def test_an_ending_counts_only_while_it_is_the_outcome() -> None:
    fault = Fault(kind=Kind.TIMEOUT, message="too late")
    over = task(status=Status.FAILED, outcome_event=5, fault=fault)
    ((end, _),) = told(EventKind.FAILED, {"fault": fault}, over)
    assert isinstance(end, Error)
    ((undone, _),) = told(EventKind.FAILED, {"fault": fault}, task())
    assert isinstance(undone, Thinking)


def test_cancelled_is_an_error_with_its_kind() -> None:
    over = task(status=Status.CANCELLED, outcome_event=5)
    (said,) = outbound.responses_of(event(EventKind.CANCELLED, {"reason": "enough"}), over, request_id="q1")
    assert said.fault is not None
    assert (type(said.event), said.fault.kind) == (Error, "cancelled")


@pytest.mark.parametrize(
    ("body", "done"),
    [
        ({"output": "x"}, Done(full_response="x")),
        ({"result": "x"}, Done(full_response="x", result_json='"x"')),
        ({"result": {"a": 1}}, Done(result_json='{"a":1}')),
        ({}, Done()),
    ],
)
def test_a_result_of_any_protocol_is_done(body: Any, done: Done) -> None:
    assert told(EventKind.COMPLETED, body, task(status=Status.COMPLETED, outcome_event=5)) == [(done, 5)]


@pytest.mark.parametrize("kind", [EventKind.SUBMITTED, EventKind.ASSIGNED, EventKind.DEAD_LETTERED])
def test_events_of_the_hub_alone_are_not_sent(kind: EventKind) -> None:
    assert told(kind, {"input": {}}) == []
