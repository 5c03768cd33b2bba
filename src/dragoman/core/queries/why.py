"""Why a task is where it is: the facts, and one paragraph made of them.

The reasons an agent does not take a task are the conditions of `core.routing.routes` (`serves`, `seat`), each with
the fact behind it. They are told here one by one because routing itself stops at the first.

    code               meaning
    -----------------  ------------------------------------------------------------
    other_agent        the task is pinned to another agent
    other_kind         the task asks for another kind of agent
    other_role         the task asks for another role
    lacks_work_type    the agent declared its work types, and this is not one
    lacks_capability   a required capability is missing
    offline            no link to it is open
    breaker_open       it failed too often; probed again at `until`
    busy               all its seats are taken
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.agents.model import Agent, BreakerState
from dragoman.core.ids import SECOND, Instant, rfc3339
from dragoman.core.queries.tasks import ErrorOut, error_out, moment
from dragoman.core.routing.routes import Route, route_of
from dragoman.core.tasks.model import Question, Status, Task, Waiting

MOST_CANDIDATES = 50


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An agent, and what only the running hub knows of it."""

    agent: Agent
    reachable: bool
    load: int


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    text: str
    facts: dict[str, Any] = {}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """`able`: it could do such work at all. `free`: it could be given it now."""

    agent: str
    able: bool
    free: bool
    reasons: tuple[Reason, ...]


class QueueOut(msgspec.Struct, frozen=True, kw_only=True):
    """`ahead` counts the tasks that leave the same queue before it; a lower bound where `ahead_exact` is false."""

    name: str
    rank: int
    priority: str
    waiting_since: str
    ahead: int
    ahead_exact: bool


