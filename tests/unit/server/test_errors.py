"""The one error table has no hole, and says only what the protocols know."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.ids import Instant
from dragoman.core.rules import Rules
from dragoman.messages.error_table import TABLE, failure_sentence, sentence
from dragoman.messages.faults import Fault, Kind, new_fault
from dragoman.protocols.a2acp import errors as a2acp_errors
from dragoman.protocols.a2acp.errors import ErrorBody
from dragoman.protocols.agentmsg import errors as agentmsg_errors
from dragoman.protocols.agentmsg.records import ErrorReport
from dragoman.protocols.chiffon import errors
from dragoman.protocols.chiffon.errors import fault_in
from dragoman.protocols.chiffon.types import ErrorPayload
from dragoman.protocols.forge import errors as forge_errors
from dragoman.protocols.forge.errors import error_out
from dragoman.sdk.failures import FAILURES
from dragoman.server.chiffon.outbound import error_of as chiffon_error
from dragoman.server.coven.outbound import fault_out as coven_fault

AGENTMSG = {
    "TIMEOUT", "RATE_LIMIT", "VALIDATION_ERROR", "NETWORK_ERROR", "AUTHENTICATION_ERROR", "RESOURCE_EXHAUSTED",
    "INTERNAL_ERROR", "EXTERNAL_SERVICE_ERROR",
}  # fmt: skip
FORGE = {"INVALID_REQUEST", "INVALID_MESSAGE_TYPE", "UNAUTHORIZED", "NOT_FOUND", "TIMEOUT", "INTERNAL_ERROR"}
A2ACP = {
    "CAPABILITY_NOT_FOUND", "SCHEMA_MISMATCH", "AUTH_FAILED", "TIMEOUT", "INTERNAL_ERROR", "RATE_LIMIT_EXCEEDED",
    "CONTRACT_VIOLATION", "SECURITY_POLICY_VIOLATION",
}  # fmt: skip
GRPC = {
    "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}  # fmt: skip
STATUSES_FOR_AGENTS = {400, 401, 404, 409, 413, 422, 429, 503}


def test_every_kind_has_a_row_and_no_cell_is_empty() -> None:
    assert set(TABLE) == set(Kind)
    for kind, row in TABLE.items():
        for name, cell in msgspec.structs.asdict(row).items():
            assert cell is not None, (kind, name)
            assert cell != "", (kind, name)


@pytest.mark.parametrize("kind", list(Kind))
def test_each_protocol_uses_only_codes_of_its_document(kind: Kind) -> None:
    row = TABLE[kind]
    assert 5001 <= errors.CODES[kind] <= 5999
    assert agentmsg_errors.TYPES[kind] in AGENTMSG
    assert forge_errors.CODES[kind] in FORGE
    assert a2acp_errors.CODES[kind] in A2ACP
    assert row.grpc in GRPC
    assert row.agents in STATUSES_FOR_AGENTS
    assert 400 <= row.api <= 599


@pytest.mark.requirement("CH-ERR-3")
@pytest.mark.parametrize("kind", list(Kind))
def test_the_retry_flag_agrees_with_the_code_that_says_it(kind: Kind) -> None:
    assert TABLE[kind].retryable == errors.is_retryable(errors.CODES[kind])


def test_what_the_hub_retries_is_what_chiffon_calls_retryable() -> None:
    assert Rules().retried == {errors.KINDS[code] for code in (5001, 5002, 5005)}


@pytest.mark.parametrize("code", [*errors.TABLE, 5900, 5901, 5902])
def test_a_code_that_comes_in_goes_out_as_itself(code: int) -> None:
    assert errors.CODES[errors.KINDS[code]] == code


def test_an_unknown_code_is_a_failure_that_is_not_retried() -> None:
    said = ErrorPayload(error_code=5555, error_message="odd", error_context={})
    assert fault_in(said).kind is Kind.WORK_FAILED
    assert not TABLE[Kind.WORK_FAILED].retryable


@pytest.mark.parametrize("kind", list(Kind))
def test_a_bare_message_is_completed_with_what_to_do_next(kind: Kind) -> None:
    assert sentence(Fault(kind=kind, message="no such task")) == f"No such task. {TABLE[kind].next}"


@pytest.mark.parametrize("words", ["boom", "ENOENT: no such file; giving up", " indented\n"])
def test_a_failure_carries_the_agents_own_message(words: str) -> None:
    assert failure_sentence(Fault(kind=Kind.WORK_FAILED, message=words)) == words
    assert failure_sentence(Fault(kind=Kind.CONFLICT, message=words)) == sentence(
        Fault(kind=Kind.CONFLICT, message=words)
    )


def test_a_sentence_that_begins_with_an_id_leaves_it_as_it_is() -> None:
    fault = Fault(kind=Kind.UNAVAILABLE, message="mux-1's stream ended", facts={"agent_id": "mux-1"})
    assert sentence(fault).startswith("mux-1's stream ended. ")
    fault = new_fault(Kind.TIMEOUT, "data-agent did not answer", next="try again")
    assert sentence(fault) == "data-agent did not answer; try again."


def test_only_chiffon_agents_get_hints() -> None:
    fault = Fault(kind=Kind.TIMEOUT, message="not done by its deadline")
    assert "hints.max_duration_seconds" in chiffon_error(fault, Instant(0)).error_message
    assert error_out(fault).message == "Not done by its deadline. Try again, or allow more time."


REPORT = {
    "error_id": "e-1", "agent_id": "bob", "error_type": "RATE_LIMIT", "severity": "low", "message": "slower",
    "context": {}, "recovery_attempts": [], "suggested_actions": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("agentmsg", "a2acp"),
    [
        ("TIMEOUT", "TIMEOUT"),
        ("RATE_LIMIT", "RATE_LIMIT_EXCEEDED"),
        ("INTERNAL_ERROR", "INTERNAL_ERROR"),
        ("VALIDATION_ERROR", "SCHEMA_MISMATCH"),
        ("AUTHENTICATION_ERROR", "AUTH_FAILED"),
    ],
)
def test_two_protocols_with_a_code_for_the_same_failure_translate_it(agentmsg: str, a2acp: str) -> None:
    said = REPORT | {"error_type": agentmsg}
    fault = agentmsg_errors.fault_in(msgspec.convert(said, ErrorReport), said)
    assert a2acp_errors.refusal_of(fault).code == a2acp
    body = ErrorBody(code=a2acp_errors.Code(a2acp), message="slower", details={}, retry_after=1)
    told = agentmsg_errors.report_out(
        a2acp_errors.fault_in(body, personal=False, agreed=False), error_id="e-2", agent_id="cid"
    )
    assert told["error_type"] == agentmsg
    if agentmsg == "TIMEOUT":
        forge = error_out(a2acp_errors.fault_in(body, personal=False, agreed=False))
        assert (forge.code, forge.details["retryable"]) == ("TIMEOUT", True)


@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (Fault(kind=Kind.WORK_FAILED, message="not now", retryable=True), True),
        (Fault(kind=Kind.WORK_FAILED, message="no"), False),
        (Fault(kind=Kind.TIMEOUT, message="late"), True),
        (Fault(kind=Kind.RESOURCES, message="too much", field="constraints.budget_usd"), False),
        (Fault(kind=Kind.RESOURCES, message="nothing left", facts={"whose": "ada", "remaining": 0}), False),
    ],
)
def test_coven_and_forge_callers_learn_alike_whether_to_retry(fault: Fault, again: bool) -> None:
    assert (coven_fault(fault).retryable, error_out(fault).details["retryable"]) == (again, again)


FACTS = (
    "agent", "agent_id", "asked", "attempted_retries", "available", "code", "dependency", "exit_code", "last_attempt",
    "last_heartbeat", "limit_name", "missing", "own", "pii", "reason", "remaining", "report", "required", "resource",
    "retry_after", "retryable", "stack", "stage", "supported_types", "supported_versions", "task_id", "token_status",
    "work_type", "work_type_requested",
)  # fmt: skip
ODD = (
    None, True, -1, 2**62, -(2**63), 2**63 - 1, 0.5, 1e300, "", "x", [], ["x", 5, None], [[]], {}, {"x": {"y": []}},
    {"error_type": []}, {"error_type": "TIMEOUT", "context": 5},  # not an agentmsg report
    "2026-03-01T12:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
)  # fmt: skip
"""An agent's own words about an error become facts: anything that JSON can say may stand in any of them."""


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_fault_with_any_facts_can_be_encoded_in_every_protocol(odd: object) -> None:
    """A caller that polls was answered 500, again and again, about a time that its agent had made up."""
    for kind in Kind:
        fault = Fault(kind=kind, message="it happened", facts=dict.fromkeys(FACTS, odd))
        said = chiffon_error(fault, Instant(0))
        assert isinstance(said.error_context.get("available", 0), int)
        for words in (
            said,
            error_out(fault),
            coven_fault(fault),
            a2acp_errors.refusal_of(fault),
            agentmsg_errors.report_out(fault, error_id="e-1", agent_id="cid"),
        ):
            msgspec.json.encode(words)


