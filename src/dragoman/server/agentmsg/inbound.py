"""A message of an agentmsg agent becomes commands of the hub.

    message                               command
    ------------------------------------  ------------------------------------------------------------------------
    TASK_ASSIGNMENT                       Submit, to the agent it names, or to whoever can
    TASK_UPDATE by who does the task      ReportProgress; `completed` Finish; `failed`, `cancelled` ReportFault
    TASK_UPDATE by somebody else          `cancelled` Cancel; else, to another agent, Tell
    TASK_COMPLETE, TASK_FAILED            Finish, ReportFault
    TASK_HANDOFF: request, response       HandOver, AnswerHandover
    HELP_REQUEST, HELP_RESPONSE           AskHelp (AskPerson where it says `ask: "person"`), GiveHelp
    STATUS_UPDATE, HEARTBEAT              ReportStatus, Beat; and Tell, where they are for another agent
    ERROR_REPORT to the hub               ReportError
    ERROR_REPORT to another agent         Tell; and before it ReportError, where it is about a task of the sender's
    STATE_UPDATE                          ChangeState
    STATE_QUERY                           none: it only reads
    ACK, REGISTER                         Acknowledge, RegisterAgent

The codec has checked shape and meaning; here the message meets what the hub knows of its sender. `tree` is the JSON
object as it came, `data` its bytes: what is kept and carried on must not depend on which fields we happen to know.

Agents also write to each other about tasks that the hub has never heard of. So a report that turns out to be about no
task of its sender's is carried to whomever it is addressed (`otherwise`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.commands import (
    Acknowledge,
    Beat,
    ChangeState,
    Command,
    RegisterAgent,
    ReportError,
    ReportStatus,
    Tell,
)
from dragoman.core.ids import DeliveryId, Instant, TaskId, instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.state import Operation, Registry
from dragoman.core.tasks.assistance import SOMEBODY_ELSES
from dragoman.messages.faults import Fault, Kind, Refused, owned_by, refuse
from dragoman.protocols.agentmsg import codec, routing
from dragoman.protocols.agentmsg.records import ErrorReport, Record
from dragoman.protocols.agentmsg.types import (
    HUB,
    Ack,
    Heartbeat,
    HelpRequest,
    HelpResponse,
    Message,
    MessageType,
    Register,
    StateQuery,
    StateUpdate,
    StatusUpdate,
    TaskAssignment,
    TaskComplete,
    TaskFailed,
    TaskHandoffRequest,
    TaskHandoffResponse,
    TaskUpdate,
)
from dragoman.server.agentmsg import conversation, reports
from dragoman.server.agentmsg.exchange import Said, builtin
from dragoman.server.agentmsg.failures import fault_in, moment, outlived, severity_of
from dragoman.server.agentmsg.names import PROTOCOL, delivery_named, name_to_keep, somebody, task_id

Holds = Callable[[TaskId], bool]
WITH_THE_HUB = frozenset({MessageType.REGISTER, MessageType.STATE_UPDATE, MessageType.STATE_QUERY})
"""What is only ever said to the hub itself."""
CARRIED = frozenset(
    {MessageType.TASK_UPDATE, MessageType.TASK_COMPLETE, MessageType.TASK_FAILED, MessageType.HELP_RESPONSE}
)
"""What is a direct message where it is no report. An answer to a handoff is not among them: one that the hub does not
know is over, and a late yes would make its reader believe that the task is gone."""


def commands_of(
    agent: Agent,
    message: Message,
    tree: dict[str, Any],
    data: bytes,
    *,
    traceparent: str | None = None,
    now: Instant,
    holds: Holds | None = None,
    content: bytes | None = None,
) -> tuple[Command, ...]:
    """What `agent` asks by this message, to be done in this order; raises `Refused`.

    `holds` says whether a task is in this agent's hands now: an update means something else from whoever does a task
    than from others. Without it, the sender of an update counts as who does the task, unless it cancels it. `content`
    is the message's fingerprint, where somebody has it already.
    """
    if message.sender != agent.id:
        what = owned_by(agent.id, message.sender)
        raise refuse(Kind.FORBIDDEN, what, field="from", agent_id=agent.id)
    if message.metadata.ttl_ms is not None and routing.is_expired(message, moment(now)):
        raise Refused(outlived(message.type.value, message.id, message.metadata.ttl_ms))
    said = Said(agent, message, tree, data, traceparent, now, content)
    kind = type(message.payload)
    if kind is TaskUpdate:  # the most frequent one
        return (_update(said, message.payload, holds),)
    if kind is ErrorReport:
        return _error(said, message.payload, holds)
    if message.to != HUB and message.type in WITH_THE_HUB:
        raise refuse(Kind.INVALID, f"{message.type.value} is only for the hub; send it to {HUB!r}", field="to")
    found = _MEANING.get(kind)
    if found is None:
        raise refuse(Kind.INVALID, f"an agent does not say this; {message.type.value} is the hub's", field="type")
    return found(said, message.payload)


def otherwise(agent: Agent, message: Message, tree: dict[str, Any], data: bytes, fault: Fault) -> Tell | None:
    """What a message means after all, whose first meaning was refused with `fault`: a direct message, or nothing.

    "No such task, or not yours" to a message for another agent says only that the hub has no part in it; an answer to
    what somebody else was asked is not for its reader, either.
    """
    to = somebody(message.to)
    if fault.kind is not Kind.NOT_FOUND or to is None or message.type not in CARRIED:
        return None
    if fault.facts.get("reason") == SOMEBODY_ELSES:
        return None
    return Said(agent, message, tree, data, None, Instant(0)).tell(to, reports=True)


def acknowledged(message: Message, known: Mapping[str, DeliveryId] | None = None) -> tuple[DeliveryId, ...]:
    """The deliveries that an ACK settles. `known` are the direct messages that its sender was given, by their message
    ids; messages of the hub's own need no memory, and a delivery may be named itself."""
    ack: Ack = message.payload
    metadata = message.metadata
    named = [codec.lowered(id) for id in (metadata.correlation_id, *ack.message_ids, metadata.delivery_id) if id]
    found = known or {}
    return tuple(dict.fromkeys(found[id] if id in found else delivery_named(id) for id in named))


