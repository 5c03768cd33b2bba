"""How news reaches whoever must hear it.

`offer` puts a notice into its lane and, if the receiver can be reached and the lane allows it, on its way at once;
`acknowledge` takes it out and lets the next one leave; `pump` gives a fresh link what waited for it. Leases:

- over a link that keeps order, a delivery is held by the link. When the link breaks the lease is worth nothing, and
  the delivery leaves again over the next one.
- a poll holds it until `wake_at`. Then it is offered again. A work order that a poll took is watched by its task's idle
  clock, which makes a new attempt of it; only where that clock is set longer than usual does such a lease end before.
- a request that waits for its own answer is a poll of that alone. While it stands the answer goes there and nowhere
  else, and the request hears of nothing before it; when it is gone the answer takes the way of everything else.
- an agent that converses (`Agent.converses`) is promised more: what it does not acknowledge until `wake_at` leaves
  again, over whatever link, after growing waits. What it is promised at most once is gone when it leaves.

In every case each offer is an attempt, and after the last one the delivery is a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import msgspec

from dragoman.core.agents.floor import Link
from dragoman.core.commands import Acknowledge, RefillLink, Unanswered
from dragoman.core.contracts.model import Contract
from dragoman.core.delivery.model import Cargo, DeadLetter, Delivery, DeliveryState, Letter, Parcel
from dragoman.core.errors import Fault, Kind
from dragoman.core.ids import ADMIN, HUB, AgentId, DeliveryId, Instant, SessionId, TaskId
from dragoman.core.lookups import PAGE, ContractById, DeliveryById, Inbox, Lane, LeasedTo, QuestionById
from dragoman.core.rules import Rules
from dragoman.core.tasks.model import Event, EventKind, Question, Status, Task
from dragoman.core.work import Work

LANE = 64
"""How far into a lane is looked at a time: so much of it may be on its way at once."""

NOBODY = frozenset({ADMIN, HUB})
"""They have no inbox: people read the store, the hub knows."""


def offer(work: Work, task: Task, receiver: AgentId, cargo: Cargo, event: int) -> None:
    """Tell a receiver of an event, after everything it was told about this task before."""
    agent = None if receiver in NOBODY else work.agent(receiver)
    if agent is None:
        return
    if cargo in TO_CALLERS and agent.created_at > task.created_at:
        return  # another agent of that name: what the first one asked is none of its business
    waiting = None
    if receiver == task.origin.principal and cargo in TO_CALLERS:
        waiting = awaiting(work, task.origin.awaited)
        if task.origin.follows or (waiting is not None and cargo is Cargo.PROGRESS):
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
    put_on_its_way(work, delivery, lane, task, waiting)


def await_answer(work: Work, agent: AgentId, session: SessionId) -> None:
    """A request waits for its own answer, over a link that takes that one parcel."""
    work.put_link(Link(session=session, agent=agent, ordered=False, credit=1, awaits=True))


def awaiting(work: Work, session: SessionId | None) -> Link | None:
    """The request that still waits over this link."""
    return None if session is None else work.link(session)


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
    put_on_its_way(work, delivery, lane, task, awaiting(work, question.details.get("awaited")))


def way_out(work: Work, delivery: Delivery, before: Sequence[Delivery]) -> Link | None:
    """The link over which a delivery may leave now, given what stands before it in its lane."""
    if before and converses(work, delivery.receiver):  # only the head of a lane is delivered (agentmsg-D5)
        return None
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


def lease(
    work: Work, delivery: Delivery, link: Link, task: Task | None = None, *, fresh: bool = False
) -> Delivery | None:
    """Give a delivery to a link: it leaves after the commit. None if it is gone with that: it leaves once at most.

    `fresh`: it has no row yet, and needs none if it is gone.
    """
    again = delivery.state is DeliveryState.LEASED and delivery.session == link.session
    promised = converses(work, delivery.receiver)
    gone = promised and leaves_once(delivery)
    attempt = delivery.attempt + 1
    if gone:
        wake_at: Instant | None = None
    elif promised:
        wake_at = Instant(work.now + wait_of(work.rules, delivery.id, attempt))
    elif link.ordered or (delivery.cargo is Cargo.WORK and not is_patient(work, delivery)):
        wake_at = None
    else:
        wake_at = Instant(work.now + work.rules.poll_lease)
    if delivery.letter is not None and delivery.letter.expires_at is not None and wake_at is not None:
        wake_at = min(wake_at, delivery.letter.expires_at)
    delivery = msgspec.structs.replace(
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
    if not link.ordered:
        work.put_link(msgspec.structs.replace(link, credit=link.credit - 1))
    elif link.window is not None and delivery.cargo is not Cargo.WORK and not gone and not again:
        work.put_link(msgspec.structs.replace(link, outstanding=link.outstanding + 1))  # seats bound work
    if task is None and not delivery.alone:
        task = work.known_task(delivery.task)
    work.send(link, Parcel(delivery, task, news_of(work, delivery)))
    return None if gone else delivery


def is_patient(work: Work, order: Delivery) -> bool:
    """Whether the idle clock of a task is set so long that it would not notice in time that a work order was lost."""
    return work.known_task(order.task).idle_limit > work.rules.idle_limit


def converses(work: Work, id: AgentId) -> bool:
    agent = work.agent(id)
    return agent is not None and agent.converses


def news_of(work: Work, delivery: Delivery) -> Event | Question | Letter | Contract | None:
    """What a delivery tells of."""
    if delivery.letter is not None:
        return delivery.letter
    if delivery.question is not None:
        return work.one(QuestionById(delivery.question))
    if delivery.contract is not None:
        return work.one(ContractById(delivery.contract))
    return work.event(delivery.task, delivery.event)


def leaves_once(delivery: Delivery) -> bool:
    """Whether an agent that converses is promised it at most once (agentmsg-D4)."""
    return delivery.cargo is Cargo.PROGRESS if delivery.letter is None else delivery.letter.once


def wait_of(rules: Rules, id: str, attempt: int) -> int:
    """How long an acknowledgment of this attempt is waited for. The jitter follows from the id: a decision that is made
    twice is the same, and letters that left together do not come back together."""
    base, most, factor = rules.letter_waits
    whole = min(base * factor ** min(attempt - 1, 40), most)
    if not rules.letter_jitter:
        return int(whole)
    return int(whole * (1 + crc32(f"{id}{attempt}".encode()) / 0x1_0000_0000) / 2)


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
        settle(work, delivery, ordered=command.session is not None and not converses(work, command.principal))
    return known


def settle(work: Work, delivery: Delivery, *, ordered: bool = False) -> None:
    """A delivery arrived: take it out of its lane and let the next one leave."""
    if is_alone(delivery):
        work.remove(delivery)
        _vacate(work, delivery)
        return
    depth = work.rules.link_window + LANE if ordered else 2 if delivery.head else LANE
    lane = work.find(Lane(delivery.task, delivery.receiver, depth))
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
        if (delivery.cargo is Cargo.WORK and delivery.state is DeliveryState.LEASED) or held(work, delivery):
            if head and not delivery.head:
                work.put(msgspec.structs.replace(delivery, head=True))
        else:
            free = waiting_again(delivery, head=head)
            link = None if free.cargo is Cargo.WORK else way_out(work, free, before)
            if link is None:
                if free != delivery:
                    work.put(free)
                return
            leased = lease(work, free, link)
            if leased is None:
                continue
            if not link.ordered:
                return
            delivery = leased
        before.append(delivery)
    if lane and not before and not is_alone(lane[0]):  # all of them left for good, and there may be more
        advance(work, work.find(Lane(lane[0].task, lane[0].receiver, LANE)))


def is_alone(delivery: Delivery) -> bool:
    """Whether it has a lane of its own."""
    return delivery.task == TaskId(delivery.id)


def lane_of(work: Work, delivery: Delivery) -> Sequence[Delivery]:
    """The beginning of the lane in which a delivery stands."""
    return (delivery,) if is_alone(delivery) else work.find(Lane(delivery.task, delivery.receiver, LANE))


def waiting_again(delivery: Delivery, *, head: bool) -> Delivery:
    """The same, held by nobody."""
    return msgspec.structs.replace(
        delivery,
        state=DeliveryState.WAITING,
        session=None,
        ordered=False,
        wake_at=None if delivery.letter is None else delivery.letter.expires_at,
        head=head,
    )


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
    waiting = work.find(Inbox(receiver, PAGE if link.ordered else max(1, min(link.credit, PAGE))))
    lanes: dict[TaskId, Delivery] = {}
    for delivery in sorted([*stale, *waiting], key=lambda d: (d.rank, d.id)):
        lanes.setdefault(delivery.task, delivery)
    for task_id, some in lanes.items():
        current = work.link(link.session)
        if current is None or not current.has_room:
            return sent
        task = None if some.alone else work.known_task(task_id)
        ahead, one_at_a_time = 0, converses(work, receiver)
        lane = [some] if is_alone(some) else work.find(Lane(task_id, receiver, LANE if link.ordered else 4))
        for delivery in lane:
            if delivery.cargo is Cargo.WORK and not held(work, delivery) and order_again(work, delivery, current, task):
                sent += 1
                ahead += 1
                continue
            if delivery.cargo is Cargo.WORK or held(work, delivery):
                if not link.ordered or delivery.session != link.session:
                    break  # somebody else holds the head of this lane
                ahead += 1
                continue
            if ahead and (not link.ordered or one_at_a_time):
                break
            if outlived(work, delivery):
                expire(work, delivery, onward=False)
                continue
            if delivery.attempt >= attempts_of(work, delivery):
                bury(work, delivery, _never_acknowledged(delivery), onward=False)
                continue
            current = work.link(link.session)
            if current is None or not current.has_room:
                if not ahead and not delivery.head:
                    work.put(msgspec.structs.replace(delivery, head=True))
                return sent
            if lease(work, msgspec.structs.replace(delivery, head=ahead == 0), current, task) is not None:
                ahead += 1
            sent += 1
        if not ahead and not is_alone(some):
            advance(work, work.find(Lane(task_id, receiver, LANE)))
    if link.ordered and (len(stale) >= PAGE or len(waiting) >= PAGE) and sent:
        work.ask_afterwards(RefillLink(principal=receiver, session=link.session))
    return sent


def order_again(work: Work, order: Delivery, link: Link, task: Task | None) -> bool:
    """Send a work order again that may never have left: the hub died holding it, so nobody broke a link; or a poll took
    it and let its lease end.

    Where a link did break while we looked on (`lost_at`), the agent has the grace time, and then it was an attempt.
    An agent that did get it recognises the request id.
    """
    if task is None or task.delivery != order.id or task.lost_at is not None:
        return False
    polled = order.state is DeliveryState.LEASED and not order.ordered
    if polled and order.wake_at is None and not converses(work, order.receiver):
        return False  # whoever polled it has it until the task's clocks say otherwise
    wake_at = min(task.deadline, Instant(work.now + task.idle_limit))
    task = msgspec.structs.replace(task, session=link.session, last_sign_at=work.now, wake_at=wake_at)
    work.put(task)
    lease(work, order, link, task)
    return True


def held(work: Work, delivery: Delivery) -> bool:
    """Whether somebody has a lease on it that is worth something."""
    if delivery.state is not DeliveryState.LEASED:
        return False
    if delivery.wake_at is not None and delivery.wake_at <= work.now:
        return False
    if delivery.ordered or delivery.wake_at is None:
        return delivery.session is not None and work.link(delivery.session) is not None
    return True


def lease_expired(work: Work, delivery: Delivery) -> None:
    """Nobody acknowledged it in time: offer it again, or give up. A letter may also have waited too long."""
    if delivery.wake_at is None or delivery.wake_at > work.now:
        return
    if outlived(work, delivery):
        expire(work, delivery)
    elif delivery.state is not DeliveryState.LEASED:
        return
    elif delivery.cargo is Cargo.WORK:
        ordered_in_vain(work, delivery)
    elif delivery.attempt >= attempts_of(work, delivery):
        bury(work, delivery, _never_acknowledged(delivery))
    else:
        link = None if delivery.session is None else work.link(delivery.session)
        if link is not None and link.ordered:
            lease(work, delivery, link)  # the same again; what stands behind it is on the same link, and stays there
        else:
            advance(work, lane_of(work, delivery))


def ordered_in_vain(work: Work, order: Delivery) -> None:
    """An agent that converses, or polled, did not acknowledge a work order: put it before the agent again, as long as
    that makes sense; the task's own clocks decide when it has failed."""
    task = work.task(order.task)
    if task is None or task.delivery != order.id:
        work.remove(order)
        return
    if order.attempt >= attempts_of(work, order):
        work.put(msgspec.structs.replace(order, wake_at=None))
        work.put(msgspec.structs.replace(task, lost_at=work.now, wake_at=Instant(work.now + work.rules.grace)))
        return
    link = None if order.session is None else work.link(order.session)
    if link is not None and link.ordered:
        lease(work, order, link, task)
        return
    other = way_out(work, order, ())
    if other is None or not order_again(work, order, other, task):
        work.put(waiting_again(order, head=order.head))


