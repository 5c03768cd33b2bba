"""The hub's own answers; statuses and ids in agentmsg."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.agentmsg.samples import ADA, NOW, TASK, message

from dragoman.core.ids import AgentId
from dragoman.core.model.state import Change, Entity, Operation, Registry
from dragoman.core.model.tasks import Status, Task, Waiting
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.agentmsg import codec, errors
from dragoman.protocols.agentmsg.connection import Acknowledged, Connection, Received
from dragoman.protocols.agentmsg.records import TaskStatus
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
from dragoman.server.agentmsg.inbound.message import outlived
from dragoman.server.agentmsg.views import UpdateStatus, update_status
from dragoman.wire import Role
from dragoman.wire.errors import Stage

V4 = "11111111-1111-4111-8111-111111111111"
STATUSES = {400, 401, 403, 404, 409, 413, 422, 429, 503}


def sent(kind: str, payload: dict[str, Any], about: str) -> bytes:
    return frame(MessageType(kind), payload, to="ada", now=NOW, message_id=V4, about=about)


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
