"""Agents, questions, dead letters and audit records as people see them. They never show a credential or its hash."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.ids import Instant, TaskId, rfc3339
from dragoman.core.model.agents import Agent, BreakerState
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.deliveries import DeadLetter, MessageKind
from dragoman.core.model.tasks import Asking, Question, QuestionStatus
from dragoman.core.queries.tasks import ErrorOut, error_out, moment


class AgentStatus(enum.StrEnum):
    CONNECTING = "connecting"  # a link is open, but it has not introduced itself yet
    IDLE = "idle"
    BUSY = "busy"
    OFFLINE = "offline"
    PAUSED = "paused"  # by a person: it is connected, and gets no new work


class BreakerOut(msgspec.Struct, frozen=True, kw_only=True):
    state: BreakerState
    failures: int
    until: str | None


class AgentOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    protocol: str
    status: AgentStatus
    kind: str | None
    role: str | None
    name: str | None
    domain: str | None
    version: str | None
    capabilities: tuple[str, ...]
    work_types: tuple[str, ...] | None
    current_tasks: tuple[str, ...]
    max_concurrent: int
    breaker: BreakerOut
    paused: bool
    untrusted: bool
    sandbox: str | None
    protocol_version: str | None
    callback_url: str | None
    created_at: str
    registered_at: str | None
    last_seen: str | None
    details: dict[str, Any]


class EscalationOut(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    content: str
    resources: tuple[Any, ...]


class QuestionOut(msgspec.Struct, frozen=True, kw_only=True):
    """`asked_of` is the agent that is asked now, `asked_before` those that could not help; without one, a person is
    asked. `context` is what the agent sent with its question; `escalations` are those of `asked_before` that passed it
    on to a better helper. `answered_by` is the person where the hub knows their name, `note` why they answered so."""

    id: str
    task_id: str | None
    agent: str
    question: str
    context: Any
    options: tuple[Any, ...]
    status: QuestionStatus
    about: Asking
    asked_of: str | None
    asked_before: tuple[str, ...]
    escalations: tuple[EscalationOut, ...]
    deadline: str | None
    default: Any
    has_default: bool
    answer: Any
    answered_at: str | None
    answered_by: str | None
    note: str | None
    created_at: str


class DeadLetterOut(msgspec.Struct, frozen=True, kw_only=True, rename={"kind": "cargo"}):
    """`task_id` is None for what belongs to no task of the hub, such as most direct messages."""

    id: str
    task_id: str | None
    receiver: str | None
    kind: MessageKind
    attempts: int
    at: str
    error: ErrorOut
    body: msgspec.Raw | msgspec.UnsetType | None = msgspec.UNSET


class AuditOut(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    at: str
    principal: str
    action: str
    outcome: str
    protocol: str | None
    subject: str | None
    reason: str | None
    digest: str | None
    chain: str
    prev: str
    hash: str


def agent_status(agent: Agent, *, reachable: bool, load: int) -> AgentStatus:
    if agent.silent_since is not None or not reachable:
        return AgentStatus.OFFLINE
    if agent.paused:
        return AgentStatus.PAUSED
    if load:
        return AgentStatus.BUSY
    if agent.registered_at is None and agent.last_seen_at is None:
        return AgentStatus.CONNECTING
    return AgentStatus.IDLE


def agent_out(
    agent: Agent, *, reachable: bool, tasks: Sequence[TaskId], now: Instant, seen: Instant | None = None
) -> AgentOut:
    """The row has the time when a link was opened; while it is open, its agent is seen. For an agent that converses,
    `seen` is needed: its row is not written for every message."""
    here = reachable and agent.connected and not agent.converses
    seen = max((at for at in (agent.last_seen_at, seen) if at is not None), default=None)
    return AgentOut(
        id=agent.id,
        protocol=agent.protocol,
        status=agent_status(agent, reachable=reachable, load=len(tasks)),
        kind=agent.kind,
        role=agent.role,
        name=agent.name,
        domain=agent.domain,
        version=agent.version,
        capabilities=agent.capabilities,
        work_types=agent.work_types,
        current_tasks=tuple(tasks),
        max_concurrent=agent.max_concurrent,
        breaker=BreakerOut(
            state=agent.breaker.state, failures=agent.breaker.failures, until=moment(agent.breaker.until)
        ),
        paused=agent.paused,
        untrusted=agent.untrusted,
        sandbox=agent.sandbox,
        protocol_version=agent.protocol_version,
        callback_url=agent.callback_url,
        created_at=rfc3339(agent.created_at),
        registered_at=moment(agent.registered_at),
        last_seen=moment(now if here else seen),
        details=agent.details,
    )


def question_out(question: Question) -> QuestionOut:
    return QuestionOut(
        id=question.id,
        task_id=question.task,
        agent=question.agent,
        question=question.question,
        context=question.details.context,
        options=question.options,
        status=question.status,
        about=question.about,
        asked_of=question.asked_of,
        asked_before=question.asked_before,
        escalations=tuple(
            EscalationOut(agent=one.agent, content=one.content, resources=one.resources)
            for one in question.details.escalations
        ),
        deadline=moment(question.wake_at),
        default=question.default,
        has_default=question.has_default,
        answer=question.answer,
        answered_at=moment(question.answered_at),
        answered_by=question.person or question.answered_by,
        note=question.note,
        created_at=rfc3339(question.created_at),
    )


def dead_letter_out(
    dead_letter: DeadLetter, *, body: msgspec.Raw | msgspec.UnsetType | None = msgspec.UNSET
) -> DeadLetterOut:
    """`body` is the content of its event, where that was read."""
    return DeadLetterOut(
        id=dead_letter.id,
        task_id=dead_letter.task_of_hub,
        receiver=dead_letter.receiver,
        kind=dead_letter.kind,
        attempts=dead_letter.attempts,
        at=rfc3339(dead_letter.at),
        error=error_out(dead_letter.reason),
        body=body,
    )


def audit_out(record: AuditRecord) -> AuditOut:
    return AuditOut(
        seq=record.seq,
        at=rfc3339(record.at),
        principal=record.principal,
        action=record.action,
        outcome=record.outcome,
        protocol=record.protocol,
        subject=record.subject,
        reason=record.reason,
        digest=record.digest,
        chain=record.chain,
        prev=record.prev,
        hash=record.hash,
    )
