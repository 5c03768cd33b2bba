"""The codec beyond the document: round trips of anything valid, and credentials taken out."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.types import (
    Correlation,
    ErrorPayload,
    Hints,
    Payload,
    ResourcesUsed,
    Stamp,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)

UUIDS = st.uuids(version=4).map(str)
TEXT = st.text(max_size=30)
NAMES = st.text(min_size=1, max_size=30)
COUNTS = st.integers(0, 2**53)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)

HINTS = st.builds(
    Hints,
    max_duration_seconds=st.none() | st.integers(1, 9999),
    max_memory_mb=st.none() | COUNTS,
    max_gpu_vram_mb=st.none() | COUNTS,
)
STEPS = st.builds(Step, number=COUNTS, name=TEXT, output=TEXT, total=st.none() | COUNTS)
USED = st.builds(ResourcesUsed, duration_seconds=COUNTS, gpu_vram_mb=COUNTS, memory_mb=st.none() | COUNTS)
PAYLOADS = st.one_of(
    st.builds(WorkRequest, task_id=UUIDS, work_type=NAMES, parameters=OBJECTS, hints=st.none() | HINTS),
    st.builds(
        WorkStatus,
        task_id=UUIDS,
        status=st.sampled_from(["running", "step_completed", "paused"]),
        progress_percent=st.integers(0, 100),
        step=st.none() | STEPS,
    ),
    st.builds(
        WorkResult,
        task_id=UUIDS,
        status=st.just("failed"),
        exit_code=st.integers(1, 255),
        output=TEXT,
        resources_used=st.none() | USED,
    ),
    st.builds(ErrorPayload, error_code=st.integers(5001, 5999), error_message=TEXT, error_context=OBJECTS),
)


@given(PAYLOADS, UUIDS, UUIDS, OBJECTS, st.datetimes(timezones=st.just(UTC)))
def test_what_is_written_is_read_back_equal(
    payload: Payload, first: str, second: str, custom: dict[str, object], at: datetime
) -> None:
    message = codec.envelope(
        payload,
        Stamp(first, at),
        Correlation(second, first),
        from_agent="orchestrator",
        to_agent="infra",
        x_custom_fields=custom,
    )
    assert codec.decode(codec.encode(message)) == message


NULLS: dict[str, dict[str, Any]] = {
    "work_request": {"x_custom_fields": None},
    "work_status": {"payload": {"step": {"number": 1, "name": "x", "output": None, "output_chunk": None}}},
    "error": {"x_custom_fields": None, "payload": {"error_context": None}},
}
BARE: dict[str, dict[str, Any]] = {
    "work_request": {"task_id": "550e8400-e29b-41d4-a716-446655440004", "work_type": "x", "parameters": {"a": None}},
    "work_status": {"task_id": "550e8400-e29b-41d4-a716-446655440004", "status": "running", "progress_percent": 1},
    "error": {"error_code": 5003, "error_message": "m"},
}


@pytest.mark.parametrize("kind", NULLS)
def test_null_in_an_optional_field_is_the_same_as_no_field(kind: str) -> None:
    """Clients that are made from a model write every field, null where there is nothing to say."""
    id = "550e8400-e29b-41d4-a716-446655440001"
    plain = {
        "protocol_version": "1.0", "message_id": id, "from_agent": "infra", "to_agent": "orchestrator",
        "timestamp": "2026-01-19T04:21:04Z", "trace_id": id, "request_id": id, "type": kind, "payload": BARE[kind],
    }  # fmt: skip
    changed = NULLS[kind]
    nulls = {**plain, **changed, "payload": {**BARE[kind], **changed.get("payload", {})}}
    if kind == "work_status":
        plain["payload"] = {**BARE[kind], "step": {"number": 1, "name": "x"}}
    data = json.dumps(nulls).encode()
    assert codec.decode(data) == codec.decode(json.dumps(plain).encode())
    assert json.loads(codec.reissue(data, {}, {"agent_id": "a"}))["x_custom_fields"] == {"agent_id": "a"}


def test_a_registration_may_leave_out_what_is_optional_by_null() -> None:
    said = {"agent_id": "a", "agent_type": "infra", "supported_versions": ["1.0"]}
    nulls = {**said, "work_types": None, "limits": None, "callback_url": None}
    assert codec.decode_registration(json.dumps(nulls).encode()) == codec.decode_registration(json.dumps(said).encode())
