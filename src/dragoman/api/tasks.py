"""Tasks: submit, list, show, cancel, retry, pause and resume them, and explain where they are."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from dragoman.api import problems
from dragoman.api.bodies import (
    Budget,
    CancelIn,
    EditedIn,
    HandoverIn,
    Nothing,
    ResumeIn,
    TaskIn,
    TaskQuery,
    TasksQuery,
)
from dragoman.api.context import PROTOCOL, Call, Context, Plain, respond
from dragoman.api.files import attached
from dragoman.api.problems import Problem
from dragoman.api.store_reads import agent_protocol, find_task, whole_task
from dragoman.core.budgets.budget import USED_UP, Account, account_in, needs
from dragoman.core.budgets.capacity import accounts_of, needs_in
from dragoman.core.commands import Cancel, Lineage, Pause, Reassign, Resume, Retry, Routing, Submit, Timing
from dragoman.core.ids import ADMIN, DAY, HUB, SECOND, AgentId, Instant, TaskId, instant, rfc3339
from dragoman.core.model.agents import CONSTRAINTS, Agent
from dragoman.core.model.state import Registry, standing_of
from dragoman.core.model.tasks import Question, Status, Task
from dragoman.core.ports import TaskFilter, TaskSearch
from dragoman.core.queries import AgentFacts, TaskOut, WhyOut, task_out, why
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind, Refused, refuse

MOST_COUNTED = 1000
MOST_DEPENDENCIES = 20
UUID_LENGTH = 36

AGES = {"s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": DAY, "w": 7 * DAY}
_AGE = re.compile(r"(\d{1,6})([smhdw])")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_KNOWN = frozenset(field.name for field in msgspec.structs.fields(TaskIn))
_sorted = msgspec.json.Encoder(order="sorted").encode


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """`total` is there on the first page, up to 10,000 and if it is quickly counted. `searched`: under `q`, the hub has
    searched the tasks since then so far, and goes on with older ones; null: all of them."""

    tasks: tuple[TaskOut, ...]
    next: str | None
    total: int | None = None
    searched: str | None = None


async def submit_task(context: Context, call: Call[None, TaskIn]) -> Response:
    key = call.request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise Problem(Kind.INVALID, "an Idempotency-Key is 1 to 200 visible ASCII characters", field="Idempotency-Key")
    tree, wanted = call.tree, call.body
    files = await attached(context, wanted.attachments) if wanted.attachments else ()
    content = messages.Request(
        input=wanted.input,
        hints=None if wanted.hints is None else msgspec.to_builtins(wanted.hints),
        attachments=files or None,
        extra={name: value for name, value in tree.items() if name not in _KNOWN} or None,
    )
    constraints = _budget(wanted.budget, tree.get("budget"))
    if wanted.required_role is not None:
        constraints["required_role"] = wanted.required_role
    if wanted.hints is not None:
        constraints |= {each: amount for each in sorted(CONSTRAINTS) if (amount := getattr(wanted.hints, each))}
    seconds = wanted.hints.max_duration_seconds if wanted.hints else None
    deadline = None if wanted.deadline is None else instant(wanted.deadline)
    # A deadline alone says how long it may take, also where that is longer than the hub's own patience.
    total = (
        max(0.0, (deadline - context.intake.now()) / SECOND) if deadline is not None and seconds is None else seconds
    )
    trace = _TRACEPARENT.fullmatch(call.request.headers.get("traceparent", ""))
    command = Submit(
        principal=ADMIN,
        protocol=PROTOCOL,
        request_id=key or context.intake.mint(),
        digest=hashlib.sha256(_sorted(tree)).hexdigest(),
        type=wanted.type,
        content=content,
        name=wanted.name,
        description=wanted.description,
        priority=wanted.priority,
        constraints=constraints,
        files=files,
        routing=Routing(
            kind=wanted.kind,
            pinned=None if wanted.agent is None else AgentId(wanted.agent),
            required_capabilities=wanted.required_capabilities,
        ),
        timing=Timing(deadline=deadline, firm=deadline is not None, idle_seconds=seconds, total_seconds=total),
        lineage=Lineage(
            dependencies=tuple([await _reference(context, id, "dependencies") for id in wanted.dependencies]),
            trace_id=trace[1] if trace else None,
            parent=None if wanted.parent is None else await _reference(context, wanted.parent, "parent"),
            thread=wanted.thread,
        ),
    )
    try:
        task: Task = await context.execute(call, command)
    except Refused as refused:
        raise Refused(_as_asked(refused.fault, wanted)) from None
    return respond(202, await whole_task(context, task), {"Location": f"/api/v1/tasks/{task.id}"})


def _as_asked(fault: Fault, wanted: TaskIn) -> Fault:
    """The field is `kind`, where the task names a kind and no agent."""
    if problems.FIELDS.get(fault.field or "") != "agent" or wanted.agent is not None or wanted.kind is None:
        return fault
    return msgspec.structs.replace(fault, field="kind")


def _budget(budget: float | Budget | None, sent: Any) -> dict[str, Any]:
    """The limits of a task; other fields of its budget are kept beside them."""
    if budget is None:
        return {}
    if not isinstance(budget, Budget):
        return {"budget_usd": budget}
    limits = {name: value for name, value in msgspec.structs.asdict(budget).items() if value is not None}
    return limits if set(sent) <= set(budget.__struct_fields__) else {**limits, "budget": sent}


async def _reference(context: Context, id: str, field: str) -> TaskId:
    """A whole id is the core's to judge; a shortened one is completed here."""
    return TaskId(id) if len(id) >= UUID_LENGTH else (await find_task(context, id, field=field)).id


