"""Each message of the document, read and written; and each way in which one can be wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import pytest

from dragoman.protocols.forge import codec
from dragoman.protocols.forge.codec import (
    EventReceived,
    Invalid,
    LogReceived,
    NoticeReceived,
    RequestReceived,
    ResponseReceived,
)
from dragoman.protocols.forge.errors import Code, is_retryable
from dragoman.protocols.forge.types import (
    BODIES,
    ERROR,
    SUCCESS,
    AgentStatus,
    Encoding,
    ErrorBody,
    Progress,
    QueryAgents,
    QueryTasks,
    Shutdown,
    Stamp,
    SubmitTask,
    TaskStatus,
)
from dragoman.wire import Role, Stage

DOCUMENTED = (
    "request:query-agents", "request:query-tasks", "request:submit-task", "request:get-task", "request:ask-user",
    "event:progress", "event:log", "event:error", "event:question",
    SUCCESS, ERROR,
    "notify:task-assigned", "notify:task-cancelled", "notify:shutdown",
)  # fmt: skip
"""The document's own list; the hub adds others."""


NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
FROM_AGENTS = (
    "query-agents", "query-tasks", "submit-task", "get-task", "ask-user", "progress", "log", "error-report", "question",
)  # fmt: skip
TO_AGENTS = ("success", "error", "task-assigned", "task-cancelled", "shutdown")


def heard(said: Any, reader: Role = Role.HUB, **settings: Any) -> Any:
    events = codec.read(said if isinstance(said, bytes) else json.dumps(said).encode(), reader, **settings)
    assert len(events) == 1, events
    return events[0]


@pytest.mark.requirement("FG-MSG-4", "FG-RSP-1", "FG-RSP-4", "FG-PRI-1")
@pytest.mark.parametrize("name", FROM_AGENTS)
@pytest.mark.parametrize("encoding", Encoding)
def test_what_agents_say_is_read_and_written_back_equal(
    name: str, encoding: Encoding, examples: dict[str, Any]
) -> None:
    event = heard(examples[name])
    assert isinstance(event, RequestReceived | EventReceived)
    frame = codec.write(event.message, encoding)
    [again] = codec.read(frame, Role.HUB, encoding=encoding)
    assert again.message == event.message  # type: ignore[union-attr]
    if encoding is Encoding.JSON:
        assert json.loads(frame) == examples[name]


@pytest.mark.requirement("FG-MSG-4", "FG-RSP-2", "FG-RSP-3", "FG-PRI-5", "FG-NOT-3")
@pytest.mark.parametrize("name", TO_AGENTS)
def test_messages_to_agents_are_read_and_written_back_equal(name: str, examples: dict[str, Any]) -> None:
    event = heard(examples[name], Role.AGENT)
    assert isinstance(event, ResponseReceived | NoticeReceived)
    written = json.loads(codec.write(event.message))
    example = dict(examples[name])
    moment = datetime.fromisoformat(example.pop("timestamp"))
    assert datetime.fromisoformat(written.pop("timestamp")) == moment
    assert written == example


@pytest.mark.requirement("FG-MSG-4")
def test_the_documents_types_are_all_there() -> None:
    assert len(DOCUMENTED) == 14
    assert set(DOCUMENTED) <= {*BODIES, SUCCESS, ERROR}


@pytest.mark.requirement("FG-SUB-1")
def test_the_documents_task(examples: dict[str, Any]) -> None:
    task = heard(examples["submit-task"]).message.payload
    assert (task.type, task.name, task.priority) == ("implementation", "Fix bug in auth", 2)
    assert (task.required_role, task.required_capabilities) == ("worker", ("typescript",))
    assert (task.dependencies, task.payload) == (("task-parent-id",), {"file": "src/auth.ts"})


@pytest.mark.requirement("FG-ASK-1")
def test_the_documents_question(examples: dict[str, Any]) -> None:
    asked = heard(examples["ask-user"]).message.payload
    assert [option["value"] for option in asked.options] == ["oauth", "jwt"]
    assert asked.timeout == 300_000