def test_every_code_of_a_protocol_means_something_to_the_hub_and_to_the_sdk() -> None:
    assert set(errors.TABLE) | {5900, 5901, 5902} == set(errors.KINDS)
    assert errors.KINDS[5004] is Kind.UNAUTHENTICATED
    assert set(agentmsg_errors.KINDS) == set(agentmsg_errors.TABLE)
    assert set(a2acp_errors.KINDS) == set(a2acp_errors.TABLE)


@pytest.mark.parametrize("code", a2acp_errors.TABLE)
def test_the_sdk_raises_what_the_hub_calls_a_failure_by_a_code_of_a2acp(code: a2acp_errors.Code) -> None:
    assert a2acp_errors.NAMES.get(code, a2acp_errors.KINDS[code][1]) == FAILURES[code].KIND


@pytest.mark.requirement("chiffon-D15")
@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.CANCELLED, Kind.DEPENDENCY, Kind.WORK_FAILED}))
def test_an_agents_failure_keeps_its_message_in_every_protocol_and_gets_no_advice(kind: Kind) -> None:
    """Advice to the hub's own callers ("Send the agent's token …") would be advice to the wrong one."""
    words = "no access to the vault"
    fault = Fault(kind=kind, message=words, reported=True)
    said = chiffon_error(fault, Instant(0))
    assert said.error_message == words
    assert set(said.error_context) == set(errors.TABLE[said.error_code].context)
    assert not {"invalid", "valid", "requests"} & {str(value) for value in said.error_context.values()}
    assert error_out(fault).message == words
    assert a2acp_errors.refusal_of(fault).message == words
    report = agentmsg_errors.report_out(fault, error_id="e-1", agent_id="bob")
    assert (report["message"], report["suggested_actions"]) == (words, [])
    assert failure_sentence(fault) == words
