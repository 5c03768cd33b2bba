"""What the hub delivers, in agentmsg's words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.agentmsg import samples
from tests.support.heads import changed
from tests.unit.server.agentmsg.samples import (
    ADA,
    BOB,
    DELIVERY,
    NOW,
    TRACE,
    delivered,
    direct_message_of,
    encoded,
    message,
)

from dragoman.core.ids import ADMIN, HUB, AgentId, QuestionId, TaskId, rfc3339
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import Asking, EventKind, Origin, Priority, Question, QuestionStatus, Task
from dragoman.messages.faults import Fault, Kind
from dragoman.server.agentmsg.ids import delivery_of, derived_v4
from dragoman.server.agentmsg.outbound import ends_in_pieces, wire_of

Make = Callable[..., Any]
ID = "01a1e135-5828-43d3-96c2-ab61ababb946"
TRACEPARENT = f"00-{TRACE}-96c2ab61ababb946-01"
METADATA = {
    "priority": "high",
    "max_retries": 3,
    "retry_count": 0,
    "delivery_id": DELIVERY,
    "traceparent": TRACEPARENT,
}


def test_a_message_of_ours_has_the_deliverys_id_in_the_form_of_version_4() -> None:
    assert derived_v4(DELIVERY) == ID
    assert delivery_of(ID) == delivery_of(DELIVERY) == DELIVERY


# -- to the agent ------------------------------------------------------------------------------------------------


def test_work_of_another_protocol_is_encoded(outgoing: Make, task: Task) -> None:
    of = changed(
        task,
        origin=Origin(principal=ADMIN, protocol="api", request_id="r", digest=""),
        description="look",
        thread="th",
        constraints={"budget_usd": 1.5, "chain": "A"},
        required_capabilities=("python",),
        dependencies=(TaskId("d-1"),),
    )
    assert encoded(outgoing(MessageKind.WORK, body={"input": {"a": 1}}, of=of), BOB) == {
        "id": ID,
        "timestamp": "2026-03-01T12:00:00Z",
        "from": "hub",
        "to": "bob",
        "type": "TASK_ASSIGNMENT",
        "payload": {
            "task": {
                "task_id": task.id,
                "task_type": "review",
                "description": "look",
                "context": {
                    "task_id": task.id,
                    "task_type": "review",
                    "priority": "normal",
                    "metadata": {"thread": "th"},
                    "dependencies": ["d-1"],
                    "history": [],
                },
                "constraints": {
                    "budget_usd": 1.5,
                    "required_capabilities": ["python"],
                    "deadline": "2026-03-01T13:00:00Z",
                },
                "input": {"a": 1},
                "attempt": 2,
            }
        },
        "metadata": METADATA,
    }


@pytest.mark.requirement("agentmsg/all-D6")
def test_work_from_agentmsg_arrives_with_the_fields_nobody_knows(outgoing: Make, task: Task) -> None:
    asked = message("TaskAssignment", ttl_ms=5, note="m") | {"extra": 1}
    asked["payload"]["task"] = {**asked["payload"]["task"], "colour": "red"}
    body = {"input": {"file": "a.py"}, "context": {"metadata": {"repo": "x"}}}
    told = encoded(outgoing(MessageKind.WORK, body=body, raw=asked), BOB)
    assert (told["from"], told["to"], told["id"], told["extra"]) == ("ada", "bob", ID, 1)
    work = told["payload"]["task"]
    assert (work["colour"], work["task_id"], work["input"]) == ("red", "t-1", {"file": "a.py"})
    assert work["context"] == samples.CONTEXT
    assert "ttl_ms" not in told["metadata"]
    assert (told["metadata"]["priority"], told["metadata"]["note"]) == ("high", "m")


def test_a_redelivery_is_the_same_message_with_a_higher_count(outgoing: Make) -> None:
    first, again = encoded(outgoing(MessageKind.WORK), BOB), encoded(outgoing(MessageKind.WORK, attempt=3), BOB)
    assert (first["metadata"].pop("retry_count"), again["metadata"].pop("retry_count")) == (0, 2)
    assert first == again


def test_an_answer_and_the_urgency_go_along(outgoing: Make, task: Task) -> None:
    of = msgspec.structs.replace(task, priority=Priority.CRITICAL)
    told = encoded(
        outgoing(MessageKind.WORK, EventKind.ANSWERED, {"input": {}, "answer": {"bank": "left"}}, of=of), BOB
    )
    assert told["payload"]["task"]["answer"] == {"bank": "left"}
    assert told["metadata"]["priority"] == "critical"


def test_a_task_that_was_taken_over_comes_with_all_that_is_known(outgoing: Make) -> None:
    handover = {
        "from": "ada",
        "to": "bob",
        "reason": "escalation",
        "metadata": {"repo": "x"},
        "dependencies": ["t-0"],
        "history": [samples.EVENT],
        "constraints": samples.CONSTRAINTS,
        "error": samples.REPORT,
        "recovery_attempts": [samples.ATTEMPT],
        "story": [{"at": NOW, "kind": "assigned", "agent": "ada", "details": {}}, {"at": NOW, "kind": "odd"}, "junk"],
    }
    body = {"input": {"a": 1}, "context": {"metadata": {"b": 2}, "history": [samples.EVENT]}, "handover": handover}
    work = encoded(outgoing(MessageKind.HANDOFF, EventKind.HANDED_OVER, body), BOB)["payload"]["task"]
    assert work["input"] == {"a": 1}
    assert work["context"]["metadata"] == {"b": 2, "repo": "x"}
    assert work["context"]["dependencies"] == ["t-0"]
    assert [event["event_type"] for event in work["context"]["history"]] == ["created", "assigned", "odd"]
    assert work["constraints"]["quality_threshold"] == 0.8
    assert work["handover"] == {
        "from": "ada",
        "to": "bob",
        "reason": "ESCALATION",
        "error": samples.REPORT,
        "recovery_attempts": [samples.ATTEMPT],
    }


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        (MessageKind.CANCEL, "cancelled", "enough"),
        (MessageKind.PAUSE, "paused", "paused by a person"),
        (MessageKind.RESUME, "in_progress", "go on"),
    ],
)
def test_an_agent_is_asked_to_stop_and_to_go_on_until_it_acknowledges(
    outgoing: Make, kind: MessageKind, status: str, words: str
) -> None:
    told = encoded(outgoing(kind, EventKind.CANCELLED, {"reason": "enough"}), BOB)
    assert told["payload"] == {"task_id": "t-1", "status": status, "message": words}
    assert (told["type"], told["metadata"]["priority"]) == ("TASK_UPDATE", "high")


# -- answers -----------------------------------------------------------------------------------------------------


def question(**more: Any) -> Question:
    return Question(
        id=QuestionId("q-1"), task=None, agent=ADA.id, question="?", created_at=NOW, request_id="r-1", **more
    )


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"status": QuestionStatus.ANSWERED, "answer": {"bank": "left"}, "answered_by": ADMIN},
            {
                "responder_id": "person",
                "response_type": "DIRECT_ANSWER",
                "content": '{"bank":"left"}',
                "answer": {"bank": "left"},
            },
        ),
        (
            {"status": QuestionStatus.EXPIRED, "answered_by": HUB, "asked_of": "cyd", "about": Asking.HELP},
            {"responder_id": "hub", "response_type": "UNABLE_TO_HELP", "content": "Nobody answered in time."},
        ),
        (
            {"status": QuestionStatus.EXPIRED, "answer": "yes", "has_default": True, "answered_by": HUB},
            {"responder_id": "hub", "response_type": "DIRECT_ANSWER", "content": "yes", "answer": "yes"},
        ),
        (
            {
                "status": QuestionStatus.ANSWERED,
                "answer": {"content": "so", "response_type": "RESOURCE_PROVISION", "resources": [{"type": "?"}]},
                "asked_of": "cyd",
                "about": Asking.HELP,
            },
            {"responder_id": "cyd", "response_type": "RESOURCE_PROVISION", "content": "so"},
        ),
    ],
)
def test_help_that_came_or_did_not(asked: dict[str, Any], told: dict[str, Any]) -> None:
    answer = encoded(delivered(MessageKind.ANSWER, None, question(**asked)))
    always = {"request_id": "r-1", "follow_up_required": False, "estimated_effort": 0}
    assert answer["payload"] == told | always
    assert (answer["type"], answer["metadata"]["correlation_id"]) == ("HELP_RESPONSE", "r-1")


def test_a_takeover_that_was_accepted_and_one_that_was_not(outgoing: Make) -> None:
    yes = question(about=Asking.TAKEOVER, answer={"accepted": True, "agent_id": "cyd"}, answered_at=NOW)
    assert encoded(delivered(MessageKind.ANSWER, None, yes))["payload"] == {
        "accepted": True,
        "agent_id": "cyd",
        "estimated_completion": "2026-03-01T12:00:00Z",
        "requirements": [],
        "constraints": {"required_capabilities": []},
    }
    due = outgoing(MessageKind.ANSWER, EventKind.PROGRESS, {}).task
    told = encoded(delivered(MessageKind.ANSWER, due, yes))["payload"]
    assert told["estimated_completion"] == rfc3339(due.timing.deadline)  # of who names no time, the task's own
    no = question(about=Asking.TAKEOVER, answer={"accepted": False, "agent_id": "hub", "error": "nobody"})
    told = encoded(delivered(MessageKind.ANSWER, None, no))
    assert told["payload"] == {"accepted": False, "agent_id": "hub", "error": "nobody"}
    assert (told["type"], told["metadata"]["correlation_id"]) == ("TASK_HANDOFF", "r-1")


# -- to whoever assigned it --------------------------------------------------------------------------------------


def test_progress_of_an_agent_of_another_protocol(outgoing: Make) -> None:
    body = {"status": "running", "percent": 40, "message": "m", "output": "o", "thinking": "t", "step": "read"}
    told = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, body, by="infra-1"))
    assert told["payload"] == {
        "task_id": "t-1",
        "status": "in_progress",
        "progress": 40,
        "message": "m",
        "output": "o",
        "thinking": "t",
        "step": {"number": 0, "name": "read"},
        "agent_id": "infra-1",
    }
    assert told["metadata"]["priority"] == "normal"


def test_progress_in_agentmsg_is_retold_under_the_callers_name(outgoing: Make, task: Task) -> None:
    update = message("TaskUpdate", payload={"task_id": task.id, "mood": "good"})
    told = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, raw=update, by="bob"))
    assert told["payload"] == update["payload"] | {"task_id": "t-1"}
    assert (told["from"], told["to"]) == (update["from"], "ada")


@pytest.mark.parametrize(
    ("own", "told"), [("low", "normal"), ("normal", "normal"), ("high", "high"), ("critical", "critical")]
)
def test_progress_in_agentmsg_keeps_its_priority(outgoing: Make, task: Task, own: str, told: str) -> None:
    update = message("TaskUpdate", payload={"task_id": task.id})
    update["metadata"]["priority"] = own
    retold = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, raw=update, by="bob"))
    assert retold["metadata"]["priority"] == told


def test_a_question_to_a_person_is_news(outgoing: Make) -> None:
    told = encoded(outgoing(MessageKind.PROGRESS, EventKind.ASKED, {"question": "left?"}))
    assert told["payload"]["message"] == "Waiting for an answer: left?"


def test_files_come_by_reference(outgoing: Make, task: Task) -> None:
    file = {"id": "f-1", "name": "../plan.bin", "mime_type": "x/y", "size": 3, "sha256": "00", "owner": ""}
    told = encoded(outgoing(MessageKind.PROGRESS, EventKind.PROGRESS, {"file": file}))["payload"]["file"]
    assert (told["url"], told["name"]) == (f"/api/agent/files/f-1?task_id={task.id}", "plan.bin")
    work = encoded(outgoing(MessageKind.WORK, body={"attachments": [file]}), BOB)["payload"]["task"]
    assert work["attachments"] == [told]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"output": "done"}, {"result": "done"}),
        ({"output": "done", "result": {"a": 1}, "usage": {"cpu_time_ms": 5}},
         {"result": {"a": 1}, "output": "done", "usage": {"cpu_time_ms": 5}}),
        ({}, {"result": None}),
        ({"output": "end", "chunk": [3, 6, 6]}, {"result": "end", "chunk": [3, 6, 6]}),
    ],
)  # fmt: skip
def test_a_result(outgoing: Make, body: dict[str, Any], told: dict[str, Any]) -> None:
    assert encoded(outgoing(MessageKind.RESULT, EventKind.COMPLETED, body))["payload"] == {"task_id": "t-1", **told}


def test_a_result_that_came_in_pieces_is_sent_whole(outgoing: Make) -> None:
    last = outgoing(MessageKind.RESULT, EventKind.COMPLETED, {"output": "end", "chunk": [3, 6, 6]})
    assert ends_in_pieces(last.event)
    frame, _ = wire_of(last, ADA, NOW, whole="theend")
    assert json.loads(frame)["payload"] == {"task_id": "t-1", "result": "theend"}


def test_an_output_that_came_on_the_way_is_the_result_of_one_without(outgoing: Make) -> None:
    done = message("TaskComplete", payload={"result": None})
    end = outgoing(MessageKind.RESULT, EventKind.COMPLETED, {"result": None}, raw=done)
    assert ends_in_pieces(end.event)
    assert json.loads(wire_of(end, ADA, NOW, whole="all of it")[0])["payload"]["result"] == "all of it"
    assert encoded(end)["payload"]["result"] is None
    assert not ends_in_pieces(outgoing(MessageKind.RESULT, EventKind.COMPLETED, {"result": 0}).event)


def test_a_failure_is_a_report_that_says_what_to_do_next(outgoing: Make) -> None:
    fault = {"kind": "timeout", "message": "too slow", "retryable": True, "facts": {"exit_code": 3}}
    payload = encoded(outgoing(MessageKind.FAILURE, EventKind.FAILED, {"fault": fault}, by="bob"))["payload"]
    error = payload["error"]
    assert (payload["status"], error["error_type"], error["agent_id"], error["task_id"]) == (
        "failed",
        "TIMEOUT",
        "bob",
        "t-1",
    )
    assert error["context"]["details"] == {"exit_code": 3, "kind": "timeout", "retryable": True}
    assert error["suggested_actions"] == ["Try again, or allow more time."]


def test_a_failure_in_agentmsg_is_the_agents_own_report(outgoing: Make) -> None:
    failed = message("TaskFailed")
    payload = encoded(outgoing(MessageKind.RESULT, EventKind.FAILED, raw=failed))["payload"]
    assert payload == failed["payload"]


def test_a_cancelled_task_says_so(outgoing: Make) -> None:
    payload = encoded(outgoing(MessageKind.FAILURE, EventKind.CANCELLED, {"reason": "enough"}))["payload"]
    assert (payload["status"], payload["error"]["context"]["details"]["kind"]) == ("cancelled", "cancelled")


# -- direct messages
# -----------------------------------------------------------------------------------------------------


def test_a_direct_message_leaves_as_it_came_but_for_its_metadata() -> None:
    tree = message("HelpRequest", traceparent="x", note=1) | {"extra": {"metadata": {"retry_count": 9}}}
    told = encoded(delivered(MessageKind.DIRECT_MESSAGE, None, direct_message_of(tree), attempt=2), BOB)
    assert told == tree | {"metadata": tree["metadata"] | {"delivery_id": DELIVERY, "retry_count": 1}}


def test_a_direct_message_without_a_receiver_names_the_chosen_agent() -> None:
    told = encoded(
        delivered(MessageKind.DIRECT_MESSAGE, None, direct_message_of(message("TaskHandoffRequest", to="hub"))), BOB
    )
    assert (told["to"], told["payload"]["to_agent"]) == ("bob", "bob")
    told = encoded(delivered(MessageKind.DIRECT_MESSAGE, None, direct_message_of(message("HelpRequest", to="*"))), BOB)
    assert told["to"] == "bob"


@given(st.data())
def test_any_order_of_keys_and_any_spelling_gives_the_same_message(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["HelpRequest", "StatusUpdate", "TaskHandoffRequest", "Heartbeat", "ErrorReport"]))
    tree = message(name, to="bob")
    shuffled = dict(data.draw(st.permutations(list(tree.items()))))
    text = json.dumps(shuffled, indent=data.draw(st.sampled_from([None, 1])))
    carried = msgspec.structs.replace(direct_message_of(tree), raw=msgspec.Raw(text.encode()))
    frame, id = wire_of(delivered(MessageKind.DIRECT_MESSAGE, None, carried), BOB, NOW)
    expected = tree | {"metadata": tree["metadata"] | {"delivery_id": DELIVERY, "retry_count": 0}}
    assert (json.loads(frame), id) == (expected, tree["id"])


@pytest.mark.parametrize(
    ("reason", "type"),
    [
        (Fault(kind=Kind.TIMEOUT, message="too late"), "TIMEOUT"),
        (Fault(kind=Kind.UNAVAILABLE, message="never acknowledged", retryable=True), "NETWORK_ERROR"),
        (None, "NETWORK_ERROR"),
    ],
)
def test_the_sender_of_a_lost_direct_message_gets_a_report(reason: Fault | None, type: str) -> None:
    tree = message("HelpRequest")
    told = encoded(
        delivered(
            MessageKind.UNDELIVERED,
            None,
            direct_message_of(tree),
            direct_message=direct_message_of(tree),
            reason=reason,
        )
    )
    assert (told["type"], told["from"], told["payload"]["error_type"]) == ("ERROR_REPORT", "hub", type)
    assert told["metadata"]["correlation_id"] == tree["id"]
    assert told["payload"]["context"]["details"]["message_id"] == tree["id"]
    assert told["payload"]["suggested_actions"]
    assert AgentId(told["to"]) == ADA.id
