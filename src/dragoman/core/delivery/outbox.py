"""The outbox: how a notice reaches its receiver.

`offer` puts a notice into its lane and sends it at once if the receiver can be reached and the lane allows it.
`acknowledge` removes it and sends the next one. `redelivery` handles what leaves again or never arrives. Leases:

- A link that keeps order holds its deliveries. When the link breaks, the lease is void, and the delivery leaves again
  over the next link.
- A poll takes one or several consecutive deliveries of a lane, in order, and holds each until `wake_at`. Then the hub
  offers it again, and behind it what left behind it in that poll. For a work order that a poll took, the idle timer of
  the task makes a new attempt; only where that timer is longer than usual does such a lease end before.
- A request that waits for its own answer is a poll for that answer alone. While it waits, the answer goes there and
  nowhere else, and the request gets nothing before it; when it is gone, the answer goes the usual way.
- An agent that converses (`Agent.converses`) is promised more: what it does not acknowledge until `wake_at` leaves
  again, over any link, after growing waits. What is promised at most once is gone when it leaves.

Each offer is an attempt. After the last one the delivery becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.core.commands import Acknowledge, RefillLink
from dragoman.core.ids import ADMIN, HUB, MILLISECOND, AgentId, DeliveryId, Instant, SessionId, TaskId, minted_at
from dragoman.core.lookups import DeliveryById, Lane, LaneEnd, QuestionById
from dragoman.core.model.agents import Link
from dragoman.core.model.authorization import governs
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Delivery, DeliveryState, DirectMessage, MessageKind, wait_of
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, Question, Status, Task, Waiting
from dragoman.core.work import Work

# -- leases: over which link a delivery may leave, and how long it is held there ---------------------------------------

ORDERS = frozenset({MessageKind.WORK, MessageKind.HANDOFF})
"""Messages that give an agent work: the caller of the task determines how they are redelivered."""


def way_out(work: Work, delivery: Delivery, before: Sequence[Delivery]) -> Link | None:
    """The link over which a delivery may leave now, given what is before it in its lane: a link that has all of that,
    or a poll in the same answer. An agent that converses has only the head of a lane on a link (agentmsg-D5)."""
    found = None
    one_at_a_time = bool(before) and converses(work, delivery.receiver)
    for link in work.links_to(delivery.receiver):
        if not link.has_room or (link.ordered and one_at_a_time):
            continue
        if all(d.session == link.session and d.state is DeliveryState.LEASED for d in before):
            if link.ordered:
                return link
            found = link
    return found


def lease(
    work: Work, delivery: Delivery, link: Link, task: Task | None = None, *, fresh: bool = False
) -> Delivery | None:
    """Lease a delivery to a link: it leaves after the commit. None if it is gone with that, because it leaves at most
    once.

    `fresh`: it has no row yet, and needs none if it is gone.
    """
    again = delivery.state is DeliveryState.LEASED and delivery.session == link.session
    promised = converses(work, delivery.receiver)
    gone = promised and delivery.leaves_once
    attempt = delivery.attempt + 1
    if gone:
        wake_at: Instant | None = None
    elif promised:
        wake_at = due_at(work, delivery, attempt, work.now, task)
    elif link.ordered or (delivery.kind is MessageKind.WORK and not is_patient(work, delivery)):
        wake_at = None
    else:
        wake_at = Instant(work.now + work.rules.poll_lease)
    if delivery.direct_message is not None and delivery.direct_message.expires_at is not None and wake_at is not None:
        wake_at = min(wake_at, delivery.direct_message.expires_at)
    delivery = replace(
        delivery,
        state=DeliveryState.LEASED,
        session=link.session,
        ordered=link.ordered,
        attempt=attempt,
        wake_at=wake_at,
    )
    if gone:
        if attempt > 1 or not fresh:
            work.remove(delivery)
    else:
        work.put(delivery)
    if task is None and not delivery.alone:
        task = work.known_task(delivery.task)
    outgoing = Outgoing(delivery, task, news_of(work, delivery))
    if link.ordered:
        is_notice = delivery.kind is not MessageKind.WORK  # seats limit work
        send_over(work, link, outgoing, more=is_notice and link.window is not None and not gone and not again)
    else:
        work.put_link(replace(link, credit=link.credit - 1, given=link.given + outgoing.weight))
        work.send(link, outgoing)
    return None if gone else delivery


def send_over(work: Work, link: Link, outgoing: Outgoing, *, more: bool = False) -> None:
    """Give an outgoing message to an ordered link. `more`: one more that its peer has to acknowledge."""
    weight = 0 if link.quota is None else outgoing.weight
    if more or weight:
        given = link.given + weight
        work.put_link(replace(link, outstanding=link.outstanding + more, given=given))
    work.send(link, outgoing)


def news_of(work: Work, delivery: Delivery) -> Event | Question | DirectMessage | Contract | None:
    """The content of a delivery. A direct message that asks for help carries the escalations of its question."""
    direct_message = delivery.direct_message
    if direct_message is not None:
        asked = None if direct_message.asks is None else work.one(QuestionById(direct_message.asks))
        if asked is None or not asked.details.escalations:
            return direct_message
        others = tuple(one for one in asked.details.escalations if one.agent != delivery.receiver)
        return replace(direct_message, escalations=others)
    if delivery.question is not None:
        return work.one(QuestionById(delivery.question))
    if delivery.contract is not None:
        return work.contract(delivery.contract)
    return work.event(delivery.task, delivery.event)


def is_patient(work: Work, order: Delivery) -> bool:
    """Whether the idle timer of a task is so long that it would notice a lost work order too late."""
    return work.known_task(order.task).timing.idle_limit > work.rules.idle_limit


def due_at(work: Work, delivery: Delivery, attempt: int, since: Instant, task: Task | None = None) -> Instant:
    """Until when an agent that converses may acknowledge this attempt."""
    own = None
    if delivery.kind in ORDERS:
        own = (task or work.known_task(delivery.task)).timing.retry
    elif delivery.kind is MessageKind.DIRECT_MESSAGE and delivery.direct_message is not None:
        own = delivery.direct_message.retry
    return Instant(since + wait_of(work.rules, delivery.id, attempt, work.policy.retry, own))


def held(work: Work, delivery: Delivery) -> bool:
    """Whether a valid lease is on it."""
    if delivery.state is not DeliveryState.LEASED:
        return False
    if delivery.wake_at is not None and delivery.wake_at <= work.now:
        return False
    if delivery.ordered or delivery.wake_at is None:
        return delivery.session is not None and work.link(delivery.session) is not None
    return True


def without_lost_offer(work: Work, delivery: Delivery) -> Delivery:
    """The same delivery without an offer of an earlier hub process, whose end is unknown: it does not count."""
    if delivery.state is not DeliveryState.LEASED or delivery.session is None:
        return delivery
    opened = minted_at(delivery.session)
    if opened is None or opened // MILLISECOND >= work.serving_since // MILLISECOND:
        return delivery
    return replace(delivery, attempt=max(0, delivery.attempt - 1))


def waiting_again(delivery: Delivery, *, head: bool) -> Delivery:
    """The same delivery without a lease."""
    return replace(
        delivery,
        state=DeliveryState.WAITING,
        session=None,
        ordered=False,
        wake_at=None if delivery.direct_message is None else delivery.direct_message.expires_at,
        head=head,
    )


def converses(work: Work, id: AgentId) -> bool:
    agent = work.agent(id)
    return agent is not None and agent.converses


def is_alone(delivery: Delivery) -> bool:
    """Whether it has a lane of its own."""
    return delivery.task == TaskId(delivery.id)


# -- lanes: what stands before what ------------------------------------------------------------------------------------

LANE = 64
"""How far into a lane the hub looks at a time: so many deliveries of it may be on their way at once."""


def put_on_its_way(
    work: Work, delivery: Delivery, before: Sequence[Delivery], task: Task | None = None, waiting: Link | None = None
) -> None:
    """Send a new delivery now if possible, over the request that waits for it if there is one; otherwise it waits in
    its lane."""
    link = waiting if waiting is not None and waiting.has_room and not before else way_out(work, delivery, before)
    if link is None:
        work.put(delivery)
    else:
        lease(work, delivery, link, task, fresh=True)


def hurry(work: Work, urgent: Delivery) -> None:
    """Everything before an urgent message in its lane becomes as urgent (agentmsg-D5)."""
    looked, page = 0, 8
    while True:
        rows = work.find(LaneEnd(urgent.task, urgent.receiver, page))
        for row in rows[looked:]:
            if row.rank <= urgent.rank or row.state is not DeliveryState.WAITING:
                return
            work.put(replace(row, rank=urgent.rank))
        if len(rows) < page:
            return
        looked, page = page, page * 4


def acknowledge(work: Work, command: Acknowledge) -> int:
    """The receiver has these deliveries. Nothing happens for one that does not exist or belongs to another receiver."""
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
    work.put_link(replace(link, outstanding=max(0, link.outstanding - 1)))
    if link.outstanding == link.window:
        work.ask_afterwards(RefillLink(principal=link.agent, session=link.session))


def _work_received(work: Work, delivery: Delivery) -> None:
    """An acknowledged work order is a sign of life. The agent reports itself when it begins."""
    task = work.task(delivery.task)
    if task is not None and task.attempt.delivery == delivery.id and not task.final:
        work.put(work.sign_of_life(task))


def advance(work: Work, lane: Sequence[Delivery]) -> None:
    """Something left a lane: its new head may leave, and what is behind it over the same link.

    A void lease does not count: its session died while another link held the head.
    """
    while lane and _left_for_good(work, lane) and not is_alone(lane[0]):  # there may be more
        lane = work.find(Lane(lane[0].task, lane[0].receiver, LANE))


def _left_for_good(work: Work, lane: Sequence[Delivery]) -> bool:
    """Send what can leave. Whether all of it did, and nothing of it awaits an acknowledgment."""
    before: list[Delivery] = []
    for delivery in lane:
        head = not before
        if (delivery.kind is MessageKind.WORK and delivery.state is DeliveryState.LEASED) or held(work, delivery):
            if head and not delivery.head:
                work.put(replace(delivery, head=True))
        else:
            free = waiting_again(without_lost_offer(work, delivery), head=head)
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
    """Send a work order again that may never have left: the hub stopped while it held it, so no link broke; or a poll
    took it and let its lease end. None if it must not leave.

    Where a link did break while this hub ran (`lost_at`), the agent has the grace time, and then it was an attempt. An
    agent that did get it recognises the request id. A paused task is given to no agent until it is resumed
    (`order_goes_on`).
    """
    if task is None or task.attempt.delivery != order.id or task.timing.lost_at is not None or task.outlived(work.now):
        return None
    if task.waiting is Waiting.HELD:
        return None
    polled = order.state is DeliveryState.LEASED and not order.ordered
    if polled and order.wake_at is None and not converses(work, order.receiver):
        return None  # the agent that polled it has it until the task's timers say otherwise
    deadline = task.due(work.now)
    wake_at = min(deadline, Instant(work.now + task.timing.idle_limit))
    task = replace(
        task,
        wake_at=wake_at,
        attempt=replace(task.attempt, session=link.session),
        timing=replace(task.timing, last_sign_at=work.now, deadline=deadline),
    )
    work.put(task)
    return lease(work, order, link, task)


def lane_of(work: Work, delivery: Delivery) -> Sequence[Delivery]:
    """The beginning of the lane of a delivery."""
    return (delivery,) if is_alone(delivery) else work.find(Lane(delivery.task, delivery.receiver, LANE))


def withdraw(work: Work, task: Task, receiver: AgentId) -> None:
    """Take the work order of a task out of its lane: it is answered, or no longer meant for this agent."""
    if task.attempt.delivery is None:
        return
    rest = []
    for delivery in work.find(Lane(task.id, receiver)):
        if delivery.id == task.attempt.delivery:
            work.remove(delivery)
        else:
            rest.append(delivery)
    advance(work, rest)


# -- offers: news of tasks and questions -------------------------------------------------------------------------------

NOBODY = frozenset({ADMIN, HUB})
"""They have no inbox: people read the store, and the hub knows."""

OUTCOME_KINDS = {
    Status.COMPLETED: MessageKind.RESULT,
    Status.FAILED: MessageKind.FAILURE,
    Status.CANCELLED: MessageKind.FAILURE,
}

OUTCOMES = frozenset({MessageKind.RESULT, MessageKind.FAILURE})

TO_CALLERS = frozenset({MessageKind.PROGRESS, MessageKind.RESULT, MessageKind.FAILURE})


def offer(
    work: Work,
    task: Task,
    receiver: AgentId,
    kind: MessageKind,
    event: int,
    *,
    kept: bool = False,
    rank: int | None = None,
) -> None:
    """Notify a receiver of an event, after all earlier notices about this task. `kept`: at least once, even if it is
    progress. `rank`: its urgency, where that is higher than its task's."""
    agent = None if receiver in NOBODY else work.agent(receiver)
    if agent is None or (kind in TO_CALLERS and not governs(agent, receiver, task)):
        return
    waiting = None
    if receiver == task.origin.principal and kind in TO_CALLERS:
        waiting = awaiting(work, task.origin.awaited)
        if task.origin.follows or (waiting is not None and kind is MessageKind.PROGRESS):
            return
    lane = work.find(Lane(task.id, receiver))
    delivery = Delivery(
        id=DeliveryId(work.mint()),
        task=task.id,
        receiver=receiver,
        seq=task.seq if not lane else max(task.seq, lane[-1].seq + 1),
        kind=kind,
        event=event,
        rank=task.rank if rank is None else min(task.rank, rank),
        created_at=work.now,
        head=not lane,
        kept=kept,
    )
    if rank is not None and lane and lane[-1].rank > delivery.rank:
        hurry(work, delivery)
        lane = work.find(Lane(task.id, receiver))
    put_on_its_way(work, delivery, lane, task, waiting)


