"""The values have the document's fields, required and optional as it says, and its enums to the letter."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from tests.conformance.agentmsg.samples import CONSTRAINTS, CONTEXT, PAYLOADS, REPORT, STATUS, TIME, decode, tree

from dragoman.core.model.policy import default_value
from dragoman.core.rules import Rules
from dragoman.protocols.agentmsg import codec, records, types
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.types import MessageType
from dragoman.wire import Stage

CLASSES: dict[str, type[msgspec.Struct]] = {
    "AgentMessage": types.Message,
    "HelpRequest.context": types.HelpContext,
    "ErrorReport.context": records.ErrorContext,
    "PolicyState.risk_thresholds": records.RiskThresholds,
    "PolicyState.budget_limits": records.BudgetLimits,
    "PolicyState.circuit_breaker_config": records.BreakerConfig,
    "RetryConfig": records.RetryConfig,
}
#: What we accept beyond the interface, or do not insist on.
EXTRA = {
    "MessageMetadata": {"traceparent", "delivery_id", "retry_config"},
    "PolicyState": {"retry_config"},
    "TaskHandoffRequest": {"error"},
    "StateUpdate": {"cursor"},
    "ErrorReport.context": {"details"},
}
LENIENT = {
    "TaskHandoffResponse": {"estimated_completion", "requirements", "constraints"},
    "RetryConfig": {"max_attempts", "base_delay_ms", "max_delay_ms", "backoff_multiplier", "jitter"},
}

ADDED = {"STATE_UPDATE", "STATE_QUERY", "ACK", "REGISTER", "WELCOME"}
"""The types of messages that the document does not have."""


def found(name: str) -> Any:
    return CLASSES.get(name) or getattr(types, name, None) or getattr(records, name)


@pytest.mark.requirement("AM-MSG-1", "AM-HND-1", "AM-HND-3", "AM-HLP-1", "AM-HLP-4", "AM-STA-1", "AM-ERR-1")
@pytest.mark.requirement("AM-CTX-1", "AM-CTX-2", "AM-CTX-3", "AM-SST-1", "AM-UPD-1", "AM-RTY-1")
def test_every_interface_has_the_documents_fields(document: dict[str, Any]) -> None:
    assert len(document["interfaces"]) == 27
    for name, fields in document["interfaces"].items():
        ours = {field.encode_name: field.required for field in msgspec.structs.fields(found(name))}
        assert set(ours) - EXTRA.get(name, set()) == set(fields), name
        lenient = LENIENT.get(name, set())
        for field, said in fields.items():
            assert ours[field] == (said["required"] and field not in lenient), f"{name}.{field}"


@pytest.mark.requirement("AM-HND-2", "AM-HLP-2", "AM-HLP-5", "AM-STA-3", "AM-ERR-2", "AM-TYP-1")
def test_every_enum_has_the_documents_members(document: dict[str, Any]) -> None:
    assert len(document["enums"]) == 6
    for name, members in document["enums"].items():
        ours = [member.value for member in found(name)]
        assert [member for member in ours if name != "MessageType" or member not in ADDED] == members
    assert set(MessageType) - ADDED == set(document["enums"]["MessageType"])


@pytest.mark.requirement("AM-MSG-5", "agentmsg-D2", "agentmsg-D1")
@pytest.mark.parametrize("name", PAYLOADS)
def test_every_payload_is_read_whole_and_written_back_equal(name: str) -> None:
    said = tree(name)
    message = decode(json.dumps(said).encode())
    assert type(message.payload).__name__ == name
    assert json.loads(codec.encode(message)) == said
    assert decode(codec.encode(message)) == message


@pytest.mark.requirement("AM-MSG-1", "AM-MTA-1")
@pytest.mark.parametrize("field", ["id", "timestamp", "from", "to", "type", "payload", "metadata"])
def test_a_missing_field_is_named(field: str) -> None:
    said = tree()
    del said[field]
    error = refused(said)
    assert (error.stage, error.field, error.what) == (Stage.SHAPE, field, "missing required field")
    assert error.about == (None if field == "id" else tree()["id"])


@pytest.mark.requirement("AM-MTA-1")
@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", "urgent"), ("priority", None), ("retry_count", -1), ("max_retries", 1.5), ("ttl_ms", -1)],
)
def test_bad_metadata_is_named(field: str, value: Any) -> None:
    error = refused(tree(**{field: value}))
    assert (error.stage, error.field) == (Stage.SHAPE, f"metadata.{field}")
    for config, place in (
        ({"max_attempts": 0}, ".max_attempts"),
        ({"max_attempts": 3}, ".max_attempts"),
        ({"base_delay_ms": -1}, ".base_delay_ms"),
        ({"max_delay_ms": "long"}, ".max_delay_ms"),
        ({"backoff_multiplier": 0}, ".backoff_multiplier"),
        ({"jitter": 1}, ".jitter"),
        ([], ""),
    ):
        said = tree("Heartbeat")
        said["metadata"]["retry_config"] = config
        assert refused(said).field == f"metadata.retry_config{place}"
    for required in ("priority", "retry_count", "max_retries"):
        said = tree()
        del said["metadata"][required]
        assert refused(said).field == f"metadata.{required}"


@pytest.mark.requirement("AM-MSG-5", "AM-HND-1", "AM-HLP-1", "AM-HLP-4", "AM-STA-1", "AM-ERR-1", "AM-UPD-1")
@pytest.mark.parametrize("name", PAYLOADS)
def test_every_required_field_of_a_payload_is_missed_by_name(name: str) -> None:
    for field in msgspec.structs.fields(found(name)):
        if not field.required or field.name in ("accepted", "entities"):
            continue
        said = copy.deepcopy(tree(name))
        del said["payload"][field.name]
        assert refused(said).field == f"payload.{field.name}"


@pytest.mark.requirement("AM-STA-2", "AM-STA-3")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("status.capability_level", 101),
        ("status.error_rate", 1.01),
        ("status.avg_response_time_ms", -1),
        ("status.state", "ASLEEP"),
        ("status.last_heartbeat", "yesterday"),
        ("resource_usage.cpu_usage", -0.1),
        ("resource_usage.memory_usage", 100.5),
        ("health_metrics.success_rate", 2),
        ("health_metrics.error_count", -1),
        ("current_tasks", "t-1"),
    ],
)
def test_a_status_outside_of_its_bounds_is_refused(place: str, value: Any) -> None:
    assert refused(changed("StatusUpdate", place, value)).field == f"payload.{place}"


@pytest.mark.requirement("AM-HND-2", "AM-HLP-2", "AM-HLP-3", "AM-HLP-5", "AM-ERR-2", "AM-ERR-3", "AM-CTX-3", "AM-UPD-1")
@pytest.mark.parametrize(
    ("name", "place", "value", "named"),
    [
        ("TaskHandoffRequest", "reason", "BOREDOM", "reason"),
        ("TaskHandoffRequest", "context", {**CONTEXT, "priority": "medium"}, "context.priority"),
        ("TaskHandoffRequest", "constraints", {**CONSTRAINTS, "budget_usd": -1}, "constraints.budget_usd"),
        ("HelpRequest", "help_type", "TEA", "help_type"),
        ("HelpRequest", "urgency", "normal", "urgency"),
        ("HelpResponse", "response_type", "SHRUG", "response_type"),
        ("HelpResponse", "resources", [{"type": "song", "url": "u", "title": "t"}], "resources[0].type"),
        ("ErrorReport", "error_type", "OOPS", "error_type"),
        ("ErrorReport", "severity", "normal", "severity"),
        ("TaskFailed", "error", {**REPORT, "severity": 3}, "error.severity"),
        ("StateUpdate", "operation", "UPSERT", "operation"),
        ("StateUpdate", "entity_type", "CAT", "entity_type"),
        ("StateUpdate", "version", -1, "version"),
        ("TaskUpdate", "progress", 101, "progress"),
        ("Heartbeat", "state", "busy", "state"),
    ],
)
def test_a_value_outside_of_its_list_is_refused(name: str, place: str, value: Any, named: str) -> None:
    assert refused(changed(name, place, value)).field == f"payload.{named}"


@pytest.mark.requirement("AM-SST-1", "AM-SST-2")
def test_shared_state_is_read_whole_and_written_back_equal() -> None:
    allocation = {
        "agent_id": "ada",
        "resource_type": "tokens",
        "allocated": 5,
        "consumed": 1,
        "limit": 9,
        "expires_at": TIME,
    }
    policy = {
        "version": "1",
        "enabled_chains": ["A", "B", "C"],
        "risk_thresholds": {"low": 0.25, "high": 0.6},
        "budget_limits": {"per_task": 1, "per_agent": 10, "total": 100.5},
        "circuit_breaker_config": {"error_threshold": 3, "timeout_ms": 30000, "reset_timeout_ms": 300000},
    }
    task = {
        "id": "t-1", "status": "failed", "assigned_agent": "ada", "created_at": TIME, "updated_at": TIME,
        "context": CONTEXT, "result": {"a": 1}, "error": REPORT,
    }  # fmt: skip
    said = {
        "task_registry": {"t-1": task},
        "agent_registry": {"ada": STATUS},
        "resource_allocations": {"ada:tokens": allocation},
        "policy_state": policy,
        "last_updated": TIME,
    }
    state = msgspec.convert(said, records.SharedState)
    assert json.loads(msgspec.json.encode(state)) == said
    assert state.resource_allocations["ada:tokens"].id == "ada:tokens"
    assert policy | {"budget_limits": {}} == default_value(Rules()) | {"budget_limits": {}}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**task, "status": "running"}, records.TaskState)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**allocation, "resource_type": "disk"}, records.ResourceAllocation)


@pytest.mark.requirement("AM-TYP-1")
@pytest.mark.parametrize("kind", ["task_assignment", "TASK_STOLEN", "", None, 1, [], {}])
def test_an_unknown_type_is_refused(kind: Any) -> None:
    error = refused({**tree(), "type": kind})
    assert (error.field, error.stage) == ("type", Stage.SHAPE)


def changed(name: str, place: str, value: Any) -> dict[str, Any]:
    said = copy.deepcopy(tree(name))
    inner = said["payload"]
    *path, last = place.split(".")
    for step in path:
        inner = inner[step]
    inner[last] = value
    return said


def refused(said: dict[str, Any]) -> AgentmsgError:
    with pytest.raises(AgentmsgError) as caught:
        decode(json.dumps(said).encode())
    return caught.value
