"""How news reaches whoever must hear it.

`offer` puts a notice into its lane and, if the receiver can be reached and the lane allows it, on its way at once;
`acknowledge` takes it out and lets the next one leave; `pump` gives a fresh link what waited for it. Leases:

- over a link that keeps order, a delivery is held by the link. When the link breaks the lease is worth nothing, and
  the delivery leaves again over the next one.
- a poll holds it until `wake_at`. Then it is offered again.

Either way each offer is an attempt, and after the last one the delivery is a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.core.agents.floor import Link
from dragoman.core.commands import Acknowledge, RefillLink
from dragoman.core.delivery.model import Cargo, DeadLetter, Delivery, DeliveryState, Parcel
from dragoman.core.errors import Fault, Kind
from dragoman.core.ids import ADMIN, HUB, AgentId, DeliveryId, Instant, TaskId
from dragoman.core.lookups import PAGE, DeliveryById, Inbox, Lane, LeasedTo, QuestionById
from dragoman.core.tasks.model import Event, EventKind, Question, Status, Task
from dragoman.core.work import Work

NOBODY = frozenset({ADMIN, HUB})
"""They have no inbox: people read the store, the hub knows."""


def offer(work: Work, task: Task, receiver: AgentId, cargo: Cargo, event: int) -> None:
    """Tell a receiver of an event, after everything it was told about this task before."""
    if receiver in NOBODY or work.agent(receiver) is None:
        return
    if task.origin.follows and receiver == task.origin.principal and cargo in TO_CALLERS:
        return
    lane = work.find(Lane(task.id, receiver))
    delivery = Delivery(
        id=DeliveryId(work.mint()),
        task=task.id,
        receiver=receiver,
        seq=task.seq if not lane else max(task.seq, lane[-1].seq + 1),
        cargo=cargo,
        event=event,
        rank=task.rank,
        created_at=work.now,
        head=not lane,
    )
    link = way_out(work, delivery, lane)
    if link is None:
        work.put(delivery)
    else:
        lease(work, delivery, link, task)


def offer_answer(work: Work, question: Question) -> None:
    """Tell an agent what a person said, after everything it was told about the task before."""
    if work.agent(question.agent) is None:
        return
    lane_id = TaskId(question.task or question.id)
    lane = work.find(Lane(lane_id, question.agent))
    task = None if question.task is None else work.known_task(question.task)
    delivery = Delivery(
        id=DeliveryId(work.mint()),
        task=lane_id,
        receiver=question.agent,
        seq=max(task.seq if task else 1, lane[-1].seq + 1 if lane else 0),
        cargo=Cargo.ANSWER,
        event=0,
        rank=task.rank if task else work.now,
        created_at=work.now,
        head=not lane,
        question=question.id,
    )
    link = way_out(work, delivery, lane)
    if link is None:
        work.put(delivery)
    else:
        lease(work, delivery, link, task)


def way_out(work: Work, delivery: Delivery, before: Sequence[Delivery]) -> Link | None:
    """The link over which a delivery may leave now, given what stands before it in its lane."""
    found = None
    for link in work.links_to(delivery.receiver):
        if not link.has_room:
            continue
        if link.ordered:
            if all(d.session == link.session and d.state is DeliveryState.LEASED for d in before):
                return link
        elif not before:
            found = link
    return found


def lease(work: Work, delivery: Delivery, link: Link, task: Task | None = None) -> Delivery:
    """Give a delivery to a link: it leaves after the commit."""
    delivery = msgspec.structs.replace(
        delivery,
        state=DeliveryState.LEASED,
        session=link.session,
        ordered=link.ordered,
        attempt=delivery.attempt + 1,
        wake_at=None if link.ordered or delivery.cargo is Cargo.WORK else Instant(work.now + work.rules.poll_lease),
    )
    work.put(delivery)
    if not link.ordered:
        work.put_link(msgspec.structs.replace(link, credit=link.credit - 1))
    elif link.window is not None and delivery.cargo is not Cargo.WORK:  # the number of seats bounds work
        work.put_link(msgspec.structs.replace(link, outstanding=link.outstanding + 1))
    if task is None and not delivery.alone:
        task = work.known_task(delivery.task)
    if delivery.question is None:
        news: Event | Question | None = work.event(delivery.task, delivery.event)
    else:
        news = work.one(QuestionById(delivery.question))
    work.send(link, Parcel(delivery, task, news))
    return delivery


def repeat(work: Work, delivery: Delivery, task: Task) -> None:
    """Say again over the same ordered link what it holds already: the same message, recognisable by its id."""
    link = None if delivery.session is None else work.link(delivery.session)
    if delivery.state is DeliveryState.LEASED and link is not None and link.ordered:
        work.send(link, Parcel(delivery, task, work.event(delivery.task, delivery.event)))


def acknowledge(work: Work, command: Acknowledge) -> int:
    """The receiver has these. Not found and not yours are the same: nothing happens."""
    known = 0
    for id in command.deliveries:
        delivery = work.one(DeliveryById(id))
        if delivery is None or delivery.receiver != command.principal:
            continue
        known += 1
        settle(work, delivery, ordered=command.session is not None)
    return known


def settle(work: Work, delivery: Delivery, *, ordered: bool = False) -> None:
    """A delivery arrived: take it out of its lane and let the next one leave."""
    lane = work.find(Lane(delivery.task, delivery.receiver))
    arrived = [
        d for d in lane if d.id == delivery.id or (ordered and d.seq < delivery.seq and d.session == delivery.session)
    ]
    for gone in arrived:
        work.remove(gone)
        _vacate(work, gone)
        if gone.cargo is Cargo.WORK:
            _work_received(work, gone)
    advance(work, [d for d in lane if d not in arrived])


def _vacate(work: Work, delivery: Delivery) -> None:
    if delivery.session is None or delivery.cargo is Cargo.WORK:
        return
    link = work.link(delivery.session)
    if link is None or link.window is None or not link.ordered:
        return
    work.put_link(msgspec.structs.replace(link, outstanding=max(0, link.outstanding - 1)))
    if link.outstanding == link.window:
        work.ask_afterwards(RefillLink(principal=link.agent, session=link.session))


def _work_received(work: Work, delivery: Delivery) -> None:
    """An acknowledged work order is a sign of life; whether the work has begun, the agent will say."""
    task = work.task(delivery.task)
    if task is not None and task.delivery == delivery.id and not task.final:
        work.put(msgspec.structs.replace(task, delivery=None, last_sign_at=work.now, lost_at=None))


def advance(work: Work, lane: Sequence[Delivery]) -> None:
    """Something of a lane is gone: what stands now at its head may leave, and over an ordered link what is behind it.

    A lease that is worth nothing any more is none: its session died while somebody else held the head.
    """
    before: list[Delivery] = []
    for delivery in lane:
        head = not before
        if delivery.cargo is Cargo.WORK or held(work, delivery):
            if head and not delivery.head:
                work.put(msgspec.structs.replace(delivery, head=True))
        else:
            free = msgspec.structs.replace(
                delivery, state=DeliveryState.WAITING, session=None, ordered=False, wake_at=None, head=head
            )
            link = way_out(work, free, before)
            if link is None:
                if free != delivery:
                    work.put(free)
                return
            delivery = lease(work, free, link)
            if not link.ordered:
                return
        before.append(delivery)


def withdraw(work: Work, task: Task, receiver: AgentId) -> None:
    """Take the work order of a task out of its lane: it is answered, or no longer meant for this agent."""
    if task.delivery is None:
        return
    rest = []
    for delivery in work.find(Lane(task.id, receiver)):
        if delivery.id == task.delivery:
            work.remove(delivery)
        else:
            rest.append(delivery)
    advance(work, rest)


def pump(work: Work, link: Link) -> int:
    """Give a link what waits for its agent, best first; returns how much."""
    receiver, sent = link.agent, 0
    stale = [d for d in work.find(LeasedTo(receiver, PAGE)) if not held(work, d)]
    waiting = work.find(Inbox(receiver, PAGE))
    lanes: dict[TaskId, Delivery] = {}
    for delivery in sorted([*stale, *waiting], key=lambda d: (d.rank, d.id)):
        lanes.setdefault(delivery.task, delivery)
    for task_id, some in lanes.items():
        current = work.link(link.session)
        if current is None or not current.has_room:
            return sent
        task = None if some.alone else work.known_task(task_id)
        for position, delivery in enumerate(work.find(Lane(task_id, receiver))):
            if delivery.cargo is Cargo.WORK and not held(work, delivery) and order_again(work, delivery, link, task):
                sent += 1
                continue
            if delivery.cargo is Cargo.WORK or held(work, delivery):
                if not link.ordered or delivery.session != link.session:
                    break  # somebody else holds the head of this lane
                continue
            if position > 0 and not link.ordered:
                break
            if delivery.attempt >= work.rules.notice_attempts:
                bury(work, delivery, _never_acknowledged(delivery))
                continue
            current = work.link(link.session)
            if current is None or not current.has_room:
                return sent
            lease(work, msgspec.structs.replace(delivery, head=position == 0), current, task)
            sent += 1
    if link.ordered and (len(stale) >= PAGE or len(waiting) >= PAGE) and sent:
        work.ask_afterwards(RefillLink(principal=receiver, session=link.session))
    return sent


def order_again(work: Work, order: Delivery, link: Link, task: Task | None) -> bool:
    """Send a work order again that may never have left: the hub died holding it, so nobody broke a link.

    Where a link did break while we looked on (`lost_at`), the agent has the grace time, and then it was an attempt.
    An agent that did get it recognises the request id.
    """
    if task is None or not (link.ordered and order.ordered and task.delivery == order.id and task.lost_at is None):
        return False
    wake_at = min(task.deadline, Instant(work.now + task.idle_limit))
    task = msgspec.structs.replace(task, session=link.session, last_sign_at=work.now, wake_at=wake_at)
    work.put(task)
    lease(work, order, link, task)
    return True


def held(work: Work, delivery: Delivery) -> bool:
    """Whether somebody has a lease on it that is worth something."""
    if delivery.state is not DeliveryState.LEASED:
        return False
    if delivery.wake_at is not None:
        return delivery.wake_at > work.now
    return delivery.session is not None and work.link(delivery.session) is not None


def lease_expired(work: Work, delivery: Delivery) -> None:
    """A poll took it and never acknowledged it: offer it again, or give up."""
    if held(work, delivery) or delivery.wake_at is None:
        return
    if delivery.attempt >= work.rules.notice_attempts:
        bury(work, delivery, _never_acknowledged(delivery))
        return
    advance(work, work.find(Lane(delivery.task, delivery.receiver)))


def _never_acknowledged(delivery: Delivery) -> Fault:
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{delivery.receiver} never acknowledged it in {delivery.attempt} attempts",
        facts={"agent_id": delivery.receiver},
    )


def bury(work: Work, delivery: Delivery, reason: Fault) -> None:
    """Into the dead letters, in the same commit that takes it out of its lane."""
    work.remove(delivery)
    work.put(
        DeadLetter(
            id=delivery.id,
            task=delivery.task,
            receiver=delivery.receiver,
            cargo=delivery.cargo,
            event=delivery.event,
            attempts=delivery.attempt,
            at=work.now,
            reason=reason,
        )
    )
    if not delivery.alone:
        task = work.known_task(delivery.task)
        body = msgspec.json.encode({"fault": reason, "letter": delivery.id, "cargo": delivery.cargo})
        work.put(work.record(task, EventKind.DEAD_LETTERED, agent=delivery.receiver, body=msgspec.Raw(body)))
    advance(work, [d for d in work.find(Lane(delivery.task, delivery.receiver)) if d.id != delivery.id])


OUTCOME_CARGO = {
    Status.COMPLETED: Cargo.RESULT,
    Status.FAILED: Cargo.FAILURE,
    Status.CANCELLED: Cargo.FAILURE,
}

OUTCOMES = frozenset({Cargo.RESULT, Cargo.FAILURE})

TO_CALLERS = frozenset({Cargo.PROGRESS, Cargo.RESULT, Cargo.FAILURE})