def offer_answer(work: Work, question: Question) -> None:
    """Deliver a person's answer to an agent, after all earlier notices about the task."""
    agent = work.agent(question.agent)
    if agent is None or agent.created_at > question.created_at:
        return  # the asker was removed, and another agent has its name
    lane_id = TaskId(question.task or question.id)
    lane = work.find(Lane(lane_id, question.agent))
    task = None if question.task is None else work.known_task(question.task)
    delivery = Delivery(
        id=DeliveryId(work.mint()),
        task=lane_id,
        receiver=question.agent,
        seq=max(task.seq if task else 1, lane[-1].seq + 1 if lane else 0),
        kind=MessageKind.ANSWER,
        event=0,
        rank=task.rank if task else work.now,
        created_at=work.now,
        head=not lane,
        question=question.id,
    )
    put_on_its_way(work, delivery, lane, task, awaiting(work, question.details.awaited))


def await_answer(work: Work, agent: AgentId, session: SessionId) -> None:
    """A request waits for its own answer, over a link that takes that one outgoing message."""
    work.put_link(Link(session=session, agent=agent, ordered=False, credit=1, awaits=True))


def awaiting(work: Work, session: SessionId | None) -> Link | None:
    """The request that still waits over this link."""
    return None if session is None else work.link(session)


def repeat(work: Work, delivery: Delivery, task: Task) -> None:
    """Send again over the same ordered link what it holds already: the same message with the same id."""
    link = None if delivery.session is None else work.link(delivery.session)
    if delivery.state is DeliveryState.LEASED and link is not None and link.ordered:
        send_over(work, link, Outgoing(delivery, task, work.event(delivery.task, delivery.event)))
