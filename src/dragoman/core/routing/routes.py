"""Routes: which agents can do a task, and which of them should.

A *route* is what a task asks of an agent: a kind or one agent by name, a work type, capabilities. Tasks with the same
route are in the same queue. The route is the name of the queue, so the hub knows which agents serve a queue without
looking at its tasks.

An agent can be given a task if no person paused it, it is reachable, its breaker is closed, it has a free seat, memory
and room in its allocations, and it does not report that it takes no work. Idle agents come first, then the least loaded
(chiffon-D8), then those that fail least, then the most capable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from dragoman.core.agreements.domain_policy import View, domain_of, is_open
from dragoman.core.budgets.budget import NOTHING, Amounts, may_take
from dragoman.core.budgets.capacity import Needs, accounts_of, lacking
from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.agents import Agent, BreakerState, Link
from dragoman.core.model.state import Standing
from dragoman.core.model.tasks import Task
from dragoman.core.protocol_capabilities import KEEPS_QUEUED, SEALS
from dragoman.core.work import Work

UNREPORTED = (0.0, -100.0)
"""The weight of an agent that never reported its status: no errors, fully capable."""

UNDECLARED = 1 << 30
"""The weight of having declared no work types, where any agent may be asked."""


class Route(msgspec.Struct, frozen=True, array_like=True):
    """What a task asks of an agent. It is stored as the name of a queue, as an array: new fields come last.

    `besides`: the caller, which does not get its own work back unless it names itself. `budgeted`: its tasks need room
    in an allocation, each its own; tasks that need none never wait behind them. `memory_mb` and `gpu_vram_mb`: what a
    task may need of its agent's memory, where the agent reported how much it has.

    Where no agent is named: `personal`: the work is personal data for at least one agent that does it. `unfit`: agents
    whose declared terms the task does not meet. `granted`: the capabilities that offers of such work require and the
    caller has. `domains`: the domains that the caller may ask."""

    type: str
    kind: str | None = None
    pinned: AgentId | None = None
    role: str | None = None
    capabilities: tuple[str, ...] = ()
    besides: AgentId | None = None
    budgeted: bool = False
    memory_mb: int = 0
    personal: bool = False
    unfit: tuple[AgentId, ...] = ()
    granted: tuple[str, ...] = ()
    domains: View = ()
    gpu_vram_mb: int = 0

    @property
    def queue(self) -> str:
        return _queue_name(self)

    @property
    def needs(self) -> Needs:
        """What each of its tasks may need of its agent's resources."""
        return _needs(self.memory_mb, self.gpu_vram_mb)

    @property
    def has_needs(self) -> bool:
        """Whether `needs` has entries. This runs for every candidate of every task."""
        return bool(self.memory_mb or self.gpu_vram_mb)


_encoder = msgspec.json.Encoder()


@lru_cache(4096)
def _needs(memory_mb: int, gpu_vram_mb: int) -> Needs:
    return {name: amount for name, amount in (("memory_mb", memory_mb), ("gpu_vram_mb", gpu_vram_mb)) if amount}


@lru_cache(4096)
def _queue_name(route: Route) -> str:
    """The route as JSON. Later fields are left out at the end where they have their defaults: tasks of one route that
    were stored before and after an upgrade of the hub are in the same queue."""
    name = _encoder.encode(route).decode()
    return name if route.gpu_vram_mb else name.removesuffix(",0]") + "]"


@lru_cache(4096)
def route_of(queue: str) -> Route:
    return msgspec.json.decode(queue, type=Route)


def serves(agent: Agent, route: Route) -> bool:
    """Whether this agent could ever be given such work."""
    return route.besides != agent.id and could_claim(agent, route)


def could_claim(agent: Agent, route: Route) -> bool:
    """Whether the agent could be given such work, its own requests included."""
    if not is_able(agent, route) or (agent.offers and not meets_terms(agent, route)):
        return False
    return not route.domains or is_open(route.domains, domain_of(agent))


def meets_terms(agent: Agent, route: Route) -> bool:
    """Whether the work fits the agent's declared terms. Work for a named agent was checked when it was submitted."""
    offer = agent.offer(route.type) if route.pinned is None else None
    if offer is None:
        return True
    if offer.pii and (agent.protocol in SEALS or not route.personal):  # it would arrive, or be stored, unencrypted
        return False
    return agent.id not in route.unfit and all(wanted in route.granted for wanted in offer.required_capabilities)