async def list_tasks(context: Context, call: Call[TasksQuery, None]) -> TaskList:
    query = call.query
    now = context.intake.now()
    where = TaskSearch(
        statuses=_statuses(query.status),
        type=query.type or None,
        agent=AgentId(query.agent) if query.agent else None,
        principal=AgentId(query.principal) if query.principal else None,
        parent=TaskId(query.parent) if query.parent else None,
        protocol=query.protocol or None,
        since=_moment(query.since, "since", now),
        before=_moment(query.until, "until", now),
        text=query.q or "",
    )
    if query.q and not any(character.isalnum() for character in query.q):
        raise Problem(Kind.INVALID, "there is no letter and no digit to search for", field="q")
    try:
        found = await context.store.search(where, after=query.cursor or None, limit=query.limit)
    except ValueError:
        raise Problem(
            Kind.INVALID,
            "this is not a cursor of this list",
            field="cursor",
            next=problems.USE_NEXT,
        ) from None
    if query.full:
        tasks_out = [await whole_task(context, task) for task in found.tasks]
    else:
        tasks_out = [task_out(task, protocol_out=agent_protocol(context, task.owner)) for task in found.tasks]
    return TaskList(
        tasks=tuple(tasks_out),
        next=found.next,
        total=found.total,
        searched=None if found.searched_since is None else rfc3339(found.searched_since),
    )


def _statuses(given: str | None) -> tuple[Status, ...]:
    try:
        return tuple(dict.fromkeys(Status(name.strip()) for name in (given or "").split(",") if name.strip()))
    except ValueError:
        what = f"a status is one of {', '.join(Status)}"
        raise refuse(Kind.INVALID, what, next="several are separated by commas", field="status") from None


def _moment(given: str | None, field: str, now: Instant) -> Instant | None:
    """A time, or one so long before now."""
    if not given:
        return None
    if age := _AGE.fullmatch(given):
        return Instant(now - int(age[1]) * AGES[age[2]])
    try:
        return instant(datetime.fromisoformat(given))
    except (ValueError, OverflowError):
        raise Problem(
            Kind.INVALID, "this is neither a time (2026-01-31T09:00:00Z) nor an age (15m, 1h, 7d)", field=field
        ) from None


async def show_task(context: Context, call: Call[TaskQuery, None]) -> TaskOut:
    query = call.query
    task = await find_task(context, call.id)
    if query.wait and not task.final:
        task = await _final(context, task, query.wait)
    return await whole_task(context, task, with_history=query.history, raw=query.raw)


async def _final(context: Context, task: Task, seconds: float) -> Task:
    """The task when it is final, or as it is when the time is up."""
    clock = asyncio.get_running_loop()
    until = clock.time() + seconds
    async with context.intake.watch(task.id) as watch:
        while True:
            # Read after the watch began: what was committed in between is seen here, what comes later wakes us.
            task = await context.store.task(task.id) or task
            left = until - clock.time()
            if task.final or left <= 0 or context.waiters.closed:
                return task
            await context.waiters.changed(watch, left)


async def cancel_task(context: Context, call: Call[None, CancelIn]) -> TaskOut:
    wanted = call.body
    task = await find_task(context, call.id)
    command = Cancel(principal=ADMIN, protocol=PROTOCOL, task_id=task.id)
    if wanted.reason:
        command = msgspec.structs.replace(command, reason=wanted.reason)
    return await whole_task(context, await context.execute(call, command))


