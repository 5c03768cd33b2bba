"""What becomes of an outgoing message that cannot be put into its receiver's words: it must not hold up the others.

Work has failed for that. A notice is never acknowledged, and becomes a dead letter in the end.
"""

from __future__ import annotations

import structlog

from dragoman.core.commands import ReportFault
from dragoman.core.ids import AgentId
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.ports import Intake, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.security.redaction import disclosed

log = structlog.get_logger("dragoman.server")

UNSPEAKABLE = Fault(kind=Kind.INTERNAL, message="the work cannot be put into this agent's protocol")

UNREAD = Fault(kind=Kind.RESOURCES, message="the hub could not read what belongs to the work", retryable=True)
"""Of a kind that is tried again, and held against no agent."""


def is_passing(error: Exception) -> bool:
    """Whether the store or the files cannot be read now: then the work has not failed."""
    return isinstance(error, StoreFailed) or (isinstance(error, Refused) and error.fault.kind is Kind.OVERLOADED)


def unspeakable(hub: Intake, agent: AgentId, outgoing: Outgoing, error: Exception) -> None:
    """`Refused`: no message of the protocol holds it. Anything else is a fault of ours."""
    kind, task = outgoing.delivery.kind, outgoing.delivery.task
    if is_passing(error):
        log.error("unread", task=task, kind=kind.value, why=str(disclosed(error, personal=outgoing.personal)))
        fault = UNREAD
    elif isinstance(error, Refused):
        fault = error.fault
    else:
        log.error("unspeakable", task=task, kind=kind.value, exc_info=disclosed(error, personal=outgoing.personal))
        fault = UNSPEAKABLE
    if kind is MessageKind.WORK:
        command = ReportFault(principal=agent, task_id=task, fault=fault)
        hub.enqueue_then(command, lambda outcome, refusal: None)
