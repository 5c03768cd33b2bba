"""Over which link a delivery may leave, and what holds it there until it is acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.core.ids import MILLISECOND, AgentId, Instant, TaskId, minted_at
from dragoman.core.lookups import QuestionById
from dragoman.core.model.agents import Link
from dragoman.core.model.backoff import wait_of
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Delivery, DeliveryState, Letter, MessageKind, Outgoing
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.work import Work

ORDERS = frozenset({MessageKind.WORK, MessageKind.YOURS})
"""What gives an agent work: how it is sent again is for the task's caller to say."""


def way_out(work: Work, delivery: Delivery, before: Sequence[Delivery]) -> Link | None:
    """The link over which a delivery may leave now, given what stands before it in its lane: one that has all of that,
    a poll in the same answer. An agent that converses has only the head of a lane on a link (agentmsg-D5)."""
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
        wake_at = due_at(work, delivery, attempt, work.now, task)
    elif link.ordered or (delivery.kind is MessageKind.WORK and not is_patient(work, delivery)):
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
    if task is None and not delivery.alone:
        task = work.known_task(delivery.task)
    outgoing = Outgoing(delivery, task, news_of(work, delivery))
    if link.ordered:
        is_notice = delivery.kind is not MessageKind.WORK  # seats bound work
        send_over(work, link, outgoing, more=is_notice and link.window is not None and not gone and not again)
    else:
        work.put_link(msgspec.structs.replace(link, credit=link.credit - 1, given=link.given + outgoing.weight))
        work.send(link, outgoing)
    return None if gone else delivery


def send_over(work: Work, link: Link, outgoing: Outgoing, *, more: bool = False) -> None:
    """Hand an outgoing message to an ordered link. `more`: one more that its peer has to acknowledge."""
    weight = 0 if link.quota is None else outgoing.weight
    if more or weight:
        given = link.given + weight
        work.put_link(msgspec.structs.replace(link, outstanding=link.outstanding + more, given=given))
    work.send(link, outgoing)


def news_of(work: Work, delivery: Delivery) -> Event | Question | Letter | Contract | None:
    """What a delivery tells of. A letter that asks has with it what those said who passed the question on."""
    letter = delivery.letter
    if letter is not None:
        asked = None if letter.asks is None else work.one(QuestionById(letter.asks))
        if asked is None or not asked.escalations:
            return letter
        others = tuple(one for one in asked.escalations if one.agent != delivery.receiver)
        return msgspec.structs.replace(letter, escalations=others)
    if delivery.question is not None:
        return work.one(QuestionById(delivery.question))
    if delivery.contract is not None:
        return work.contract(delivery.contract)
    return work.event(delivery.task, delivery.event)


def is_patient(work: Work, order: Delivery) -> bool:
    """Whether the idle clock of a task is set so long that it would not notice in time that a work order was lost."""
    return work.known_task(order.task).idle_limit > work.rules.idle_limit


def due_at(work: Work, delivery: Delivery, attempt: int, since: Instant, task: Task | None = None) -> Instant:
    """Until when an agent that converses may acknowledge this attempt."""
    own = None
    if delivery.kind in ORDERS:
        own = (task or work.known_task(delivery.task)).retry
    elif delivery.kind is MessageKind.LETTER and delivery.letter is not None:
        own = delivery.letter.retry
    return Instant(since + wait_of(work.rules, delivery.id, attempt, work.policy.retry, own))


def held(work: Work, delivery: Delivery) -> bool:
    """Whether somebody has a lease on it that is worth something."""
    if delivery.state is not DeliveryState.LEASED:
        return False
    if delivery.wake_at is not None and delivery.wake_at <= work.now:
        return False
    if delivery.ordered or delivery.wake_at is None:
        return delivery.session is not None and work.link(delivery.session) is not None
    return True


def unheard(work: Work, delivery: Delivery) -> Delivery:
    """The same, less an offer of an earlier life of the hub, which nobody heard the end of: it does not count."""
    if delivery.state is not DeliveryState.LEASED or delivery.session is None:
        return delivery
    opened = minted_at(delivery.session)
    if opened is None or opened // MILLISECOND >= work.serving_since // MILLISECOND:
        return delivery
    return msgspec.structs.replace(delivery, attempt=max(0, delivery.attempt - 1))


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


def converses(work: Work, id: AgentId) -> bool:
    agent = work.agent(id)
    return agent is not None and agent.converses


def leaves_once(delivery: Delivery) -> bool:
    """Whether an agent that converses is promised it at most once (agentmsg-D4)."""
    return delivery.kind is MessageKind.PROGRESS if delivery.letter is None else delivery.letter.once


def is_alone(delivery: Delivery) -> bool:
    """Whether it has a lane of its own."""
    return delivery.task == TaskId(delivery.id)
