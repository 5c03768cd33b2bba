"""The table of errors, what each one carries, and how two parties settle on a version."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dragoman.messages.faults import Fault
from dragoman.protocols.chiffon import codec, errors
from dragoman.protocols.chiffon.errors import TABLE, ErrorSubject, InvalidMessage, UnsupportedVersion, is_retryable
from dragoman.protocols.chiffon.types import ErrorPayload, Registration

NOON = datetime(2026, 1, 19, 12, tzinfo=timezone(timedelta(hours=2)))
SUBJECT = ErrorSubject(at=NOON, last_attempt=NOON, agent_id="infra-1", work_type="fly", retries=3)


def written(code: int, **facts: Any) -> ErrorPayload:
    """What the hub writes of a fault with this code."""
    return errors.error_out(Fault(kind=errors.KINDS[code], message="it happened", facts=facts), SUBJECT)


@pytest.mark.requirement("CH-ERR-3")
def test_names_and_retry_flags_are_the_documents() -> None:
    assert {code: (row.name, row.retry) for code, row in TABLE.items()} == {
        5001: ("Timeout", True),
        5002: ("Agent Unavailable", True),
        5003: ("Invalid Message", False),
        5004: ("Authentication Failed", False),
        5005: ("Resource Limit Exceeded", True),
        5006: ("Unsupported Work Type", False),
    }


@pytest.mark.requirement("CH-RTY-3")
def test_only_three_codes_are_retried_and_unknown_ones_never() -> None:
    assert [code for code in range(5001, 6000) if is_retryable(code)] == [5001, 5002, 5005]


@pytest.mark.requirement("CH-ERR-4", "chiffon-D15")
@pytest.mark.parametrize("code", TABLE)
def test_a_context_has_exactly_the_documented_fields(code: int) -> None:
    error = written(code)
    assert (error.error_code, tuple(error.error_context)) == (code, TABLE[code].context)


@pytest.mark.requirement("CH-ERR-4")
def test_times_in_a_context_are_utc() -> None:
    assert written(5001).error_context == {"attempted_retries": 3, "last_attempt": "2026-01-19T10:00:00Z"}
    seen = written(5002, agent_id="a", last_heartbeat="2026-01-01T02:00:00+02:00")
    assert seen.error_context == {"agent_id": "a", "last_heartbeat": "2026-01-01T00:00:00Z"}


@pytest.mark.requirement("CH-VER-1")
def test_a_registration_names_its_versions() -> None:
    body = {
        "agent_id": "infra-1",
        "agent_type": "infra",
        "supported_versions": ["1.0", "2.0"],
        "work_types": ["run_playbook"],
        "limits": {"max_memory_mb": 512},
        "colour": "red",
    }
    assert codec.decode_registration(json.dumps(body).encode()) == Registration(
        agent_id="infra-1",
        agent_type="infra",
        supported_versions=("1.0", "2.0"),
        work_types=("run_playbook",),
        limits={"max_memory_mb": 512},
    )
    del body["supported_versions"]
    with pytest.raises(InvalidMessage) as caught:
        codec.decode_registration(json.dumps(body).encode())
    assert caught.value.field == "supported_versions"


@pytest.mark.requirement("CH-VER-2", "chiffon-D9")
def test_the_lowest_common_version_wins_unless_configured_otherwise() -> None:
    ours = ("1.10", "1.9", "2.0")
    assert codec.negotiate(["2.0", "1.10", "1.9"], ours) == "1.9"
    assert codec.negotiate(["2.0", "1.10", "junk"], ours) == "1.10"
    assert codec.negotiate(["2.0", "1.10"], ours, negotiation="highest") == "2.0"


@pytest.mark.requirement("chiffon-D9")
def test_no_common_version_is_5006_with_ours_listed() -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        codec.negotiate(["3.0"])
    assert caught.value.answer == ErrorPayload(
        error_code=5006,
        error_message="Unsupported protocol version",
        error_context={
            "work_type_requested": "register",
            "supported_types": [],
            "supported_versions": ["1.0"],
        },
    )
