"""Any message of ours comes back equal, and no bytes whatever make an end raise or believe nonsense."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.agentmsg.samples import PAYLOADS, START, decode, tree

from dragoman.protocols.agentmsg import codec, types
from dragoman.protocols.agentmsg.connection import Acknowledged, Connection, Invalid, Received, Repeated
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.records import (
    ErrorContext,
    ErrorReport,
    ErrorType,
    Priority,
    Record,
    RecoveryAttempt,
    TaskConstraints,
    TaskContext,
    TaskEvent,
)
from dragoman.wire import Role

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
NAMES = TEXT.filter(bool)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-11))])
TIMES = st.builds(
    lambda zone, microseconds: (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).astimezone(
        zone
    ),
    ZONES,
    st.integers(0, 4 * 10**15),
)
NUMBERS = st.integers(0, 2**53) | st.floats(0, 1e9)


def some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=2).map(tuple)


EVENTS = st.builds(TaskEvent, timestamp=TIMES, event_type=NAMES, details=OBJECTS, agent_id=st.none() | NAMES)
CONTEXTS = st.builds(
    TaskContext,
    task_id=st.just("t"),
    task_type=NAMES,
    priority=st.sampled_from(Priority),
    metadata=OBJECTS,
    dependencies=some(NAMES),
    history=some(EVENTS),
)
CONSTRAINTS = st.builds(
    TaskConstraints,
    required_capabilities=some(NAMES),
    max_tokens=st.none() | NUMBERS,
    deadline=st.none() | TIMES,
    budget_usd=st.none() | NUMBERS,
)
REPORTS = st.builds(
    ErrorReport,
    error_id=NAMES,
    agent_id=st.just("ada"),
    error_type=st.sampled_from(ErrorType),
    severity=st.sampled_from(["low", "medium", "high", "critical"]),
    message=TEXT,
    context=st.builds(ErrorContext, input_data=JSON),
    recovery_attempts=some(
        st.builds(
            RecoveryAttempt,
            attempt_number=st.integers(0, 9),
            timestamp=TIMES,
            strategy=TEXT,
            outcome=st.sampled_from(["success", "failure", "partial"]),
            details=TEXT,
        )
    ),
    suggested_actions=some(TEXT),
    task_id=st.just("t"),
)
BODIES: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        types.TaskHandoffRequest,
        task_id=st.just("t"),
        from_agent=st.just("ada"),
        to_agent=NAMES,
        reason=st.sampled_from(types.HandoffReason),
        context=CONTEXTS,
        constraints=CONSTRAINTS,
        deadline=TIMES,
    ),
    st.builds(
        types.TaskAssignment,
        task=st.builds(
            types.Assignment,
            task_id=st.just("t"),
            task_type=NAMES,
            context=CONTEXTS,
            constraints=CONSTRAINTS,
            input=JSON,
        ),
    ),
    st.builds(types.TaskComplete, task_id=NAMES, result=JSON),
    st.builds(types.TaskFailed, task_id=st.just("t"), error=REPORTS),
    REPORTS,
    st.builds(types.TaskUpdate, task_id=NAMES, progress=st.integers(0, 100) | st.floats(0, 100), message=TEXT),
    st.builds(
        types.StateUpdate,
        operation=st.sampled_from(["CREATE", "UPDATE", "DELETE"]),
        entity_type=st.sampled_from(["TASK", "AGENT", "RESOURCE", "POLICY"]),
        entity_id=NAMES,
        changes=OBJECTS,
        version=st.integers(0, 2**53),
        timestamp=TIMES,
    ),
    st.builds(types.Ack, message_ids=st.lists(NAMES, min_size=1, max_size=3).map(tuple)),
)
MESSAGES = st.builds(
    codec.message,
    BODIES,
    st.builds(types.Stamp, st.uuids(version=4).map(str), TIMES),
    sender=st.just("ada"),
    to=st.just("hub"),
    priority=st.none() | st.sampled_from(Priority),
    correlation_id=st.none() | st.uuids().map(str),
    ttl_ms=st.none() | NUMBERS,
    max_retries=st.integers(0, 10),
)


@given(MESSAGES)
def test_every_message_comes_back_equal(message: types.Message) -> None:
    data = codec.encode(message)
    assert decode(data) == message
    assert codec.encode(decode(data)) == data
    assert decode(codec.reissue(data, {}, {"retry_count": message.metadata.retry_count})) == message


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_without_a_crash(data: bytes) -> None:
    for role in Role:
        [event] = Connection(role, "ada").receive(data, START)
        assert isinstance(event, Invalid)


@given(st.data())
def test_a_message_with_anything_in_any_place_is_read_or_refused(data: st.DataObject) -> None:
    """Replace or remove any value of any message, at any depth."""
    said = json.loads(json.dumps(tree(data.draw(st.sampled_from(sorted(PAYLOADS))))))
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places(said)))
        if data.draw(st.booleans()) and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = data.draw(JSON | st.sampled_from(["hub", "ada", "*", "0001-01-01T00:00:00+14:00"]))
    raw = json.dumps(said).encode()
    for role in Role:
        connection = Connection(role, "ada")
        [event] = connection.receive(raw, START)
        if isinstance(event, Invalid):
            report = connection.refuse(event, types.Stamp("11111111-1111-4111-8111-111111111111", START))
            assert report is None or decode(report).type is types.MessageType.ERROR_REPORT
        elif isinstance(event, Received):
            assert decode(codec.encode(event.message)) == event.message


def places(value: Any) -> list[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))] or [({"": 0}, "")]


@given(st.lists(st.tuples(MESSAGES, st.integers(1, 4)), max_size=6), st.randoms(use_true_random=False))
def test_however_often_and_in_whatever_order_a_message_is_received_once(
    sent: list[tuple[types.Message, int]], chance: Any
) -> None:
    hub = Connection(Role.HUB, "ada")
    frames = [codec.encode(message) for message, times in sent for _ in range(times)]
    chance.shuffle(frames)
    received: list[str] = []
    for frame in frames:
        [event] = hub.receive(frame)
        assert isinstance(event, Received | Repeated | Acknowledged)
        if isinstance(event, Received):
            received.append(event.message.id)
            if event.wants_ack and chance.random() < 0.5:
                hub.acknowledge([event.message], types.Stamp("11111111-1111-4111-8111-111111111111", START))
    acks = {message.id for message, _ in sent if message.type is types.MessageType.ACK}
    assert sorted(received) == sorted({message.id for message, _ in sent} - acks)


@pytest.mark.parametrize("data", [b'{"a":' * 65 + b"1" + b"}" * 65, b"[" * 100_000, b'"' + b"x" * 9_000_000 + b'"'])
def test_hostile_bulk_is_refused(data: bytes) -> None:
    with pytest.raises(AgentmsgError):
        decode(data)
