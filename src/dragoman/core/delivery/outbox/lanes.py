"""What stands in a lane: it leaves in order, is taken out when it arrived, and makes way for the next."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.core.commands import Acknowledge, RefillLink
from dragoman.core.delivery.outbox.leases import converses, held, is_alone, lease, unheard, waiting_again, way_out
from dragoman.core.ids import AgentId, Instant
from dragoman.core.lookups import DeliveryById, Lane
from dragoman.core.model.agents import Link
from dragoman.core.model.deliveries import Delivery, DeliveryState, MessageKind
from dragoman.core.model.tasks import Task, Waiting
from dragoman.core.work import Work

LANE = 64
"""How far into a lane is looked at a time: so much of it may be on its way at once."""


def put_on_its_way(
    work: Work, delivery: Delivery, before: Sequence[Delivery], task: Task | None = None, waiting: Link | None = None
) -> None:
    """A new delivery leaves now if it can; otherwise it waits in its lane. It is for the request that waits for it, if
    one does."""
    link = waiting if waiting is not None and waiting.has_room and not before else way_out(work, delivery, before)
    if link is None:
        work.put(delivery)
    else:
        lease(work, delivery, link, task, fresh=True)


def acknowledge(work: Work, command: Acknowledge) -> int:
    """The receiver has these. Not found and not yours are the same: nothing happens."""
    known = 0
    for id in command.deliveries:
        delivery = work.one(DeliveryById(id))
        if delivery is None or delivery.receiver != command.principal:
            continue
        known += 1
        settle(work, delivery, ordered=command.session is not None and not converses(work, command.principal))
    return known


def settle(work: Work, delivery: Delivery, *, ordered: bool = False) -> None:
    """A delivery arrived: take it out of its lane and let the next one leave."""
    if is_alone(delivery):
        work.remove(delivery)
        vacate(work, delivery)
        return
    shallow = delivery.head and not any(not link.ordered for link in work.links_to(delivery.receiver))
    depth = work.rules.link_window + LANE if ordered else 2 if shallow else LANE
    lane = work.find(Lane(delivery.task, delivery.receiver, depth))
    arrived = [
        d for d in lane if d.id == delivery.id or (ordered and d.seq < delivery.seq and d.session == delivery.session)
    ]
    for gone in arrived:
        work.remove(gone)
        vacate(work, gone)
        if gone.kind is MessageKind.WORK:
            _work_received(work, gone)
    advance(work, [d for d in lane if d not in arrived])


def vacate(work: Work, delivery: Delivery) -> None:
    if delivery.session is None or delivery.kind is MessageKind.WORK:
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
        work.put(work.sign_of_life(task, delivery=None))


def advance(work: Work, lane: Sequence[Delivery]) -> None:
    """Something of a lane is gone: what stands now at its head may leave, and what is behind it over the same link.

    A lease that is worth nothing any more is none: its session died while somebody else held the head.
    """
    while lane and _left_for_good(work, lane) and not is_alone(lane[0]):  # there may be more
        lane = work.find(Lane(lane[0].task, lane[0].receiver, LANE))


def _left_for_good(work: Work, lane: Sequence[Delivery]) -> bool:
    """Let leave what can. Whether all of it did, and nothing of it is waited for."""
    before: list[Delivery] = []
    for delivery in lane:
        head = not before
        if (delivery.kind is MessageKind.WORK and delivery.state is DeliveryState.LEASED) or held(work, delivery):
            if head and not delivery.head:
                work.put(msgspec.structs.replace(delivery, head=True))
        else:
            free = waiting_again(unheard(work, delivery), head=head)
            link = way_out(work, free, before)
            if free.kind is MessageKind.WORK:
                leased = None if link is None else order_again(work, free, link, work.task(free.task))
                waits = leased is None
            else:
                leased = None if link is None else lease(work, free, link)
                waits = link is None
            if waits:
                if free != delivery:
                    work.put(free)
                return False
            if leased is None:
                continue
            delivery = leased
        before.append(delivery)
    return not before


def order_again(work: Work, order: Delivery, link: Link, task: Task | None) -> Delivery | None:
    """Send a work order again that may never have left: the hub died holding it, so nobody broke a link; or a poll took
    it and let its lease end. None if it is not to be.

    Where a link did break while we looked on (`lost_at`), the agent has the grace time, and then it was an attempt.
    An agent that did get it recognises the request id. What a person paused is given to nobody until it goes on
    (`order_goes_on`).
    """
    if task is None or task.delivery != order.id or task.lost_at is not None or task.outlived(work.now):
        return None
    if task.waiting is Waiting.HELD:
        return None
    polled = order.state is DeliveryState.LEASED and not order.ordered
    if polled and order.wake_at is None and not converses(work, order.receiver):
        return None  # whoever polled it has it until the task's clocks say otherwise
    deadline = task.due(work.now)
    wake_at = min(deadline, Instant(work.now + task.idle_limit))
    task = msgspec.structs.replace(
        task, session=link.session, last_sign_at=work.now, deadline=deadline, wake_at=wake_at
    )
    work.put(task)
    return lease(work, order, link, task)


def lane_of(work: Work, delivery: Delivery) -> Sequence[Delivery]:
    """The beginning of the lane in which a delivery stands."""
    return (delivery,) if is_alone(delivery) else work.find(Lane(delivery.task, delivery.receiver, LANE))


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
