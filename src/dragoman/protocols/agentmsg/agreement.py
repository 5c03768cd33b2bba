"""What a message says twice must agree (D13), and what it says about its sender must be true (all-D1).

    payload                copy of `from`    copy of `to`    copy of its own task
    ---------------------  ----------------  --------------  ---------------------
    TaskHandoffRequest     from_agent        to_agent        context.task_id
    TaskHandoffResponse    agent_id
    HelpRequest            requester_id
    HelpResponse           responder_id
    StatusUpdate           agent_id
    Heartbeat              agent_id
    ErrorReport            agent_id
    Register               agent_id
    Welcome                                  agent_id
    TaskAssignment                                           task.context.task_id
    TaskFailed             error.agent_id                    error.task_id

Two exceptions. The hub speaks for everybody: in what comes `from: "hub"` the copies of the sender are not compared,
since it tells of agents who cannot tell themselves. And an agent that hands a task to the hub may leave the choice to
it: `to_agent` is then `*`, or names the one it wishes for.

How often a message is sent is said twice where it has a retry configuration of its own: attempts are retries and the
first one (D7).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Record
from dragoman.protocols.agentmsg.types import (
    HUB,
    Heartbeat,
    HelpRequest,
    HelpResponse,
    Message,
    MessageMetadata,
    Register,
    StatusUpdate,
    TaskAssignment,
    TaskFailed,
    TaskHandoffRequest,
    TaskHandoffResponse,
    TaskUpdate,
    Welcome,
)

SENDER: dict[type[Record], str] = {
    TaskHandoffRequest: "from_agent",
    TaskHandoffResponse: "agent_id",
    HelpRequest: "requester_id",
    HelpResponse: "responder_id",
    StatusUpdate: "agent_id",
    Heartbeat: "agent_id",
    ErrorReport: "agent_id",
    Register: "agent_id",
    TaskFailed: "error.agent_id",
}
RECIPIENT: dict[type[Record], str] = {TaskHandoffRequest: "to_agent", Welcome: "agent_id"}
TASK: dict[type[Record], tuple[str, str]] = {
    TaskHandoffRequest: ("task_id", "context.task_id"),
    TaskAssignment: ("task.task_id", "task.context.task_id"),
    TaskFailed: ("task_id", "error.task_id"),
}


class Contradiction(NamedTuple):
    field: str
    what: str
    error_type: ErrorType = ErrorType.VALIDATION_ERROR


def contradictions(message: Message) -> Iterator[Contradiction]:
    """Everything in a message that does not agree with the rest of it."""
    payload, kind = message.payload, type(message.payload)
    if message.sender != HUB and kind in SENDER:
        yield from _compare(payload, SENDER[kind], message.sender, "from", ErrorType.AUTHENTICATION_ERROR)
    if message.to != HUB and kind in RECIPIENT:
        yield from _compare(payload, RECIPIENT[kind], message.to, "to", ErrorType.VALIDATION_ERROR)
    if kind in TASK:
        own, copy = TASK[kind]
        expected = attrgetter(own)(payload)
        yield from _compare(payload, copy, expected, f"payload.{own}", ErrorType.VALIDATION_ERROR)
    if kind is TaskHandoffResponse:
        yield from _acceptance(payload)
    if kind is TaskUpdate and not payload.message and (payload.progress, payload.output, payload.status) == (None,) * 3:
        yield Contradiction("payload", "says nothing; give progress, message, output or status")
    if message.metadata.retry_config is not None:
        yield from _attempts(message.metadata)


def _acceptance(payload: TaskHandoffResponse) -> Iterator[Contradiction]:
    """Who accepts a task says when it will be done, and on which terms (D8)."""
    for name in ("estimated_completion", "requirements", "constraints") if payload.accepted else ():
        if getattr(payload, name) is None:
            yield Contradiction(f"payload.{name}", "missing required field of an accepted handoff")


def _attempts(metadata: MessageMetadata) -> Iterator[Contradiction]:
    said = None if metadata.retry_config is None else metadata.retry_config.max_attempts
    if said is not None and said != metadata.max_retries + 1:
        what = (
            f"{said} contradicts metadata.max_retries, which is {metadata.max_retries}: attempts are retries and the "
            "first one; let them agree, or leave max_attempts out"
        )
        yield Contradiction("metadata.retry_config.max_attempts", what)


def _compare(payload: Any, path: str, expected: str, place: str, error_type: ErrorType) -> Iterator[Contradiction]:
    value = payload
    for name in path.split("."):
        value = getattr(value, name)
        if value is None:
            return
    if value != expected:
        yield Contradiction(f"payload.{path}", f"{value!r} contradicts {place}, which is {expected!r}", error_type)