class WhyOut(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    status: Status
    waiting: Waiting | None
    summary: str
    reasons: tuple[Reason, ...]
    candidates: tuple[Candidate, ...]
    candidates_left_out: int
    queue: QueueOut | None
    attempts: int
    last_error: ErrorOut | None
    next_retry_at: str | None
    deadline: str


def obstacles(facts: AgentFacts, route: Route) -> tuple[tuple[Reason, ...], tuple[Reason, ...]]:
    """What keeps an agent from such work at all, and what keeps it from taking any now."""
    agent, never, now = facts.agent, list[Reason](), list[Reason]()
    if route.pinned is not None and agent.id != route.pinned:
        never.append(Reason(code="other_agent", text=f"the task is for {route.pinned}"))
    if route.pinned is None and route.kind is not None and agent.kind != route.kind:
        never.append(
            Reason(
                code="other_kind",
                text=f"is {agent.kind or 'of no kind'}, the task asks for {route.kind}",
                facts={"has": agent.kind, "needs": route.kind},
            )
        )
    if route.role is not None and agent.role != route.role:
        never.append(Reason(code="other_role", text=f"lacks the role {route.role}", facts={"has": agent.role}))
    if not agent.can_do(route.type):
        never.append(
            Reason(
                code="lacks_work_type",
                text=f"lacks the work type {route.type}",
                facts={"work_types": list(agent.work_types or ())},
            )
        )
    missing = [name for name in route.capabilities if name not in agent.capabilities]
    if missing:
        never.append(Reason(code="lacks_capability", text=f"lacks {', '.join(missing)}", facts={"missing": missing}))
    if not facts.reachable:
        seen = moment(agent.last_seen_at)
        now.append(
            Reason(
                code="offline",
                text=f"offline, last seen {seen}" if seen else "offline, never seen",
                facts={"last_seen": seen},
            )
        )
    if agent.breaker.state is not BreakerState.CLOSED:
        until = moment(agent.breaker.until)
        text = f"breaker {agent.breaker.state.value.replace('_', '-')} after {agent.breaker.failures} failures"
        now.append(
            Reason(
                code="breaker_open",
                text=f"{text}, until {until}" if until else text,
                facts={"state": agent.breaker.state.value, "failures": agent.breaker.failures, "until": until},
            )
        )
    if facts.load >= agent.max_concurrent:
        now.append(
            Reason(
                code="busy",
                text=f"busy {facts.load}/{agent.max_concurrent}",
                facts={"load": facts.load, "seats": agent.max_concurrent},
            )
        )
    return tuple(never), tuple(now)


def candidate(facts: AgentFacts, route: Route) -> Candidate:
    never, now = obstacles(facts, route)
    return Candidate(agent=facts.agent.id, able=not never, free=not never and not now, reasons=never + now)


def why(
    task: Task,
    *,
    now: Instant,
    agents: Sequence[AgentFacts] = (),
    dependencies: Sequence[Task] = (),
    question: Question | None = None,
    ahead: int = 0,
    ahead_exact: bool = True,
) -> WhyOut:
    """`dependencies` are the tasks in `blocked_by`; `ahead` is how many of its queue have a smaller rank."""
    queued = task.status is Status.QUEUED
    retry_at = task.wake_at if queued and task.queue is None and task.attempts else None
    candidates: list[Candidate] = []
    if queued:
        route = route_of(task.route)
        candidates = [candidate(facts, route) for facts in agents]
        # Those who could come first: one obstacle away before many.
        candidates.sort(key=lambda it: (not it.free, not it.able, len(it.reasons), it.agent))
    reasons = _reasons(task, now, candidates, dependencies, question, retry_at, ahead, ahead_exact)
    return WhyOut(
        task_id=task.id,
        status=task.status,
        waiting=task.waiting,
        summary=" ".join(f"{reason.text[0].upper()}{reason.text[1:]}." for reason in reasons if reason.text),
        reasons=tuple(reasons),
        candidates=tuple(candidates[:MOST_CANDIDATES]),
        candidates_left_out=max(0, len(candidates) - MOST_CANDIDATES),
        queue=None
        if task.queue is None
        else QueueOut(
            name=task.queue,
            rank=task.rank,
            priority=task.priority.value,
            waiting_since=rfc3339(task.updated_at),
            ahead=ahead,
            ahead_exact=ahead_exact,
        ),
        attempts=task.attempts,
        last_error=None if task.fault is None else error_out(task.fault),
        next_retry_at=moment(retry_at),
        deadline=rfc3339(task.deadline),
    )


def _reasons(
    task: Task,
    now: Instant,
    candidates: Sequence[Candidate],
    dependencies: Sequence[Task],
    question: Question | None,
    retry_at: Instant | None,
    ahead: int,
    ahead_exact: bool,
) -> list[Reason]:
    found: list[Reason] = []

    def say(code: str, text: str, **facts: Any) -> None:
        found.append(Reason(code=code, text=text, facts=facts))

    if task.status is Status.QUEUED:
        if retry_at is not None:
            say("retry_due", f"attempt {task.attempts + 1} is due at {rfc3339(retry_at)}", at=rfc3339(retry_at))
        elif task.queue is not None:
            count = f"{ahead}" if ahead_exact else f"at least {ahead}"
            say("queued", f"it stands in its queue with {count} before it", ahead=ahead, exact=ahead_exact)
        _say_who(task, candidates, found)
    elif task.status is Status.ASSIGNED:
        say("assigned", f"it was given to {task.owner}, which has not begun", agent=task.owner)
    elif task.status is Status.RUNNING:
        say("running", f"{task.owner} works on it", agent=task.owner, progress=task.progress, step=task.step)
    elif task.waiting is Waiting.DEPENDENCY:
        names = ", ".join(f"{other.id} ({other.status.value})" for other in dependencies) or ", ".join(task.blocked_by)
        say("dependency", f"it waits for {names}", blocked_by=list(task.blocked_by))
    elif task.waiting is Waiting.PERSON:
        asked = f": {question.question}" if question is not None else ""
        say("question", f"{task.owner or 'its agent'} waits for a person's answer{asked}", question=task.question)
    elif task.waiting is Waiting.AGENT:
        say("paused", f"{task.owner} said that it pauses", agent=task.owner)
    elif task.waiting is Waiting.HELD:
        say("held", "a person paused it; resume it to go on")
    elif task.final:
        at = moment(task.finished_at)
        say("final", f"it is {task.status.value}" + (f" since {at}" if at else ""), at=at)

    if task.status in (Status.ASSIGNED, Status.RUNNING):
        if task.lost_at is not None:
            say("link_lost", f"the link to {task.owner} broke at {rfc3339(task.lost_at)}", at=rfc3339(task.lost_at))
        if task.last_sign_at is not None:
            silent = max(0, now - task.last_sign_at) / SECOND
            limit = task.idle_limit / SECOND
            say("sign_of_life", f"last heard of {silent:.1f} s ago, and given up after {limit:g} s of silence")
    if task.fault is not None:
        say("last_error", f"the last error was: {task.fault.message.rstrip('.')}", kind=task.fault.kind.value)
    if task.attempts:
        say("attempts", f"attempts so far: {task.attempts}", attempts=task.attempts)
    return found


def _say_who(task: Task, candidates: Sequence[Candidate], found: list[Reason]) -> None:
    able = [it for it in candidates if it.able]
    free = [it.agent for it in able if it.free]
    if free:
        found.append(Reason(code="free_agents", text=f"free to take it: {', '.join(free[:5])}", facts={"agents": free}))
    elif able:
        told = "; ".join(f"{it.agent}: {', '.join(r.text for r in it.reasons)}" for it in able[:5])
        more = f"; and {len(able) - 5} more" if len(able) > 5 else ""
        found.append(Reason(code="nobody_free", text=f"nobody who could do it is free: {told}{more}"))
    elif candidates:
        told = "; ".join(f"{it.agent}: {', '.join(r.text for r in it.reasons)}" for it in candidates[:3])
        found.append(Reason(code="nobody_able", text=f"no agent can do {task.type} as asked: {told}"))
    else:
        found.append(Reason(code="no_agents", text="no agent is known to the hub; add one"))


__all__ = ["AgentFacts", "Candidate", "QueueOut", "Reason", "WhyOut", "candidate", "obstacles", "why"]