def is_able(agent: Agent, route: Route) -> bool:
    """Whether the agent does such work."""
    if route.pinned is not None:
        if agent.id != route.pinned:
            return False
    elif route.kind is not None and agent.called != route.kind:
        return False
    if route.role is not None and agent.role != route.role:
        return False
    if route.has_needs and lacking(agent, route.needs):
        return False
    if not agent.can_do(route.type):
        return False
    return not route.capabilities or all(c in agent.capabilities for c in route.capabilities)


def addressed(work: Work, route: Route) -> Iterable[Agent]:
    """The agents a route names, whether or not they can do the work."""
    if route.pinned is not None:
        agent = work.agent(route.pinned)
        return () if agent is None else (agent,)
    if route.kind is not None:
        return work.agents_of_kind(route.kind)
    return work.all_agents()


def seat(work: Work, agent: Agent) -> Link | None:
    """The link over which this agent could be given work now, or None."""
    if not has_room(work, agent):
        return None
    link = reach(work, agent.id)
    return None if link is not None and link.stopping else link


def has_room(work: Work, agent: Agent) -> bool:
    """Whether an agent could take one more task, apart from its links."""
    if agent.paused or agent.silent_since is not None or work.directory.stopping:
        return False
    return agent.breaker.state is BreakerState.CLOSED and work.load_of(agent.id) < agent.max_concurrent


def can_start(work: Work, agent: Agent) -> bool:
    """Whether an agent could be given work by name: over a link now, or, where it polls, at its next poll."""
    if seat(work, agent) is not None:
        return True
    if any(link.ordered or link.stopping for link in work.links_to(agent.id)):
        return False
    return has_room(work, agent) and present(work, agent.id)


def has_resources(work: Work, agent: Agent, route: Route) -> bool:
    """Whether an agent has the resources for such work now. An agent that declared no limit has them."""
    if not route.has_needs:
        return True
    needs = route.needs
    if all(getattr(agent, name) is None for name in needs):
        return True
    held = work.tasks(work.tasks_of(agent.id))
    return all(of.free >= needs.get(of.kind, 0) for of in accounts_of(agent, held))


def reach(work: Work, agent: AgentId) -> Link | None:
    """A link with room: one that keeps order before a poll."""
    found = None
    for link in work.links_to(agent):
        if link.ordered:
            return link
        if link.credit > 0:
            found = link
    return found


def present(work: Work, id: AgentId) -> bool:
    """Whether an agent is connected or polling. Between two polls it is present, too."""
    if work.links_to(id):
        return True
    seen = work.directory.polled_at.get(id)
    return seen is not None and work.now - seen < work.rules.poll_presence


def fails_soon(work: Work, task: Task, could: Iterable[Agent]) -> bool:
    """Whether a task without a connected agent is retried at short intervals and then fails, so that its caller knows
    soon (chiffon-D6). Otherwise each attempt waits for the idle time.

    The hub waits for an agent that may be restarting: if an agent had the task already, or the task is older than this
    hub process. It also waits where the caller set a time limit or submits to a queue; for agents that it starts
    itself; for agents that converse and were seen lately; and, during the idle time after its own start, for agents
    that it knew before.
    """
    if task.attempt.at is not None or task.created_at < work.serving_since:
        return False
    if task.timing.firm or task.timing.expires_at is not None or task.origin.protocol in KEEPS_QUEUED:
        return False
    started = work.now < work.serving_since + work.rules.idle_limit
    return not any(
        "child" in agent.details
        or (started and agent.created_at < work.serving_since and agent.last_seen_at)
        or was_seen_lately(work, agent)
        for agent in could
    )


def is_here(work: Work, agent: Agent) -> bool:
    """Whether an agent is surely present: it has a link or works on a task. An agent that polled a moment ago and has
    neither may not come again."""
    return bool(work.links_to(agent.id)) or work.load_of(agent.id) > 0


def was_seen_lately(work: Work, agent: Agent) -> bool:
    """Whether the hub saw a sign of life of an agent that converses, within the heartbeats after which it is offline
    (agentmsg-D12)."""
    if not agent.converses or agent.silent_since is not None:
        return False
    seen = work.directory.seen_at.get(agent.id)
    return seen is not None and work.now - seen < work.rules.heartbeat * work.rules.heartbeats_missed


