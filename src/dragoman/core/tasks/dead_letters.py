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
from dragoman.messages.faults import Kind, refuse


def letter_of(work: Work, id: DeliveryId, principal: AgentId) -> DeadLetter:
    letter = work.one(DeadLetterById(id))
    if letter is None or principal != ADMIN:
        raise refuse(Kind.NOT_FOUND, "no such dead letter", letter=id)
    return letter


def redrive(work: Work, command: Redrive) -> Task | DeadLetter:
    """Work is done again from the start; a notice is offered to its receiver again, and a letter carried again."""
    letter = letter_of(work, command.letter, command.principal)
    if letter.letter is not None:
        carry_again(work, letter)
        work.remove(letter)
        return letter
    task = work.known_task(letter.task)
    work.remove(letter)
    if letter.kind is not MessageKind.WORK:
        if command.input is not None:
            raise refuse(Kind.INVALID, "only the input of work can be edited, not a notice", field="input")
        if letter.kind is MessageKind.ANSWER:
            message = "an answer cannot be sent again; discard the letter, and the agent asks anew"
            raise refuse(Kind.CONFLICT, message, letter=letter.id)
        assert letter.receiver is not None
        offer(work, task, letter.receiver, letter.kind, letter.event, kept=True)
        return task
    if task.status not in (Status.FAILED, Status.CANCELLED):
        raise refuse(Kind.CONFLICT, f"its task is {task.status.value}; discard the letter instead", task_id=task.id)
    return begin_anew(work, task, command.input)


def discard(work: Work, command: Discard) -> DeadLetter:
    letter = letter_of(work, command.letter, command.principal)
    work.remove(letter)
    return letter
