"""Why a task is where it is: the facts, one paragraph about them, and what to do next.

`obstacles` lists what keeps agents from a queued task; this adds the facts of the task itself: its status, what it
waits for, its budget, its contract, its last error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.budgets.budget import Account, Amounts, is_short, set_aside
from dragoman.core.budgets.capacity import needs_in
from dragoman.core.ids import SECOND, Instant, rfc3339
from dragoman.core.model.contracts import Contract, Standing
from dragoman.core.model.silence import Silence, Watched, rule_of
from dragoman.core.model.tasks import Question, QuestionStatus, Status, Task, Waiting
from dragoman.core.queries.obstacles import AgentFacts, Candidate, Reason, candidate, figures, room
from dragoman.core.queries.tasks import ErrorOut, error_out, is_hidden, moment
from dragoman.core.routing.routes import Route, route_of
from dragoman.messages.faults import Fault, Kind

MOST_CANDIDATES = 50
MOST_NAMED = 5
MOST_ADVICE = 3

AFTER: Mapping[Kind, str] = {
    Kind.UNAVAILABLE: "see who is there (dragoman agent ls), then: dragoman task retry {task}",
    Kind.RESOURCES: "let it ask for less, or raise the limit that its error names; then: dragoman task retry {task}",
    Kind.CONTRACT: "see what was agreed (dragoman contract ls): both sides are held to it; "
    "then: dragoman task retry {task} key=value",
    Kind.DEPENDENCY: "dragoman task why {dependency}, and once that is done: dragoman task retry {task}",
    Kind.INVALID: "with another input: dragoman task retry {task} key=value",
    Kind.UNSUPPORTED_WORK: "see who does such work: dragoman agent ls",
    Kind.FORBIDDEN: "see who was refused what: dragoman audit query --subject {task}",
}
"""What to do about a failed task, where there is more to do than a retry."""


class QueueOut(msgspec.Struct, frozen=True, kw_only=True):
    """`ahead` counts the tasks that leave the same queue before it; a lower bound where `ahead_exact` is false."""

    name: str
    rank: int
    priority: str
    waiting_since: str
    ahead: int
    ahead_exact: bool


class WhyOut(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is what to do, the best first."""

    task_id: str
    status: Status
    waiting: Waiting | None
    summary: str
    reasons: tuple[Reason, ...]
    next: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    candidates_left_out: int
    queue: QueueOut | None
    attempts: int
    last_error: ErrorOut | None
    next_retry_at: str | None
    deadline: str


def why(
    task: Task,
    *,
    now: Instant,
    agents: Sequence[AgentFacts] = (),
    totals: Sequence[Account] = (),
    dependencies: Sequence[Task] = (),
    question: Question | None = None,
    contract: Contract | None = None,
    watched: Watched | None = None,
    ahead: int = 0,
    ahead_exact: bool = True,
    per_task: float | None = None,
) -> WhyOut:
    """`dependencies` are the tasks in `blocked_by`; `ahead` is how many in its queue have a smaller rank; `totals` are
    the hub's own accounts with a limit; `watched` is what the hub knows of the agent that has it; `per_task` is the
    policy's limit for a task that names no budget."""
    queued = task.status is Status.QUEUED
    retry_at = task.wake_at if queued and task.queue is None and task.attempt.count else None
    candidates: list[Candidate] = []
    if queued:
        asked = {**set_aside(task.agreement.constraints, per_task), **needs_in(task.agreement.constraints)}
        spent = _spent(totals, asked)
        candidates = _candidates(agents, route_of(task.routing.route), now, asked, none_free=bool(spent))
        reasons = [*_place(task, retry_at, ahead, ahead_exact), *(spent or _who(task, candidates))]
        if task.queue is not None and task.wake_at is not None and not _is_anybody_there(candidates):
            reasons.append(_looks_again(task, now, task.wake_at))
    else:
        reasons = _standing(task, dependencies, question)
    if task.status is Status.WAITING:
        reasons += _waits_until(task, now, question)
    reasons += _around(task, now, contract, watched)
    return WhyOut(
        task_id=task.id,
        status=task.status,
        waiting=task.waiting,
        summary=" ".join(_sentence(reason.text, task.owner) for reason in reasons if reason.text),
        reasons=tuple(reasons),
        next=_next(task, reasons, candidates),
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
        attempts=task.attempt.count,
        last_error=None if task.outcome.fault is None else error_out(task.outcome.fault),
        next_retry_at=moment(retry_at),
        deadline=rfc3339(task.timing.deadline),
    )


def _say(code: str, text: str, next: str | None = None, /, **facts: Any) -> Reason:
    return Reason(code=code, text=text, facts=facts, next=next)


def _sentence(text: str, owner: str | None) -> str:
    """With a capital letter, unless it begins with the name of the agent."""
    return f"{text}." if owner and text.startswith(f"{owner} ") else f"{text[0].upper()}{text[1:]}."


# -- in a queue ----------------------------------------------------------------------------------------------------