def patience(work: Work, task: Task) -> int:
    """How long a task without a seat waits in its queue before the hub looks at it again."""
    route = route_of(task.routing.route)
    could: list[Agent] = []
    for agent in addressed(work, route):
        if serves(agent, route):
            if is_here(work, agent):  # mostly the first of many
                return task.timing.idle_limit
            could.append(agent)
    soon = fails_soon(work, task, could)
    if any(present(work, agent.id) for agent in could):
        return (
            min(task.timing.idle_limit, task.timing.total_limit or task.timing.idle_limit)
            if soon
            else task.timing.idle_limit
        )
    if not soon:
        return work.rules.idle_limit
    delays = work.rules.unreachable_delays
    return min(delays[min(1, len(delays) - 1)], task.timing.total_limit or work.rules.total_limit)


def last_seen(work: Work, agent: Agent) -> Instant | None:
    """When the hub last saw the agent. The row of the agent is not written at every poll or message."""
    known = (agent.last_seen_at, work.directory.polled_at.get(agent.id), work.directory.seen_at.get(agent.id))
    return max((at for at in known if at is not None), default=None)


def reads_soon(work: Work, agent: Agent) -> bool:
    """Whether the agent would read a direct message soon: it is present, was seen lately (agentmsg-D12), or is so new
    that the hub cannot tell yet. Present agents come first."""
    if present(work, agent.id):
        return True
    if not agent.converses or agent.silent_since is not None:
        return False
    seen = max(work.directory.seen_at.get(agent.id, 0), agent.created_at)
    return work.now - seen < work.rules.heartbeat * work.rules.heartbeats_missed


def can_be_asked(work: Work, agent: Agent) -> bool:
    """Whether an agent would get a request soon and may have a seat for it. An agent that converses gets a direct
    message, any other the work; both wait for the next poll of an agent that polls."""
    if absent(work, work.standing(agent.id)):
        return False
    if not agent.converses:
        return can_start(work, agent)
    return has_room(work, agent) and reads_soon(work, agent)


def choose(work: Work, route: Route, asked: Amounts = NOTHING) -> tuple[Agent, Link] | None:
    """The agent to assign the work to: idle first, then the least loaded, then the one that fails least, then the most
    capable, as far as they report it. Where any agent may do it, those that declared such work come first."""
    best: tuple[Agent, Link] | None = None
    least, lightest = 1 << 60, UNREPORTED
    reports, limits = work.reports, bool(asked) or work.limits
    unaddressed = route.kind is None and route.pinned is None
    for agent in addressed(work, route):
        load = work.load_of(agent.id)
        if load >= agent.max_concurrent:
            continue  # no seat; among many agents, most of the first are busy
        if unaddressed and agent.work_types is None:
            load += UNDECLARED
        if load > least or (load == least and not reports) or not serves(agent, route):
            continue
        standing = work.standing(agent.id) if reports else None
        if absent(work, standing):
            continue
        weight = weight_of(standing)
        if load == least and weight >= lightest:
            continue
        link = seat(work, agent)
        if link is None or (limits and not may_take(work, agent.id, asked)) or not has_resources(work, agent, route):
            continue
        if load == 0 and weight <= UNREPORTED:
            return agent, link
        best, least, lightest = (agent, link), load, weight
    return best


def absent(work: Work, standing: Standing | None) -> bool:
    """Whether an agent reported that it takes no work now."""
    return standing is not None and (standing.away or (standing.until is not None and standing.until > work.now))


def weight_of(standing: Standing | None) -> tuple[float, float]:
    """The order among agents with the same load, the smallest first: error rate, then capability."""
    return UNREPORTED if standing is None else (standing.error_rate, -standing.level)


def ready(work: Work, agent: Agent) -> Link | None:
    """`seat`, for an agent that takes work and has budget left."""
    if work.reports and absent(work, work.standing(agent.id)):
        return None
    return None if work.limits and not may_take(work, agent.id, NOTHING) else seat(work, agent)


def queues_for(work: Work, agent: Agent) -> Iterator[str]:
    """The queues with tasks that this agent could serve now."""
    for queue in work.queues():
        route = route_of(queue)
        if serves(agent, route) and has_resources(work, agent, route):
            yield queue