async def retry_task(context: Context, call: Call[None, EditedIn]) -> TaskOut:
    wanted = call.body
    task = await find_task(context, call.id)
    edited = None if wanted.input is None else msgspec.json.encode(wanted.input)
    command = Retry(principal=ADMIN, protocol=PROTOCOL, task_id=task.id, input=edited)
    return await whole_task(context, await context.execute(call, command))


async def pause_task(context: Context, call: Call[None, Nothing]) -> TaskOut:
    task = await find_task(context, call.id)
    command = Pause(principal=ADMIN, protocol=PROTOCOL, task_id=task.id)
    return await whole_task(context, await context.execute(call, command))


async def hand_task_over(context: Context, call: Call[None, HandoverIn]) -> TaskOut:
    task = await find_task(context, call.id)
    command = Reassign(principal=ADMIN, protocol=PROTOCOL, task_id=task.id, agent=AgentId(call.body.agent))
    return await whole_task(context, await context.execute(call, command))


async def resume_task(context: Context, call: Call[None, ResumeIn]) -> TaskOut:
    wanted = call.body
    task = await find_task(context, call.id)
    answered = wanted.answer is not msgspec.UNSET
    command = Resume(
        principal=ADMIN,
        protocol=PROTOCOL,
        task_id=task.id,
        answer=wanted.answer if answered else None,
        has_answer=answered,
    )
    return await whole_task(context, await context.execute(call, command))


async def explain_task(context: Context, call: Plain) -> WhyOut:
    task = await find_task(context, call.id)
    return await explain(context, task)


async def explain(context: Context, task: Task) -> WhyOut:
    queued = task.status is Status.QUEUED
    kinds = sorted({*USED_UP, *needs(task.agreement.constraints)}) if queued else ()
    agents = [_facts(context, agent, kinds) for agent in (context.intake.agents() if queued else ())]
    if queued and needs_in(task.agreement.constraints):
        agents = [await _with_resources(context, facts) for facts in agents]
    found = [await context.store.task(id) for id in task.lineage.blocked_by[:MOST_DEPENDENCIES]]
    question: Question | None = None if task.question is None else await context.store.question(task.question)
    ahead, exact = await _ahead(context, task) if task.queue is not None else (0, True)
    return why(
        task,
        now=context.intake.now(),
        agents=agents,
        totals=_accounts(context, HUB, kinds),
        per_task=context.intake.policy.per_task,
        contract=None if task.agreement.contract is None else await context.intake.contract(task.agreement.contract),
        dependencies=[other for other in found if other is not None],
        question=question,
        watched=context.intake.watched(task),
        ahead=ahead,
        ahead_exact=exact,
    )


def _facts(context: Context, agent: Agent, kinds: Sequence[str]) -> AgentFacts:
    entity = context.intake.entity(f"{Registry.AGENT.value}/{agent.id}")
    return AgentFacts(
        agent=agent,
        reachable=context.intake.reachable(agent.id),
        load=len(context.intake.load_of(agent.id)),
        state=None if entity is None else entity.value.get("state"),
        standing=None if entity is None else standing_of(entity.value),
        accounts=_accounts(context, agent.id, kinds),
    )


async def _with_resources(context: Context, facts: AgentFacts) -> AgentFacts:
    """With what the agent has of its memory, as far as it declared a limit."""
    if not accounts_of(facts.agent, ()):
        return facts
    held = [await context.store.task(id) for id in context.intake.load_of(facts.agent.id)]
    accounts = accounts_of(facts.agent, [task for task in held if task is not None])
    return msgspec.structs.replace(facts, accounts=(*facts.accounts, *accounts))


def _accounts(context: Context, whose: AgentId, kinds: Sequence[str]) -> tuple[Account, ...]:
    """Those that have a limit."""
    found = []
    for kind in kinds:
        entity = context.intake.entity(f"{Registry.RESOURCE.value}/{whose}:{kind}")
        value = {} if entity is None else entity.value
        found.append(account_in(value, whose, kind, context.intake.policy, context.intake.now()))
    return tuple(of for of in found if of.limit is not None)


async def _ahead(context: Context, task: Task) -> tuple[int, bool]:
    """How many leave the queue before it, counted among the newest queued tasks only: a long queue is a long queue."""
    seen, ahead, cursor = 0, 0, None
    while seen < MOST_COUNTED:
        page, cursor = await context.store.tasks(TaskFilter(status=Status.QUEUED), after=cursor, limit=500)
        ahead += sum(other.queue == task.queue and (other.rank, other.id) < (task.rank, task.id) for other in page)
        seen += len(page)
        if cursor is None:
            return ahead, True
    return ahead, False
