"""A message of an agentmsg agent becomes commands of the hub.

    message                               command
    ------------------------------------  ------------------------------------------------------------------------
    TASK_ASSIGNMENT                       Submit, to the agent it names, or to any that can do it
    TASK_UPDATE by the task's owner       ReportProgress; `completed` Finish; `failed`, `cancelled` ReportFault
    TASK_UPDATE by another agent          `cancelled` Cancel; else, to another agent, Tell
    TASK_COMPLETE, TASK_FAILED            Finish, ReportFault
    TASK_HANDOFF: request, response       HandOver, AnswerHandover
    HELP_REQUEST, HELP_RESPONSE           AskHelp (AskPerson with `ask: "person"`), GiveHelp
    STATUS_UPDATE, HEARTBEAT              ReportStatus, Beat; and Tell, where they are for another agent
    ERROR_REPORT to the hub               ReportError
    ERROR_REPORT to another agent         Tell; and before it ReportError, where it is about a task of the sender's
    STATE_UPDATE                          ChangeState
    STATE_QUERY                           none: it only reads
    ACK, REGISTER                         Acknowledge, RegisterAgent

The codec has checked shape and meaning; here the message meets what the hub knows of its sender. What the hub keeps and
forwards is the message's JSON and its bytes, with the fields that no struct has.

Agents also write to each other about tasks that the hub does not know. So a report about no task of its sender's is
forwarded to the agent that it is addressed to (`forward_instead`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.commands import (
    Acknowledge,
    ChangeState,
    Command,
    Tell,
)
from dragoman.core.ids import AgentId
from dragoman.core.model.state import Operation, Registry
from dragoman.core.tasks.assistance import ASKED_OF_ANOTHER
from dragoman.messages.faults import Fault, Kind, Refused, owned_by, refuse
from dragoman.protocols.agentmsg import codec, routing
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.records import ErrorReport, Record
from dragoman.protocols.agentmsg.types import (
    Ack,
    Heartbeat,
    HelpRequest,
    HelpResponse,
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
from dragoman.server.agentmsg.ids import agent_named, delivery_of, own_name, task_id
from dragoman.server.agentmsg.inbound import peers, tasks
from dragoman.server.agentmsg.inbound.message import Inbound, moment, outlived

FORWARDED = frozenset(
    {MessageType.TASK_UPDATE, MessageType.TASK_COMPLETE, MessageType.TASK_FAILED, MessageType.HELP_RESPONSE}
)
"""Messages that are direct messages where they are no reports. An answer to a handoff is not among them: the hub does
not know it because the handoff is over, and its reader would take a late yes for a task that is gone."""
COPIED = frozenset({StatusUpdate, Heartbeat, ErrorReport})
"""Messages that the hub reads and forwards, where they are for another agent."""


def commands_of(inbound: Inbound) -> tuple[Command, ...]:
    """The commands of a message, in this order; raises `Refused`."""
    agent, message = inbound.agent, inbound.message
    if message.sender != agent.id:
        what = owned_by(agent.id, message.sender)
        raise refuse(Kind.FORBIDDEN, what, field="from", agent_id=agent.id)
    if message.metadata.ttl_ms is not None and routing.is_expired(message, moment(inbound.now)):
        raise Refused(outlived(message))
    kind = type(message.payload)
    if kind is StateQuery:
        return ()
    make = _COMMANDS.get(kind)
    if make is None:
        raise refuse(
            Kind.INVALID, "an agent does not say this", next=f"{message.type.value} is the hub's", field="type"
        )
    command = make(inbound, message.payload)
    to = agent_named(message.to) if kind in COPIED and type(command) is not Tell else None
    return (command,) if to is None else (command, inbound.forward(to))


def forward_instead(inbound: Inbound, fault: Fault) -> Tell | None:
    """The direct message that a refused report is after all, if it is one: "no such task, or not yours" means only that
    the hub has no part in it. Help that another agent was asked for is not for its reader, either."""
    to = agent_named(inbound.message.to)
    if fault.kind is not Kind.NOT_FOUND or to is None or inbound.message.type not in FORWARDED:
        return None
    return None if fault.facts.get("reason") == ASKED_OF_ANOTHER else inbound.forward(to, reports=True)


# -- acknowledgments and shared state ----------------------------------------------------------------------------


def _acknowledge(inbound: Inbound, ack: Ack) -> Command:
    """`server.agentmsg.handler` answers ACKs by what it delivered; here a message names its delivery, or none."""
    metadata = inbound.message.metadata
    named = [codec.lowered(id) for id in (metadata.correlation_id, *ack.message_ids, metadata.delivery_id) if id]
    deliveries = tuple(dict.fromkeys(map(delivery_of, named)))
    return Acknowledge(principal=inbound.agent.id, protocol=PROTOCOL, deliveries=deliveries)


def _change(inbound: Inbound, update: StateUpdate) -> Command:
    return change_of(inbound.agent.id, update, message_id=inbound.message.id, digest=inbound.digest)


def change_of(
    principal: AgentId, update: StateUpdate, *, message_id: str | None = None, digest: str = ""
) -> ChangeState:
    """A StateUpdate of an agent, or of a person with the admin token; in a message, or alone."""
    name, changes, task = update.entity_id, update.changes, None
    if update.entity_type == "TASK":  # it may be a task of the hub, which knows it by its own id
        task = task_id(name)
        name = own_name(name) or task
        if update.operation == "CREATE":
            if changes.get("id") not in (None, update.entity_id):  # else it would have another entity's id
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


_COMMANDS: Mapping[type[Record], Callable[[Inbound, Any], Command]] = {
    TaskUpdate: tasks.update,
    TaskAssignment: tasks.submit,
    TaskComplete: tasks.complete,
    TaskFailed: tasks.failed,
    TaskHandoffRequest: peers.hand_over,
    TaskHandoffResponse: peers.answer_handover,
    HelpRequest: peers.ask_help,
    HelpResponse: peers.give_help,
    StatusUpdate: peers.status,
    Heartbeat: peers.beat,
    StateUpdate: _change,
    ErrorReport: peers.error,
    Ack: _acknowledge,
    Register: peers.register,
}
