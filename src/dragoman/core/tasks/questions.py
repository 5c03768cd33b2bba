"""Questions to a person: stored, and answered exactly once, by a person, at the deadline by the default, or never.

While a task waits for an answer, its timers stand still. Its deadline moves by the time it waited, unless its caller
named a deadline (`Task.firm`). The answer reaches the agent in one of these ways:

    asked by                      the agent meanwhile     the answer
    ----------------------------  ----------------------  -------------------------------------------------------
    a report (`put_question`)     has ended its turn, or  is work: the same task, in a new round, with the answer
                                  only paused             beside its input (bridging B3), to the agent that asked
                                                          if it can be reached, else to any that could do the task
    `AskPerson`, blocking         stands still            is a delivery to that agent, and the task goes on
    `AskPerson`, not blocking     works on                is a delivery to that agent

The id of a question that an agent waits for follows from its task, its place among the questions of the attempt, and
its text. So an agent that restarts and does the task again comes to the same questions and finds their answers. A
repeated request keeps its place, whatever the agent asked since. A request with a known id and another text is refused
if the agent waits for its answer. A question that expired without an answer is asked again when the agent asks again.

The hub withdraws questions with their task. Where a protocol answers every question (`protocol_capabilities`), the
agent that stood still gets an empty answer, after the message that the task is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec
from msgspec.structs import replace

from dragoman.core.commands import Answer, AskPerson
from dragoman.core.delivery.outbox import offer, offer_answer, settle, withdraw
from dragoman.core.ids import ADMIN, HUB, SECOND, AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups import Lane, OpenQuestions, QuestionById
from dragoman.core.model.deliveries import UNKNOWN_TASK, Escalation, MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import HELD, Asking, EventKind, Question, QuestionStatus, Status, Task, Waiting
from dragoman.core.protocol_capabilities import ANSWERS_ALWAYS
from dragoman.core.routing.dispatch import place
from dragoman.core.work import Work
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.tasks import Ask

ASKED = frozenset({QuestionStatus.OPEN, QuestionStatus.WITH_AGENT})

PLACES = UUID("0f6f3a52-6c0e-5b7b-8b0e-64726167bbbb")
"""Namespace of the ids of questions that agents wait for."""


def put_question(work: Work, task: Task, ask: Ask) -> Task:
    """The task with its question to a person (not yet put). The agent's turn is over, and no link holds the task,
    unless the agent only paused."""
    assert task.owner is not None
    question = newly_asked(work, QuestionId(work.mint()), task, task.owner, ask)
    work.put(question)
    task = with_question_event(work, task, question)
    if ask.implied:
        return replace(task, question=question.id)
    return replace(task, waiting=Waiting.PERSON, question=question.id, attempt=replace(task.attempt, session=None))


def unasked(work: Work, task: Task) -> Task:
    """The task without the question of its agent's report: it has an answer, or goes on without one."""
    question = None if task.question is None else work.one(QuestionById(task.question))
    if question is None or question.request_id is not None or question.about is not Asking.ANSWER:
        return task
    if question.status in ASKED:
        work.put(replace(question, status=QuestionStatus.WITHDRAWN, wake_at=None))
    return replace(task, question=None)


def newly_asked(work: Work, id: QuestionId, task: Task | None, agent: AgentId, ask: Ask) -> Question:
    return Question(
        id=id,
        task=None if task is None else task.id,
        personal=task is not None and task.agreement.personal,
        agent=agent,
        question=ask.question,
        options=ask.options,
        default=ask.default,
        has_default=ask.has_default,
        created_at=work.now,
        wake_at=None if ask.timeout_seconds is None else Instant(work.now + int(ask.timeout_seconds * SECOND)),
    )


def with_question_event(work: Work, task: Task, question: Question, after: Escalation | None = None) -> Task:
    """The task with an event of the question, and of the agent that is asked if it is no person (not yet put). `after`:
    how the agent escalated it that was asked before."""
    event = messages.Question(
        question_id=question.id,
        question=question.question,
        options=question.options,
        asked_of=question.asked_of,
        escalated=None if after is None else msgspec.to_builtins(after),
    )
    task = work.record(task, EventKind.ASKED, event, agent=question.agent)
    return replace(task, lineage=replace(task.lineage, has_questions=True))


