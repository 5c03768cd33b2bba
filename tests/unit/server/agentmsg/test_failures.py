"""Reports and faults, both ways; statuses; what the hub itself answers."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.agentmsg import samples
from tests.unit.server.agentmsg.samples import ADA, NOW, TASK, message

from dragoman.core.ids import AgentId
from dragoman.core.model.state import Change, Entity, Operation, Registry
from dragoman.core.model.tasks import Status, Task, Waiting
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.agentmsg import codec, errors
from dragoman.protocols.agentmsg.connection import Acknowledged, Connection, Received
from dragoman.protocols.agentmsg.errors import AgentmsgError, fault_in, report_out
from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Level, TaskStatus
from dragoman.protocols.agentmsg.types import MessageType
from dragoman.server.agentmsg.answers import (
    acknowledgment,
    error_report,
    frame,
    state_answer,
    state_update,
    status_of,
    welcome,
)
from dragoman.server.agentmsg.ids import derived_v4, own_name, task_id
from dragoman.server.agentmsg.inbound import outlived
from dragoman.server.agentmsg.views import UpdateStatus, update_status
from dragoman.wire import Role
from dragoman.wire.errors import Stage

V4 = "11111111-1111-4111-8111-111111111111"
STATUSES = {400, 401, 403, 404, 409, 413, 422, 429, 503}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
facts = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name not in ("kind", "field", "retryable", "report")), values
)
faults = st.builds(
    Fault,
    kind=st.sampled_from(Kind),
    message=st.text(max_size=20),
    field=st.none() | st.sampled_from(["task_id", "to_agent", "payload.result", "from"]),
    retryable=st.booleans(),
    facts=facts,
)
attempts = st.fixed_dictionaries(
    {
        "attempt_number": st.integers(0, 99),
        "timestamp": st.just(samples.TIME),
        "strategy": st.text(max_size=8),
        "outcome": st.sampled_from(["success", "failure", "partial"]),
        "details": st.text(max_size=8),
    }
)
reports = st.fixed_dictionaries(
    {
        "error_id": st.text(min_size=1, max_size=8),
        "agent_id": st.just("ada"),
        "error_type": st.sampled_from([kind.value for kind in ErrorType]),
        "severity": st.sampled_from(get_args(Level)),
        "message": st.text(min_size=1, max_size=20),
        "context": st.fixed_dictionaries({}, optional={"input_data": values, "details": facts.filter(bool)}),
        "recovery_attempts": st.lists(attempts, max_size=3),
        "suggested_actions": st.lists(st.text(max_size=9), max_size=3),
    },
    optional={"stack_trace": st.text(max_size=9), "unknown": values},
)


def sent(kind: str, payload: dict[str, Any], about: str) -> bytes:
    return frame(MessageType(kind), payload, to="ada", now=NOW, message_id=V4, about=about)


def parsed(tree: dict[str, Any]) -> ErrorReport:
    return msgspec.convert(tree, ErrorReport)


# -- reports and faults ------------------------------------------------------------------------------------------


@given(faults)
def test_a_fault_of_the_hub_comes_back_as_itself(fault: Fault) -> None:
    told = report_out(fault, error_id="e")
    assert fault_in(parsed(told), told) == fault


@given(reports)
def test_a_report_of_an_agent_goes_out_as_it_came(said: dict[str, Any]) -> None:
    fault = fault_in(parsed(said), said)
    kept = msgspec.json.decode(msgspec.json.encode(fault), type=Fault)  # as a task's row keeps it
    assert report_out(kept, error_id="other") == said


@pytest.mark.requirement("AM-ERR-2")
@pytest.mark.parametrize("type", ErrorType)
@pytest.mark.parametrize("said", [None, True, False])
def test_what_a_report_calls_worth_another_try_is_tried_again(type: ErrorType, said: bool | None) -> None:
    details = {} if said is None else {"retryable": said}
    tree = {**samples.REPORT, "error_type": type.value, "context": {"details": details}}
    fault = fault_in(parsed(tree), tree)
    wanted = errors.TABLE[type].retry if said is None else said
    assert (fault.retryable, fault.kind in Rules().retried) == (wanted, wanted)
    assert report_out(fault, error_id="e") == {
        **tree,
        "context": {"details": {"retryable": said}} if _odd(type, said) else {},
    }


def _odd(type: ErrorType, said: bool | None) -> bool:
    return said is not None and errors.TABLE[type].retry is not said


def test_every_type_has_a_kind_and_every_kind_a_type() -> None:
    assert set(errors.KINDS) == set(ErrorType)
    assert set(errors.TYPES) == set(Kind)


def test_a_huge_report_stays_with_its_fault_in_short() -> None:
    tree = {
        **samples.REPORT,
        "stack_trace": "x" * 10**6,
        "context": {"input_data": "y" * 10**6},
        "recovery_attempts": [{**samples.ATTEMPT, "details": "z" * 1000}] * 100,
        "suggested_actions": ["w" * 10**4] * 100,
    }
    fault = fault_in(parsed(tree), tree)
    assert len(msgspec.json.encode(fault)) < 40 * 1024
    parsed(report_out(fault, error_id="e"))


def test_a_kind_in_the_details_counts_only_in_reports_of_the_hub() -> None:
    tree = {**samples.REPORT, "context": {"details": {"kind": "forbidden"}}}
    assert fault_in(parsed(tree), tree).kind is Kind.TIMEOUT


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_a_refusal_is_a_message_that_an_agent_understands(kind: Kind) -> None:
    fault = Fault(kind=kind, message="no such task", field="task_id", facts={"version": 4})
    (event,) = Connection(Role.AGENT, "ada").receive(sent("ERROR_REPORT", error_report(fault, error_id=V4), "m-1"))
    assert isinstance(event, Received)
    told = event.message.payload
    assert (told.error_type, told.message) == (errors.TYPES[kind], "no such task")
    assert told.context.details["version"] == 4
    assert told.context.details["field"] == "payload.task_id"
    assert told.suggested_actions[0].endswith(".")
    assert event.message.answers == "m-1"


def test_a_fault_that_says_what_to_do_is_the_suggestion() -> None:
    fault = Fault(kind=Kind.CONFLICT, message="already in use; choose a new one")
    assert report_out(fault, error_id="e")["suggested_actions"] == ["Choose a new one."]


@pytest.mark.parametrize("kind", Kind)
def test_every_fault_has_one_of_the_statuses(kind: Kind) -> None:
    assert status_of(Fault(kind=kind, message="")) in STATUSES


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(kind=Kind.INVALID, message="", facts={"stage": Stage.JSON}), 400),
        (Fault(kind=Kind.INVALID, message="", facts={"stage": Stage.MEANING}), 422),
        (Fault(kind=Kind.UNAVAILABLE, message="", field="to_agent"), 404),
        (Fault(kind=Kind.FORBIDDEN, message=""), 403),
        (outlived(codec.interpret(message("Heartbeat", ttl_ms=5))), 422),
    ],
)
def test_some_statuses_depend_on_more_than_the_kind(fault: Fault, status: int) -> None:
    assert status_of(fault) == status


@pytest.mark.parametrize(
    ("stage", "type", "kind"),
    [
        (Stage.SIZE, ErrorType.VALIDATION_ERROR, Kind.TOO_LARGE),
        (Stage.SHAPE, ErrorType.VALIDATION_ERROR, Kind.INVALID),
        (Stage.MEANING, ErrorType.AUTHENTICATION_ERROR, Kind.FORBIDDEN),
        (Stage.ORDER, ErrorType.VALIDATION_ERROR, Kind.MISMATCH),
        (Stage.ORDER, ErrorType.RESOURCE_EXHAUSTED, Kind.OVERLOADED),
    ],
)
def test_what_the_codec_refused(stage: Stage, type: ErrorType, kind: Kind) -> None:
    fault = AgentmsgError("no", stage=stage, field="f", error_type=type).fault
    assert (fault.kind, fault.field, fault.facts) == (kind, "f", {"stage": stage.value})


# -- names and statuses ------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=200))
def test_any_name_is_a_task_and_the_same_one_every_time(name: str) -> None:
    assert task_id(name) == task_id(name) == task_id(task_id(name))
    assert own_name(name) in (None, name)


def test_a_uuid_is_the_tasks_own_id() -> None:
    assert task_id(TASK.upper()) == TASK
    assert own_name(TASK.upper()) is None


@given(st.text(max_size=50))
def test_made_ids_look_like_version_4(seed: str) -> None:
    tree = message("Heartbeat") | {"id": derived_v4(seed)}
    assert codec.interpret(tree).id[14] == "4"


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("waiting", [None, *Waiting])
@pytest.mark.parametrize("owner", [None, "bob"])
def test_every_status_of_the_hub_has_a_name(
    task: Task, status: Status, waiting: Waiting | None, owner: AgentId | None
) -> None:
    word = update_status(msgspec.structs.replace(task, status=status, waiting=waiting, owner=owner))
    held = status is Status.WAITING and waiting in (Waiting.AGENT, Waiting.HELD)
    assert (word == "paused") == held
    assert word in get_args(UpdateStatus)
    if not held:
        assert word in get_args(TaskStatus)


# -- what the hub itself answers ---------------------------------------------------------------------------------


def taken(frame: bytes) -> Any:
    (event,) = Connection(Role.AGENT, "ada").receive(frame)
    return event


def test_one_ack_for_many_and_one_with_a_version() -> None:
    many = taken(sent("ACK", acknowledgment(["a", "b"]), "a"))
    assert isinstance(many, Acknowledged)
    assert many.message_ids == ("a", "b")
    one = taken(sent("ACK", acknowledgment(["a"], 7), "a"))
    assert (one.message_ids, one.message.payload.version) == (("a",), 7)


def test_a_welcome() -> None:
    event = taken(sent("WELCOME", welcome(ADA, 2), "m-1"))
    assert (event.message.payload.agent_id, event.message.payload.heartbeat_interval_ms) == ("ada", 2000)


def test_shared_state_as_an_answer_and_as_a_change() -> None:
    entity = Entity(
        registry=Registry.RESOURCE,
        name="ada:tokens",
        version=2,
        value={"limit": 5},
        created_at=NOW,
        updated_at=NOW,
        created_by=ADA.id,
        updated_by=ADA.id,
    )
    told = taken(sent("STATE_QUERY", state_answer([entity], NOW, 9), "q"))
    (shown,) = told.message.payload.entities
    assert (shown.entity_type, shown.entity_id, shown.version, shown.value) == (
        "RESOURCE",
        "ada:tokens",
        2,
        {"limit": 5},
    )
    change = Change(
        operation=Operation.UPDATE, registry=Registry.TASK, name="t-1", version=3, changes={"a": None}, by=ADA.id
    )
    update = taken(state_update(9, change, NOW, to="ada", about="q")).message
    assert (update.payload.cursor, update.payload.version, update.payload.changes) == (9, 3, {"a": None})