def _update(said: Said, update: TaskUpdate, holds: Holds | None) -> Command:
    id = task_id(update.task_id)
    mine = None if holds is None else holds(id)
    if not mine:
        if update.status == "cancelled":
            return reports.cancel(said, update, id)
        to = None if mine is None else somebody(said.message.to)
        if to is not None:
            progress = update.progress is not None or update.output is not None
            return said.tell(to, reports=update.status is not None, progress=progress)
    return reports.update(said, update, id)


# -- what an agent says of itself --------------------------------------------------------------------------------


def _status(said: Said, update: StatusUpdate) -> tuple[Command, ...]:
    payload = said.payload
    command = ReportStatus(
        principal=said.agent.id,
        protocol=PROTOCOL,
        status={**payload["status"], **builtin(update.status)},
        current_tasks=update.current_tasks,
        usage={**payload["resource_usage"], **builtin(update.resource_usage)},
        health={**payload["health_metrics"], **builtin(update.health_metrics)},
        next_available=None if update.next_available is None else instant(update.next_available),
    )
    return _and_told(said, command)


def _beat(said: Said, beat: Heartbeat) -> tuple[Command, ...]:
    state = None if beat.state is None else beat.state.value
    return _and_told(said, Beat(principal=said.agent.id, protocol=PROTOCOL, state=state))


def _error(said: Said, report: ErrorReport, holds: Holds | None) -> tuple[Command, ...]:
    to = somebody(said.message.to)
    about = None if report.task_id is None else task_id(report.task_id)
    if to is not None and (about is None or (holds is not None and not holds(about))):
        return (said.tell(to),)  # of no task that the hub gave to the sender: a matter between the two
    command = ReportError(
        principal=said.agent.id,
        protocol=PROTOCOL,
        fault=fault_in(report, said.payload),
        severity=severity_of(report),
        report=said.payload,
        message_id=said.message.id,
        task_id=about,
    )
    return (command,) if to is None else (command, said.tell(to))


def _and_told(said: Said, command: Command) -> tuple[Command, ...]:
    to = somebody(said.message.to)
    return (command,) if to is None else (command, said.tell(to))


def _register(said: Said, register: Register) -> tuple[Command, ...]:
    """An agent may fill in what is open, never change who it is (all-D1)."""
    agent = said.agent
    return (
        RegisterAgent(
            principal=agent.id,
            protocol=PROTOCOL,
            name=register.name,
            version=register.version,
            work_types=register.task_types if register.task_types is not None else agent.work_types,
            capabilities=register.capabilities,
            max_concurrent=register.max_concurrent or agent.max_concurrent,
            callback_url=agent.callback_url,
            details=agent.details,
        ),
    )


# -- the link, and what is shared --------------------------------------------------------------------------------


def _ack(said: Said, ack: Ack) -> tuple[Command, ...]:
    deliveries = acknowledged(said.message)
    return (Acknowledge(principal=said.agent.id, protocol=PROTOCOL, deliveries=deliveries),)


def _change(said: Said, update: StateUpdate) -> tuple[Command, ...]:
    return (change_of(said.agent.id, update, message_id=said.message.id, digest=said.digest),)


def change_of(principal: Any, update: StateUpdate, *, message_id: str | None = None, digest: str = "") -> ChangeState:
    """A StateUpdate of whoever may send one: an agent, or a person with the admin token; by a message, or bare."""
    name = update.entity_id
    changes = update.changes
    task = None
    if update.entity_type == "TASK":  # it may be a task of the hub, which knows it by its own id
        task = task_id(name)
        name = name_to_keep(name) or task
        if update.operation == "CREATE":
            if changes.get("id") not in (None, update.entity_id):  # else it would stand where another one does
                raise refuse(Kind.INVALID, "the id of a task is its entity_id", field="changes.id")
            changes = {**changes, "id": update.entity_id}
    return ChangeState(
        principal=principal,
        protocol=PROTOCOL,
        operation=Operation(update.operation),
        entity=Registry(update.entity_type),
        entity_id=name,
        changes=changes,
        version=update.version,
        task=task,
        message_id=message_id,
        digest=digest,
    )


def _query(said: Said, query: StateQuery) -> tuple[Command, ...]:
    return ()


_MEANING: Mapping[type[Record], Callable[[Said, Any], tuple[Command, ...]]] = {
    TaskAssignment: reports.submit,
    TaskComplete: reports.complete,
    TaskFailed: reports.failed,
    TaskHandoffRequest: conversation.hand_over,
    TaskHandoffResponse: conversation.answer_handover,
    HelpRequest: conversation.ask_help,
    HelpResponse: conversation.give_help,
    StatusUpdate: _status,
    Heartbeat: _beat,
    StateUpdate: _change,
    StateQuery: _query,
    Ack: _ack,
    Register: _register,
}
