"""Links to agents open and break, and what happens then to the tasks and deliveries of the agent."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.core.agents.registry import known, probe
from dragoman.core.commands import CloseLink, OpenLink, PaceLink, PartLink, RefillLink
from dragoman.core.delivery.outbox import settle
from dragoman.core.delivery.redelivery import NOTHING_YET, send_waiting
from dragoman.core.ids import SECOND, Instant
from dragoman.core.lookups import Lane
from dragoman.core.model.agents import Agent, BreakerState, ConnectionEvent, Link
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import HELD, Status, Task, Waiting
from dragoman.core.routing.dispatch import fill
from dragoman.core.tasks.outcome import fail_attempt, failed, still_held
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind
from dragoman.wire.closing import CloseReason

SEEN_EVERY = 15 * SECOND
"""How often a poll writes `last_seen_at`, which is for people."""
REPLACES = "it replaces the connection before it"
NEW_PROCESS = "a new process of the agent"
LOST = "the connection broke"
MOST_INSTANCES = 8
"""How many earlier processes of an agent the hub remembers."""


def open_link(work: Work, command: OpenLink) -> int:
    agent = known(work, command.principal)
    link = Link(
        session=command.session,
        agent=agent.id,
        ordered=command.ordered,
        credit=command.credit,
        window=work.rules.link_window if command.ordered and command.acknowledges else None,
        quota=work.rules.link_bytes if command.paced or not command.ordered else None,
        vouches=command.vouches,
        behind=NOTHING_YET if command.ordered else None,
    )
    replaces = False
    if command.ordered:
        for old in work.links_to(agent.id):
            if old.ordered:
                replaces = True
                work.close_link(old.session, CloseReason.NEWER_CONNECTION)
                lose(work, old)
    work.put_link(link)
    fresh = command.fresh or is_new(agent, command.instance)
    if fresh and command.instance is not None:
        for old in work.links_to(agent.id):
            if old.session != link.session:  # polls of the earlier process: their answers are not read
                work.close_link(old.session, CloseReason.OTHER_PROCESS)
    if fresh or command.ordered or work.now - (agent.last_seen_at or 0) > SEEN_EVERY:
        connected = any(one.ordered for one in work.links_to(agent.id))
        agent = replace(agent, connected=connected, last_seen_at=work.now)
        if command.ordered:
            why = REPLACES if replaces else NEW_PROCESS if fresh and agent.connections else ""
            agent = replace(agent, connections=agent.noted(work.now, ConnectionEvent.CONNECTED, why))
        work.put(followed_by(agent, command.instance) if fresh else agent)
    if fresh:
        take_back(work, link)
    sent = send_waiting(work, link)
    if fresh and (command.ordered or command.fresh):  # the earlier process may still poll, and work
        forgotten(work, link)
    if agent.breaker.state is BreakerState.HALF_OPEN:
        probe(work, agent.id)
    return sent + fill(work, agent.id)


def is_new(agent: Agent, instance: str | None) -> bool:
    """Whether this process of an agent is new to the hub. A process that comes back after another one came is alive:
    the two share the agent's polls, and neither has lost its memory."""
    return instance is not None and instance != agent.instance and instance not in agent.former_instances


def followed_by(agent: Agent, instance: str | None) -> Agent:
    """The agent with its current process, where it names one."""
    if instance is None:
        return agent
    former = agent.former_instances if agent.instance is None else (agent.instance, *agent.former_instances)
    return replace(agent, instance=instance, former_instances=former[:MOST_INSTANCES])


def refill_link(work: Work, command: RefillLink) -> int:
    link = work.link(command.session)
    if link is None:
        return 0
    return send_waiting(work, link) + fill(work, link.agent)


def pace_link(work: Work, command: PaceLink) -> int:
    link = work.link(command.session)
    if link is None or command.written <= link.written:
        return 0
    paced = replace(link, written=command.written)
    work.put_link(paced)
    return send_waiting(work, paced) if link.full and not paced.full else 0


def part_link(work: Work, command: PartLink) -> None:
    link = work.link(command.session)
    if link is not None:
        work.put_link(replace(link, stopping=True))


