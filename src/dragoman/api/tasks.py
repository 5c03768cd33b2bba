"""Tasks: submit, list, look at, steer, and ask why."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api import problems
from dragoman.api.bodies import (
    Budget,
    CancelIn,
    EditedIn,
    Nothing,
    ResumeIn,
    TaskIn,
    TaskQuery,
    TasksQuery,
    read_body,
    read_json,
    read_query,
    shape,
    without_nulls,
)
from dragoman.api.desk import Desk
from dragoman.api.endpoint import respond
from dragoman.api.files import attached
from dragoman.api.problems import Problem
from dragoman.api.reading import agent_protocol, find_task, whole_task
from dragoman.core.budgets.budget import USED_UP, Account, account_in, needs
from dragoman.core.budgets.capacity import accounts_of, needs_in
from dragoman.core.commands import Cancel, Pause, Resume, Retry, Submit
from dragoman.core.ids import ADMIN, HUB, SECOND, AgentId, TaskId, instant
from dragoman.core.model.agent_status import standing_of
from dragoman.core.model.agents import Agent
from dragoman.core.model.resources import CONSTRAINTS
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import Question, Status, Task
from dragoman.core.ports import TaskFilter
from dragoman.core.queries import AgentFacts, TaskOut, WhyOut, task_out, why
from dragoman.messages.faults import Fault, Kind, Refused

PROTOCOL = "api"
MOST_COUNTED = 1000
MOST_DEPENDENCIES = 20
UUID_LENGTH = 36

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_KNOWN = frozenset(field.name for field in msgspec.structs.fields(TaskIn))
_sorted = msgspec.json.Encoder(order="sorted").encode


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[TaskOut, ...]
    next: str | None


async def submit(desk: Desk, request: Request) -> Response:
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise Problem(Kind.INVALID, "an Idempotency-Key is 1 to 200 visible ASCII characters", field="Idempotency-Key")
    tree = await read_json(desk, request)
    wish = shape(without_nulls(tree), TaskIn)
    body: dict[str, Any] = {"input": wish.input}
    if wish.hints is not None:
        body["hints"] = wish.hints
    files = await attached(desk, wish.attachments) if wish.attachments else ()
    if files:
        body["attachments"] = files
    extra = {name: value for name, value in tree.items() if name not in _KNOWN}
    if extra:
        body["extra"] = extra
    constraints = _budget(wish.budget, tree.get("budget"))
    if wish.required_role is not None:
        constraints["required_role"] = wish.required_role
    if wish.hints is not None:
        constraints |= {each: amount for each in sorted(CONSTRAINTS) if (amount := getattr(wish.hints, each))}
    seconds = wish.hints.max_duration_seconds if wish.hints else None
    deadline = None if wish.deadline is None else instant(wish.deadline)
    # A deadline alone says how long it may take, also where that is longer than the hub's own patience.
    total = max(0.0, (deadline - desk.intake.now()) / SECOND) if deadline is not None and seconds is None else seconds
    trace = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    command = Submit(
        principal=ADMIN,
        protocol=PROTOCOL,
        request_id=key or desk.intake.mint(),
        digest=hashlib.sha256(_sorted(tree)).hexdigest(),
        type=wish.type,
        body=msgspec.json.encode(body),
        name=wish.name,
        description=wish.description,
        kind=wish.kind,
        pinned=None if wish.agent is None else AgentId(wish.agent),
        required_capabilities=wish.required_capabilities,
        priority=wish.priority,
        dependencies=tuple([await _reference(desk, id, "dependencies") for id in wish.dependencies]),
        deadline=deadline,
        firm=deadline is not None,
        idle_seconds=seconds,
        total_seconds=total,
        trace_id=trace[1] if trace else None,
        parent=None if wish.parent is None else await _reference(desk, wish.parent, "parent"),
        thread=wish.thread,
        constraints=constraints,
        files=files,
    )
    try:
        task: Task = await desk.intake.execute(command)
    except Refused as refused:
        raise Refused(_as_asked(refused.fault, wish)) from None
    return respond(202, await whole_task(desk, task), {"Location": f"/api/v1/tasks/{task.id}"})


def _as_asked(fault: Fault, wish: TaskIn) -> Fault:
    """Whom a task is for was said as a kind, where no agent was named."""
    if problems.FIELDS.get(fault.field or "") != "agent" or wish.agent is not None or wish.kind is None:
        return fault
    return msgspec.structs.replace(fault, field="kind")


def _budget(budget: float | Budget | None, said: Any) -> dict[str, Any]:
    """The limits of a task; what else was said of its budget is kept beside them."""
    if budget is None:
        return {}
    if not isinstance(budget, Budget):
        return {"budget_usd": budget}
    limits = {name: value for name, value in msgspec.structs.asdict(budget).items() if value is not None}
    return limits if set(said) <= set(budget.__struct_fields__) else {**limits, "budget": said}


async def _reference(desk: Desk, id: str, field: str) -> TaskId:
    """A whole id is the core's to judge; a shortened one is completed here."""
    return TaskId(id) if len(id) >= UUID_LENGTH else (await find_task(desk, id, field=field)).id


