"""The envelope and its payloads, read and written as the document says."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import InvalidMessage, UnsupportedVersion
from dragoman.protocols.chiffon.types import (
    Envelope,
    ErrorPayload,
    Hints,
    ResourcesUsed,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.wire import Limits, Stage

TASK = "550e8400-e29b-41d4-a716-446655440004"
REQUIRED = list(Envelope.__struct_fields__)[:-1]


def message(examples: dict[str, Any], kind: str = "work_request", **changes: Any) -> bytes:
    """An example as a whole envelope; a dotted name changes an inner field, None removes it."""
    payload = examples[kind]
    tree = {**examples["envelope"], "type": kind.removesuffix("_failed"), "payload": payload}
    tree = copy.deepcopy(tree)
    for path, value in changes.items():
        *outer, name = path.split("__")
        place = tree
        for step in outer:
            place = place[step]
        if value is None:
            del place[name]
        else:
            place[name] = value
    return json.dumps(tree).encode()


def refusal(data: bytes) -> tuple[str | None, Stage]:
    with pytest.raises(InvalidMessage) as caught:
        codec.decode(data)
    assert caught.value.answer.error_code == 5003
    assert caught.value.answer.error_context == {
        "validation_error": caught.value.what,
        "field_name": caught.value.field,
    }
    return caught.value.field, caught.value.stage


@pytest.mark.requirement("CH-ENV-7")
def test_the_whole_example_is_read_and_written_back_equal(examples: dict[str, Any]) -> None:
    read = codec.decode(json.dumps(examples["envelope"]).encode())
    assert read == Envelope(
        protocol_version="1.0",
        message_id="550e8400-e29b-41d4-a716-446655440001",
        from_agent="orchestrator",
        to_agent="infra",
        timestamp=datetime(2026, 1, 19, 4, 21, 4, tzinfo=UTC),
        trace_id="550e8400-e29b-41d4-a716-446655440002",
        request_id="550e8400-e29b-41d4-a716-446655440003",
        type="work_request",
        payload=WorkRequest(
            task_id=TASK,
            work_type="run_playbook",
            parameters={"playbook": "deploy_kuma.yml", "extra_vars": {"version": "1.4.0"}},
            hints=Hints(max_duration_seconds=300, max_memory_mb=512),
        ),
        x_custom_fields={},
    )
    assert json.loads(codec.encode(read)) == examples["envelope"]


@pytest.mark.requirement("CH-ENV-1", "chiffon-D2")
@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_envelope_field_is_named(examples: dict[str, Any], field: str) -> None:
    assert refusal(message(examples, **{field: None})) == (field, Stage.SHAPE)


@pytest.mark.requirement("CH-ENV-2")
def test_custom_fields_may_be_left_out_but_not_be_a_list(examples: dict[str, Any]) -> None:
    assert codec.decode(message(examples, x_custom_fields=None)).x_custom_fields == {}
    assert refusal(message(examples, x_custom_fields=[]))[0] == "x_custom_fields"


@pytest.mark.requirement("CH-ENV-3")
@pytest.mark.parametrize("field", ["message_id", "trace_id", "request_id", "payload__task_id"])
@pytest.mark.parametrize("value", ["", "1", f"{TASK}\n", f"{{{TASK}}}", TASK.replace("-", ""), "g" + TASK[1:]])
def test_an_id_that_is_no_uuid_is_refused(examples: dict[str, Any], field: str, value: str) -> None:
    assert refusal(message(examples, **{field: value}))[0] == field.replace("__", ".")


@pytest.mark.requirement("all-D7")
def test_a_trace_id_of_any_bits_is_read_and_no_other_id_is(examples: dict[str, Any]) -> None:
    wild = "0AF76519-16CD-03DD-0448-EB211C80319C"
    assert codec.decode(message(examples, trace_id=wild)).trace_id == wild.lower()
    assert refusal(message(examples, request_id=wild))[0] == "request_id"
    tree = {"trace_id": wild, "request_id": TASK}
    assert codec.correlation(tree) == (TASK, wild.lower(), None)
    assert codec.correlation({**tree, "request_id": 1}) is None  # it cannot stand in for a request id


@pytest.mark.requirement("chiffon-D11")
def test_a_refusal_names_the_message_whose_id_can_be_read() -> None:
    tree = {"trace_id": TASK, "request_id": TASK, "message_id": TASK.upper()}
    assert codec.correlation(tree) == (TASK, TASK, TASK)
    assert codec.correlation({**tree, "message_id": "7"}) == (TASK, TASK, None)


@pytest.mark.requirement("chiffon-D1")
@pytest.mark.parametrize("version", "12345678")
def test_uuids_of_every_version_are_read_in_lower_case(examples: dict[str, Any], version: str) -> None:
    value = f"ABCDEF00-0000-{version}000-A000-00000000000F"
    read = codec.decode(message(examples, request_id=value, payload__task_id=value))
    assert read.request_id == value.lower()
    assert isinstance(read.payload, WorkRequest)
    assert read.payload.task_id == value.lower()


@pytest.mark.requirement("CH-ENV-4")
@pytest.mark.parametrize("value", ["", "work", "WORK_REQUEST", 5, ["error"]])
def test_an_unknown_type_is_refused(examples: dict[str, Any], value: object) -> None:
    assert refusal(message(examples, type=value)) == ("type", Stage.SHAPE)


@pytest.mark.requirement("CH-ENV-5", "all-D2")
@pytest.mark.parametrize("value", ["2026-01-19T04:21:04", "2026-01-19", "yesterday", 1768796464, ""])
def test_a_time_without_offset_is_refused(examples: dict[str, Any], value: object) -> None:
    assert refusal(message(examples, timestamp=value))[0] == "timestamp"


@pytest.mark.requirement("all-D2")
def test_a_time_with_any_offset_is_read_and_written_in_utc(examples: dict[str, Any]) -> None:
    read = codec.decode(message(examples, timestamp="2026-01-19T06:21:04+02:00"))
    assert json.loads(codec.encode(read))["timestamp"] == "2026-01-19T04:21:04Z"


@pytest.mark.requirement("CH-ENV-6")
def test_kinds_of_agents_are_open_but_have_a_name(examples: dict[str, Any]) -> None:
    assert codec.decode(message(examples, to_agent="forge-worker")).to_agent == "forge-worker"
    assert refusal(message(examples, from_agent=""))[0] == "from_agent"


@pytest.mark.requirement("CH-REQ-3")
def test_the_request_of_the_document(examples: dict[str, Any]) -> None:
    assert codec.decode(message(examples)).payload == WorkRequest(
        task_id=TASK,
        work_type="run_playbook",
        parameters=examples["work_request"]["parameters"],
        hints=Hints(max_duration_seconds=300, max_memory_mb=512),
    )


@pytest.mark.requirement("CH-REQ-1")
def test_hints_may_be_left_out_and_nothing_else(examples: dict[str, Any]) -> None:
    read = codec.decode(message(examples, payload__hints=None))
    assert isinstance(read.payload, WorkRequest)
    assert read.payload.hints is None
    for field in ("task_id", "work_type", "parameters"):
        assert refusal(message(examples, **{f"payload__{field}": None}))[0] == f"payload.{field}"


@pytest.mark.requirement("CH-STA-1")
def test_the_status_of_the_document(examples: dict[str, Any]) -> None:
    assert codec.decode(message(examples, "work_status")).payload == WorkStatus(
        task_id=TASK,
        status="running",
        progress_percent=50,
        step=Step(
            number=2,
            name="Configure Kuma settings",
            output="Updating config.yaml...\nAdded uptime monitors: 3\n",
        ),
    )


@pytest.mark.requirement("CH-STA-2")
def test_status_and_progress_have_bounds(examples: dict[str, Any]) -> None:
    for status in ("running", "step_completed", "paused"):
        codec.decode(message(examples, "work_status", payload__status=status))
    assert refusal(message(examples, "work_status", payload__status="done"))[0] == "payload.status"
    for percent in (-1, 101, 50.5, "50"):
        data = message(examples, "work_status", payload__progress_percent=percent)
        assert refusal(data)[0] == "payload.progress_percent"


@pytest.mark.requirement("CH-RES-1")
def test_the_two_results_of_the_document(examples: dict[str, Any]) -> None:
    for kind, cost in (("work_result", (87, 12450)), ("work_result_failed", (305, 8920))):
        expected = examples[kind]
        assert codec.decode(message(examples, kind)).payload == WorkResult(
            task_id=TASK,
            status=expected["status"],
            exit_code=expected["exit_code"],
            output=expected["output"],
            resources_used=ResourcesUsed(duration_seconds=cost[0], gpu_vram_mb=0, cpu_time_ms=cost[1]),
        )


@pytest.mark.requirement("chiffon-D12")
@pytest.mark.parametrize(("status", "code"), [("success", 1), ("success", -9), ("failed", 0)])
def test_a_status_that_contradicts_its_exit_code_is_refused(examples: dict[str, Any], status: str, code: int) -> None:
    data = message(examples, "work_result", payload__status=status, payload__exit_code=code)
    assert refusal(data) == ("payload.exit_code", Stage.MEANING)


@pytest.mark.requirement("chiffon-D14")
def test_the_two_extras_are_read_and_written(examples: dict[str, Any]) -> None:
    status = codec.decode(message(examples, "work_status", payload__step__total=5))
    result = codec.decode(message(examples, "work_result", payload__resources_used__memory_mb=64))
    assert json.loads(codec.encode(status))["payload"]["step"]["total"] == 5
    assert json.loads(codec.encode(result))["payload"]["resources_used"]["memory_mb"] == 64


@pytest.mark.requirement("CH-ERR-2")
def test_error_codes_have_a_range(examples: dict[str, Any]) -> None:
    read = codec.decode(message(examples, "error"))
    assert read.payload == ErrorPayload(**examples["error"])
    codec.decode(message(examples, "error", payload__error_code=5999))
    for code in (5000, 6000, "5001"):
        assert refusal(message(examples, "error", payload__error_code=code))[0] == "payload.error_code"


@pytest.mark.requirement("all-D6")
def test_unknown_fields_are_accepted_everywhere_and_travel_on(examples: dict[str, Any]) -> None:
    extras = {
        "x_future": {"a": [1, 2.50]},
        "payload__extra": "kept",
        "payload__step__colour": "red",
        "x_custom_fields": {"mine": 1},
    }
    data = message(examples, "work_status", **extras)
    codec.decode(data)
    sent_on = json.loads(codec.reissue(data, {"to_agent": "code"}, {"agent_id": "code-1"}))
    expected = json.loads(data)
    expected["to_agent"] = "code"
    expected["x_custom_fields"] = {"mine": 1, "agent_id": "code-1"}
    assert sent_on == expected


@pytest.mark.requirement("all-D3")
def test_the_checks_come_in_order(examples: dict[str, Any]) -> None:
    """Each message is wrong in one more way than the one before; the earliest check speaks."""
    limits = Limits(bytes=2000, depth=6)
    meaning = message(examples, "work_result", payload__exit_code=1)
    shape = message(examples, "work_result", payload__exit_code=1, message_id="x")
    strict = shape[:-1] + b', "type": "error"}'
    depth = strict[:-1] + b', "deep": ' + b"[" * 10 + b"]" * 10 + b"}"
    size = depth + b" " * 2000
    for data, stage in (
        (meaning, Stage.MEANING),
        (shape, Stage.SHAPE),
        (strict, Stage.JSON),
        (depth, Stage.DEPTH),
        (size, Stage.SIZE),
    ):
        with pytest.raises(InvalidMessage) as caught:
            codec.decode(data, limits)
        assert caught.value.stage is stage


@pytest.mark.requirement("CH-VER-3", "chiffon-D9")
def test_a_message_of_version_2_is_answered_with_5006(examples: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        codec.decode(message(examples, protocol_version="2.0", payload={"shape": "unheard of"}))
    assert caught.value.answer.error_code == 5006
    assert caught.value.answer.error_context == {
        "work_type_requested": "work_request",
        "supported_types": [],
        "supported_versions": ["1.0"],
    }
    assert caught.value.about is not None
    assert refusal(message(examples, protocol_version="one"))[0] == "protocol_version"
