"""What people decide: whether a risky task may begin (`tasks.questions` has all other answers), and which domains may
ask which (`agreements.domain_policy`)."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from dragoman.core.budgets.admission import APPROVE
from dragoman.core.commands import Answer, ChangeState, SetDomainPolicy
from dragoman.core.lookups import QuestionById
from dragoman.core.model.policy import DOMAINS, NAME, DomainPolicy
from dragoman.core.model.state import Entity, Operation, Registry
from dragoman.core.model.tasks import EventKind, Question, Status
from dragoman.core.routing.dispatch import place
from dragoman.core.state.changes import change_state, policy_entity
from dragoman.core.tasks import questions
from dragoman.core.tasks.outcome import end
from dragoman.core.work import Work
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind


def answer(work: Work, command: Answer) -> Question:
    question = work.one(QuestionById(command.question))
    if question is None or question.task is None or not question.details.approval:
        return questions.answer(work, command)
    task = work.known_task(question.task)
    task = replace(task, question=None)  # the answer is no work order: the agent does not get it
    if not task.final:
        work.put(task)
    question = questions.answer(work, command)
    if task.final:
        return question
    task = work.record(task, EventKind.ANSWERED, messages.Answer(question_id=question.id, answer=command.answer))
    if command.answer == APPROVE:
        place(
            work,
            replace(
                task,
                agreement=replace(task.agreement, approved=True),
                timing=replace(task.timing, deadline=task.due(work.now)),
            ),
        )
    else:
        fault = Fault(
            kind=Kind.FORBIDDEN,
            message=f"a person refused it: its risk is {task.agreement.constraints.get('risk'):g}",
            facts={"risk": task.agreement.constraints.get("risk"), "question_id": question.id},
        )
        end(work, task, Status.FAILED, fault=fault)
    return question


def set_domain_policy(work: Work, command: SetDomainPolicy) -> Entity:
    """Allow or forbid a pair of domains; a new policy for a pair replaces the one before."""
    policy = policy_entity(work)
    pair = (command.source, command.target)
    kept = [one for one in work.policy.domain_policies if (one.source, one.target) != pair]
    if command.allow is not None:
        kept.append(DomainPolicy(*pair, command.allow, tuple(sorted(command.intents)), command.encrypt))
    return change_state(
        work,
        ChangeState(
            principal=command.principal,
            operation=Operation.UPDATE,
            entity=Registry.POLICY,
            entity_id=NAME,
            changes={DOMAINS: msgspec.to_builtins(kept)},
            version=policy.version,
        ),
    )
