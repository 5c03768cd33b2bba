"""An agent takes a task over from another one: what changes with its owner.

`handover` asks agents and hears what they answer; here the task moves, with its history, on the narrower of the terms.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.core.budgets import budget
from dragoman.core.delivery.outbox import offer, offer_answer, withdraw
from dragoman.core.ids import AgentId, Instant, instant
from dragoman.core.lookups import EventsOf, OpenQuestions
from dragoman.core.model.agents import CONSTRAINTS, Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.shared_tasks import MOST_EVENTS, in_short
from dragoman.core.model.tasks import (
    EventKind,
    Question,
    QuestionStatus,
    Status,
    Task,
)
from dragoman.core.routing.dispatch import assign, fill
from dragoman.core.routing.routes import reach, seat
from dragoman.core.routing.subtask_owner import inherit, named, parts_of
from dragoman.core.tasks.outcome import call_off
from dragoman.core.work import Work
from dragoman.messages.tasks import Handoff, read_handoff, read_request

CALLERS = ("chain", "risk")
"""Constraints that only the caller of a task sets."""


def closed(work: Work, question: Question, answer: dict[str, Any]) -> Question:
    question = replace(
        question,
        status=QuestionStatus.ANSWERED,
        answer=answer,
        answered_at=work.now,
        answered_by=answer["agent_id"],
        wake_at=None,
    )
    work.put(question)
    return question


def taken(
    work: Work, question: Question, task: Task, agent: Agent, terms: dict[str, Any], *, tell: bool = True
) -> Question:
    """The task has a new owner from now on."""
    question = closed(work, question, {**terms, "accepted": True, "agent_id": agent.id})
    task = with_handoff_event(work, task, question, agent.id)
    if agent.converses:
        link = reach(work, agent.id)
        task = move(
            task,
            Status.RUNNING,
            work.now,
            owner=agent.id,
            waiting=None,
            question=None,
            queue=None,
            wake_at=min(task.timing.deadline, Instant(work.now + task.timing.idle_limit)),
            timing=replace(task.timing, lost_at=None, last_sign_at=work.now),
            attempt=replace(
                task.attempt,
                session=link.session if link is not None and link.ordered else None,
                sandbox=None,
                at=work.now,
            ),
        )
        task = budget.moved(work, task, agent.id)
        work.put(task)
        offer(work, task, agent.id, MessageKind.HANDOFF, task.seq)
        inherit(work, task, agent)
    else:
        assign(work, task, agent, seat(work, agent))
    if tell:
        offer_answer(work, question)
    fill(work, question.agent)
    return question


def with_handoff_event(work: Work, task: Task, question: Question, to: AgentId) -> Task:
    """The task with an event for its new owner: what to do, and what happened so far (not yet put)."""
    source = read_request(work.event(task.id, task.attempt.source).body)
    asked = read_handoff(work.event(task.id, question.details.asked).body)
    before = source.handover or Handoff()
    limits = asked.constraints or {}
    parts = parts_of(work, task, question.agent)
    handover = replace(
        asked,
        to=to,
        fault=asked.fault or before.fault,
        metadata={**(before.metadata or {}), **(asked.metadata or {})},
        history=[*(before.history or ()), *(asked.history or ())],
        dependencies=before.dependencies if asked.dependencies is None else asked.dependencies,
        constraints=before.constraints if asked.constraints is None else asked.constraints,
        error=asked.error or before.error,
        recovery_attempts=before.recovery_attempts if asked.recovery_attempts is UNSET else asked.recovery_attempts,
        hub_history=in_short(reversed(work.find(EventsOf(task.id, MOST_EVENTS)))),
        parts=named(parts) if parts else before.parts,
    )
    withdraw(work, task, question.agent)
    for other in work.find(OpenQuestions(task.id)):
        if other.id != question.id:
            call_off(work, other)
    task = work.record(task, EventKind.HANDED_OVER, source.next_round(handover=handover), agent=to)
    due = task.due(work.now)
    deadline = sooner(due, limits.get("deadline"))
    return replace(
        task,
        metadata=None if task.metadata is None else task.metadata | (handover.metadata or {}),
        lineage=replace(task.lineage, handed=(*task.lineage.handed, (question.agent, to))),
        attempt=replace(
            task.attempt,
            round=task.attempt.round + 1,
            source=task.seq,
            count=max(1, task.attempt.count),
            asks=0,
            delivery=None,
        ),
        agreement=replace(task.agreement, constraints=tightened(task.agreement.constraints, limits)),
        timing=replace(task.timing, deadline=deadline, last_sign_at=work.now, firm=task.timing.firm or deadline < due),
    )


def sooner(deadline: Instant, text: str | None) -> Instant:
    """The deadline of a task after a handoff: the earlier of the two (agentmsg-D8)."""
    return deadline if text is None else min(deadline, instant(msgspec.convert(text, datetime)))


def tightened(constraints: dict[str, Any], requested: dict[str, Any]) -> dict[str, Any]:
    """What a task may use after a handoff. The old owner may lower the limits, never raise them, and cannot change what
    the caller set for the chain, the risk and the memory."""
    kept = {name: constraints[name] for name in CALLERS if name in constraints}
    terms = {name: value for name, value in requested.items() if value is not None and name not in CONSTRAINTS}
    new = {**constraints, **terms, **kept}
    wanted = budget.needs(new)
    bounds = budget.needs(constraints).items()
    return new | {budget.KINDS[kind][0]: min(amount, wanted.get(kind, amount)) for kind, amount in bounds}
