"""Questions to a person: durable, answered exactly once, by a person, by the clock, or not at all.

A task that waits for an answer has no clock running; its deadline moves by the time it waited. The answer goes back
as work: the same task, in a new round, with the answer beside its input (bridging B3), to the agent that asked if it
can be reached, else to any that could do the task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.commands import Answer, Ask
from dragoman.core.errors import Kind, refuse
from dragoman.core.ids import ADMIN, HUB, SECOND, AgentId, Instant, QuestionId
from dragoman.core.lookups import QuestionById
from dragoman.core.routing.dispatch import place
from dragoman.core.tasks.model import EventKind, Question, QuestionStatus, Task, Waiting
from dragoman.core.work import Work


def put_question(work: Work, task: Task, ask: Ask) -> Task:
    """The task with its question put to a person (not yet put)."""
    assert task.owner is not None
    question = Question(
        id=QuestionId(work.mint()),
        task=task.id,
        agent=task.owner,
        question=ask.question,
        options=ask.options,
        default=ask.default,
        has_default=ask.has_default,
        created_at=work.now,
        wake_at=None if ask.timeout_seconds is None else Instant(work.now + int(ask.timeout_seconds * SECOND)),
    )
    work.put(question)
    body = msgspec.json.encode({"question_id": question.id, "question": question.question, "options": question.options})
    task = work.record(task, EventKind.ASKED, agent=task.owner, body=msgspec.Raw(body))
    return msgspec.structs.replace(task, waiting=Waiting.PERSON, question=question.id, asked=True)


def answer(work: Work, command: Answer) -> Question:
    question = work.one(QuestionById(command.question))
    if question is None or command.principal != ADMIN:
        raise refuse(Kind.NOT_FOUND, "no such question", field="question_id")
    if question.status is not QuestionStatus.OPEN:
        raise refuse(
            Kind.CONFLICT,
            f"the question is already {question.status.value}; its answer cannot change",
            status=question.status.value,
        )
    allowed = [o["value"] if isinstance(o, dict) and "value" in o else o for o in question.options]
    if allowed and command.answer not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise refuse(Kind.INVALID, f"the answer must be one of {choices}", field="answer")
    return close(work, question, QuestionStatus.ANSWERED, command.answer, command.principal)


def expire(work: Work, question: Question) -> Question:
    """Nobody answered in time: the default, if there is one, else an empty answer."""
    if question.status is not QuestionStatus.OPEN or question.wake_at is None or question.wake_at > work.now:
        return question
    return close(work, question, QuestionStatus.EXPIRED, question.default, HUB)


def close(work: Work, question: Question, status: QuestionStatus, answer: Any, by: AgentId) -> Question:
    question = msgspec.structs.replace(
        question, status=status, answer=answer, answered_at=work.now, answered_by=by, wake_at=None
    )
    work.put(question)
    task = work.known_task(question.task)
    if not task.final and task.question == question.id:
        resume_with(work, task, answer, expired=status is QuestionStatus.EXPIRED and not question.has_default)
    return question


def resume_with(work: Work, task: Task, answer: Any, *, expired: bool = False) -> Task:
    """Send the task back to work, with an answer."""
    source = msgspec.json.decode(work.event(task.id, task.source).body)
    body: dict[str, Any] = {"input": source.get("input", {}), "answer": answer}
    if expired:
        body["expired"] = True
    task = work.record(task, EventKind.ANSWERED, body=msgspec.Raw(msgspec.json.encode(body)))
    waited = work.now - (task.last_sign_at or work.now)
    task = msgspec.structs.replace(
        task,
        question=None,
        round=task.round + 1,
        source=task.seq,
        deadline=Instant(task.deadline + waited),
        attempts=0,
        total_limit=None,
    )
    return place(work, task, prefer=task.owner)
