"""An agent that was asked for help, or to take a task over, will not answer: it is gone or was never reached."""

from __future__ import annotations

from dragoman.core.commands import Unanswered
from dragoman.core.ids import AgentId, QuestionId
from dragoman.core.lookups import PutTo, QuestionById
from dragoman.core.model.tasks import Asking, QuestionStatus
from dragoman.core.tasks.assistance import unhelped
from dragoman.core.tasks.handover import refused
from dragoman.core.tasks.questions import take_back
from dragoman.core.work import Work


def pass_on(work: Work, agent: AgentId, why: str, *, for_good: bool) -> None:
    """Whoever is asked is not there any more: somebody else is, where that is left open. Who was named may come back,
    unless it is gone `for_good`."""
    for question in work.find(PutTo(agent)):
        if question.about is not Asking.HANDSHAKE and (for_good or question.details.named is None):
            no_answer(work, question.id, agent, why)


def unanswered(work: Work, command: Unanswered) -> None:
    """The direct message that asked did not arrive."""
    no_answer(work, command.question, command.agent, f"{command.agent} could not be reached")


def no_answer(work: Work, id: QuestionId, agent: AgentId, why: str) -> None:
    """An agent will not answer what it is asked, if it still is: the end of another question may have called it off."""
    question = work.one(QuestionById(id))
    if question is None or question.status is not QuestionStatus.WITH_AGENT or question.asked_of != agent:
        return
    take_back(work, question)
    if question.about is Asking.HELP:
        unhelped(work, question, why)
    else:
        refused(work, question, why)
