"""Agents help each other; where no agent can help, a person does.

A request for help is a `Question` that the hub puts to one helper after the other, until one answers or its time is up:

    asked of                        it gets                      its answer
    ------------------------------  ---------------------------  ---------------------------------------------------
    an agent that converses         the request, word for word   a direct message to the asker: `GiveHelp`
    an agent of another protocol    a task of that topic         the task's result
    a person                        an open question             as to any question (`questions.answer`)

    the answer                      the asker named the helper   the asker named no helper
    ------------------------------  ---------------------------  ---------------------------------------------------
    answered                        to the asker                 to the asker
    escalated                       to the asker, and the next is asked with it, in the end a person
    unable, or never came           to the asker                 the next is asked, in the end a person

If a helper falls silent or is removed, its answer never comes; a helper that the asker named and that is only silent
may come back. An agent can help if it declared the topic (in any spelling) or `help` as a capability and does not
report that it takes no work. The hub asks the least loaded first, then the one that fails least. Meanwhile the task
waits. If the task ends or changes its owner, the hub withdraws the request: a helper that has not read it will not get
it, and a helper that works on it gets a cancel.

A helper may escalate the request (agentmsg-D6a); what it says goes to the asker and to the next helper.

    the helper                     escalates by                           the asker gets
    -----------------------------  -------------------------------------  --------------------------------------------
    an agent that converses        a help response of that type           that response, word for word
    an agent of another protocol   the result of its task:                a message in the hub's form (`ESCALATED`), put
                                   {"response_type": "ESCALATION",        into the asker's protocol by its `outbound`
                                   "content", "resources"?}

The question keeps every escalation (`Question.escalations`): the next agent finds them beside the request, a person
beside the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID, uuid5

import msgspec
from msgspec.structs import replace

from dragoman.core.agreements.domain_policy import check_open, domain_of, is_open, view
from dragoman.core.commands import (
    Agreement,
    AnswerHandover,
    AskHelp,
    GiveHelp,
    HelpVerdict,
    Lineage,
    Reply,
    Routing,
    Submit,
    Timing,
)
from dragoman.core.delivery.direct_messages import carry
from dragoman.core.delivery.outbox import offer, withdraw
from dragoman.core.ids import HUB, AgentId, Instant
from dragoman.core.lookups import QuestionById
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import ESCALATED, DirectMessage, Escalation, MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import Asking, Priority, Question, QuestionStatus, Status, Task, Waiting
from dragoman.core.policy.replay import mark_of, note, other_words, receipt
from dragoman.core.routing.routes import absent, present, reads_soon, weight_of
from dragoman.core.tasks.questions import close, go_on, held_or, order_of, question_id, with_question_event
from dragoman.core.tasks.submit import submit
from dragoman.core.work import Work
from dragoman.messages.brevity import in_short
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.messages.tasks import Request, read_result

ANYTHING = "help"

NOT_YOURS = "no such request, or it was not put to you"
ASKED_OF_ANOTHER = "asked_of_another"
"""The `reason` of a refusal: the hub put the request to another agent."""


def asked_before(work: Work, direct_message: DirectMessage) -> Question | None:
    """The question of this message, if it came before. Another content under its id is refused (all-D5)."""
    known = work.one(QuestionById(question_id(direct_message.message_id)))
    if known is not None and (
        known.direct_message is None
        or (known.agent, known.direct_message.digest) != (direct_message.sender, direct_message.digest)
    ):
        raise other_words()
    return known


def ask_help(work: Work, command: AskHelp) -> Question:
    known = asked_before(work, command.direct_message)
    if known is not None:
        return known
    task = None if command.task_id is None else work.task(command.task_id)
    if task is not None and (task.owner != command.principal or task.final):
        task = None
    if command.to is not None:
        helper = work.agent(command.to)
        if helper is None or helper.id == command.principal:
            raise refuse(
                Kind.NOT_FOUND,
                f"there is no other agent {command.to!r}",
                next="name one that is there, or write to the hub",
                field="to",
            )
        check_open(work, command.principal, helper, spelled(command.topic))
    if command.deadline is not None and command.deadline <= work.now:
        raise refuse(Kind.INVALID, "the deadline has passed already", next="send a later one", field="deadline")
    patience = Instant(work.now + work.rules.total_limit)
    question = Question(
        id=question_id(command.direct_message.message_id),
        task=None if task is None else task.id,
        agent=command.principal,
        question=command.question,
        created_at=work.now,
        wake_at=command.deadline or (patience if task is None else max(patience, task.timing.deadline)),
        request_id=command.direct_message.message_id,
        details=replace(
            command.details, topic=command.topic, priority=command.priority, named=command.to, task_id=command.task_id
        ),
        about=Asking.HELP,
        personal=task is not None and task.agreement.personal,
        direct_message=replace(
            command.direct_message,
            asks=question_id(command.direct_message.message_id),
            personal=task is not None and task.agreement.personal,
        ),
    )
    question = ask_next(work, question)
    work.put(question)
    if task is not None:
        waits_for(work, work.known_task(task.id), question)
    return question


def waits_for(work: Work, task: Task, question: Question) -> None:
    """The owner asked for help: the task waits until the help comes."""
    assert task.owner is not None
    withdraw(work, task, task.owner)  # the owner has begun, since it asks
    task = with_question_event(work, task, question)
    offer(work, task, task.origin.principal, MessageKind.PROGRESS, task.seq)
    task = move(
        work.sign_of_life(task), Status.WAITING, work.now, waiting=held_or(task, Waiting.HELP),
        question=question.id, queue=None, wake_at=None,
    )  # fmt: skip
    work.put(task)


def ask_next(work: Work, question: Question) -> Question:
    """The question, put to the best helper that was not asked before (to be put once more)."""
    for helper in helpers(work, question):
        question = replace(question, status=QuestionStatus.WITH_AGENT, asked_of=helper.id)
        if helper.converses:
            assert question.direct_message is not None
            about, priority = question.details.task_id, question.details.priority
            turn = len(question.asked_before)
            work.put(question)  # the direct message may leave at once, with the escalations of the question
            carry(work, question.direct_message, helper.id, priority, about, turn=turn)
            return question
        if give_as_task(work, question, helper):
            return question
        question = passed_over(question)
    return replace(question, status=QuestionStatus.OPEN, asked_of=None)


def helpers(work: Work, question: Question) -> Iterator[Agent]:
    named = question.details.named
    tried = {question.agent, *question.asked_before}
    if named is not None:
        agent = work.agent(AgentId(named))
        return iter(() if agent is None or agent.id in tried else (agent,))
    topic = spelled(question.details.topic)
    able = [
        agent
        for agent in work.all_agents()
        if agent.id not in tried
        and not agent.paused
        and can_help(agent, topic)
        and reads_soon(work, agent)
        and not absent(work, work.standing(agent.id))
    ]
    domains = view(work, question.agent, topic)
    able = [agent for agent in able if is_open(domains, domain_of(agent))]

    def place(agent: Agent) -> tuple[Any, ...]:
        return (not present(work, agent.id), work.load_of(agent.id), *weight_of(work.standing(agent.id)), agent.id)

    return iter(sorted(able, key=place))


def can_help(agent: Agent, topic: str) -> bool:
    able = {spelled(word) for word in (*agent.capabilities, *(agent.work_types or ()))}
    return topic in able or ANYTHING in able


def give_as_task(work: Work, question: Question, helper: Agent) -> bool:
    """Ask an agent whose protocol has no help request, by a task of that topic. False if the agent does not do such
    work."""
    topic = spelled(question.details.topic)
    can = [word for word in (*(helper.work_types or ()), *helper.capabilities) if spelled(word) == topic]
    details = question.details
    asked: dict[str, Any] = {}
    if details.help_type is not None:
        asked = {"help_type": details.help_type, "urgency": details.urgency}
        asked |= {"context": details.context, "task": details.task}
    asked["topic"] = details.topic
    if details.escalations:
        asked["escalations"] = msgspec.to_builtins(details.escalations)
    order = Submit(
        principal=question.agent,
        request_id=order_of(question),
        digest=question.id,
        type=can[0] if can and helper.can_do(can[0]) else topic if helper.can_do(topic) else ANYTHING,
        content=Request(input={"content": question.question, "help": asked}),
        name=f"help {question.agent}",
        description=question.question,
        priority=question.details.priority,
        routing=Routing(pinned=helper.id),
        timing=Timing(deadline=question.wake_at),
        lineage=Lineage(parent=question.task),
        reply=Reply(follows=True),
        agreement=Agreement(personal=question.personal),
    )
    try:
        task = submit(work, order)
    except Refused:
        return False
    task = work.known_task(task.id)
    work.put(replace(task, lineage=replace(task.lineage, helps=question.id)))
    return True


def passed_over(question: Question) -> Question:
    """The agent that is asked now cannot help."""
    if question.asked_of is None:
        return question
    asked = (*question.asked_before, question.asked_of)
    return replace(question, asked_of=None, asked_before=asked)


def now_asked(work: Work, question: Question, *, escalated: bool = False) -> Question:
    """Another helper is asked. The events of the task name it, and how the last helper `escalated` the question."""
    work.put(question)
    task = None if question.task is None else work.task(question.task)
    if task is not None and task.question == question.id:
        work.put(with_question_event(work, task, question, question.details.escalations[-1] if escalated else None))
    return question


def give_help(work: Work, command: GiveHelp) -> Question | None:
    if answered_before(work, command):
        return work.one(QuestionById(question_id(command.request_id)))
    question = put_to(work, command.request_id, command.principal, Asking.HELP)
    if command.verdict is HelpVerdict.ESCALATED:
        return escalated(work, question, command.direct_message, command.answer)
    if command.verdict is HelpVerdict.UNABLE and question.details.named is None:
        note(work, command.principal, command.direct_message.message_id, command.direct_message.digest)
        return now_asked(work, ask_next(work, passed_over(question)))
    return answered(work, question, command)


def escalated(work: Work, question: Question, direct_message: DirectMessage, answer: Any) -> Question:
    """The helper escalates: its direct message goes to the asker, and the hub asks the next agent that can help, with
    that escalation, or a person. The asker named this helper, not the next."""
    about = question.details.task_id
    carry(work, direct_message, question.agent, Priority.HIGH, about)
    return now_asked(work, ask_next(work, passed_over(noted(question, answer))), escalated=True)


def answered_before(work: Work, command: GiveHelp | AnswerHandover) -> bool:
    """Whether this answer came before: its sender got no receipt for it."""
    direct_message = command.direct_message
    return receipt(work, command.principal, direct_message.message_id, direct_message.digest) is not None


def answered(work: Work, question: Question, command: GiveHelp) -> Question:
    """The answer goes to the asker word for word; a follow-up belongs to the same request."""
    about = question.details.task_id
    carry(work, command.direct_message, question.agent, Priority.HIGH, about)
    question = replace(
        question,
        status=QuestionStatus.WITH_AGENT if command.more else QuestionStatus.ANSWERED,
        answer=command.answer,
        answered_at=work.now,
        answered_by=command.principal,
        wake_at=question.wake_at if command.more else None,
        blocking=False,
    )
    work.put(question)
    task = None if question.task is None else work.task(question.task)
    if task is not None:
        go_on(work, task, question, tell=False)
    return question


def put_to(work: Work, request_id: str, principal: AgentId, about: Asking) -> Question:
    """The question of a message, if this agent is asked. A missing question and a question to another agent get the
    same refusal.

    A request that the hub does not know may be a matter between two agents. A request that the hub put to another agent
    is not (`ASKED_OF_ANOTHER`): its asker would take this answer for that agent's.
    """
    question = work.one(QuestionById(question_id(request_id)))
    if question is None or question.about is not about:
        raise refuse(Kind.NOT_FOUND, NOT_YOURS, field="request_id")
    if principal not in (question.asked_of, *question.asked_before):
        raise refuse(Kind.NOT_FOUND, NOT_YOURS, field="request_id", reason=ASKED_OF_ANOTHER)
    if question.status is not QuestionStatus.WITH_AGENT or question.asked_of != principal:
        elsewhere = question.status in (QuestionStatus.WITH_AGENT, QuestionStatus.OPEN)
        now = "with another agent or a person" if elsewhere else f"already {question.status.value}"
        raise refuse(
            Kind.CONFLICT,
            f"the request is {now}",
            next="drop the answer",
            field="request_id",
            status=question.status.value,
        )
    asker = work.agent(question.agent)
    if asker is None or asker.created_at > question.created_at:
        raise refuse(
            Kind.CONFLICT,
            f"{question.agent}, who asked, was removed",
            next="drop the answer",
            field="request_id",
            status=QuestionStatus.WITHDRAWN.value,
        )
    return question


def helped(work: Work, task: Task) -> None:
    """A task that was a request for help ended: its result is the help."""
    question = None if task.lineage.helps is None else work.one(QuestionById(task.lineage.helps))
    if question is None or question.status is not QuestionStatus.WITH_AGENT or question.asked_of != task.routing.pinned:
        return
    if task.status is not Status.COMPLETED:
        unhelped(
            work,
            question,
            task.outcome.fault.message if task.outcome.fault is not None else f"the task is {task.status.value}",
        )
        return
    answer = read_result(work.event(task.id, task.outcome.event or task.seq).body).content
    match verdict_of(answer):
        case HelpVerdict.ESCALATED:
            escalated(work, question, direct_message_about(question, answer), answer)
        case HelpVerdict.UNABLE:
            unhelped(work, question, content_of(answer))
        case HelpVerdict.ANSWERED:
            close(work, question, QuestionStatus.ANSWERED, answer, question.asked_of or question.agent)


def unhelped(work: Work, question: Question, why: str) -> None:
    """The helper is unable to answer, or its answer never comes."""
    if question.details.named is None:
        now_asked(work, ask_next(work, passed_over(question)))
    else:
        close(work, question, QuestionStatus.EXPIRED, {"content": why}, question.asked_of or question.agent)


DIRECT_MESSAGES = UUID("9b7f6c0e-3f7b-5c55-9c6a-64726167eeee")
"""Namespace of the ids of direct messages that report an escalation."""


LONGEST = 64 * 1024
"""How many bytes of one helper's text, and of its resources, the next helper gets: the question is a row that is
written again, and must fit into a message with the other escalations."""


VERDICTS: Mapping[str, HelpVerdict] = {
    "escalation": HelpVerdict.ESCALATED,
    "unable_to_help": HelpVerdict.UNABLE,
}
"""The meaning of the `response_type` in a task's result, where the task was a request for help. Any other value is an
answer."""


def spelled(word: str) -> str:
    """The one spelling in which topics and types are compared."""
    return word.casefold().replace("-", "_").replace(" ", "_")


def verdict_of(answer: Any) -> HelpVerdict:
    kind = answer.get("response_type") if isinstance(answer, dict) else None
    return VERDICTS.get(spelled(kind), HelpVerdict.ANSWERED) if isinstance(kind, str) else HelpVerdict.ANSWERED


def content_of(answer: Any) -> str:
    content = answer.get("content") if isinstance(answer, dict) else answer
    if isinstance(content, str):
        return content
    return "" if content is None else msgspec.json.encode(content).decode()


def escalation_of(question: Question, answer: Any) -> Escalation:
    """The escalation of the agent that is asked now."""
    assert question.asked_of is not None
    given = answer.get("resources") if isinstance(answer, dict) else None
    resources: list[Any] = []
    for resource in given if isinstance(given, list | tuple) else ():
        if len(msgspec.json.encode([*resources, resource])) > LONGEST:
            break
        resources.append(resource)
    content = in_short(content_of(answer), LONGEST)
    return Escalation(agent=question.asked_of, content=content, resources=tuple(resources))


def noted(question: Question, answer: Any) -> Question:
    """The question with its helper's escalation. The asker named that helper; the hub chooses the next."""
    escalations = (*question.details.escalations, escalation_of(question, answer))
    return replace(question, details=replace(question.details, named=None, escalations=escalations))


def direct_message_about(question: Question, answer: Any) -> DirectMessage:
    """The escalation of an agent without help responses, as a direct message to the asker. The same escalation again
    gives the same direct message."""
    escalation = escalation_of(question, answer)
    content = {**msgspec.to_builtins(escalation), "request_id": question.request_id}
    body = msgspec.json.encode(content)
    return DirectMessage(
        sender=escalation.agent,
        message_id=str(uuid5(DIRECT_MESSAGES, f"{question.id}/{len(question.asked_before)}")),
        kind=ESCALATED,
        digest=mark_of(ESCALATED, body.decode()),
        raw=msgspec.Raw(body),
        protocol=HUB,
        personal=question.personal,
    )