async def listing(desk: Desk, request: Request) -> Response:
    query = read_query(request, TasksQuery)
    where = TaskFilter(
        status=query.status,
        type=query.type,
        agent=AgentId(query.agent) if query.agent else None,
        principal=AgentId(query.principal) if query.principal else None,
        parent=TaskId(query.parent) if query.parent else None,
    )
    try:
        tasks, on = await desk.store.tasks(where, after=query.cursor or None, limit=query.limit)
    except ValueError:
        raise Problem(
            Kind.INVALID, "this is no cursor", field="cursor", next="Use `next` of the page before, as it is."
        ) from None
    if query.full:
        told = [await whole_task(desk, task) for task in tasks]
    else:
        told = [task_out(task, protocol_out=agent_protocol(desk, task.owner)) for task in tasks]
    return respond(200, TaskList(tasks=tuple(told), next=on))


async def one(desk: Desk, request: Request) -> Response:
    query = read_query(request, TaskQuery)
    task = await find_task(desk, request.path_params["id"])
    if query.wait and not task.final:
        task = await _final(desk, task, query.wait)
    return respond(200, await whole_task(desk, task, with_history=query.history, raw=query.raw))


async def _final(desk: Desk, task: Task, seconds: float) -> Task:
    """The task when it is final, or as it is when the time is up."""
    clock = asyncio.get_running_loop()
    until = clock.time() + seconds
    async with desk.intake.watch(task.id) as watch:
        while True:
            # Read after the watch began: what was committed in between is seen here, what comes later wakes us.
            task = await desk.store.task(task.id) or task
            left = until - clock.time()
            if task.final or left <= 0 or desk.waiters.closed:
                return task
            await desk.waiters.changed(watch, left)


async def cancel(desk: Desk, request: Request) -> Response:
    wish = await read_body(desk, request, CancelIn, optional=True)
    task = await find_task(desk, request.path_params["id"])
    command = Cancel(principal=ADMIN, protocol=PROTOCOL, task_id=task.id)
    if wish.reason:
        command = msgspec.structs.replace(command, reason=wish.reason)
    return respond(200, await whole_task(desk, await desk.intake.execute(command)))


async def retry(desk: Desk, request: Request) -> Response:
    wish = await read_body(desk, request, EditedIn, optional=True)
    task = await find_task(desk, request.path_params["id"])
    edited = None if wish.input is None else msgspec.json.encode(wish.input)
    command = Retry(principal=ADMIN, protocol=PROTOCOL, task_id=task.id, input=edited)
    return respond(202, await whole_task(desk, await desk.intake.execute(command)))


