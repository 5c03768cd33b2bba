"""The codec beyond the document: round trips of anything valid, and credentials taken out."""

from __future__ import annotations

import json
from datetime import UTC, datetime

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

HINTS = st.builds(Hints, max_duration_seconds=st.none() | st.integers(1, 9999), max_memory_mb=st.none() | COUNTS)
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


def test_a_token_in_the_message_is_taken_out() -> None:
    data = json.dumps({"a": {"b": 1.50}, "x_custom_fields": {"token": "t" * 32, "mine": 2}}).encode()
    token, rest = codec.take_token(data)
    assert token == "t" * 32
    assert json.loads(rest) == {"a": {"b": 1.50}, "x_custom_fields": {"mine": 2}}
    assert codec.take_token(rest) == (None, rest)
