"""What the policy says of a task before an agent works on it: its chain and its risk.

    constraints   policy                       what happens
    ------------  ---------------------------  ------------------------------------------------------------------
    chain         not in `enabled_chains`      the task is refused
    risk          below `low`                  nothing
    risk          from `low` on                the task's history says so
    risk          from `high` on               it waits until a person approves; refused, it has failed

The hub asks for the approval once, when the task is ready: an approved task stays approved for its next attempts. The
policy may change while a task waits, so the hub checks it again before each assignment; a task that is not allowed any
more fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.core.ids import QuestionId
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import EventKind, Question, QuestionDetails, Status, Task, Waiting
from dragoman.core.work import Work
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.tasks import LogEntry, LogLines

APPROVE, REFUSE = "approve", "refuse"
"""In a question's details: what it is about."""


def check(work: Work, constraints: Mapping[str, Any]) -> None:
    """Refuse what the policy does not allow at all."""
    chain = constraints.get("chain")
    if chain is not None and chain not in work.policy.chains:
        enabled = list(work.policy.chains)
        raise refuse(
            Kind.FORBIDDEN,
            f"chain {chain!r} is not enabled",
            next=f"use one that is: {', '.join(enabled) or 'there is none'}",
            field="constraints.chain",
            enabled_chains=enabled,
        )
    risk = constraints.get("risk")
    if risk is not None and (isinstance(risk, bool) or not isinstance(risk, int | float) or not 0 <= risk <= 1):
        raise refuse(Kind.INVALID, "risk must be a number from 0 to 1", field="constraints.risk")


def must_be_approved(work: Work, task: Task) -> bool:
    risk = task.agreement.constraints.get("risk")
    return isinstance(risk, int | float) and risk >= work.policy.risk_high and not task.agreement.approved


def mark(work: Work, task: Task) -> Task:
    """Note in the history of a risky task that it is one (the task is not yet put)."""
    risk = task.agreement.constraints.get("risk")
    if risk is None or risk < work.policy.risk_low:
        return task
    high = risk >= work.policy.risk_high
    line = LogEntry(
        at=work.now,
        level="warning",
        message=f"risk {risk:g}: " + ("a person must approve it first" if high else "it goes on, but is marked"),
        context={"risk": risk, "low": work.policy.risk_low, "high": work.policy.risk_high},
    )
    return work.record(task, EventKind.LOG, LogLines(lines=(line,)))


def hold(work: Work, task: Task) -> Task:
    """Ask a person before an agent gets the task. Its timers stand still meanwhile."""
    text = (
        f"{task.origin.principal} asks for {task.name or task.type!r} at risk {task.agreement.constraints['risk']:g} "
        f"(high is {work.policy.risk_high:g}). Shall it be done?"
    )
    question = Question(
        id=QuestionId(work.mint()),
        task=task.id,
        agent=task.origin.principal,
        question=text,
        options=(APPROVE, REFUSE),
        created_at=work.now,
        details=QuestionDetails(approval=True, risk=task.agreement.constraints["risk"]),
        personal=task.agreement.personal,
    )
    work.put(question)
    event = messages.Question(question_id=question.id, question=text, options=question.options)
    task = work.record(task, EventKind.ASKED, event)
    task = move(
        task,
        Status.WAITING,
        work.now,
        waiting=Waiting.PERSON,
        question=question.id,
        queue=None,
        wake_at=None,
        lineage=replace(task.lineage, has_questions=True),
        timing=replace(task.timing, last_sign_at=work.now),
    )
    work.put(task)
    return task