def ask_person(work: Work, command: AskPerson) -> Question:
    text = msgspec.json.encode([command.ask.question, command.ask.options]).decode()
    # An agent does not repeat a question that it does not wait for: the same id with another text is another question.
    request = command.request_id if command.blocking else f"{command.request_id}/{uuid5(PLACES, text)}"
    id = QuestionId(str(uuid5(PLACES, f"{command.principal}//{request}")))
    task = None if still_asked(work, command, id) else asking(work, command)
    again = False
    if task is not None:
        place = place_of(task, request)
        again = place is not None
        if place is None:
            place = task.attempt.asks + 1
            recent = (*task.output.recent, f"{mark(task)}{place}:{request}")[-work.rules.recent_messages :]
            task = replace(task, output=replace(task.output, recent=recent))
        task = replace(task, attempt=replace(task.attempt, asks=max(task.attempt.asks, place)))
        id = QuestionId(str(uuid5(PLACES, f"{task.id}/{task.attempt.round}/{place}/{text}")))
    question = work.one(QuestionById(id))
    if (again and question is None) or (question is not None and not same_words(question, command.ask)):
        raise refuse(
            Kind.CONFLICT,
            "this id was used for another question",
            next="choose a new one",
            field="request_id",
        )
    new = question is None or question.status is QuestionStatus.WITHDRAWN or unanswered(question)
    if question is None or new:
        question = newly_asked(work, id, task, command.principal, command.ask)
    question = replace(
        question,
        agent=command.principal,
        request_id=command.request_id,
        blocking=command.blocking,
        details=command.details,
    )
    work.put(question)
    if task is not None:
        withdraw(work, task, command.principal)  # the agent has begun, since it asks
        if new:
            task = with_question_event(work, task, question)
            offer(work, task, task.origin.principal, MessageKind.PROGRESS, task.seq)
        task = work.sign_of_life(task)
        if command.blocking and question.status is QuestionStatus.OPEN:
            task = move(
                task, Status.WAITING, work.now, waiting=held_or(task, Waiting.PERSON), question=question.id, queue=None,
                wake_at=None,
            )  # fmt: skip
        work.put(task)
    if question.status is not QuestionStatus.OPEN:
        offer_answer(work, question)
    return question


def held_or(task: Task, why: Waiting) -> Waiting:
    """What a task waits for while its agent waits for an answer. A task that a person paused stays paused until they
    resume it."""
    return Waiting.HELD if task.waiting is Waiting.HELD else why


def waits_for(work: Work, task: Task) -> Waiting | None:
    """Whose answer the agent of a task waits for, if it waits."""
    question = None if task.question is None else work.one(QuestionById(task.question))
    if question is None or question.request_id is None or question.status not in ASKED or question.agent != task.owner:
        return None
    return Waiting.HELP if question.about is Asking.HELP else Waiting.PERSON


def still_asked(work: Work, command: AskPerson, id: QuestionId) -> bool:
    """Whether the agent asked this before it had a task, and no person has answered yet."""
    if command.task_id is not None:
        return False
    question = work.one(QuestionById(id))
    return question is not None and question.status is QuestionStatus.OPEN and same_words(question, command.ask)


def mark(task: Task) -> str:
    """The prefix of the entries in a task's `recent` that name a question of this round."""
    return f"ask:{task.attempt.round}:"


def place_of(task: Task, request_id: str) -> int | None:
    """Which question of the attempt a request was, if it came before."""
    for seen in task.output.recent:
        if seen.startswith(mark(task)):
            place, _, request = seen.removeprefix(mark(task)).partition(":")
            if request == request_id:
                return int(place)
    return None


def same_words(question: Question, ask: Ask) -> bool:
    """Whether a question has the same text and options. Stored options are compared as JSON."""
    asked = msgspec.json.encode([question.question, question.options])
    return asked == msgspec.json.encode([ask.question, ask.options])


