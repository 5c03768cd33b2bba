"""A task changes its owner, with everything that is known of it, in one commit.

    owner                        hub                                    the agent that is asked
    -----                        ---                                    -----------------------
    `HandOver`     ─────────▶    a question, asked of an agent   ────▶  the request, word for word
    keeps the task                                              ◀────   `AnswerHandover`
    the answer     ◀─────────    after a yes it owns the task    ────▶  the task, its input, its history

An agent whose protocol has no handoff is not asked: if it has a free seat, the hub assigns the task to it, at its next
poll where it polls. An agent that said no is not asked twice. Without a yes by the deadline the owner keeps the task.

Where the owner names no agent, `handoff_candidates` chooses. A handoff between the same two agents for the second time
is a loop and refused. After `Rules.hop_limit` handoffs the task fails (agentmsg-D8). An escalated task that no agent
can do goes to a person. Where the reason is an error, it goes along with what was tried against it, and a failure of
the owner counts against the owner.

The hub withdraws what the old owner asked about the task: the new owner asks for itself. Subtasks go on and report to
the new owner (`subtask_owner`). A task that a person paused changes no owner until the person resumes it.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.budgets import budget
from dragoman.core.budgets.capacity import needs_in
from dragoman.core.commands import AnswerHandover, Handing, HandOver, Lineage, Routing, Submit, Unanswered
from dragoman.core.delivery.direct_messages import carry
from dragoman.core.delivery.outbox import offer, offer_answer, withdraw
from dragoman.core.ids import ADMIN, AgentId, Instant, QuestionId, rfc3339
from dragoman.core.lookups import OpenQuestions, PutTo, QuestionById
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import (
    HELD,
    Asking,
    EventKind,
    Priority,
    Question,
    QuestionDetails,
    QuestionStatus,
    Status,
    Task,
    Waiting,
)
from dragoman.core.policy.replay import note
from dragoman.core.routing.dispatch import fill, make_room
from dragoman.core.routing.routes import Route, can_start, reach
from dragoman.core.tasks.assistance import answered_before, asked_before, passed_over, put_to, unhelped
from dragoman.core.tasks.handoff_candidates import can_go_on, candidates, check_domain
from dragoman.core.tasks.outcome import end, failed
from dragoman.core.tasks.questions import question_id, take_back
from dragoman.core.tasks.submit import newborn
from dragoman.core.tasks.takeover import closed, taken, tightened, with_handoff_event
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.messages.tasks import Request, Result, read_handoff

PERSON = AgentId("person")
"""The owner of a task that a person took over."""

PAUSED = "a person paused it; it stays yours, so hand it over when it goes on"


def hand_over(work: Work, command: HandOver) -> Question:
    known = asked_before(work, command.direct_message)
    if known is not None:
        return known
    task = work.task(command.task_id) or adopt_unknown(work, command)
    check(work, task, command)
    if command.fault is not None and command.fault.kind in work.rules.breaking:
        failed(work, command.principal)
    asked = replace(
        command.known,
        source=command.principal,
        to=command.to,
        reason=command.reason.value,
        deadline=rfc3339(command.deadline),
        fault=command.fault,
    )
    task = work.record(task, EventKind.HANDOVER_ASKED, asked, agent=command.principal, protocol=command.protocol)
    withdraw(work, task, command.principal)  # the owner has received the work order, since it hands the task over
    task = work.sign_of_life(task, lineage=replace(task.lineage, has_questions=True))
    work.put(task)
    question = Question(
        id=question_id(command.direct_message.message_id),
        task=task.id,
        agent=command.principal,
        question=f"take over {task.type!r}: {task.description or command.reason.value}",
        created_at=work.now,
        status=QuestionStatus.WITH_AGENT,
        wake_at=min(command.deadline, task.timing.deadline),
        request_id=command.direct_message.message_id,
        blocking=False,
        details=QuestionDetails(
            reason=command.reason.value,
            named=command.to,
            capabilities=tuple(command.required_capabilities),
            priority=command.priority,
            asked=task.seq,
        ),
        about=Asking.TAKEOVER,
        personal=task.agreement.personal,
        direct_message=replace(
            command.direct_message,
            asks=question_id(command.direct_message.message_id),
            personal=task.agreement.personal,
        ),
    )
    if len(task.lineage.handed) >= work.rules.hop_limit:
        return exhausted(work, task, question)
    return ask_next(work, question)


def check(work: Work, task: Task, command: HandOver) -> None:
    if task.owner != command.principal:
        raise refuse(Kind.NOT_FOUND, "no such task, or not yours", field="task_id", task_id=task.id)
    if task.final or task.status not in HELD:
        raise refuse(
            Kind.CONFLICT, f"the task is {task.status.value}", next="hand over only what is under way", task_id=task.id
        )
    if command.deadline <= work.now:
        raise refuse(Kind.INVALID, "the deadline has passed already", next="send a later one", field="deadline")
    if command.to is not None:
        other = work.agent(command.to)
        if other is None or command.to == command.principal:
            raise refuse(
                Kind.NOT_FOUND,
                f"there is no other agent {command.to!r}",
                next="name one that is there, or `*`",
                field="to_agent",
            )
        if (command.principal, command.to) in task.lineage.handed:
            path = " → ".join((task.lineage.handed[0][0], *(to for _, to in task.lineage.handed)))
            raise refuse(
                Kind.CONFLICT,
                f"{command.to} was handed this task by you before ({path}): that is a loop",
                next="name another agent",
                field="to_agent",
                path=path,
            )
        check_domain(work, task, other)
    asked, before = command.known.constraints or {}, budget.needs(task.agreement.constraints)
    budget.check_task(work, budget.needs(tightened(task.agreement.constraints, asked)), before)
    if task.lineage.has_questions and any(q.about is Asking.TAKEOVER for q in work.find(OpenQuestions(task.id))):
        raise refuse(
            Kind.CONFLICT, "the task is already being handed over", next="wait for that answer", task_id=task.id
        )


def adopt_unknown(work: Work, command: HandOver) -> Task:
    """A task that the hub does not know yet: its agent began it alone. From now on the hub keeps it as that agent's
    own."""
    route = Route(
        type=command.type, capabilities=tuple(sorted(command.required_capabilities)), besides=command.principal
    )
    submit = Submit(
        principal=command.principal,
        protocol=command.protocol,
        request_id=f"handover:{command.direct_message.message_id}",
        digest=command.direct_message.digest,
        type=command.type,
        content=Request(),
        task_id=command.task_id,
        priority=command.priority,
        called=command.called,
        constraints=command.known.constraints or {},
        routing=Routing(required_capabilities=command.required_capabilities),
        lineage=Lineage(trace_id=command.trace_id),
    )
    budget.check_task(work, budget.needs(submit.constraints))
    needs_in(submit.constraints)  # refused where they are not numbers
    task = work.record(newborn(work, submit, route), EventKind.SUBMITTED, Request(input=command.known.metadata or {}))
    link = reach(work, command.principal)
    task = move(
        task,
        Status.ASSIGNED,
        work.now,
        owner=command.principal,
        attempt=replace(task.attempt, count=1, session=link.session if link is not None and link.ordered else None),
        timing=replace(task.timing, last_sign_at=work.now),
    )
    return move(
        task, Status.RUNNING, work.now, wake_at=min(task.timing.deadline, Instant(work.now + task.timing.idle_limit))
    )


# -- asking -----------------------------------------------------------------------------------------------------


def ask_next(work: Work, question: Question, refusal: str | None = None) -> Question:
    """Ask the best agent that was not asked yet. If there is none, a person takes the task, or its owner keeps it.
    `refusal` is why the last agent said no."""
    assert question.task is not None
    task = work.known_task(question.task)
    if task.waiting is Waiting.HELD:
        return kept(work, question, PAUSED)
    obstacle, unable = "seat", None
    for agent in candidates(work, question, task):
        question = replace(question, asked_of=agent.id)
        if not agent.converses and not can_go_on(work, task, agent):
            question = passed_over(question)
            unable = f"{agent.id} does not do {task.type!r}, or not on the terms of this task"
            continue
        if not agent.converses and not can_start(work, agent):
            obstacle = "seat"
        elif budget.no_room(work, task, agent.id, needs_then(work, task, question)) is not None:
            obstacle = "budget for it"  # the hub could not accept a yes
        elif agent.converses:
            assert question.direct_message is not None
            turn = len(question.asked_before)
            carry(work, question.direct_message, agent.id, question.details.priority, task.id, turn=turn)
            work.put(question)
            return question
        else:
            return taken(work, question, task, agent, {})
        question = passed_over(question)
    if Handing(question.details.reason) is Handing.ESCALATION:
        return to_a_person(work, question, task)
    named = question.details.named
    why = f"{named} has no {obstacle} now" if named else f"nobody who could take it has a {obstacle} now"
    if named and unable is not None:
        why = unable
    if refusal is not None:
        why = f"nobody who could take it does; who was asked last said: {refusal}"
    return kept(work, question, f"{why}; the task stays yours")


def needs_then(work: Work, task: Task, question: Question) -> budget.Amounts:
    """What a task may use after the handoff."""
    asked = read_handoff(work.event(task.id, question.details.asked).body)
    constraints = tightened(task.agreement.constraints, asked.constraints or {})
    return budget.needed(work, replace(task, agreement=replace(task.agreement, constraints=constraints)))


# -- yes --------------------------------------------------------------------------------------------------------


def answer_handover(work: Work, command: AnswerHandover) -> Question | None:
    if answered_before(work, command):
        return work.one(QuestionById(question_id(command.request_id)))
    question = put_to(work, command.request_id, command.principal, Asking.TAKEOVER)
    assert question.task is not None
    task = work.known_task(question.task)
    if task.owner != question.agent or task.status not in HELD:
        raise refuse(
            Kind.CONFLICT, f"the task is {task.status.value} and not offered any more", next="leave it", task_id=task.id
        )
    if command.accepted:
        check_yes(work, question, task, command.principal)
        agent = work.agent(command.principal)
        assert agent is not None
        question = taken(work, question, task, agent, command.answer, tell=False)
        carry(work, command.direct_message, question.agent, Priority.HIGH, task.id)
        return question
    if question.details.named is None:
        note(work, command.principal, command.direct_message.message_id, command.direct_message.digest)
        return refused(work, question, command.error or f"{command.principal} declined")
    question = closed(work, question, {"accepted": False, "agent_id": command.principal, **command.answer})
    carry(work, command.direct_message, question.agent, Priority.HIGH, task.id)
    return question


def check_yes(work: Work, question: Question, task: Task, taker: AgentId) -> None:
    """Refuse a yes that came too late. It counts as an answer all the same: the hub asks the next agent, or tells the
    owner now and not at the deadline that it keeps the task."""
    if task.waiting is Waiting.HELD:
        message = "a person paused the task meanwhile, so it stays where it is"
        no, why = refuse(Kind.CONFLICT, message, next="leave it", task_id=task.id), PAUSED
    else:
        short = budget.no_room(work, task, taker, needs_then(work, task, question))
        if short is None:
            return
        no, why = short, f"{taker} has no budget for it any more; the task stays yours"
    refused(work, question, why)
    raise Refused(no.fault, keep=True)


# -- no ---------------------------------------------------------------------------------------------------------


def refused(work: Work, question: Question, why: str) -> Question:
    """The agent said no: ask the next one, unless the owner wanted only this one."""
    if question.details.named is None:
        return ask_next(work, passed_over(question), why)
    return kept(work, question, why)


def kept(work: Work, question: Question, why: str) -> Question:
    """No agent takes the task: its owner keeps it, and gets the answer."""
    question = closed(work, question, {"accepted": False, "agent_id": question.asked_of or "hub", "error": why})
    offer_answer(work, question)
    return question


def exhausted(work: Work, task: Task, question: Question) -> Question:
    """The task changed hands too often: it fails."""
    path = " → ".join((task.lineage.handed[0][0], *(to for _, to in task.lineage.handed)))
    fault = new_fault(
        Kind.UNSUPPORTED_WORK,
        f"handed over {len(task.lineage.handed)} times ({path}), and nobody seems able to do it",
        next="ask others",
        facts={"reason": "CAPABILITY_LIMIT", "hops": len(task.lineage.handed), "path": path},
    )
    work.put(question)
    owner = task.owner
    end(work, task, Status.FAILED, fault=fault)
    question = kept(work, question, fault.message)
    if owner is not None:
        fill(work, owner)
    return question


def to_a_person(work: Work, question: Question, task: Task) -> Question:
    """The task is escalated and no agent can do it: a person does, and the person's answer is its result."""
    question = closed(work, question, {"accepted": True, "agent_id": PERSON})
    task = with_handoff_event(work, task, question, PERSON)
    job = Question(
        id=QuestionId(work.mint()),
        task=task.id,
        agent=question.agent,
        question=f"{question.agent} cannot go on and asks you to: {task.description or task.name or task.type}",
        created_at=work.now,
        wake_at=task.timing.deadline,
        about=Asking.TAKEOVER,
        details=QuestionDetails(reason=question.details.reason),
        personal=task.agreement.personal,
    )
    work.put(job)
    task = budget.release(work, task)  # a person uses nothing of an agent's budget
    task = move(
        task,
        Status.WAITING,
        work.now,
        waiting=Waiting.PERSON,
        question=job.id,
        owner=ADMIN,
        queue=None,
        wake_at=None,
        attempt=replace(task.attempt, session=None, sandbox=None),
        timing=replace(task.timing, lost_at=None),
    )
    work.put(task)
    offer(work, task, task.origin.principal, MessageKind.PROGRESS, task.seq)
    offer_answer(work, question)
    make_room(work)
    fill(work, question.agent)
    return question


