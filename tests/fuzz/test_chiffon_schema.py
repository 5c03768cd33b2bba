"""The schema that is served and the codec that decides agree, as far as a schema can say.

Messages are made of every field in turn: as it should be, null, of another type, at the edge of what is allowed and one
step beside it, or left out.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.api.openapi import DIALECT, PROTOCOLS
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import ChiffonError
from tests.fuzz.thoroughness import THOROUGH, UNTIMED, for_a_while

SCHEMA = PROTOCOLS["chiffon"]()
MESSAGE = jsonschema_rs.validator_for(SCHEMA)
REGISTRATION = jsonschema_rs.validator_for(
    {"$schema": DIALECT, "$ref": "#/$defs/Registration", "$defs": SCHEMA["$defs"]}
)

LEFT_OUT: Any = object()
UUID = "550e8400-e29b-41d4-a716-446655440001"
ANYTHING = st.sampled_from([None, True, 0, 1, -1, 1.5, "", "x", [], ["x"], {}, {"a": None}])
TEXT = st.sampled_from(["", "x", "é" * 3, "null", "\n"])
COUNT = st.sampled_from([0, 1, 2**63, 2**64 - 1, -1])
NAME = st.sampled_from(["infra", "", "n" * 200, "é" * 200, "n" * 201])
IDS = st.sampled_from(
    [UUID, UUID.upper(), UUID + "\n", UUID.replace("-", ""), "not one", "550e8400-e29b-01d4-a716-446655440001"]
)
TIMES = st.sampled_from([
    "2026-01-19T04:21:04Z", "2026-01-19t04:21:04.123456789z", "2026-01-19 04:21:04+01:00", "2026-01-19T04:21:04-0130",
    "2026-01-19T04:21:04", "2026-01-19T04:21Z", "2026-01-19", "2026-13-19T04:21:04Z", "2026-01-19T24:00:00Z",
    "2026-06-30T23:59:60Z", "0000-01-19T04:21:04Z", "2026-01-19T04:21:04+24:00", "2026-01-19T04:21:04Z\n", "now",
])  # fmt: skip
VERSIONS = st.sampled_from(["1.0", "1.0\n", "2.0", "1", "one", ""])


def said(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object of these fields, most of them as they should be, which is what each may be first."""
    whole = st.fixed_dictionaries({name: value | ANYTHING | st.just(LEFT_OUT) for name, value in fields.items()})
    good = st.fixed_dictionaries(fields)
    spoilt = st.tuples(good, whole, st.sets(st.sampled_from(sorted(fields)), max_size=2)).map(
        lambda drawn: {**drawn[0], **{name: drawn[1][name] for name in drawn[2]}}
    )
    return spoilt.map(lambda message: {name: value for name, value in message.items() if value is not LEFT_OUT})


HINTS = said(
    max_duration_seconds=st.sampled_from([1, 300, 0]), max_memory_mb=COUNT, max_gpu_vram_mb=COUNT, gpu_vram_mb=COUNT
)
STEP = said(number=COUNT, name=TEXT, output=st.just("abc"), output_chunk=st.sampled_from([
    None, "bytes 0-3", "bytes 0-3 of 6", "bytes 0-1k", "bytes 0-3 of 6k", "bytes 0-3\n", "0-3", "bytes 0-3 of", "",
]), total=COUNT)  # fmt: skip
RESOURCES = said(duration_seconds=COUNT, gpu_vram_mb=COUNT, cpu_time_ms=COUNT, memory_mb=COUNT)
PAYLOADS = {
    "work_request": said(task_id=IDS, work_type=NAME, parameters=st.just({"a": None}), hints=HINTS),
    "work_status": said(
        task_id=IDS,
        status=st.sampled_from(["running", "step_completed", "paused", "done"]),
        progress_percent=st.sampled_from([0, 50, 100, 101]),
        step=STEP,
    ),
    "work_result": said(
        task_id=IDS,
        status=st.sampled_from(["success", "failed", "done"]),
        exit_code=st.sampled_from([0, 1, -1, 2**64 - 1]),
        output=st.just("abc"),
        output_chunk=st.sampled_from([None, "bytes 0-3 of 3", "bytes 0-3 of 6", "bytes 0-3", "bytes 0-1k of 2k", "x"]),
        resources_used=RESOURCES,
    ),
    "error": said(error_code=st.sampled_from([5001, 5999, 5000, 6000]), error_message=TEXT, error_context=st.just({})),
}


def envelopes(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    return said(
        protocol_version=VERSIONS, message_id=IDS, from_agent=NAME, to_agent=NAME, timestamp=TIMES, trace_id=IDS,
        request_id=IDS, type=st.just(kind), payload=PAYLOADS[kind], x_custom_fields=st.just({"mine": None}),
    )  # fmt: skip


REGISTRATIONS = said(
    agent_id=NAME, agent_type=NAME, supported_versions=st.sampled_from([["1.0"], [], ["x"] * 101]),
    work_types=st.sampled_from([[], ["w"], [""]]), limits=st.just({"a": None}), callback_url=TEXT,
)  # fmt: skip


def agree(message: dict[str, Any], valid: Any, decode: Any) -> None:
    try:
        decode(json.dumps(message).encode())
        refused = None
    except ChiffonError as error:
        refused = str(error)
    assert valid.is_valid(message) == (refused is None), (message, refused)


def compared(how: Any, kind: str) -> Any:
    @how
    @given(REGISTRATIONS if kind == "registration" else envelopes(kind))
    def attempt(message: dict[str, Any]) -> None:
        if kind == "registration":
            agree(message, REGISTRATION, codec.decode_registration)
        else:
            agree(message, MESSAGE, codec.decode)

    return attempt


KINDS = [*PAYLOADS, "registration"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_takes_what_the_codec_takes_and_nothing_else(kind: str) -> None:
    compared(UNTIMED, kind)()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_they_agree_for_a_while(kind: str) -> None:
    for_a_while(compared(THOROUGH, kind))