def attempts_of(work: Work, delivery: Delivery) -> int:
    if delivery.letter is not None and delivery.cargo is Cargo.LETTER:
        return delivery.letter.attempts
    return work.rules.letter_attempts if converses(work, delivery.receiver) else work.rules.notice_attempts


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
    give_up(work, delivery, fault, onward=onward)


def give_up(work: Work, delivery: Delivery, fault: Fault, *, onward: bool) -> None:
    """It will not arrive: out of its lane; the sender of a letter is told. `onward`: what stands behind it may leave,
    unless whoever calls goes through the lane already."""
    work.remove(delivery)
    _vacate(work, delivery)
    letter = delivery.letter
    told = letter is not None and not letter.once and delivery.cargo is Cargo.LETTER
    if letter is not None and letter.asks is not None:
        work.ask_afterwards(Unanswered(question=letter.asks, agent=delivery.receiver))
        told = False
    if letter is not None and told and converses(work, letter.sender):
        id = DeliveryId(work.mint())
        words = msgspec.structs.replace(letter, body=msgspec.Raw(b"null"), once=False, expires_at=None)
        notice = Delivery(
            id=id, task=TaskId(id), receiver=letter.sender, seq=1, cargo=Cargo.UNDELIVERED, event=0, rank=delivery.rank,
            created_at=work.now, letter=words, reason=fault,
        )  # fmt: skip
        put_on_its_way(work, notice, ())
    if onward:
        advance(work, () if is_alone(delivery) else lane_of(work, delivery))


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


def _never_acknowledged(delivery: Delivery) -> Fault:
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{delivery.receiver} never acknowledged it in {delivery.attempt} attempts",
        facts={"agent_id": delivery.receiver},
    )


def bury(work: Work, delivery: Delivery, reason: Fault, *, onward: bool = True) -> None:
    """Into the dead letters, in the same commit that takes it out of its lane."""
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
            letter=delivery.letter,
        )
    )
    if not delivery.alone:
        task = work.known_task(delivery.task)
        body = msgspec.json.encode({"fault": reason, "letter": delivery.id, "cargo": delivery.cargo})
        work.put(work.record(task, EventKind.DEAD_LETTERED, agent=delivery.receiver, body=msgspec.Raw(body)))
    give_up(work, delivery, reason, onward=onward)


OUTCOME_CARGO = {
    Status.COMPLETED: Cargo.RESULT,
    Status.FAILED: Cargo.FAILURE,
    Status.CANCELLED: Cargo.FAILURE,
}

OUTCOMES = frozenset({Cargo.RESULT, Cargo.FAILURE})

TO_CALLERS = frozenset({Cargo.PROGRESS, Cargo.RESULT, Cargo.FAILURE})
