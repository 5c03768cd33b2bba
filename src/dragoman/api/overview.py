"""The overview: what wants a person's attention, and how the hub is doing over time.

One request has all of it, and pages that ask at once share one answer."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from dragoman.api.agents import agent_details
from dragoman.api.bodies import RangeQuery
from dragoman.api.cluster import Cluster, ClusterOut, shown
from dragoman.api.context import Call, Context
from dragoman.api.events import TaskRow, task_row
from dragoman.core.ids import SECOND, rfc3339
from dragoman.core.model.agents import BreakerState
from dragoman.core.model.series import RANGES, Bucket, total
from dragoman.core.model.tasks import QuestionStatus, Status
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.core.queries import ErrorOut, error_out

FRESH_SECONDS = 1.0
"""How long an answer is shown to others who ask."""
MOST_FAILING = 8
MOST_COSTS = 6
MOST_QUESTIONS = 500
COUNTED = ("submitted", "completed", "failed", "cancelled", "retried", "dead_lettered")


class FailingTask(TaskRow, frozen=True, kw_only=True):
    error: ErrorOut | None


class BreakerRow(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    state: BreakerState
    failures: int
    until: str | None


class WaitingPeople(msgspec.Struct, frozen=True, kw_only=True):
    open: int
    oldest_at: str | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`level` is ok, wait or bad; the sentence says what matters most."""

    level: str
    text: str


class Traffic(msgspec.Struct, frozen=True, kw_only=True, rename={"caller": "from", "agent": "to"}):
    caller: str
    agent: str
    count: int


class AgentSeries(msgspec.Struct, frozen=True, kw_only=True):
    completed: int
    failed: int
    cost: float


class SeriesOut(msgspec.Struct, frozen=True, kw_only=True):
    """`values` are counts in each step; `queue_depth` is the most that waited, the
    latencies are seconds, null where nothing ended. `costs` are US dollars in each step, of the agents that cost most
    in the range."""

    step_seconds: int
    at: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    agents: dict[str, AgentSeries]
    costs: dict[str, tuple[float, ...]]


class OverviewOut(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` of unfinished tasks are those of now, of finished ones those of the range. `cluster` is null for a hub
    that is no node of one, and while its database does not answer."""

    verdict: Verdict
    waiting: WaitingPeople
    failing: tuple[FailingTask, ...]
    breakers: tuple[BreakerRow, ...]
    counts: dict[str, int]
    agents: dict[str, int]
    traffic: tuple[Traffic, ...]
    series: SeriesOut
    cluster: ClusterOut | None


async def show_overview(context: Context, call: Call[RangeQuery, None]) -> OverviewOut:
    now = asyncio.get_running_loop().time()
    found = context.overviews.get(call.query.range)
    if found is None or found[0] + FRESH_SECONDS < now:
        found = context.overviews[call.query.range] = now, await compose(context, call.query.range)
    answer: OverviewOut = found[1]
    return answer


async def show_series(context: Context, call: Call[RangeQuery, None]) -> SeriesOut:
    return series_out(await context.series.read(context.store, call.query.range), call.query.range, _second(context))


def _second(context: Context) -> int:
    return context.intake.now() // SECOND


async def compose(context: Context, range: str) -> OverviewOut:
    buckets = await context.series.read(context.store, range)
    summed = total(buckets, 1, 0)
    counts = {name.removeprefix("tasks_"): n for name, n in (await context.counts()).items()}
    for name in ("completed", "failed", "cancelled"):
        counts[name] = getattr(summed, name)
    counts["deadletters"] = counts.pop("dead_letters", 0)
    questions = await context.store.questions(status=QuestionStatus.OPEN, limit=MOST_QUESTIONS)
    oldest = min((question.created_at for question in questions), default=None)
    failing, _ = await context.store.tasks(TaskFilter(status=Status.FAILED), after=None, limit=MOST_FAILING)
    breakers = [agent for agent in context.intake.agents() if agent.breaker.state is not BreakerState.CLOSED]
    waiting = WaitingPeople(open=len(questions), oldest_at=None if oldest is None else rfc3339(oldest))
    return OverviewOut(
        verdict=_verdict(waiting, len(breakers), counts),
        waiting=waiting,
        failing=tuple(
            FailingTask(
                **msgspec.structs.asdict(task_row(context, task)),
                error=None if task.outcome.fault is None else error_out(task.outcome.fault),
            )
            for task in failing
        ),
        breakers=tuple(
            BreakerRow(
                agent=agent.id,
                state=agent.breaker.state,
                failures=agent.breaker.failures,
                until=None if agent.breaker.until is None else rfc3339(agent.breaker.until),
            )
            for agent in breakers
        ),
        counts=counts,
        agents=dict(Counter(agent_details(context, agent).status for agent in context.intake.agents())),
        traffic=tuple(
            Traffic(caller=caller, agent=agent, count=n)
            for (caller, agent), n in sorted((tuple(pair.split(" ")), n) for pair, n in summed.traffic.items())
        ),
        series=series_out(buckets, range, _second(context)),
        cluster=await _cluster(context),
    )


async def _cluster(context: Context) -> ClusterOut | None:
    node: Cluster | None = context.cluster
    if node is None:
        return None
    try:
        return shown(await node.found())
    except StoreFailed:  # the rest of the overview is there; the page's other figures say that something is wrong
        return None


def _verdict(waiting: WaitingPeople, breakers: int, counts: dict[str, int]) -> Verdict:
    if waiting.open:
        one = waiting.open == 1
        return Verdict(
            level="wait", text=f"{waiting.open} agent{'' if one else 's'} {'waits' if one else 'wait'} for you"
        )
    if counts["deadletters"]:
        n = counts["deadletters"]
        return Verdict(level="bad", text=f"{n} dead letter{'' if n == 1 else 's'} to look at")
    if breakers:
        return Verdict(level="bad", text=f"{breakers} agent{' does' if breakers == 1 else 's do'} not answer")
    if counts.get("running") or counts.get("assigned"):
        return Verdict(level="ok", text="All is well; agents are at work")
    return Verdict(level="ok", text="All is well; no task is under way")


def series_out(buckets: list[Bucket], shown_range: str, now: int) -> SeriesOut:
    """Every step of the range, also those in which nothing happened."""
    seconds, step = RANGES[shown_range]
    first = (now - seconds) // step * step + step
    at = tuple(range(first, now // step * step + 1, step))
    by_time = {bucket.at: bucket for bucket in buckets}
    empty = Bucket(step, 0)
    steps = [by_time.get(time, empty) for time in at]
    values: dict[str, tuple[float | None, ...]] = {
        name: tuple(getattr(bucket, name) for bucket in steps) for name in (*COUNTED, "queue_depth")
    }
    for name, share in (("latency_p50", 0.5), ("latency_p95", 0.95)):
        values[name] = tuple(bucket.percentile(share) for bucket in steps)
    agents = total(buckets, 1, 0).agents
    dearest = sorted((id for id, one in agents.items() if one.cost > 0), key=lambda one: (-agents[one].cost, one))
    return SeriesOut(
        step_seconds=step,
        at=at,
        values=values,
        agents={
            id: AgentSeries(completed=one.completed, failed=one.failed, cost=round(one.cost, 6))
            for id, one in sorted(agents.items())
        },
        costs={
            id: tuple(round(bucket.agents[id].cost, 6) if id in bucket.agents else 0.0 for bucket in steps)
            for id in dearest[:MOST_COSTS]
        },
    )