def _place(task: Task, retry_at: Instant | None, ahead: int, exact: bool) -> list[Reason]:
    if retry_at is not None:
        at = rfc3339(retry_at)
        return [_say("retry_due", f"attempt {task.attempt.count + 1} is due at {at}", f"wait until {at}", at=at)]
    if task.queue is None:
        return []
    count = f"{ahead}" if exact else f"at least {ahead}"
    return [_say("queued", f"it stands in its queue with {count} before it", ahead=ahead, exact=exact)]


def _spent(totals: Sequence[Account], asked: Amounts) -> list[Reason]:
    """The total budget is used up or set aside: no agent can be given the task."""
    advice = (
        "wait for what is under way, or raise the limit: budget_limits of the policy, or hub:{} in the shared state"
    )
    return [
        _say(
            "no_room_in_total",
            f"all tasks together have {room(of, asked)}",
            advice.format(of.kind),
            **figures(of, asked),
        )
        for of in totals
        if is_short(of, asked.get(of.kind, 0))
    ]


def _candidates(
    agents: Sequence[AgentFacts], route: Route, now: Instant, asked: Amounts, *, none_free: bool
) -> list[Candidate]:
    """The agents that could do it first: one obstacle away before many. `none_free`: no agent can be given it now."""
    found = [candidate(facts, route, now, asked) for facts in agents]
    if none_free:
        found = [replace(one, free=False) for one in found]
    found.sort(key=lambda one: (not one.free, not one.able, len(one.reasons), one.agent))
    return found


def _who(task: Task, candidates: Sequence[Candidate]) -> list[Reason]:
    able = [one for one in candidates if one.able]
    free = [one.agent for one in able if one.free]
    if free:
        return [_say("free_agents", f"free to take it: {', '.join(free[:MOST_NAMED])}", agents=free)]
    reasons = "; ".join(f"{one.agent}: {', '.join(r.text for r in one.reasons)}" for one in (able or candidates)[:5])
    if able:
        more = f"; and {len(able) - MOST_NAMED} more" if len(able) > MOST_NAMED else ""
        return [_say("nobody_free", f"nobody who could do it is free: {reasons}{more}")]
    route = route_of(task.routing.route)
    kind = f" --kind {route.kind}" if route.kind else ""
    add = f"dragoman agent add {route.pinned or 'NAME'} --protocol chiffon{kind}"
    if candidates:
        advice = f"start an agent that does {task.type} (dragoman agent ls), or let one in: {add}"
        return [_say("nobody_able", f"no agent can do {task.type} as asked: {reasons}", advice)]
    return [_say("no_agents", "no agent is known to the hub; add one", add)]


def _is_anybody_there(candidates: Sequence[Candidate]) -> bool:
    """Whether an agent that could do it is connected, however busy."""
    return any(one.able and not any(reason.code == "offline" for reason in one.reasons) for one in candidates)


def _looks_again(task: Task, now: Instant, at: Instant) -> Reason:
    """The timer of a task for which no agent is connected."""
    left = max(0, at - now) / SECOND
    text = f"no agent that could do it is connected: that is a failed attempt if none is in {left:.1f} s"
    return _say("clock", text, clock="unreachable", at=rfc3339(at), seconds_left=round(left, 1))


# -- elsewhere -----------------------------------------------------------------------------------------------------


def _standing(task: Task, dependencies: Sequence[Task], question: Question | None) -> list[Reason]:
    """Where a task is that is in no queue."""
    resume = f"dragoman task resume {task.id}"
    if task.status is Status.ASSIGNED:
        return [_say("assigned", f"it was given to {task.owner}, which has not begun", agent=task.owner)]
    if task.status is Status.RUNNING:
        return [
            _say(
                "running",
                f"{task.owner} works on it",
                agent=task.owner,
                progress=task.output.progress,
                step=task.output.step,
            )
        ]
    match task.waiting:
        case Waiting.DEPENDENCY:
            names = ", ".join(f"{one.id} ({one.status.value})" for one in dependencies) or ", ".join(
                task.lineage.blocked_by
            )
            first = f"dragoman task why {task.lineage.blocked_by[0]}" if task.lineage.blocked_by else None
            return [_say("dependency", f"it waits for {names}", first, blocked_by=list(task.lineage.blocked_by))]
        case Waiting.PERSON | Waiting.HELP:
            return [_asked(task, question)]
        case Waiting.AGENT:
            asks = [] if question is None or question.status is not QuestionStatus.OPEN else [_asked(task, question)]
            return [*asks, _say("paused", f"{task.owner} said that it pauses", resume, agent=task.owner)]
        case Waiting.HELD:
            return [_say("held", "a person paused it; resume it to go on", resume)]
    at = moment(task.finished_at)
    return [_say("final", f"it is {task.status.value}" + (f", and has been since {at}" if at else ""), at=at)]


