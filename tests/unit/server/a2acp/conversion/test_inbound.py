"""What a2acp's messages become in the hub."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.core.commands import (
    AnswerHandshake,
    AskPerson,
    Cancel,
    EndContract,
    Finish,
    ReportFault,
    ReportProgress,
    RotateKey,
    ShakeHands,
    Submit,
)
from dragoman.core.ids import SECOND
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import EventKind
from dragoman.messages.faults import Kind, Refused
from dragoman.messages.tasks import Ask

BROKER = {"agent_id": "protocol-broker-agent", "domain": "hub", "version": "1.0.0"}
TO_ADA = {
    "source_agent": {"agent_id": "bob", "domain": "ward", "version": "2.1.0"},
    "target_agent": {"agent_id": "ada", "domain": "lab", "version": "1.2.3"},
}


def test_a_request_is_a_task_for_the_contracts_target_within_its_time(kit: Any) -> None:
    command = kit.command_from(
        known={"contract": kit.contract(), "content": {"rows": 3}, "sealed_by": "k/n"}, note="kept"
    )
    assert isinstance(command, Submit)
    assert (command.principal, command.seen, command.request_id) == ("ada", kit.request_id, kit.request_id)
    assert (command.type, command.agreement.contract, command.called) == ("provision", "c-1", "k-1")
    assert (command.routing.pinned, command.sealed_by) == ("bob", "k/n")
    assert (command.timing.deadline, command.timing.total_seconds) == (kit.now + 30 * SECOND, 30.0)
    assert msgspec.to_builtins(command.content) == {"input": {"rows": 3}, "extra": {"note": "kept"}}
    assert command.raw is not None
    assert b"token-canary" not in command.raw


def test_a_sandboxed_target_has_at_least_a_sandboxs_time(kit: Any) -> None:
    command = kit.command_from(known={"contract": kit.contract(sandbox="bubblewrap"), "content": {}})
    assert command.timing.total_seconds == 60.0


def test_what_is_encrypted_is_not_kept_as_it_came(kit: Any) -> None:
    row = kit.contract(encrypted=True, secret=kit.secret)
    assert kit.command_from(known={"contract": row, "content": {"rows": 1}}).raw is None


def test_what_only_the_agents_can_read_keeps_its_envelope(kit: Any) -> None:
    row = kit.contract(encrypted=True, end_to_end=True, secret=kit.secret)
    command = kit.command_from(known={"contract": row, "content": {"ciphertext": "x"}, "sealed": True})
    assert command.agreement.sealed
    assert msgspec.to_builtins(command.content) == {
        "input": {"ciphertext": "x"},
        "envelope": {"message_id": kit.request_id, "contract_id": "c-1", "correlation_id": "k-1"},
    }


def test_a_handshake_brings_what_its_token_grants(kit: Any) -> None:
    payload = {"target_agent_id": "bob", "requested_intent": "provision", "mode": "end-to-end", "correlation_id": "h"}
    command = kit.command_from(
        intent="initiate_handshake", target_agent=BROKER, payload=payload,
        known={"granted": ("write:datasets",), "secret": kit.secret},
    )  # fmt: skip
    assert isinstance(command, ShakeHands)
    assert (command.target, command.intent, command.domain, command.version) == ("bob", "provision", "lab", "1.2.3")
    assert (command.granted, command.end_to_end, command.secret) == (("write:datasets",), True, kit.secret)
    assert command.correlation_id == "h"


def test_the_brokers_other_intents(kit: Any) -> None:
    decided = kit.command_from(
        "response", by=kit.bob, **{**TO_ADA, "target_agent": BROKER}, intent="accept_handshake",
        payload={"accepted": False, "reason": "no", "correlation_id": "q-1"}, known={"handshake": "q-1"},
    )  # fmt: skip
    assert isinstance(decided, AnswerHandshake)
    assert (decided.question, decided.accepted, decided.reason) == ("q-1", False, "no")
    ended = kit.command_from(
        intent="terminate_collaboration", target_agent=BROKER, payload={"collaboration_id": "l-1", "reason": "r"}
    )
    assert isinstance(ended, EndContract)
    assert (ended.collaboration, ended.reason, ended.seen) == ("l-1", "r", kit.request_id)
    rotated = kit.command_from(
        intent="rotate_key", target_agent=BROKER, payload={"collaboration_id": "l-1", "public_key": "A" * 43},
        known={"secret": kit.secret},
    )  # fmt: skip
    assert isinstance(rotated, RotateKey)
    assert rotated.secret == kit.secret


def test_an_answer_ends_the_task_and_an_error_says_why(kit: Any) -> None:
    known = {"task": kit.task_id, "contract": kit.contract(), "content": {"dataset_id": "d"}}
    done = kit.command_from("response", by=kit.bob, **TO_ADA, known=known)
    assert isinstance(done, Finish)
    assert (done.task_id, msgspec.to_builtins(done.content)) == (kit.task_id, {"result": {"dataset_id": "d"}})
    again = kit.command_from("response", by=kit.bob, **TO_ADA, timestamp="2026-03-01T12:00:01Z", known=known)
    assert again.digest == done.digest
    error = {"code": "RATE_LIMIT_EXCEEDED", "message": "busy", "retry_after": 9, "details": {"a": 1}}
    failed = kit.command_from(
        "error", by=kit.bob, **TO_ADA, payload={"error": error, "correlation_id": "t"}, known=known
    )
    assert isinstance(failed, ReportFault)
    assert (failed.fault.kind, failed.fault.message, failed.fault.retryable) == (Kind.RATE_LIMITED, "busy", True)


def test_an_agents_rate_limit_keeps_its_retry_time_as_a_fact(kit: Any) -> None:
    error = {"code": "RATE_LIMIT_EXCEEDED", "message": "busy", "retry_after": 9, "details": {"a": 1}}
    failed = kit.command_from("error", by=kit.bob, **TO_ADA, payload={"error": error}, known={"task": kit.task_id})
    assert (failed.fault.kind, failed.fault.facts["retry_after"]) == (Kind.RESOURCES, 9)


def test_an_agents_messages_about_personal_work_are_not_kept(kit: Any) -> None:
    row = kit.contract(encrypted=True, secret=kit.secret)
    error = {"code": "INTERNAL_ERROR", "message": "Zaphod!", "retry_after": 1, "details": {"who": "Zaphod"}}
    known = {"task": kit.task_id, "contract": row}
    failed = kit.command_from("error", by=kit.bob, **TO_ADA, payload={"error": error}, known=known)
    assert "Zaphod" not in str(msgspec.to_builtins(failed.fault))
    assert failed.raw is None


def test_events_cancel_and_report_progress(kit: Any) -> None:
    known = {"task": kit.task_id}
    stopped = kit.command_from("event", intent="cancel", payload={"correlation_id": "k", "reason": "late"}, known=known)
    assert isinstance(stopped, Cancel)
    assert (stopped.task_id, stopped.reason) == (kit.task_id, "late")
    told = kit.command_from(
        "event", by=kit.bob, **TO_ADA, intent="progress", payload={"correlation_id": "t"},
        known={**known, "content": {"percent": 40, "message": "m", "output": "o", "correlation_id": "t"}},
    )  # fmt: skip
    assert isinstance(told, ReportProgress)
    assert (told.percent, told.output) == (40, "o")
    assert msgspec.to_builtins(told.content) == {"percent": 40, "message": "m", "output": "o"}


def test_unknown_fields_of_progress_are_not_taken_for_known_ones(kit: Any) -> None:
    """A chunk that is none ended whoever read the task with an internal error, and a file was that of anybody."""
    odd = {"chunk": "x", "stream": 5, "file": {"id": "f"}, "step": 5, "tool_use": "x", "question": 5, "foo": [1]}
    content = {"percent": 40.5, "message": "m", **odd, "thinking": None, "correlation_id": "t"}
    told = kit.command_from(
        "event", by=kit.bob, **TO_ADA, intent="progress", payload={"correlation_id": "t"},
        known={"task": kit.task_id, "content": content},
    )  # fmt: skip
    assert isinstance(told, ReportProgress)
    assert told.percent == 40
    body = msgspec.to_builtins(told.content)
    assert body == {"percent": 40, "message": "m", "extra": {"percent": 40.5, **odd}}
    again = kit.encoded(
        kit.outgoing(MessageKind.PROGRESS, body, EventKind.PROGRESS, agent="bob", protocol="a2acp"), kit.ada
    )
    assert {name: again["payload"][name] for name in content if name in again["payload"]} == {
        "percent": 40.5, "message": "m", **odd, "correlation_id": again["payload"]["correlation_id"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "field"), [({"percent": 101}, "payload.percent"), ({"percent": "x"}, "payload.percent"),
                        ({"message": 1}, "payload.message"), ({"output": []}, "payload.output")],
)  # fmt: skip
def test_progress_is_reported_in_its_own_terms(kit: Any, said: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        kit.command_from("event", intent="progress", payload={}, known={"task": kit.task_id, "content": said})
    assert refused.value.fault.field == field


def test_a_question_is_put_to_a_person_in_the_course_of_its_task(kit: Any) -> None:
    said = {"question": "Go on?", "options": ["yes", "no"], "timeout_seconds": 30, "default": None}
    asked = kit.command_from("event", intent="question", payload={}, known={"task": kit.task_id, "content": said})
    assert isinstance(asked, AskPerson)
    assert (asked.task_id, asked.request_id, asked.blocking) == (kit.task_id, kit.request_id, True)
    assert asked.ask == Ask(question="Go on?", options=("yes", "no"), timeout_seconds=30, has_default=True)


@pytest.mark.parametrize(
    ("said", "field"), [({}, "payload.question"), ({"question": ""}, "payload.question"),
                        ({"question": "?", "options": "yes"}, "payload.options"),
                        ({"question": "?", "timeout_seconds": 0}, "payload.timeout_seconds"),
                        ({"question": "?", "timeout_seconds": True}, "payload.timeout_seconds")],
)  # fmt: skip
def test_a_question_that_nobody_could_answer_is_refused(kit: Any, said: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        kit.command_from("event", intent="question", payload={}, known={"task": kit.task_id, "content": said})
    assert refused.value.fault.field == field


def test_what_only_two_agents_can_read_is_asked_of_nobody(kit: Any) -> None:
    known = {"task": kit.task_id, "content": {"ciphertext": "x"}, "sealed": True}
    with pytest.raises(Refused, match="no person can be asked") as refused:
        kit.command_from("event", intent="question", payload={}, known=known)
    assert refused.value.fault.kind is Kind.FORBIDDEN


def test_an_event_that_nobody_knows_is_carried_on_and_one_of_the_brokers_is_not(kit: Any) -> None:
    told = kit.command_from("event", intent="shout", payload={"contract_id": "c"}, known={"content": {}})
    body = msgspec.json.decode(told.direct_message.raw)
    assert (told.direct_message.kind, body["around"], told.direct_message.personal) == (
        "shout",
        {"contract_id": "c"},
        False,
    )
    with pytest.raises(Refused) as refused:
        kit.command_from("event", intent="resume", payload={})
    assert refused.value.fault.kind is Kind.INVALID