async def pause(desk: Desk, request: Request) -> Response:
    await read_body(desk, request, Nothing, optional=True)
    task = await find_task(desk, request.path_params["id"])
    command = Pause(principal=ADMIN, protocol=PROTOCOL, task_id=task.id)
    return respond(200, await whole_task(desk, await desk.intake.execute(command)))


async def resume(desk: Desk, request: Request) -> Response:
    wish = await read_body(desk, request, ResumeIn, optional=True)
    task = await find_task(desk, request.path_params["id"])
    answered = wish.answer is not msgspec.UNSET
    command = Resume(
        principal=ADMIN,
        protocol=PROTOCOL,
        task_id=task.id,
        answer=wish.answer if answered else None,
        has_answer=answered,
    )
    return respond(200, await whole_task(desk, await desk.intake.execute(command)))


async def reasons(desk: Desk, request: Request) -> Response:
    task = await find_task(desk, request.path_params["id"])
    return respond(200, await explain(desk, task))


async def explain(desk: Desk, task: Task) -> WhyOut:
    queued = task.status is Status.QUEUED
    kinds = sorted({*USED_UP, *needs(task.constraints)}) if queued else ()
    agents = [_facts(desk, agent, kinds) for agent in (desk.intake.agents() if queued else ())]
    if queued and needs_in(task.constraints):
        agents = [await _with_resources(desk, facts) for facts in agents]
    found = [await desk.store.task(id) for id in task.blocked_by[:MOST_DEPENDENCIES]]
    question: Question | None = None if task.question is None else await desk.store.question(task.question)
    ahead, exact = await _ahead(desk, task) if task.queue is not None else (0, True)
    return why(
        task,
        now=desk.intake.now(),
        agents=agents,
        totals=_accounts(desk, HUB, kinds),
        per_task=desk.intake.policy.per_task,
        contract=None if task.contract is None else await desk.intake.contract(task.contract),
        dependencies=[other for other in found if other is not None],
        question=question,
        watched=desk.intake.watched(task),
        ahead=ahead,
        ahead_exact=exact,
    )


def _facts(desk: Desk, agent: Agent, kinds: Sequence[str]) -> AgentFacts:
    said = desk.intake.entity(f"{Registry.AGENT.value}/{agent.id}")
    return AgentFacts(
        agent=agent,
        reachable=desk.intake.reachable(agent.id),
        load=len(desk.intake.load_of(agent.id)),
        state=None if said is None else said.value.get("state"),
        standing=None if said is None else standing_of(said.value),
        accounts=_accounts(desk, agent.id, kinds),
    )


async def _with_resources(desk: Desk, facts: AgentFacts) -> AgentFacts:
    """With what the agent has of its memory, as far as it declared a limit."""
    if not accounts_of(facts.agent, ()):
        return facts
    held = [await desk.store.task(id) for id in desk.intake.load_of(facts.agent.id)]
    accounts = accounts_of(facts.agent, [task for task in held if task is not None])
    return msgspec.structs.replace(facts, accounts=(*facts.accounts, *accounts))


def _accounts(desk: Desk, whose: AgentId, kinds: Sequence[str]) -> tuple[Account, ...]:
    """Those that have a limit."""
    found = []
    for kind in kinds:
        entity = desk.intake.entity(f"{Registry.RESOURCE.value}/{whose}:{kind}")
        value = {} if entity is None else entity.value
        found.append(account_in(value, whose, kind, desk.intake.policy, desk.intake.now()))
    return tuple(of for of in found if of.limit is not None)


async def _ahead(desk: Desk, task: Task) -> tuple[int, bool]:
    """How many leave the queue before it, counted among the newest queued tasks only: a long queue is a long queue."""
    seen, ahead, cursor = 0, 0, None
    while seen < MOST_COUNTED:
        page, cursor = await desk.store.tasks(TaskFilter(status=Status.QUEUED), after=cursor, limit=500)
        ahead += sum(other.queue == task.queue and (other.rank, other.id) < (task.rank, task.id) for other in page)
        seen += len(page)
        if cursor is None:
            return ahead, True
    return ahead, False
