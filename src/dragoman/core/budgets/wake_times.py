"""When the hub must look at an agent again, and how long its breaker rests, as the shared state determines it."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.state import Registry, moment_of
from dragoman.core.work import Work

RESOURCES = ("budget", "tokens", "cpu", "memory")


def breaker_limits(work: Work, agent: Agent) -> tuple[int, int]:
    """How many failures in a row open its breaker, and for how long: by the policy for agents that converse."""
    if agent.converses:
        return work.policy.breaker_threshold, work.policy.breaker_pause
    return work.rules.breaker_threshold, work.rules.breaker_pause


def with_wake_time(work: Work, agent: Agent) -> Agent:
    """The agent with its earliest time as `wake_at`: the end of its breaker's pause, its next heartbeats, when it said
    that it takes work again, the end of an allocation."""
    times = [agent.breaker.until, agent.silent_at]
    standing = work.standing(agent.id)
    if standing is not None and standing.until is not None and standing.until > work.now:
        times.append(standing.until)
    if work.allotted(agent.id):
        times += [expiry(work, agent, kind) for kind in RESOURCES]
    earliest: Instant | None = min((at for at in times if at is not None), default=None)
    return agent if agent.wake_at == earliest else replace(agent, wake_at=earliest)


def expiry(work: Work, agent: Agent, kind: str) -> Instant | None:
    entity = work.entity(Registry.RESOURCE, f"{agent.id}:{kind}")
    return None if entity is None else moment_of(entity.value.get("expires_at"))