def unanswered(question: Question) -> bool:
    return question.status is QuestionStatus.EXPIRED and not question.has_default


def asking(work: Work, command: AskPerson) -> Task | None:
    """The task that an agent asks about: the one it names, or its only one."""
    if command.task_id is None:
        held = work.tasks_of(command.principal)
        return work.known_task(held[0]) if len(held) == 1 else None
    task = work.task(command.task_id)
    if task is None or task.owner != command.principal:
        raise refuse(Kind.NOT_FOUND, "no such task, or not yours", field="task_id", task_id=command.task_id)
    if task.final:
        raise refuse(
            Kind.CONFLICT, f"the task is already {task.status.value}", next="stop working on it", task_id=task.id
        )
    return task


def answer(work: Work, command: Answer) -> Question:
    question = work.one(QuestionById(command.question))
    if question is None or command.principal != ADMIN:
        raise refuse(Kind.NOT_FOUND, "no such question", field="question_id")
    if question.status is QuestionStatus.WITH_AGENT:
        raise refuse(
            Kind.CONFLICT,
            f"{question.asked_of}, an agent, is asked",
            next="a person is only if no agent can help",
            status=question.status.value,
            asked_of=question.asked_of,
        )
    if question.status is not QuestionStatus.OPEN:
        raise refuse(
            Kind.CONFLICT,
            f"the question is already {question.status.value}",
            next="its answer cannot change",
            status=question.status.value,
        )
    allowed = [o["value"] if isinstance(o, dict) and "value" in o else o for o in question.options]
    if allowed and not any(is_same(command.answer, choice) for choice in allowed):
        choices = (
            "its options"
            if question.personal
            else ", ".join(msgspec.json.encode(choice).decode() for choice in allowed)
        )
        raise refuse(Kind.INVALID, f"the answer must be one of {choices}", field="answer")
    question = replace(question, person=command.person, note=command.note)
    return close(work, question, QuestionStatus.ANSWERED, command.answer, command.principal)


def is_same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: in Python, True equals 1."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def expire(work: Work, question: Question) -> Question:
    """The deadline passed without an answer: take the default, else an empty answer."""
    if question.status not in ASKED or question.wake_at is None or question.wake_at > work.now:
        return question

    take_back(work, question)
    return close(work, question, QuestionStatus.EXPIRED, question.default, HUB)


def close(work: Work, question: Question, status: QuestionStatus, answer: Any, by: AgentId) -> Question:
    question = replace(question, status=status, answer=answer, answered_at=work.now, answered_by=by, wake_at=None)
    work.put(question)
    task = None if question.task is None else work.known_task(question.task)
    if question.about is Asking.HANDSHAKE or (question.about is Asking.TAKEOVER and task is not None):
        work.reactions.question_closed(work, question)
    elif question.request_id is not None:
        go_on(work, task, question)
    elif task is not None and not task.final and task.question == question.id:
        resume_with(work, task, answer, expired=unanswered(question))
    return question


def go_on(work: Work, task: Task | None, question: Question, *, tell: bool = True) -> None:
    """Deliver the answer to the agent that asked, and resume its task if it stood still.

    If the agent does not hold the task now (it died, and the task waits for its next attempt), the answer waits, too:
    the agent finds it when it asks again.
    """
    if task is None:
        offer_answer(work, question)
        return
    if task.final or task.owner != question.agent or task.status not in HELD:
        return
    event = messages.Answer(question_id=question.id, answer=question.answer)
    task = work.record(task, EventKind.ANSWERED, event)
    offer(work, task, task.origin.principal, MessageKind.PROGRESS, task.seq)
    if task.question == question.id and task.waiting is Waiting.HELD:
        task = replace(task, question=None)
    elif task.question == question.id:
        # This is no sign of life of the agent. If its link broke while it stood still, it has the grace time to come
        # back; a link that it opened since proves nothing about this task until the agent mentions it there.
        lost = task.timing.lost_at is not None and not any(link.ordered for link in work.links_to(question.agent))
        deadline = task.due(work.now)
        wake_at = min(deadline, Instant(work.now + (work.rules.grace if lost else task.timing.idle_limit)))
        task = move(
            task,
            Status.RUNNING,
            work.now,
            waiting=None,
            question=None,
            wake_at=wake_at,
            attempt=replace(task.attempt, answered=True),
            timing=replace(task.timing, deadline=deadline, last_sign_at=work.now, lost_at=work.now if lost else None),
        )
    work.put(task)
    if tell:
        offer_answer(work, question)


