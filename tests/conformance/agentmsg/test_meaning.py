"""What a message means: ids and times, what must agree, what an answer needs, what is kept of the unknown."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from tests.conformance.agentmsg.samples import CONTEXT, REPORT, START, Link, tree

from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg.errors import TABLE, AgentmsgError, is_retryable
from dragoman.protocols.agentmsg.records import ErrorContext, ErrorType, TaskConstraints
from dragoman.protocols.agentmsg.types import Heartbeat, HelpRequest, Stamp, TaskHandoffResponse, TaskUpdate
from dragoman.wire import Limits, LocalProtocolError, Stage

UUID7 = "01890A5D-AC96-774B-BCCE-B302099A8057"


def decode(said: dict[str, Any]) -> Any:
    return codec.interpret(codec.parse(json.dumps(said).encode()))


def refused(said: dict[str, Any]) -> AgentmsgError:
    with pytest.raises(AgentmsgError) as caught:
        decode(said)
    return caught.value


def with_payload(name: str, **fields: Any) -> dict[str, Any]:
    said = copy.deepcopy(tree(name))
    said["payload"].update(fields)
    return said


@pytest.mark.requirement("AM-MSG-2")
def test_ids_are_uuids_and_ours_are_of_version_4() -> None:
    assert decode(tree(id=UUID7)).id == UUID7.lower()
    for bad in ("", "1", UUID7 + "\n", UUID7[:-1], UUID7.replace("-", "")):
        assert refused(tree(id=bad)).field == "id"
    with pytest.raises(LocalProtocolError, match="version 4"):
        codec.message(Heartbeat(agent_id="ada"), Stamp(UUID7, START), sender="ada", to="hub")


@pytest.mark.requirement("AM-MSG-3", "agentmsg/all-D2", "agentmsg-D1")
def test_times_have_an_offset_and_ours_are_utc() -> None:
    said = with_payload("HelpRequest", deadline="2026-03-01T14:30:00+02:00")
    said["timestamp"] = "2026-03-01T14:00:00.5+02:00"
    message = decode(said)
    assert message.timestamp == START + timedelta(seconds=0.5)
    written = json.loads(codec.encode(message))
    assert (written["timestamp"], written["payload"]["deadline"]) == (
        "2026-03-01T12:00:00.500000Z",
        "2026-03-01T12:30:00Z",
    )
    for bad in ("2026-03-01T14:00:00", "2026-03-01", "noon", 1772366400, None):
        assert refused({**tree(), "timestamp": bad}).field == "timestamp"
    assert refused(with_payload("HelpRequest", deadline="2026-03-01T14:00:00")).field == "payload.deadline"
    east = datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    made = codec.message(decode(said).payload, Stamp(tree()["id"], east), sender="ada", to="bob")
    assert json.loads(codec.encode(made))["timestamp"] == "2026-03-01T12:00:00Z"


def test_a_time_that_utc_has_no_name_for_is_refused() -> None:
    for bad in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"):
        assert refused({**tree(), "timestamp": bad}).stage is Stage.MEANING
        assert refused(with_payload("HelpRequest", deadline=bad)).stage is Stage.MEANING


@pytest.mark.requirement("agentmsg-D13", "AM-MSG-4")
@pytest.mark.parametrize(
    ("name", "field", "kind"),
    [
        ("TaskHandoffRequest", "from_agent", ErrorType.AUTHENTICATION_ERROR),
        ("TaskHandoffRequest", "to_agent", ErrorType.VALIDATION_ERROR),
        ("TaskHandoffResponse", "agent_id", ErrorType.AUTHENTICATION_ERROR),
        ("HelpRequest", "requester_id", ErrorType.AUTHENTICATION_ERROR),
        ("HelpResponse", "responder_id", ErrorType.AUTHENTICATION_ERROR),
        ("StatusUpdate", "agent_id", ErrorType.AUTHENTICATION_ERROR),
        ("Heartbeat", "agent_id", ErrorType.AUTHENTICATION_ERROR),
        ("ErrorReport", "agent_id", ErrorType.AUTHENTICATION_ERROR),
        ("Register", "agent_id", ErrorType.AUTHENTICATION_ERROR),
        ("Welcome", "agent_id", ErrorType.VALIDATION_ERROR),
    ],
)
def test_a_payload_that_names_another_sender_or_recipient_is_refused(name: str, field: str, kind: ErrorType) -> None:
    error = refused(with_payload(name, **{field: "eve"}))
    assert (error.field, error.error_type, error.stage) == (f"payload.{field}", kind, Stage.MEANING)
    assert "'eve' contradicts" in error.what


@pytest.mark.requirement("agentmsg-D13")
def test_a_payload_speaks_of_one_task_throughout() -> None:
    other = {**CONTEXT, "task_id": "t-2"}
    assert refused(with_payload("TaskHandoffRequest", context=other)).field == "payload.context.task_id"
    assert refused(with_payload("TaskFailed", error={**REPORT, "task_id": "t-2"})).field == "payload.error.task_id"
    assert refused(with_payload("TaskFailed", error={**REPORT, "agent_id": "eve"})).field == "payload.error.agent_id"
    task = {**tree("TaskAssignment")["payload"]["task"], "context": other}
    assert refused(with_payload("TaskAssignment", task=task)).field == "payload.task.context.task_id"


@pytest.mark.requirement("agentmsg-D13")
def test_the_hub_speaks_for_others_and_chooses_for_them() -> None:
    assert decode({**tree("TaskFailed"), "from": "hub", "to": "bob"}).payload.error.agent_id == "ada"
    for wish in ("*", "carol"):
        assert decode({**with_payload("TaskHandoffRequest", to_agent=wish), "to": "hub"}).payload.to_agent == wish
    assert decode({**with_payload("TaskHandoffRequest", to_agent="*"), "to": "*"}).to == "*"
    assert refused(with_payload("TaskHandoffRequest", to_agent="*")).field == "payload.to_agent"


@pytest.mark.requirement("agentmsg-D2", "AM-MTA-2")
@pytest.mark.parametrize("name", ["TaskHandoffResponse", "StateAnswer"])
def test_an_answer_must_name_what_it_answers(name: str) -> None:
    said = tree(name)
    said["metadata"]["correlation_id"] = UUID7
    assert decode(said).answers == UUID7.lower()
    del said["metadata"]["correlation_id"]
    assert refused(said).field == "metadata.correlation_id"


@pytest.mark.requirement("agentmsg-D2", "AM-HND-3")
def test_only_an_acceptance_needs_its_terms() -> None:
    said = tree("TaskHandoffResponse")
    said["payload"] = {"accepted": False, "agent_id": "ada", "error": "busy"}
    assert decode(said).payload == TaskHandoffResponse(accepted=False, agent_id="ada", error="busy")
    for field in ("estimated_completion", "requirements", "constraints"):
        said = copy.deepcopy(tree("TaskHandoffResponse"))
        del said["payload"][field]
        assert refused(said).field == f"payload.{field}"


@pytest.mark.requirement("AM-HND-1")
def test_the_earlier_of_two_deadlines_counts() -> None:
    request = decode(tree("TaskHandoffRequest")).payload
    assert request.due == datetime(2026, 3, 1, 13, tzinfo=UTC)
    assert request.constraints.deadline == request.due != request.deadline
    free = with_payload("TaskHandoffRequest", constraints={"required_capabilities": []})
    assert decode(free).payload.due == datetime(2026, 3, 1, 14, tzinfo=UTC)
    assert decode(free).payload.constraints == TaskConstraints(required_capabilities=())


@pytest.mark.requirement("agentmsg-D2")
def test_the_open_payloads_need_little() -> None:
    said = tree("TaskAssignment")
    said["payload"] = {"task": {"task_id": "t", "task_type": "x"}}
    assert decode(said).payload.task.description == ""
    said = tree("TaskUpdate")
    said["payload"] = {"task_id": "t", "status": "cancelled"}
    assert decode(said).payload == TaskUpdate(task_id="t", status="cancelled")
    said["payload"] = {"task_id": "t"}
    assert refused(said).field == "payload"
    said = tree("TaskComplete")
    said["payload"] = {"task_id": "t", "result": None}
    assert json.loads(codec.encode(decode(said)))["payload"] == {"task_id": "t", "result": None}
    said = tree("Heartbeat")
    said["payload"] = {"agent_id": "ada"}
    assert decode(said).payload == Heartbeat(agent_id="ada")
    said = tree("Ack", correlation_id=None)
    said["payload"] = {}
    assert refused(said).field == "metadata.correlation_id"


@pytest.mark.requirement("agentmsg-D2")
def test_what_may_be_left_out_may_be_null() -> None:
    blank = dict.fromkeys(("description", "context", "constraints", "input"))
    said = tree("TaskAssignment")
    said["payload"] = {"task": {"task_id": "t-1", "task_type": "review", **blank}}
    assert decode(said).payload.task.description is None
    said = tree("TaskUpdate")
    said["payload"] = {"task_id": "t-1", "progress": 5, "message": None, "output": None, "status": None}
    assert decode(said).payload.progress == 5
    said["payload"]["progress"] = None
    assert refused(said).field == "payload"


@pytest.mark.requirement("agentmsg/all-D3")
def test_checks_run_in_order_and_name_the_stage() -> None:
    small = Limits(bytes=4000, depth=8)

    def stage(data: bytes) -> Stage:
        with pytest.raises(AgentmsgError) as caught:
            codec.interpret(codec.parse(data, small))
        return caught.value.stage

    assert stage(b"[" * 4001) is Stage.SIZE
    assert stage(b"[" * 9) is Stage.DEPTH
    for bad in (b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}', b"", b"{", b'{"a": 1}x', b'"\xff"'):
        assert stage(bad) is Stage.JSON
    for bad in (b"[]", b"1", b"{}", b"null"):
        assert stage(bad) is Stage.SHAPE
    assert stage(json.dumps(with_payload("HelpRequest", requester_id="eve")).encode()) is Stage.MEANING


@pytest.mark.requirement("agentmsg/all-D6")
def test_fields_nobody_knows_are_kept_on_the_way() -> None:
    said = {**with_payload("HelpRequest", mood="blue"), "x": [1.0, {"y": "1"}]}
    said["metadata"]["color"] = "red"
    data = json.dumps(said).encode()
    decode(said)
    again = json.loads(codec.reissue(data, {"to": "carol"}, {"retry_count": 2, "ttl_ms": None}))
    expected = copy.deepcopy(said)
    expected["to"] = "carol"
    expected["metadata"]["retry_count"] = 2
    del expected["metadata"]["ttl_ms"]
    assert again == expected


@pytest.mark.requirement("AM-ERR-2", "AM-ERR-1")
def test_every_error_type_has_a_rule_and_a_refusal_is_a_whole_report() -> None:
    assert set(TABLE) == set(ErrorType)
    error = refused(with_payload("HelpRequest", urgency="now"))
    report = error.report("e-9", "hub")
    assert (report.error_id, report.agent_id, report.error_type) == ("e-9", "hub", ErrorType.VALIDATION_ERROR)
    assert report.context.details == {"stage": "shape", "field": "payload.urgency"}
    assert report.suggested_actions
    assert not is_retryable(report)
    timeout = decode(tree("ErrorReport")).payload
    assert is_retryable(timeout)
    final = msgspec.structs.replace(timeout, context=ErrorContext(details={"retryable": False}))
    assert not is_retryable(final)


def test_what_we_make_agrees_with_itself() -> None:
    payload: HelpRequest = decode(tree()).payload
    with pytest.raises(LocalProtocolError, match="contradicts from"):
        codec.message(payload, Link().stamp(), sender="eve", to="bob")
