"""What will not arrive: when that is certain, and who is told."""

from __future__ import annotations

import msgspec

from dragoman.core.commands import Unanswered
from dragoman.core.delivery.outbox.lanes import advance, lane_of, put_on_its_way, vacate
from dragoman.core.delivery.outbox.leases import ORDERS, converses, is_alone
from dragoman.core.ids import DeliveryId, Instant, TaskId
from dragoman.core.lookups import QuestionById
from dragoman.core.model.deliveries import DeadLetter, Delivery, Letter, MessageKind
from dragoman.core.model.tasks import EventKind, Status, Task
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind


def attempts_of(work: Work, delivery: Delivery) -> int:
    if delivery.letter is not None and delivery.kind is MessageKind.LETTER:
        return delivery.letter.attempts
    if not converses(work, delivery.receiver):
        return work.rules.notice_attempts
    if delivery.kind in ORDERS:
        own = work.known_task(delivery.task).retry
        if own is not None and own.attempts is not None:
            return own.attempts
    said = work.policy.retry
    return work.rules.letter_attempts if said is None or said.attempts is None else said.attempts


def outlived(work: Work, delivery: Delivery) -> bool:
    """Whether nobody is to be bothered with it any more (agentmsg-D6)."""
    letter = delivery.letter
    return letter is not None and letter.expires_at is not None and letter.expires_at <= work.now


def expire(work: Work, delivery: Delivery, *, onward: bool = True) -> None:
    """A letter's time is over: it is dropped, that is recorded, and its sender told if it was promised more."""
    letter = delivery.letter
    assert letter is not None
    message = f"{letter.kind} was not delivered to {delivery.receiver} in its time"
    fault = Fault(kind=Kind.TIMEOUT, message=message, facts={"message_id": letter.message_id})
    work.audit(
        principal=letter.sender, action="letter.expire", protocol=letter.protocol, subject=letter.message_id,
        reason=str(fault),
    )  # fmt: skip
    asks = None if letter.asks is None else work.one(QuestionById(letter.asks))
    if asks is not None and not asks.asked_before:  # whoever asked hears that, too, once, beside the answer
        tell_sender(work, letter, fault, delivery.rank)
    give_up(work, delivery, fault, onward=onward)


def give_up(work: Work, delivery: Delivery, fault: Fault, *, onward: bool) -> None:
    """It will not arrive: out of its lane; the sender of a letter is told. `onward`: what stands behind it may leave,
    unless whoever calls goes through the lane already."""
    work.remove(delivery)
    vacate(work, delivery)
    letter = delivery.letter
    told = letter is not None and not letter.once and delivery.kind is MessageKind.LETTER
    if letter is not None and letter.asks is not None:
        work.ask_afterwards(Unanswered(question=letter.asks, agent=delivery.receiver))
        told = False
    if letter is not None and told:
        tell_sender(work, letter, fault, delivery.rank)
    if onward:
        advance(work, () if is_alone(delivery) else lane_of(work, delivery))


def tell_sender(work: Work, letter: Letter, fault: Fault, rank: int) -> None:
    """Its sender hears that it will not arrive, if it has a word for that."""
    if not converses(work, letter.sender):
        return
    id = DeliveryId(work.mint())
    words = msgspec.structs.replace(letter, body=msgspec.Raw(b"null"), once=False, expires_at=None, asks=None)
    notice = Delivery(
        id=id, task=TaskId(id), receiver=letter.sender, seq=1, kind=MessageKind.UNDELIVERED, event=0, rank=rank,
        created_at=work.now, letter=words, reason=fault,
    )  # fmt: skip
    put_on_its_way(work, notice, ())


def bury(work: Work, delivery: Delivery, reason: Fault, *, onward: bool = True) -> None:
    """Into the dead letters, in the same commit that takes it out of its lane."""
    work.put(
        DeadLetter(
            id=delivery.id,
            task=delivery.task,
            receiver=delivery.receiver,
            kind=delivery.kind,
            event=delivery.event,
            attempts=delivery.attempt,
            at=work.now,
            reason=reason,
            letter=delivery.letter,
        )
    )
    if not delivery.alone:
        task = work.known_task(delivery.task)
        body = msgspec.json.encode({"fault": reason, "letter": delivery.id, "cargo": delivery.kind})
        task = work.record(task, EventKind.DEAD_LETTERED, agent=delivery.receiver, body=msgspec.Raw(body))
        if delivery.kind is MessageKind.YOURS and task.owner == delivery.receiver and unbegun(task, delivery):
            task = msgspec.structs.replace(task, lost_at=work.now, wake_at=Instant(work.now + work.rules.grace))
        work.put(task)
    give_up(work, delivery, reason, onward=onward)


def unbegun(task: Task, order: Delivery) -> bool:
    """Whether nothing was heard of a task since its agent said that it takes it over: it may have forgotten that."""
    return task.status is Status.RUNNING and (task.last_sign_at or 0) <= order.created_at


def never_acknowledged(delivery: Delivery) -> Fault:
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{delivery.receiver} never acknowledged it in {delivery.attempt} attempts",
        facts={"agent_id": delivery.receiver},
    )