def close_link(work: Work, command: CloseLink) -> None:
    link = work.link(command.session)
    if link is None:
        return
    work.drop_link(command.session)
    if not link.ordered or (work.directory.stopping and command.fault is None):
        return
    agent = work.agent(link.agent)
    if agent is not None and not any(other.ordered for other in work.links_to(agent.id)):
        why = LOST if command.fault is None and command.lost else "" if command.fault is None else command.fault.message
        connections = agent.noted(work.now, ConnectionEvent.DISCONNECTED, why)
        work.put(replace(agent, connected=False, last_seen_at=work.now, connections=connections))
    if command.fault is not None:
        give_back(work, link, command.fault, stopping=work.directory.stopping or command.stopping)
    elif command.lost and not command.stopping:
        lose(work, link)


def lose(work: Work, link: Link) -> None:
    """A link broke: the agent has the grace time to show a sign of life for its tasks (`clock.lost_for_good`). For
    waiting tasks this is only noted: their timers stand still until they go on."""
    soon = Instant(work.now + work.rules.grace)
    for task in work.tasks(work.tasks_of(link.agent)):
        if (
            task.attempt.session != link.session or task.waiting is Waiting.HELD
        ):  # `resume` handles what a person paused
            continue
        wake_at = task.wake_at
        if task.status is not Status.WAITING:
            wake_at = soon if wake_at is None else min(wake_at, soon)
        work.put(replace(task, wake_at=wake_at, timing=replace(task.timing, lost_at=work.now)))


def give_back(work: Work, link: Link, fault: Fault, *, stopping: bool) -> None:
    """The agent is gone, and with it what it held over this link. This counts as one failure, unless the hub itself is
    `stopping`: then it costs no attempt."""
    if stopping:
        why = f"the hub was stopped while {link.agent} worked on the task"
        fault = replace(fault, message=why)
    held = [task for task in work.tasks(work.tasks_of(link.agent)) if task.attempt.session == link.session]
    at_it = () if stopping else [task.id for task in _begun([task for task in held if not task.stands_still])]
    for task in still_held(work, held):
        fail_attempt(work, task, fault, counts=False, lost=True, spent=task.id in at_it)
    if at_it:
        failed(work, link.agent)
    fill(work, link.agent)


def _begun(held: Sequence[Task]) -> Sequence[Task]:
    """What an agent was working on when it went: the tasks that it had reported about, or else the first one. The
    others lose no attempt: one work order that kills its agent would use up the attempts of all others."""
    begun = [task for task in held if task.status is not Status.ASSIGNED]
    return begun or sorted(held, key=lambda task: (task.updated_at, task.created_at, task.id))[:1]


def take_back(work: Work, link: Link) -> None:
    """An agent that starts with empty memory does not know that it waited for an answer, nor what to do with one. The
    hub assigns the task again, in the same attempt and round: the agent comes to the same question and finds the answer
    (`questions.ask_person`)."""
    fault = _started_over(link, "waited with it")
    for task in still_held(work, [task for task in _of_earlier_links(work, link) if task.stands_still]):
        for waiting in work.find(Lane(task.id, link.agent)):
            if waiting.kind is MessageKind.ANSWER:
                settle(work, waiting)
        fail_attempt(work, task, fault, counts=False, lost=True, spent=False)


def forgotten(work: Work, link: Link) -> None:
    """An agent that starts with empty memory knows nothing of what it held before, over links that broke, also while
    the hub was down. Work orders that had not arrived were sent again already and belong to this link now."""
    fault = _started_over(link, "worked on it")
    held = _of_earlier_links(work, link)
    for task in still_held(work, held):
        fail_attempt(work, task, fault, counts=False, lost=True)
    if any(task.timing.lost_at is not None and task.timing.lost_at >= work.serving_since for task in held):
        failed(work, link.agent)  # this hub saw the link break


def _started_over(link: Link, while_it: str) -> Fault:
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{link.agent} was started again while it {while_it}",
        retryable=True,
        facts={"agent_id": link.agent, "last_heartbeat": None},
    )


def _of_earlier_links(work: Work, link: Link) -> list[Task]:
    held = work.tasks(work.tasks_of(link.agent))
    return [task for task in held if task.status in HELD and task.attempt.session not in (None, link.session)]
