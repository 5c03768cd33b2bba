"""Whoever asked has not seen the answer: it was lost with the connection that waited for it.

In most protocols the same request again brings the answer again (`submit.again`). Where a message counts once, this
does: it makes a delivery of the answer, which is kept until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.core.commands import TellAgain
from dragoman.core.delivery.outbox import OUTCOME_KINDS, OUTCOMES, offer, offer_answer, waiting_again
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.lookups import Claims, Lane, QuestionById
from dragoman.core.model.deliveries import DeliveryState, MessageKind
from dragoman.core.tasks.questions import question_id
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, refuse


def tell_again(work: Work, command: TellAgain) -> None:
    """Where it is not answered yet nothing happens: the answer will come."""
    who = command.principal
    task = work.one(Claims(who, command.request_id))
    if task is not None:
        if not under_way(work, task.id, who, OUTCOMES) and task.final:
            offer(work, task, who, OUTCOME_KINDS[task.status], task.outcome.event or task.seq)
        return
    question = work.one(QuestionById(question_id(f"{who}/{command.request_id}")))
    if question is None or question.agent != who:
        message = "you sent no request of that id; name the one whose answer you miss"
        raise refuse(Kind.NOT_FOUND, message, field="answer_to")
    if not under_way(work, TaskId(question.id), who, (MessageKind.ANSWER,)) and question.answer is not None:
        offer_answer(work, question)


def under_way(work: Work, lane: TaskId, receiver: AgentId, kind: Iterable[MessageKind]) -> bool:
    """Whether the answer is a delivery already. The lease of a poll whose owner says that it has nothing is none."""
    told = [one for one in work.find(Lane(lane, receiver)) if one.kind in kind]
    for one in told:
        if one.state is DeliveryState.LEASED and not one.ordered:
            work.put(waiting_again(one, head=one.head))
    return bool(told)
