"""A person's word on a risky task. All other questions are answered as ever."""

from __future__ import annotations

import msgspec

from dragoman.core.budgets.admission import APPROVAL, APPROVE
from dragoman.core.commands import Answer
from dragoman.core.lookups import QuestionById
from dragoman.core.model.tasks import EventKind, Question, Status
from dragoman.core.routing.dispatch import place
from dragoman.core.tasks import questions
from dragoman.core.tasks.outcome import end
from dragoman.core.work import Work
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind


def answer(work: Work, command: Answer) -> Question:
    question = work.one(QuestionById(command.question))
    if question is None or question.task is None or not question.details.get(APPROVAL):
        return questions.answer(work, command)
    task = work.known_task(question.task)
    task = msgspec.structs.replace(task, question=None)  # the answer is no work order: the agent never hears of it
    if not task.final:
        work.put(task)
    question = questions.answer(work, command)
    if task.final:
        return question
    task = work.record(task, EventKind.ANSWERED, messages.Answer(question_id=question.id, answer=command.answer))
    if command.answer == APPROVE:
        place(work, msgspec.structs.replace(task, approved=True, deadline=task.due(work.now)))
    else:
        fault = Fault(
            kind=Kind.FORBIDDEN,
            message=f"a person refused it: its risk is {task.constraints.get('risk'):g}",
            facts={"risk": task.constraints.get("risk"), "question_id": question.id},
        )
        end(work, task, Status.FAILED, fault=fault)
    return question
