"""What keeps an agent from a task: the conditions of `core.routing.routes` (`serves`, `seat`, `has_resources`,
`absent`) and of `core.budgets.budget`, each with the fact behind it and what to do. Routing stops at the first; this
lists all.

    code               meaning                                                     for good
    -----------------  ----------------------------------------------------------  --------
    other_agent        the task is pinned to another agent                         yes
    other_kind         the task asks for another kind of agent                     yes
    other_role         the task asks for another role                              yes
    asked_for_it       it is the caller of the task                                yes
    lacks_work_type    the agent declared its work types, and this is not one      yes
    lacks_capability   a required capability is missing                            yes
    lacks_memory       it has less memory than the task may need                   yes
    lacks_gpu_memory   it has less GPU memory than the task may need               yes
    other_terms        it does such work on terms that the task does not meet      yes
    other_domain       no domain policy lets the caller ask its domain             yes
    paused             a person paused it                                          no
    silent             it converses, and showed no sign of life for too long       no
    offline            no link to it is open                                       no
    away               it reported that it takes no work, or none before a time    no
    breaker_open       it failed too often; probed again at `until`                no
    busy               all its seats are taken                                     no
    no_room            its allocation has no room for what the task may use        no
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.core.agreements.domain_policy import domain_of, is_open
from dragoman.core.budgets.budget import NOTHING, UNITS, Account, Amounts, is_short
from dragoman.core.budgets.capacity import lacking
from dragoman.core.ids import Instant, rfc3339
from dragoman.core.model.agents import RESOURCES, Agent, BreakerState
from dragoman.core.model.state import AgentState, Standing
from dragoman.core.queries.tasks import moment
from dragoman.core.routing.routes import Route, meets_terms

REPORTED = {
    AgentState.ERROR: "says that something is wrong with it",
    AgentState.OFFLINE: "says that it is offline",
    AgentState.MAINTENANCE: "says that it is in maintenance",
}
"""Why an agent is away, by the state it reported."""

NEXT: Mapping[str, str] = {
    "paused": "let it get work again: dragoman agent resume {agent}",
    "silent": "see whether {agent} still runs: it is back with its next message",
    "offline": "start {agent} where it runs (a new token: dragoman agent token {agent})",
    "away": "wait, or let {agent} report that it is IDLE again (what it said: dragoman agent show {agent})",
    "breaker_open": "see what went wrong with {agent}: dragoman agent logs {agent}",
    "busy": "wait for one of its tasks (dragoman task ls --agent {agent}), or start another agent like it",
    "no_room": "wait for what it works on, ask for less, or raise the limit of {account} in the shared state",
}
"""What to do about each, where there is something."""

REGISTER_WITH_MORE = {
    each.name: f"wait for what it works on, ask for less, or let it register with more (limits.{each.constraint})"
    for each in RESOURCES
}
"""What to do about `no_room`, where the agent itself declared the limit."""
RUN_BY_THE_HUB = "see why it does not run: dragoman agent logs {agent}, then dragoman agent restart {agent}"


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An agent, and what only the running hub knows of it. `state` and `standing` are there if it reported its status;
    `accounts` are its allocations that have a limit."""

    agent: Agent
    reachable: bool
    load: int
    state: str | None = None
    standing: Standing | None = None
    accounts: tuple[Account, ...] = ()


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is what to do about it, if anything can be done."""

    code: str
    text: str
    facts: dict[str, Any] = {}
    next: str | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """`able`: it could do such work at all. `free`: it could be given the task now."""

    agent: str
    able: bool
    free: bool
    reasons: tuple[Reason, ...]


def candidate(facts: AgentFacts, route: Route, now: Instant, asked: Amounts = NOTHING) -> Candidate:
    never, yet = for_good(facts.agent, route), for_now(facts, now, asked)
    return Candidate(agent=facts.agent.id, able=not never, free=not never and not yet, reasons=never + yet)


def for_good(agent: Agent, route: Route) -> tuple[Reason, ...]:
    """What keeps an agent from such work for good."""
    found: list[Reason] = []

    def say(code: str, text: str, **facts: Any) -> None:
        found.append(Reason(code=code, text=text, facts=facts))

    if route.pinned is not None and agent.id != route.pinned:
        say("other_agent", f"the task is for {route.pinned}")
    if route.pinned is None and route.kind is not None and agent.called != route.kind:
        say(
            "other_kind",
            f"is {agent.kind or 'of no kind'}, the task asks for {route.kind}",
            has=agent.kind,
            needs=route.kind,
        )
    if route.role is not None and agent.role != route.role:
        say("other_role", f"lacks the role {route.role}", has=agent.role)
    if route.besides == agent.id:
        say("asked_for_it", "asked for it itself, of another agent")
    if not agent.can_do(route.type):
        say("lacks_work_type", f"lacks the work type {route.type}", work_types=list(agent.work_types or ()))
    missing = [name for name in route.capabilities if name not in agent.capabilities]
    if missing:
        say("lacks_capability", f"lacks {', '.join(missing)}", missing=missing)
    needs = route.needs
    for each in lacking(agent, needs):
        has, needed = getattr(agent, each.name), needs[each.name]
        say(each.lacking, f"has {has} {each.unit}, the task may need {needed}", has=has, needs=needed)
    if not meets_terms(agent, route):
        say("other_terms", f"does {route.type} on terms that the task does not meet (dragoman agent show {agent.id})")
    if not is_open(route.domains, domain_of(agent)):
        text = f"is of the domain {domain_of(agent)}, which the caller may not ask for it (dragoman policy ls)"
        say("other_domain", text, domain=domain_of(agent))
    return tuple(found)


def for_now(facts: AgentFacts, now: Instant, asked: Amounts) -> tuple[Reason, ...]:
    """What keeps an agent from any task, or from this one, for now."""
    agent, found = facts.agent, list[Reason]()

    def say(code: str, text: str, next: str | None = None, **known: Any) -> None:
        advice = next or NEXT[code].format(agent=agent.id, account=known.get("account"))
        found.append(Reason(code=code, text=text, facts=known, next=advice))

    seen = moment(agent.last_seen_at)
    if agent.paused:
        say("paused", "paused by a person")
    if agent.silent_since is not None:
        say("silent", f"not heard any more since {rfc3339(agent.silent_since)}", since=rfc3339(agent.silent_since))
    elif not facts.reachable:
        advice = RUN_BY_THE_HUB.format(agent=agent.id) if "child" in agent.details else None
        say("offline", f"offline, last seen {seen}" if seen else "offline, never seen", advice, last_seen=seen)
    if facts.standing is not None and agent.silent_since is None:
        until = facts.standing.until
        if facts.standing.away:
            state = AgentState(facts.state or AgentState.OFFLINE)
            say("away", REPORTED[state], state=state.value)
        if until is not None and until > now:
            at = rfc3339(until)
            say("away", f"takes no work before {at}, by its own word", f"wait until {at}", until=at)
    breaker = agent.breaker
    if breaker.state is not BreakerState.CLOSED:
        ends = moment(breaker.until)
        text = f"breaker {breaker.state.value.replace('_', '-')} after {breaker.failures} failures"
        text += f", until {ends}" if ends else ", until it answers a health check"
        say("breaker_open", text, state=breaker.state.value, failures=breaker.failures, until=ends)
    if facts.load >= agent.max_concurrent:
        say("busy", f"busy {facts.load}/{agent.max_concurrent}", load=facts.load, seats=agent.max_concurrent)
    for of in facts.accounts:
        if is_short(of, asked.get(of.kind, 0)):
            advice = REGISTER_WITH_MORE.get(of.kind)
            say("no_room", f"has {room(of, asked)}", advice, account=f"{agent.id}:{of.kind}", **figures(of, asked))
    return tuple(found)


def room(of: Account, asked: Amounts) -> str:
    """An account, beside what the task asks of it."""
    amount = asked.get(of.kind, 0)
    wanted = f", and the task asks for {amount:g}" if amount else ""
    return (
        f"{max(0.0, of.free):g} of {of.limit:g} {UNITS[of.kind]} free ({of.consumed:g} used, "
        f"{of.reserved + of.by_hand:g} set aside){wanted}"
    )


def figures(of: Account, asked: Amounts) -> dict[str, Any]:
    return {
        "resource": of.kind, "asked": asked.get(of.kind, 0), "limit": of.limit, "consumed": of.consumed,
        "set_aside": of.reserved + of.by_hand, "free": max(0.0, of.free),
    }  # fmt: skip


__all__ = ["AgentFacts", "Candidate", "Reason", "candidate", "figures", "room"]
