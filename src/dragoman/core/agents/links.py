"""Links to agents open and break."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.core.agents.floor import Link
from dragoman.core.agents.model import BreakerState
from dragoman.core.agents.registry import known, probe
from dragoman.core.commands import CloseLink, OpenLink, PaceLink, PartLink, RefillLink
from dragoman.core.delivery.outbox import NOTHING_YET, pump
from dragoman.core.errors import Fault, Kind
from dragoman.core.ids import SECOND, Instant
from dragoman.core.routing.dispatch import fill
from dragoman.core.tasks.model import HELD, Status, Task
from dragoman.core.tasks.outcome import fail_attempt, failed, still_held
from dragoman.core.work import Work

SEEN_EVERY = 15 * SECOND
"""How often a poll is worth a row: `last_seen_at` is for people."""


def open_link(work: Work, command: OpenLink) -> int:
    agent = known(work, command.principal)
    link = Link(
        session=command.session,
        agent=agent.id,
        ordered=command.ordered,
        credit=command.credit,
        window=work.rules.link_window if command.ordered and command.acknowledges else None,
        quota=work.rules.link_bytes if command.paced else None,
        vouches=command.vouches,
        behind=NOTHING_YET if command.ordered else None,
    )
    if command.ordered:
        for old in work.links_to(agent.id):
            if old.ordered:
                work.close_link(old.session, "replaced by a newer connection of the same agent")
                lose(work, old)
    work.put_link(link)
    if command.ordered or work.now - (agent.last_seen_at or 0) > SEEN_EVERY:
        connected = any(one.ordered for one in work.links_to(agent.id))
        agent = msgspec.structs.replace(agent, connected=connected, last_seen_at=work.now)
        work.put(agent)
    sent = pump(work, link)
    if command.fresh:
        forgotten(work, link)
    if agent.breaker.state is BreakerState.HALF_OPEN:
        probe(work, agent.id)
    return sent + fill(work, agent.id)


def refill_link(work: Work, command: RefillLink) -> int:
    link = work.link(command.session)
    if link is None:
        return 0
    return pump(work, link) + fill(work, link.agent)


def pace_link(work: Work, command: PaceLink) -> int:
    link = work.link(command.session)
    if link is None or command.written <= link.written:
        return 0
    paced = msgspec.structs.replace(link, written=command.written)
    work.put_link(paced)
    return pump(work, paced) if link.full and not paced.full else 0


def part_link(work: Work, command: PartLink) -> None:
    link = work.link(command.session)
    if link is not None:
        work.put_link(msgspec.structs.replace(link, parting=True))


def close_link(work: Work, command: CloseLink) -> None:
    link = work.link(command.session)
    if link is None:
        return
    work.drop_link(command.session)
    if not link.ordered or (work.floor.parting and command.fault is None):
        return
    agent = work.agent(link.agent)
    if agent is not None and not any(other.ordered for other in work.links_to(agent.id)):
        work.put(msgspec.structs.replace(agent, connected=False, last_seen_at=work.now))
    if command.fault is not None:
        give_back(work, link, command.fault)
    elif command.lost:
        lose(work, link)


def lose(work: Work, link: Link) -> None:
    """A link broke: what its agent works on has the grace time to show a sign of life (`clock.lost_for_good`)."""
    soon = Instant(work.now + work.rules.grace)
    for task in work.tasks(work.tasks_of(link.agent)):
        if task.session == link.session and task.status in (Status.ASSIGNED, Status.RUNNING):
            wake_at = soon if task.wake_at is None else min(task.wake_at, soon)
            work.put(msgspec.structs.replace(task, lost_at=work.now, wake_at=wake_at))


def give_back(work: Work, link: Link, fault: Fault) -> None:
    """The agent is gone, and what it held over this link with it. That, too, is one failure, unless it is gone because
    we go: then it costs neither of them anything."""
    ours = work.floor.parting
    if ours:
        why = f"the hub was stopped while {link.agent} worked on the task"
        fault = msgspec.structs.replace(fault, message=why)
    held = [task for task in work.tasks(work.tasks_of(link.agent)) if task.session == link.session]
    at_it = () if ours else [task.id for task in _begun(held)]
    for task in still_held(work, held):
        fail_attempt(work, task, fault, counts=False, lost=True, spent=task.id in at_it)
    if held and not ours:
        failed(work, link.agent)
    fill(work, link.agent)


def _begun(held: Sequence[Task]) -> Sequence[Task]:
    """What an agent was at when it went: what it had said a word about, or, where that is nothing, what it had first.
    Its end costs the rest no attempt: one order that kills whoever reads it would use up those of all around it."""
    begun = [task for task in held if task.status is not Status.ASSIGNED]
    return begun or sorted(held, key=lambda task: (task.updated_at, task.created_at, task.id))[:1]


def forgotten(work: Work, link: Link) -> None:
    """An agent that starts with an empty head knows nothing of what it held before, over links that broke, or that
    nobody saw break: the hub itself was down. Work orders that had not arrived then were sent again already, and are of
    this link now."""
    fault = Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{link.agent} started anew while it worked on the task",
        retryable=True,
        facts={"agent_id": link.agent, "last_heartbeat": None},
    )
    held = [t for t in work.tasks(work.tasks_of(link.agent)) if t.status in HELD and _of_an_earlier(t, link)]
    for task in still_held(work, held):
        fail_attempt(work, task, fault, counts=False, lost=True)
    if any(task.lost_at is not None and task.lost_at >= work.serving_since for task in held):
        failed(work, link.agent)  # we saw it end


def _of_an_earlier(task: Task, link: Link) -> bool:
    return task.session is not None and task.session != link.session