def stood_still_for(work: Work, task: Task) -> list[QuestionId]:
    """The questions to people whose answers the owner of a task waits for."""
    agent = work.agent(task.owner) if task.lineage.has_questions and task.owner is not None else None
    if agent is None or agent.protocol not in ANSWERS_ALWAYS:
        return []
    return [
        question.id
        for question in work.find(OpenQuestions(task.id))
        if question.about is Asking.ANSWER
        and question.request_id is not None
        and question.blocking
        and question.agent == agent.id
    ]


def call_back(work: Work, task: Task, owner: AgentId, waited_for: Sequence[QuestionId]) -> None:
    """Tell the owner of an ended task to stop, and send an empty answer to each question that it stood still for."""
    offer(work, task, owner, MessageKind.CANCEL, task.seq)
    leave_unanswered(work, waited_for)


def leave_unanswered(work: Work, waited_for: Sequence[QuestionId]) -> None:
    """Their task ended: send an empty answer to each."""
    for id in waited_for:
        question = work.one(QuestionById(id))
        if question is not None:
            offer_answer(work, question)


def resume_with(work: Work, task: Task, answer: Any, *, expired: bool = False) -> Task:
    """Queue the task again with an answer. The question goes along, since another agent may get the task."""
    asked = None if task.question is None else work.one(QuestionById(task.question))
    task = unasked(work, task)
    if task.owner is not None:
        withdraw(work, task, task.owner)  # an unacknowledged work order belongs to the round that is over
    request = messages.read_request(work.event(task.id, task.attempt.source).body).next_round(
        answer=answer,
        asked_by=task.owner if asked is None else asked.agent,
        question=None if asked is None else asked.question,
        expired=expired or None,
    )
    task = work.record(task, EventKind.ANSWERED, request)
    task = move(
        task,
        Status.QUEUED,
        work.now,
        waiting=None,
        question=None,
        attempt=replace(
            task.attempt, delivery=None, round=task.attempt.round + 1, source=task.seq, count=0, unreached=0
        ),
        timing=replace(task.timing, deadline=task.due(work.now), total_limit=None),
    )
    work.put(task)  # the turn is over: its seat is free, and this task takes it first
    return place(work, task, prefer=task.owner)


REQUESTS = UUID("52d9c7b1-1d6b-5f0e-8a43-64726167dddd")
"""Namespace of the questions that are put to agents: their ids follow from the message that asked."""


def question_id(message_id: str) -> QuestionId:
    return QuestionId(str(uuid5(REQUESTS, message_id)))


def order_of(question: Question) -> str:
    """The request id of the task that asks an agent for help whose protocol has none."""
    return f"help:{question.id}:{len(question.asked_before)}"


def take_back(work: Work, question: Question) -> None:
    """Remove an unread request from its lane, if it is still there, and record that."""
    direct_message, to = question.direct_message, question.asked_of
    about = question.details.task_id or question.task
    if direct_message is None or to is None or about is None:
        return
    lane = about if work.task(TaskId(about)) is not None else f"{UNKNOWN_TASK}{about}"
    for row in work.find(Lane(TaskId(lane), to)):
        if row.direct_message is not None and row.direct_message.asks == question.id:
            settle(work, row)
            work.audit(
                principal=direct_message.sender, action="letter.withdraw", protocol=direct_message.protocol,
                subject=direct_message.message_id,
                reason=f"{direct_message.kind} to {to}: nobody waits for the answer any more",
            )  # fmt: skip
