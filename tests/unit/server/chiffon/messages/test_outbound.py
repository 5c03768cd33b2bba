"""What the hub delivers, in chiffon's words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.heads import changed

from dragoman.core.ids import ADMIN, SECOND, Instant, QuestionId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import EventKind, Origin, Question, Status, Task
from dragoman.protocols.chiffon import codec, errors
from dragoman.protocols.chiffon.types import ErrorPayload
from dragoman.server.chiffon.outbound import wire_of, wire_request_id

NOW = Instant(1_768_796_464_000_000)
TASK = "550e8400-e29b-41d4-a716-446655440004"
DELIVERY = "01a1e135-5828-73d3-96c2-ab61ababb946"
MARKS = {"agent_id": "infra-1", "delivery_id": DELIVERY}
TRACEPARENT = "00-550e8400e29b41d4a716446655440002-96c2ab61ababb946-01"
Make = Callable[..., Any]


def encoded(outgoing: Outgoing, receiver: Agent) -> dict[str, Any]:
    """The one message of an outgoing message, which every strict reader of chiffon accepts."""
    (frame,) = wire_of(outgoing, receiver, NOW)
    codec.decode(frame)
    message: dict[str, Any] = json.loads(frame)
    return message


@pytest.mark.requirement("all-D6")
@pytest.mark.requirement("chiffon-D8")
def test_work_arrives_as_it_was_asked_unknown_fields_included(envelope: Make, outgoing: Make, infra: Agent) -> None:
    asked = envelope(custom={"note": "x"}, hints={"unknown": 1}) | {"x_other": [1]}
    assert encoded(outgoing(MessageKind.WORK, raw=asked), infra) == asked | {
        "x_custom_fields": {"note": "x"} | MARKS | {"attempt": 4}
    }


def test_work_of_another_protocol_is_encoded(outgoing: Make, infra: Agent, task: Task) -> None:
    body = {"input": {"a": 1}, "hints": {"max_duration_seconds": 5}}
    assert encoded(outgoing(MessageKind.WORK, body=body), infra) == {
        "protocol_version": "1.0",
        "message_id": DELIVERY,
        "from_agent": "orchestrator",
        "to_agent": "infra",
        "timestamp": "2026-01-19T04:21:04Z",
        "trace_id": "550e8400-e29b-41d4-a716-446655440002",
        "request_id": task.origin.request_id,
        "type": "work_request",
        "payload": {
            "task_id": TASK,
            "work_type": "run_playbook",
            "parameters": {"a": 1},
            "hints": {"max_duration_seconds": 5},
        },
        "x_custom_fields": MARKS | {"traceparent": TRACEPARENT, "attempt": 4},
    }


@pytest.mark.parametrize(("left", "seconds"), [(90.9, 90), (3600, 3600), (0.2, 1), (-5, 1)])
@pytest.mark.parametrize("hints", [{}, {"max_duration_seconds": 500, "max_memory_mb": 64}])
def test_an_agent_learns_how_much_of_a_limit_is_left(
    outgoing: Make, infra: Agent, task: Task, left: float, seconds: int, hints: dict[str, int]
) -> None:
    limited = changed(task, limited=True, deadline=Instant(NOW + int(left * SECOND)))
    order = encoded(outgoing(MessageKind.WORK, body={"input": {}, "hints": hints}, of=limited), infra)
    assert order["payload"]["hints"] == hints | {"max_duration_seconds": seconds}


@pytest.mark.parametrize("seconds", [50.0, 1.5])
def test_a_hint_in_another_form_takes_no_other_hint_along(
    outgoing: Make, infra: Agent, task: Task, seconds: float
) -> None:
    """The API keeps seconds with their fractions, and chiffon has whole ones."""
    limited = changed(task, limited=True, deadline=Instant(NOW + 49 * SECOND))
    hints = {"max_duration_seconds": seconds, "max_memory_mb": 64}
    order = encoded(outgoing(MessageKind.WORK, body={"input": {}, "hints": hints}, of=limited), infra)
    assert order["payload"]["hints"] == {"max_duration_seconds": 49, "max_memory_mb": 64}


def test_an_agent_gets_no_limit_where_the_caller_named_none(outgoing: Make, infra: Agent) -> None:
    assert encoded(outgoing(MessageKind.WORK, body={"input": {}}), infra)["payload"]["hints"] == {}


def test_an_answer_comes_in_the_parameters_under_a_new_request_id(outgoing: Make, infra: Agent, task: Task) -> None:
    later = changed(task, round=1)
    body = {"input": {"a": 1}, "answer": "yes"}
    message = encoded(outgoing(MessageKind.WORK, EventKind.ANSWERED, body, of=later), infra)
    assert message["payload"]["parameters"] == {"a": 1, "answer": "yes"}
    assert message["payload"]["task_id"] == TASK
    assert message["request_id"] == wire_request_id(later) == later.request_id != task.origin.request_id


@pytest.mark.requirement("all-D6")
def test_a_later_round_carries_the_whole_request(
    envelope: Make, command_from: Make, outgoing: Make, orchestrator: Agent, infra: Agent, task: Task
) -> None:
    asked = envelope(custom={"note": "x", "priority": "high"}, hints={"max_duration_seconds": 5, "gpu": 1}, extra=[2])
    submitted = command_from(orchestrator, asked | {"x_other": [1]}).content
    body = msgspec.to_builtins(submitted.next_round(answer="yes"))
    message = encoded(outgoing(MessageKind.WORK, EventKind.ANSWERED, body, of=changed(task, round=1)), infra)
    assert message["payload"] == asked["payload"] | {"parameters": {**asked["payload"]["parameters"], "answer": "yes"}}
    assert message["x_other"] == [1]
    assert message["x_custom_fields"] == {"note": "x", "traceparent": TRACEPARENT, "attempt": 4} | MARKS


def test_a_request_id_that_is_no_uuid_gets_one_that_stays(task: Task) -> None:
    odd = msgspec.structs.replace(task, origin=Origin(principal=task.owner, protocol="x", request_id="r1", digest=""))
    assert wire_request_id(odd) == wire_request_id(odd)
    assert len(wire_request_id(odd)) == 36


@pytest.mark.requirement("all-D7")
def test_a_trace_id_goes_on_unchanged_whatever_its_bits(outgoing: Make, infra: Agent, task: Task) -> None:
    wild = changed(task, trace_id="f" * 32)
    message = encoded(outgoing(MessageKind.WORK, body={"input": {}}, of=wild), infra)
    assert message["trace_id"] == "ffffffff-ffff-ffff-ffff-ffffffffffff"
    assert message["x_custom_fields"]["traceparent"].split("-")[1] == "f" * 32


@pytest.mark.parametrize("kind", ["work_status", "work_result", "error"])
def test_an_agents_message_reaches_the_caller_under_the_ids_it_knows(
    kind: str, envelope: Make, outgoing: Make, orchestrator: Agent, task: Task
) -> None:
    message_kind = {
        "work_status": MessageKind.PROGRESS,
        "work_result": MessageKind.RESULT,
        "error": MessageKind.FAILURE,
    }[kind]
    reported = envelope(kind, custom={"note": 1}, extra=[2]) | {"to_agent": "whoever", "request_id": DELIVERY}
    message = encoded(outgoing(message_kind, EventKind.PROGRESS, raw=reported, by="infra-1"), orchestrator)
    assert message == reported | {
        "to_agent": "orchestrator",
        "request_id": task.origin.request_id,
        "x_custom_fields": {"note": 1} | MARKS,
    }


def test_progress_of_another_protocol_is_encoded(outgoing: Make, orchestrator: Agent) -> None:
    body = {"status": "step_completed", "percent": 40, "step": {"number": 2, "name": "b", "total": 5}, "output": "x"}
    message = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, body, by="mux-1"), orchestrator)
    assert (message["type"], message["from_agent"]) == ("work_status", "infra")
    assert message["payload"] == {
        "task_id": TASK,
        "status": "step_completed",
        "progress_percent": 40,
        "step": {"number": 2, "name": "b", "output": "x", "total": 5},
    }
    assert message["x_custom_fields"]["agent_id"] == "mux-1"


@pytest.mark.parametrize("odd", ["x", -1, 1.5, True, None, [], {}])
def test_a_malformed_step_is_encoded_as_far_as_it_makes_sense(odd: Any, outgoing: Make, orchestrator: Agent) -> None:
    """agentmsg leaves its form open. A caller never heard of it, nor, for minutes, of anything behind it."""
    body = {"step": {"number": odd, "name": odd, "total": odd}, "tool_use": {"name": odd}, "tool_result": {"id": odd}}
    step = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, body), orchestrator)["payload"]["step"]
    assert (step["number"], "total" in step) == (0, False)


def test_a_piece_of_output_keeps_its_place(outgoing: Make, orchestrator: Agent) -> None:
    body = {"percent": 1, "output": "abcd", "chunk": [4, 8, None], "stream": "step-1"}
    step = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, body), orchestrator)["payload"]["step"]
    assert (step["output"], step["output_chunk"]) == ("abcd", "bytes 4-8")


@pytest.mark.parametrize("kind", [EventKind.PAUSED, EventKind.ASKED])
def test_a_task_that_waits_is_paused(kind: EventKind, outgoing: Make, orchestrator: Agent) -> None:
    assert encoded(outgoing(MessageKind.PROGRESS, kind), orchestrator)["payload"]["status"] == "paused"


@pytest.mark.parametrize(
    ("body", "output", "result"),
    [
        ({"output": "text", "result": None}, "text", None),
        ({"result": {"url": "x"}}, '{"url":"x"}', {"url": "x"}),
        ({"result": "plain"}, "plain", "plain"),
        ({"result": {"a": 1}, "output": "log"}, "log", {"a": 1}),
        ({}, "", None),
    ],
)
def test_a_result_of_another_protocol_is_encoded(
    body: dict[str, Any], output: str, result: Any, outgoing: Make, orchestrator: Agent
) -> None:
    message = encoded(outgoing(MessageKind.RESULT, EventKind.COMPLETED, body), orchestrator)
    assert message["payload"] == {
        "task_id": TASK, "status": "success", "exit_code": 0, "output": output,
        "resources_used": {"duration_seconds": 0},  # as the hub saw it
    }  # fmt: skip
    assert message["x_custom_fields"].get("result") == result


@pytest.mark.parametrize(
    ("status", "progress", "told"),
    [(Status.RUNNING, 40, 40), (Status.FAILED, 40, 40), (Status.COMPLETED, 100, 0), (Status.RUNNING, None, 0)],
)
def test_earlier_progress_is_not_reported_with_the_percentage_of_the_end(
    status: Status, progress: int | None, told: int, outgoing: Make, task: Task, orchestrator: Agent, infra: Agent
) -> None:
    """Whoever fetches it late hears of the end by the result behind it, and not by a task that runs at 100 %."""
    now = changed(task, status=status, progress=progress)
    for message_kind, body, receiver in (
        (MessageKind.PROGRESS, {"thinking": "hm"}, orchestrator),
        (MessageKind.RESUME, {}, infra),
    ):
        payload = encoded(outgoing(message_kind, EventKind.PROGRESS, body, of=now), receiver)["payload"]
        assert (payload["status"], payload["progress_percent"]) == ("running", told)
    payload = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, {"percent": 100}, of=now), orchestrator)[
        "payload"
    ]
    assert payload["progress_percent"] == 100


@pytest.mark.requirement("chiffon-D12")
def test_a_failed_result_has_an_exit_code(outgoing: Make, orchestrator: Agent) -> None:
    payload = encoded(outgoing(MessageKind.RESULT, EventKind.FAILED, {"output": "no"}), orchestrator)["payload"]
    assert (payload["status"], payload["exit_code"]) == ("failed", 1)


@pytest.mark.requirement("chiffon-D4")
@pytest.mark.parametrize("message_kind", [MessageKind.RESULT, MessageKind.PROGRESS])
def test_an_output_above_the_limit_is_split_and_the_last_piece_names_the_delivery(
    message_kind: MessageKind, outgoing: Make, orchestrator: Agent
) -> None:
    text = "é" * 600_000
    kind = EventKind.COMPLETED if message_kind is MessageKind.RESULT else EventKind.PROGRESS
    frames = [json.loads(f) for f in wire_of(outgoing(message_kind, kind, {"output": text}), orchestrator, NOW)]
    pieces = [frame["payload"] if message_kind is MessageKind.RESULT else frame["payload"]["step"] for frame in frames]
    assert len(frames) == 5
    assert "".join(piece["output"] for piece in pieces) == text
    assert pieces[0]["output_chunk"] == "bytes 0-262144 of 1200000"
    ids = [frame["x_custom_fields"]["delivery_id"] for frame in frames]
    assert (ids[-1], DELIVERY in ids[:-1], len(set(ids))) == (DELIVERY, False, 5)
    assert len({frame["message_id"] for frame in frames}) == 5


CONTEXTS: list[tuple[dict[str, Any], int, dict[str, Any]]] = [
    (
        {"kind": "timeout", "facts": {"attempted_retries": 3, "last_attempt": "2026-01-19T04:21:00Z"}},
        5001,
        {"attempted_retries": 3, "last_attempt": "2026-01-19T04:21:00Z"},
    ),
    ({"kind": "timeout"}, 5001, {"attempted_retries": 3, "last_attempt": "2026-01-19T04:21:04Z"}),
    ({"kind": "unavailable"}, 5002, {"agent_id": "infra-1", "last_heartbeat": None}),
    (
        {"kind": "unavailable", "facts": {"agent_id": "x", "last_heartbeat": NOW}},
        5002,
        {"agent_id": "x", "last_heartbeat": "2026-01-19T04:21:04Z"},
    ),
    ({"kind": "internal"}, 5002, {"agent_id": "infra-1", "last_heartbeat": None}),
    (
        {"kind": "invalid", "field": "work_type"},
        5003,
        {"validation_error": "it happened", "field_name": "payload.work_type"},
    ),
    ({"kind": "conflict"}, 5003, {"validation_error": "it happened", "field_name": None}),
    ({"kind": "forbidden"}, 5004, {"agent_id": "infra-1", "token_status": "valid"}),
    ({"kind": "resources"}, 5005, {"limit_name": "requests", "available": 0, "required": 0}),
    (
        {"kind": "resources", "facts": {"limit_name": "gpu", "available": 1, "required": 2}},
        5005,
        {"limit_name": "gpu", "available": 1, "required": 2},
    ),
    (
        {"kind": "resources", "facts": {"resource": "budget", "limit": 5, "remaining": 4.0, "asked": 6.5}},
        5005,
        {"limit_name": "budget", "available": 4, "required": 7},  # whole numbers, as the document has them
    ),
    (
        {"kind": "resources", "facts": {"limit_name": "x", "available": -1e30, "required": 1e30}},
        5005,
        {"limit_name": "x", "available": 1 - 2**63, "required": 2**63 - 1},
    ),
    (
        {"kind": "unsupported_work", "facts": {"supported_types": ["a"]}},
        5006,
        {"work_type_requested": "run_playbook", "supported_types": ["a"]},
    ),
    (
        {"kind": "unsupported_version", "facts": {"supported_versions": ["1.0"]}},
        5006,
        {"work_type_requested": "run_playbook", "supported_types": [], "supported_versions": ["1.0"]},
    ),
    ({"kind": "cancelled"}, 5900, {"task_id": TASK, "reason": "it happened"}),
    (
        {"kind": "dependency", "facts": {"dependency": "d"}},
        5901,
        {"task_id": TASK, "reason": "it happened", "dependency": "d"},
    ),
]


@pytest.mark.requirement("chiffon-D15")
@pytest.mark.requirement("CH-ERR-4")
@pytest.mark.parametrize(("fault", "code", "context"), CONTEXTS)
def test_a_failure_has_exactly_the_context_of_its_code(
    fault: dict[str, Any], code: int, context: dict[str, Any], outgoing: Make, orchestrator: Agent, task: Task
) -> None:
    body = {"fault": {"message": "it happened", **fault}}
    message = encoded(outgoing(MessageKind.FAILURE, EventKind.FAILED, body), orchestrator)
    payload = message["payload"]
    assert (message["type"], payload["error_code"], payload["error_context"]) == ("error", code, context)
    assert "it happened. " in payload["error_message"].lower()
    assert message["request_id"] == task.origin.request_id
    assert message["x_custom_fields"]["task_id"] == TASK
    documented = errors.rule(code).context
    assert not documented or set(documented) <= set(context)


@pytest.mark.requirement("CH-RTY-4")
def test_an_agents_error_that_outlived_its_retries_keeps_its_own_message(outgoing: Make, orchestrator: Agent) -> None:
    facts = {"limit_name": "gpu_vram_mb", "available": 128, "required": 512}
    fault = {"kind": "resources", "message": "Resource limit exceeded", "facts": facts | {"code": 5005}}
    message = encoded(outgoing(MessageKind.FAILURE, EventKind.FAILED, {"fault": fault}), orchestrator)
    assert message["from_agent"] == "infra"
    assert message["payload"] == {
        "error_code": 5005, "error_message": "Resource limit exceeded", "error_context": facts,
    }  # fmt: skip


def test_work_that_failed_elsewhere_is_a_failed_result(outgoing: Make, orchestrator: Agent) -> None:
    body = {"fault": {"kind": "work_failed", "message": "disk full", "facts": {"exit_code": 7}}}
    message = encoded(outgoing(MessageKind.FAILURE, EventKind.FAILED, body), orchestrator)
    assert message["payload"] == {
        "task_id": TASK, "status": "failed", "exit_code": 7, "output": "disk full",
        "resources_used": {"duration_seconds": 0},
    }  # fmt: skip


def test_cancel_reaches_the_agent_as_error_5900(outgoing: Make, infra: Agent, task: Task) -> None:
    body = {"fault": {"kind": "cancelled", "message": "no longer needed"}}
    message = encoded(outgoing(MessageKind.CANCEL, EventKind.CANCELLED, body), infra)
    assert message["type"] == "error"
    assert message["payload"] == {
        "error_code": 5900,
        "error_message": "Task Cancelled",
        "error_context": {"task_id": TASK, "reason": "no longer needed"},
    }
    assert (message["to_agent"], message["request_id"]) == ("infra", task.origin.request_id)
    decoded = codec.decode(wire_of(outgoing(MessageKind.CANCEL, EventKind.CANCELLED, body), infra, NOW)[0])
    assert isinstance(decoded.payload, ErrorPayload)
    assert not errors.is_retryable(decoded.payload.error_code)


@pytest.mark.parametrize(("message_kind", "status"), [(MessageKind.PAUSE, "paused"), (MessageKind.RESUME, "running")])
def test_pause_and_resume_reach_the_agent_as_a_status(
    message_kind: MessageKind, status: str, outgoing: Make, infra: Agent
) -> None:
    message = encoded(outgoing(message_kind, EventKind.PAUSED), infra)
    assert (message["type"], message["to_agent"]) == ("work_status", "infra")
    assert message["payload"] == {"task_id": TASK, "status": status, "progress_percent": 0}


@pytest.mark.requirement("CH-VER-2")
def test_messages_are_written_in_the_version_of_their_receiver(
    envelope: Make, outgoing: Make, orchestrator: Agent
) -> None:
    newer = msgspec.structs.replace(orchestrator, protocol_version="1.7")
    for each in (outgoing(MessageKind.PROGRESS, raw=envelope("work_status")), outgoing(MessageKind.PROGRESS)):
        assert json.loads(wire_of(each, newer, NOW)[0])["protocol_version"] == "1.7"


def test_every_kind_but_direct_messages_between_others_is_encoded(outgoing: Make, infra: Agent) -> None:
    for message_kind in set(MessageKind) - {
        MessageKind.ANSWER,
        MessageKind.DIRECT_MESSAGE,
        MessageKind.UNDELIVERED,
        MessageKind.PROPOSAL,
        MessageKind.CONTRACT,
    }:
        assert wire_of(outgoing(message_kind, body={"input": {}}), infra, NOW)


def test_an_answer_to_a_question_asked_by_other_means_is_a_status(outgoing: Make, infra: Agent, task: Task) -> None:
    question = Question(
        id=QuestionId("q"), task=task.id, agent=infra.id, question="Which?", created_at=NOW, answer="this",
        answered_by=ADMIN, request_id="r",
    )  # fmt: skip
    (encoded,) = wire_of(msgspec.structs.replace(outgoing(MessageKind.ANSWER), content=question), infra, NOW)
    message = json.loads(encoded)
    assert (message["type"], message["payload"]["status"]) == ("work_status", "running")
    assert message["x_custom_fields"]["answer"] == "this"
