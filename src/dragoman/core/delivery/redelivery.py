"""Redelivery: what leaves again, and what the hub gives up.

The hub offers a delivery again to a new link, to a link that has room again, and when its receiver did not acknowledge
it in time. After the last attempt, or its time to live, the hub gives it up: it becomes a dead letter, and its sender
is notified.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.core.commands import RefillLink, Unanswered, WaitAgain
from dragoman.core.delivery.outbox import (
    LANE,
    ORDERS,
    advance,
    converses,
    due_at,
    held,
    is_alone,
    lane_of,
    lease,
    order_again,
    put_on_its_way,
    vacate,
    waiting_again,
    way_out,
    without_lost_offer,
)
from dragoman.core.directory import Directory
from dragoman.core.ids import DeliveryId, Instant, TaskId
from dragoman.core.lookups import FIRST, PAGE, DeliveryById, Inbox, Lane, LeasedTo, QuestionById, Unacknowledged
from dragoman.core.model.agents import Link
from dragoman.core.model.deliveries import LONGEST, DeadLetter, Delivery, DeliveryState, DirectMessage, MessageKind
from dragoman.core.model.policy import NAME
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import EventKind, Status, Task, Waiting
from dragoman.core.rules import Rules
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import DeadLettered

# -- what will not arrive ----------------------------------------------------------------------------------------------


def attempts_of(work: Work, delivery: Delivery) -> int:
    if delivery.direct_message is not None and delivery.kind is MessageKind.DIRECT_MESSAGE:
        return delivery.direct_message.attempts
    if not converses(work, delivery.receiver):
        return work.rules.notice_attempts
    if delivery.kind in ORDERS:
        own = work.known_task(delivery.task).timing.retry
        if own is not None and own.attempts is not None:
            return own.attempts
    retry = work.policy.retry
    return work.rules.direct_message_attempts if retry is None or retry.attempts is None else retry.attempts


def outlived(work: Work, delivery: Delivery) -> bool:
    """Whether its time to live is over (agentmsg-D6)."""
    direct_message = delivery.direct_message
    return (
        direct_message is not None and direct_message.expires_at is not None and direct_message.expires_at <= work.now
    )


def expire(work: Work, delivery: Delivery, *, onward: bool = True) -> None:
    """The time to live of a direct message is over: drop it, record that, and notify its sender if the promise was at
    least once."""
    direct_message = delivery.direct_message
    assert direct_message is not None
    message = f"{direct_message.kind} was not delivered to {delivery.receiver} in its time"
    fault = Fault(kind=Kind.TIMEOUT, message=message, facts={"message_id": direct_message.message_id})
    work.audit(
        principal=direct_message.sender, action="letter.expire", protocol=direct_message.protocol,
        subject=direct_message.message_id, reason=str(fault),
    )  # fmt: skip
    asks = None if direct_message.asks is None else work.one(QuestionById(direct_message.asks))
    if asks is not None and not asks.asked_before:  # the asker gets this, too, once, beside the answer
        tell_sender(work, direct_message, fault, delivery.rank)
    give_up(work, delivery, fault, onward=onward)


def give_up(work: Work, delivery: Delivery, fault: Fault, *, onward: bool) -> None:
    """Remove a delivery that will not arrive from its lane, and notify the sender of a direct message. `onward`: what
    is behind it may leave; False if the caller walks the lane itself."""
    work.remove(delivery)
    vacate(work, delivery)
    direct_message = delivery.direct_message
    notify = direct_message is not None and not direct_message.once and delivery.kind is MessageKind.DIRECT_MESSAGE
    if direct_message is not None and direct_message.asks is not None:
        work.ask_afterwards(Unanswered(question=direct_message.asks, agent=delivery.receiver))
        notify = False
    if direct_message is not None and notify:
        tell_sender(work, direct_message, fault, delivery.rank)
    if onward:
        advance(work, () if is_alone(delivery) else lane_of(work, delivery))


def tell_sender(work: Work, direct_message: DirectMessage, fault: Fault, rank: int) -> None:
    """Notify the sender that its direct message will not arrive, if its protocol can say that."""
    if not converses(work, direct_message.sender):
        return
    id = DeliveryId(work.mint())
    returned = replace(direct_message, raw=msgspec.Raw(b"null"), once=False, expires_at=None, asks=None)
    notice = Delivery(
        id=id, task=TaskId(id), receiver=direct_message.sender, seq=1, kind=MessageKind.UNDELIVERED, event=0, rank=rank,
        created_at=work.now, direct_message=returned, reason=fault,
    )  # fmt: skip
    put_on_its_way(work, notice, ())


def make_dead_letter(work: Work, delivery: Delivery, reason: Fault, *, onward: bool = True) -> None:
    """Make a delivery a dead letter, in the same commit that takes it out of its lane."""
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
            direct_message=delivery.direct_message,
        )
    )
    if not delivery.alone:
        task = work.known_task(delivery.task)
        event = DeadLettered(fault=reason, dead_letter=delivery.id, message_kind=delivery.kind)
        task = work.record(task, EventKind.DEAD_LETTERED, event, agent=delivery.receiver)
        if delivery.kind is MessageKind.HANDOFF and task.owner == delivery.receiver and not_begun(task, delivery):
            task = replace(
                task,
                wake_at=Instant(work.now + work.rules.grace),
                timing=replace(task.timing, lost_at=work.now),
            )
        work.put(task)
    give_up(work, delivery, reason, onward=onward)


def not_begun(task: Task, order: Delivery) -> bool:
    """Whether the hub got no sign of a task since its agent took it over: the agent may have forgotten it."""
    return task.status is Status.RUNNING and (task.timing.last_sign_at or 0) <= order.created_at


def never_acknowledged(delivery: Delivery) -> Fault:
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{delivery.receiver} never acknowledged it in {delivery.attempt} attempts",
        facts={"agent_id": delivery.receiver},
    )


# -- offering again ----------------------------------------------------------------------------------------------------

MANY = 512

NOTHING_YET = (FIRST, "")
"""The place before everything that may have left for a receiver (`Link.behind`)."""


def send_waiting(work: Work, link: Link) -> int:
    """Send over a link what waits for its agent, the best first; returns how many.

    What earlier links held counts as waiting. There may be thousands, so a new link gets them page by page, each page
    in a unit of its own.
    """
    receiver, sent = link.agent, 0
    leased = left(work, link)
    stale = [d for d in leased if (d.ordered or d.wake_at is None) and not held(work, d)]
    waiting = work.find(Inbox(receiver, PAGE if link.ordered else max(1, min(link.credit, PAGE))))
    lanes: dict[TaskId, Delivery] = {}
    for delivery in sorted([*stale, *waiting], key=lambda d: (d.rank, d.id)):
        lanes.setdefault(delivery.task, delivery)
    for task_id, some in lanes.items():
        current = work.link(link.session)
        if current is None or not current.has_room:
            return sent
        ahead, one_at_a_time = 0, link.ordered and converses(work, receiver)
        depth = LANE if link.ordered else min(LANE, max(4, current.credit))
        lane = [some] if is_alone(some) else work.find(Lane(task_id, receiver, depth))
        for delivery in lane:
            if ahead and one_at_a_time:
                break
            current = work.link(link.session) or current  # each that leaves changes the link,
            task = None if delivery.alone else work.known_task(task_id)  # and each that is given up changes its task
            delivery = without_lost_offer(work, delivery)
            takes = (
                delivery.kind is MessageKind.WORK and (link.ordered or current.has_room) and not held(work, delivery)
            )
            if takes and order_again(work, delivery, current, task):
                sent += 1
                ahead += 1
                continue
            if delivery.kind is MessageKind.WORK or held(work, delivery):
                if delivery.session != link.session:
                    break  # another link holds the head of this lane
                ahead += 1
                continue
            if outlived(work, delivery):
                expire(work, delivery, onward=False)
                continue
            if delivery.attempt >= attempts_of(work, delivery):
                make_dead_letter(work, delivery, never_acknowledged(delivery), onward=False)
                continue
            if not current.has_room:
                if not ahead and not delivery.head:
                    work.put(waiting_again(delivery, head=True))
                return sent
            if lease(work, replace(delivery, head=ahead == 0), current, task) is not None:
                ahead += 1
            sent += 1
        if not ahead and not is_alone(some):
            advance(work, work.find(Lane(task_id, receiver, LANE)))
    more = sent > 0 and max(len(stale), len(waiting)) >= PAGE
    if link.behind is not None and (current := work.link(link.session)) is not None:
        behind = (leased[-1].rank, leased[-1].id) if len(leased) >= PAGE else None
        work.put_link(replace(current, behind=behind))
        more = more or behind is not None
    if link.ordered and more:
        work.ask_afterwards(RefillLink(principal=receiver, session=link.session))
    return sent


def left(work: Work, link: Link) -> Sequence[Delivery]:
    """A page of what was sent to an agent and is not acknowledged: the first page, or the next one for a link that has
    not seen all of it."""
    if link.behind is None or link.behind == NOTHING_YET:
        return work.find(LeasedTo(link.agent, PAGE))
    rank, after = link.behind
    return work.find(Unacknowledged(link.agent, rank, DeliveryId(after), PAGE))


def renew_waits(work: Work, command: WaitAgain) -> int:
    """The policy has new waits: every delivery that waits for an acknowledgment waits by them, from now on.

    A delivery does not keep how long it has waited already: every delivery would have to pay for that.
    """
    rows = work.find(Unacknowledged(command.agent, command.rank, command.after, MANY))
    work.tasks(row.task for row in rows if row.kind is MessageKind.WORK)  # all of them at once
    moved = 0
    for row in rows:
        if row.wake_at is None or row.leaves_once:
            continue
        wake_at = due_at(work, row, row.attempt, command.since)
        if row.direct_message is not None and row.direct_message.expires_at is not None:
            wake_at = min(wake_at, row.direct_message.expires_at)
        if wake_at != row.wake_at:
            work.put(replace(row, wake_at=wake_at))
            moved += 1
    if len(rows) == MANY:
        work.ask_afterwards(replace(command, rank=rows[-1].rank, after=rows[-1].id))
    return moved


def after_a_stop(directory: Directory, rules: Rules, now: Instant) -> list[WaitAgain]:
    """What a hub enqueues when it starts: the last process may have died between a change of the policy and the new
    waits. Waits that are older than the longest possible one are over."""
    policy = directory.entities.get(f"{Registry.POLICY.value}/{NAME}")
    if policy is None or policy.updated_at + max(LONGEST, rules.direct_message_waits[1]) < now:
        return []
    return [WaitAgain(agent=id, since=now) for id in sorted(directory.conversing)]


def lease_expired(work: Work, delivery: Delivery) -> None:
    """The receiver did not acknowledge in time: offer the delivery again, or give it up. A direct message may also have
    outlived its time."""
    if delivery.wake_at is None or delivery.wake_at > work.now:
        return
    if outlived(work, delivery):
        expire(work, delivery)
    elif delivery.state is not DeliveryState.LEASED:
        return
    elif delivery.kind is MessageKind.WORK:
        order_unacknowledged(work, delivery)
    elif without_lost_offer(work, delivery).attempt >= attempts_of(work, delivery):
        make_dead_letter(work, delivery, never_acknowledged(delivery))
    else:
        link = None if delivery.session is None else work.link(delivery.session)
        if link is not None and link.ordered:
            lease(work, delivery, link)  # the same again; what is behind it stays on the same link
        else:
            advance(work, lane_of(work, delivery))
            left_behind(work, delivery)


def left_behind(work: Work, delivery: Delivery) -> None:
    """If the delivery before it did not leave again, a delivery that a poll held waits behind that one, without a
    lease."""
    row = work.one(DeliveryById(delivery.id))
    if row is not None and row.state is DeliveryState.LEASED and not held(work, row):
        work.put(waiting_again(without_lost_offer(work, row), head=row.head))


def order_unacknowledged(work: Work, order: Delivery) -> None:
    """An agent that converses or polls did not acknowledge a work order: send it again, as long as that makes sense.
    The timers of the task decide when the attempt has failed."""
    order, task = without_lost_offer(work, order), work.task(order.task)
    if task is None or task.attempt.delivery != order.id:
        work.remove(order)
        return
    if task.waiting is Waiting.HELD:
        work.put(replace(order, wake_at=Instant(work.now + work.rules.poll_lease)))
        return
    if task.outlived(work.now) or order.attempt >= attempts_of(work, order):
        work.put(replace(order, wake_at=None))
        work.put(
            replace(
                task,
                wake_at=Instant(work.now + work.rules.grace),
                timing=replace(task.timing, lost_at=work.now),
            )
        )
        return
    link = None if order.session is None else work.link(order.session)
    if link is not None and link.ordered:
        lease(work, order, link, task)
        return
    other = way_out(work, order, ())
    if other is None or order_again(work, order, other, task) is None:
        work.put(waiting_again(order, head=order.head))


def order_goes_on(work: Work, task: Task) -> Task:
    """A person resumes a task: a work order that was kept back leaves, with what is behind it. An agent that may still
    have it keeps it; one that converses has one more wait for its acknowledgment. Returns the task as it is then."""
    order = None if task.attempt.delivery is None else work.one(DeliveryById(task.attempt.delivery))
    if order is None:
        return task
    if held(work, order):
        if order.wake_at is not None and converses(work, order.receiver):
            soon = due_at(work, order, order.attempt, work.now, task)
            work.put(replace(order, wake_at=min(order.wake_at, soon)))
        return task
    link = way_out(work, order, ())
    if link is not None and order_again(work, without_lost_offer(work, order), link, task) is not None:
        advance(work, lane_of(work, order))
    return work.known_task(task.id)
