"""What could not be done or delivered, and what a person does about it."""

from __future__ import annotations

from dragoman.core.commands import Discard, Redrive
from dragoman.core.delivery.direct_messages import carry_again
from dragoman.core.delivery.outbox import offer
from dragoman.core.ids import ADMIN, AgentId, DeliveryId
from dragoman.core.lookups import DeadLetterById
from dragoman.core.model.deliveries import DeadLetter, MessageKind
from dragoman.core.model.tasks import Status, Task
from dragoman.core.tasks.retry import begin_anew
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, Refused, refuse


def dead_letter_of(work: Work, id: DeliveryId, principal: AgentId) -> DeadLetter:
    dead_letter = work.one(DeadLetterById(id))
    if dead_letter is None or principal != ADMIN:
        raise Refused(Fault(kind=Kind.NOT_FOUND, message="no such dead letter", facts={"letter": id}))
    return dead_letter


def redrive(work: Work, command: Redrive) -> Task | DeadLetter:
    """Work is done again from the start; a notice is offered to its receiver again, and a dead letter carried again."""
    dead_letter = dead_letter_of(work, command.dead_letter, command.principal)
    if dead_letter.direct_message is not None:
        carry_again(work, dead_letter)
        work.remove(dead_letter)
        return dead_letter
    task = work.known_task(dead_letter.task)
    work.remove(dead_letter)
    if dead_letter.kind is not MessageKind.WORK:
        if command.input is not None:
            raise refuse(Kind.INVALID, "only the input of work can be edited, not a notice", field="input")
        if dead_letter.kind is MessageKind.ANSWER:
            message = "an answer cannot be sent again; discard the letter, and the agent asks anew"
            raise Refused(Fault(kind=Kind.CONFLICT, message=message, facts={"letter": dead_letter.id}))
        assert dead_letter.receiver is not None
        offer(work, task, dead_letter.receiver, dead_letter.kind, dead_letter.event, kept=True)
        return task
    if task.status not in (Status.FAILED, Status.CANCELLED):
        raise refuse(Kind.CONFLICT, f"its task is {task.status.value}; discard the letter instead", task_id=task.id)
    return begin_anew(work, task, command.input)


def discard(work: Work, command: Discard) -> DeadLetter:
    dead_letter = dead_letter_of(work, command.dead_letter, command.principal)
    work.remove(dead_letter)
    return dead_letter
