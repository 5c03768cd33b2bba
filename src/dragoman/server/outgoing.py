"""What encoding an outgoing message needs beside the message: the whole output of its task, and what to do where it
cannot be encoded at all."""

from __future__ import annotations

import structlog

from dragoman.core.commands import ReportFault
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.ports import Intake, Store, StoreFailed
from dragoman.core.queries.transcript import MOST_OUTPUT, Account, Transcript
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.security.redaction import disclosed

log = structlog.get_logger("dragoman.server")

PAGE = 200

UNENCODABLE = Fault(kind=Kind.INTERNAL, message="the work cannot be put into this agent's protocol")

UNREAD = Fault(kind=Kind.RESOURCES, message="the hub could not read what belongs to the work", retryable=True)
"""Of a kind that is tried again, and held against no agent."""


async def read_account(store: Store, task: TaskId, last: int, most: int = MOST_OUTPUT) -> Account:
    """A task's account, from its events up to `last`; an output of more than `most` characters is cut."""
    transcript = Transcript(most)
    after = 0
    while after < last:
        page = await store.events(task, after=after, limit=PAGE)
        for event in page:
            transcript.feed(event)
        if not page:
            break
        after = page[-1].seq
    return transcript.account


def is_passing(error: Exception) -> bool:
    """Whether the store or the files cannot be read now: then the work has not failed."""
    return isinstance(error, StoreFailed) or (isinstance(error, Refused) and error.fault.kind is Kind.OVERLOADED)


def report_unencodable(hub: Intake, agent: AgentId, outgoing: Outgoing, error: Exception) -> None:
    """An outgoing message that cannot be encoded must not hold up the others: the attempt of work has failed; a notice
    is never acknowledged, and becomes a dead letter in the end. `Refused`: no message of the protocol holds it.
    Anything else is a fault of ours."""
    kind, task = outgoing.delivery.kind, outgoing.delivery.task
    if is_passing(error):
        log.error("unread", task=task, kind=kind.value, why=str(disclosed(error, personal=outgoing.personal)))
        fault = UNREAD
    elif isinstance(error, Refused):
        fault = error.fault
    else:
        log.error("unencodable", task=task, kind=kind.value, exc_info=disclosed(error, personal=outgoing.personal))
        fault = UNENCODABLE
    if kind is MessageKind.WORK:
        command = ReportFault(principal=agent, task_id=task, fault=fault)
        hub.enqueue_then(command, lambda outcome, refusal: None)