def _asked(task: Task, question: Question | None) -> Reason:
    asked_text = f": {question.question}" if question is not None and not is_hidden(task) else ""
    if question is not None and question.asked_of is not None:
        return _say(
            "helper",
            f"{task.owner or 'its agent'} asked {question.asked_of} for help{asked_text}",
            f"see whether it is there: dragoman agent show {question.asked_of}",
            question=question.id,
            asked_of=question.asked_of,
            asked_before=list(question.asked_before),
        )
    before = f", after {', '.join(question.asked_before)} could not help" if question and question.asked_before else ""
    if task.owner is None:
        text = f"a person must approve it before anybody works on it{asked_text}"
    else:
        text = f"{task.owner} waits for a person's answer{before}{asked_text}"
    # The person must choose the answer: a command with one in it would be copied as it is.
    return _say("question", text, f"dragoman ask answer {task.question} ANSWER", question=task.question)


CLOCKS: Mapping[Silence, str] = {
    Silence.VOUCHED: "its connection vouches for {owner}, however silent that is: only the deadline ends it, in {left}",
    Silence.LINK_LOST: "the connection to {owner} broke, and the hub waits for a word of the task for {left} more; then"
    " it is tried again",
    Silence.HUB_STOPPED: "{owner} was connected when the hub stopped, and has said nothing of the task since: the hub"
    " waits for a word of it for {left} more; then it is tried again",
    Silence.IDLE: "last heard of {silent} ago; if {owner} says nothing for {left} more it is tried again",
    Silence.DEADLINE: "last heard of {silent} ago; its deadline ends it in {left}",
}
"""The running timer of a task that an agent has, by its rule."""


def _waits_until(task: Task, now: Instant, question: Question | None) -> list[Reason]:
    """The timer of a waiting task: that of its question, or its own deadline, where its caller named one."""
    ends = [(task.timing.deadline, "deadline", "its deadline ends it")] if task.timing.firm else []
    if question is not None and question.wake_at is not None:
        ends.append((question.wake_at, "question", "the question's time is over"))
    if not ends:
        return []
    at, name, what = min(ends)
    left = max(0, at - now) / SECOND
    return [_say("clock", f"{what} in {left:.1f} s", clock=name, at=rfc3339(at), seconds_left=round(left, 1))]


def _clock(task: Task, now: Instant, watched: Watched) -> Reason:
    """The timer that ends or retries a task that an agent has, and how much of it is left."""
    rule = rule_of(task, watched, now)
    left, silent = (max(0, span) / SECOND for span in (rule.at - now, now - rule.last_sign))
    text = CLOCKS[rule.silence].format(owner=task.owner, left=f"{left:.1f} s", silent=f"{silent:.1f} s")
    lost = rule.silence in (Silence.LINK_LOST, Silence.HUB_STOPPED)
    advice = f"see whether it is there: dragoman agent show {task.owner}" if lost else None
    at, last = rfc3339(rule.at), rfc3339(rule.last_sign)
    known = {"clock": rule.silence.value, "at": at, "seconds_left": round(left, 1), "last_heard_at": last}
    return _say("clock", text, advice, **known)


def _around(task: Task, now: Instant, contract: Contract | None, watched: Watched | None) -> list[Reason]:
    """More facts, wherever the task is."""
    found: list[Reason] = []
    if task.status in (Status.ASSIGNED, Status.RUNNING) and watched is not None:
        found.append(_clock(task, now, watched))
    standing = Standing.ACTIVE if contract is None else contract.at(now)
    if contract is not None and standing is not Standing.ACTIVE and task.status is not Status.COMPLETED:
        since = rfc3339(contract.expires_at if standing is Standing.EXPIRED else contract.since)
        by = f" by {contract.by}" if contract.by else ""
        text = f"its contract {contract.id} is {standing.value} since {since}{by}"
        if not task.final:
            text += "; what was accepted on it is still done"
        advice = f"for more of this, {contract.source.agent} must shake hands with {contract.target.agent} again"
        found.append(_say("contract_over", text, advice, contract_id=contract.id, standing=standing.value))
    if task.outcome.fault is not None:
        text = f"the last error was: {task.outcome.fault.message.rstrip('.')}"
        found.append(_say("last_error", text, kind=task.outcome.fault.kind.value))
    if task.attempt.count:
        found.append(_say("attempts", f"attempts so far: {task.attempt.count}", attempts=task.attempt.count))
    return found


# -- and now -------------------------------------------------------------------------------------------------------


def _next(task: Task, reasons: Sequence[Reason], candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """What to do, the best first: the advice of the reasons, then of the agents that could do it."""
    found = [reason.next for reason in reasons if reason.next]
    if not any(one.free for one in candidates):
        found += [one.reasons[0].next for one in candidates if one.able and one.reasons and one.reasons[0].next]
    if task.status in (Status.FAILED, Status.CANCELLED):
        found.insert(0, _after(task, task.outcome.fault))
    if not found:
        found = [
            f"dragoman task show {task.id}" if task.final else f"dragoman task logs {task.id} --follow",
        ]
    return tuple(dict.fromkeys(found))[:MOST_ADVICE]


def _after(task: Task, fault: Fault | None) -> str:
    advice = "dragoman task retry {task}" if fault is None else AFTER.get(fault.kind, "dragoman task retry {task}")
    dependency = "ID" if fault is None else fault.facts.get("dependency", "ID")
    return advice.format(task=task.id, dependency=dependency)


__all__ = ["AgentFacts", "Candidate", "QueueOut", "Reason", "WhyOut", "why"]