def question_closed(work: Work, question: Question) -> None:
    """A question about taking a task over is closed: no agent took it in time, or a person did the task."""
    assert question.task is not None
    task = work.known_task(question.task)
    if question.request_id is not None:
        kept(work, question, "nobody took it over in time")
    elif not task.final and task.question == question.id:
        done_by_a_person(work, task, question)


def done_by_a_person(work: Work, task: Task, job: Question) -> None:
    """A person reports how the task ended that they took over."""
    if job.status is QuestionStatus.ANSWERED:
        end(work, task, Status.COMPLETED, agent=ADMIN, content=Result(result=job.answer))
    else:
        fault = Fault(kind=Kind.TIMEOUT, message="no person took it on in its time", retryable=True)
        end(work, task, Status.FAILED, fault=fault)


# -- agents that will not answer ---------------------------------------------------------------------------------------


def pass_on(work: Work, agent: AgentId, why: str, *, for_good: bool) -> None:
    """The agent that is asked went away: ask another one, unless the owner wanted this one. An agent that the owner
    named may come back, unless it is gone `for_good`."""
    for question in work.find(PutTo(agent)):
        if question.about is not Asking.HANDSHAKE and (for_good or question.details.named is None):
            no_answer(work, question.id, agent, why)


def unanswered(work: Work, command: Unanswered) -> None:
    """The direct message with the question did not arrive."""
    no_answer(work, command.question, command.agent, f"{command.agent} could not be reached")


def no_answer(work: Work, id: QuestionId, agent: AgentId, why: str) -> None:
    """An agent will not answer. Nothing happens if it is not asked any more: the end of another question may have
    withdrawn this one."""
    question = work.one(QuestionById(id))
    if question is None or question.status is not QuestionStatus.WITH_AGENT or question.asked_of != agent:
        return
    take_back(work, question)
    if question.about is Asking.HELP:
        unhelped(work, question, why)
    else:
        refused(work, question, why)