@pytest.mark.requirement("FG-EVT-1", "FG-EVT-4")
def test_the_documents_events(examples: dict[str, Any]) -> None:
    progress = heard(examples["progress"]).message.payload
    assert (progress.task_id, progress.progress) == ("task-123", 0.5)
    report = heard(examples["error-report"]).message.payload
    assert (report.task_id, report.stack, report.recoverable) == ("task-123", "...", False)
    for beyond in (-0.1, 1.1):
        said = {**examples["progress"], "payload": {"taskId": "t", "progress": beyond}}
        assert heard(said).field == "payload.progress"


@pytest.mark.requirement("FG-MSG-1", "FG-SEC-1")
@pytest.mark.parametrize("missing", ["id", "timestamp", "payload"])
def test_a_request_without_a_required_field_is_refused_by_name(missing: str, examples: dict[str, Any]) -> None:
    said = {name: value for name, value in examples["get-task"].items() if name != missing}
    event = heard(said)
    assert isinstance(event, Invalid)
    assert (event.answer.code, event.field, event.stage) == (Code.INVALID_REQUEST, missing, Stage.SHAPE)
    assert event.answer.details == {"field": missing}
    assert event.asks
    assert event.about == (None if missing == "id" else "req-4")


@pytest.mark.requirement("FG-PRI-2", "FG-SEC-1")
@pytest.mark.parametrize(
    ("type", "payload", "field"),
    [
        ("request:get-task", {}, "payload.taskId"),
        ("request:get-task", {"taskId": 5}, "payload.taskId"),
        ("request:query-tasks", {"status": "asleep"}, "payload.status"),
        ("request:query-tasks", {"limit": 0}, "payload.limit"),
        ("request:query-tasks", {"limit": 1001}, "payload.limit"),
        ("request:query-agents", {"status": "asleep"}, "payload.status"),
        ("request:submit-task", {"name": "x"}, "payload.type"),
        ("request:submit-task", {"type": "x", "priority": 0}, "payload.priority"),
        ("request:submit-task", {"type": "x", "priority": 6}, "payload.priority"),
        ("request:submit-task", {"type": "x", "dependencies": [1]}, "payload.dependencies[0]"),
        ("request:ask-user", {"question": ""}, "payload.question"),
        ("request:ask-user", {"question": "?", "timeout": -1}, "payload.timeout"),
        ("request:update-task", {"taskId": "t", "status": "done"}, "payload.status"),
        ("request:publish", {"topic": ""}, "payload.topic"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_by_name(type: str, payload: Any, field: str) -> None:
    event = heard({"type": type, "id": "r", "timestamp": "2026-02-04T14:30:00Z", "payload": payload})
    assert isinstance(event, Invalid)
    assert (event.field, event.about, event.asks) == (field, "r", True)


@pytest.mark.requirement("FG-PRI-2")
@pytest.mark.parametrize(
    ("type", "payload", "means"),
    [
        ("request:query-agents", {"role": None, "status": None, "capabilities": None}, QueryAgents()),
        ("request:query-tasks", {"status": "queued", "limit": None}, QueryTasks(status="queued")),
        (
            "request:submit-task",
            {"type": "x", "payload": None, "dependencies": None, "requiredCapabilities": None, "priority": None},
            SubmitTask(type="x"),
        ),
        (
            "event:progress",
            {"taskId": "t", "progress": 1, "result": None},
            Progress(task_id="t", progress=1, result=None),
        ),
    ],
)
def test_an_optional_field_that_is_null_was_left_out(type: str, payload: Any, means: Any) -> None:
    event = heard({"type": type, "id": "r", "timestamp": "2026-02-04T14:30:00Z", "payload": payload})
    assert isinstance(event, RequestReceived | EventReceived)
    assert event.message.payload == means


@pytest.mark.requirement("FG-PRI-3")
def test_a_broken_event_is_logged_but_not_answered() -> None:
    [event] = codec.read(
        b'{"type":"event:progress","id":"e","timestamp":"2026-02-04T14:30:00Z","payload":{}}', Role.HUB
    )
    assert isinstance(event, Invalid)
    assert not event.asks


@pytest.mark.requirement("FG-MSG-2", "forge-all-D2")
def test_times_have_an_offset_and_ours_are_utc() -> None:
    said = {"type": "request:query-tasks", "id": "r", "payload": {}}
    for good in ("2026-02-04T14:30:00Z", "2026-02-04T15:30:00.000+01:00"):
        assert isinstance(heard({**said, "timestamp": good}), RequestReceived)
    for bad in ("2026-02-04T14:30:00", "yesterday", 5):
        assert heard({**said, "timestamp": bad}).field == "timestamp"
    tokyo = NOON.astimezone(timezone(timedelta(hours=9)))
    written = json.loads(codec.write(codec.message(Shutdown(), Stamp("s", tokyo))))
    assert written["timestamp"] == "2026-02-04T12:00:00Z"


@pytest.mark.requirement("forge-D2")
def test_ids_are_any_text_of_1_to_200_characters() -> None:
    said = {"type": "request:query-tasks", "timestamp": "2026-02-04T14:30:00Z", "payload": {}}
    for good in ("1", "no prefix at all", "é" * 200, "a\tb", "1\u00a0000"):
        assert heard({**said, "id": good}).message.id == good
        assert heard({**said, "id": good, "payload": {"limit": 0}}).about == good
    for bad in ("", "x" * 201, 7, None):
        event = heard({**said, "id": bad})
        assert (event.field, event.about) == ("id", None)


@pytest.mark.requirement("FG-MSG-3", "forge-D4")
@pytest.mark.parametrize("claimed", [{}, {"agentId": "somebody-else"}])
def test_agent_id_is_overwritten(claimed: dict[str, str], examples: dict[str, Any]) -> None:
    event = heard({**examples["progress"], **claimed}, agent_id="agent-1")
    assert event.message.agent_id == event.tree["agentId"] == "agent-1"


@pytest.mark.requirement("FG-MSG-5")
@pytest.mark.parametrize("name", [*FROM_AGENTS, *TO_AGENTS])
def test_what_only_the_other_side_says_is_a_log_line_when_it_comes_back(name: str, examples: dict[str, Any]) -> None:
    """A program that prints its input, as `cat` does, must not be mistaken for an orchestrator."""
    said = examples[name]
    event = heard(said, Role.AGENT if name in FROM_AGENTS else Role.HUB)
    assert isinstance(event, LogReceived)
    assert event.type == said["type"]


@pytest.mark.requirement("forge-all-D6")
def test_unknown_fields_are_kept(examples: dict[str, Any]) -> None:
    said = {**examples["submit-task"], "extra": 1}
    said["payload"] = {**said["payload"], "colour": "green"}
    event = heard(said)
    assert (event.tree["extra"], event.tree["payload"]["colour"]) == (1, "green")


@pytest.mark.requirement("forge-D7")
def test_the_closed_lists() -> None:
    agents = "initializing idle busy paused stopping stopped crashed unhealthy"
    tasks = "pending queued assigned running completed failed cancelled retrying"
    assert (get_args(AgentStatus), get_args(TaskStatus)) == (tuple(agents.split()), tuple(tasks.split()))
    assert QueryTasks().limit == 100


@pytest.mark.requirement("FG-ERR-1")
def test_six_codes_and_whether_to_try_again() -> None:
    names = "INVALID_REQUEST INVALID_MESSAGE_TYPE UNAUTHORIZED NOT_FOUND TIMEOUT INTERNAL_ERROR"
    assert [code.value for code in Code] == names.split()
    retried = {code for code in Code if is_retryable(ErrorBody(code=code, message=""))}
    assert retried == {Code.TIMEOUT, Code.INTERNAL_ERROR}
    limited = ErrorBody(code=Code.INVALID_REQUEST, message="", details={"reason": "RATE_LIMITED"})
    assert is_retryable(limited)
    assert not is_retryable(ErrorBody(code="TEAPOT", message=""))
    assert not is_retryable(ErrorBody(code=Code.INTERNAL_ERROR, message="", details={"retryable": False}))
