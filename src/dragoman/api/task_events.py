"""A task's events: as they happen, as one trace of all tasks of a request, and those that say what went wrong.

The stream is server-sent events, read from the store by number.

The watch only wakes; what is sent is always what the store has after the last number sent. So nothing is lost or
doubled however often the client comes back: it says the last number it saw (`Last-Event-ID`, or `?after=`).

    id: 7                   the event's number
    event: progress         its kind
    data: {…}               `EventOut`

    event: end              the task is final and all events were sent; carries no id, so a resume stays where it is
    data: {"status": …}

    : heartbeat             when nothing happens
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from typing import Any

import msgspec
import structlog
from starlette.responses import Response, StreamingResponse

from dragoman.api.bodies import EventsQuery
from dragoman.api.context import Call, Context, Plain
from dragoman.api.problems import Problem
from dragoman.api.store_reads import agent_protocol, events, find_task, page_size
from dragoman.core.ids import ADMIN, HUB, AgentId, Instant, TaskId, rfc3339
from dragoman.core.model.tasks import Event, EventKind, Status, Task
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.core.queries import event_out, is_hidden
from dragoman.core.queries.trace import Causes, Lost, TraceOut, TraceTask, in_tree_order, trace_task
from dragoman.messages.faults import Kind, Refused
from dragoman.messages.features import Carriage, Feature, losses
from dragoman.protocols.features import FEATURES

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}

log = structlog.get_logger("dragoman.api")

_LINE_END = re.compile(rb"\r\n|\r|\n")


class EndOut(msgspec.Struct, frozen=True):
    task_id: str
    status: Status


def frame(event: Event, *, raw: bool, hidden: bool = False) -> bytes:
    return b"id: %d\nevent: %s\n%s\n" % (
        event.seq,
        event.kind.value.encode(),
        _data(msgspec.json.encode(event_out(event, raw=raw, hidden=hidden))),
    )


def _data(content: bytes) -> bytes:
    """A body may hold line ends between its tokens, and a bare one would end the frame."""
    return b"".join(b"data: %s\n" % line for line in _LINE_END.split(content))


async def follow(context: Context, call: Call[EventsQuery, None]) -> Response:
    query = call.query
    task = await find_task(context, call.id)
    after = query.after
    last = call.request.headers.get("last-event-id")
    if last:
        if not (last.isascii() and last.isdigit() and len(last) < 19):
            raise Problem(Kind.INVALID, "Last-Event-ID is the number of an event of this task", field="Last-Event-ID")
        # A browser that reconnects repeats the address it began with, so what it saw since counts more.
        after = max(after, int(last))
    if call.request.method == "HEAD":  # it wants to know what it would get, not to wait until it is over
        return StreamingResponse((), media_type=MEDIA_TYPE, headers=HEADERS)
    after = min(after, task.seq)  # who saw more than there is (a backup was restored) hears what comes from now on
    context.intake.streams.check(ADMIN)  # while there is a status to refuse it with
    frames = _until_unreadable(_frames(context, task, after, raw=query.raw))
    return StreamingResponse(frames, media_type=MEDIA_TYPE, headers=HEADERS)


async def _until_unreadable(frames: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """A store that fails in the middle ends the stream without `end`: the client comes back where it was."""
    async with aclosing(frames):
        try:
            async for piece in frames:
                yield piece
        except StoreFailed:
            log.warning("stream ended, the store cannot be read")
        except Refused as refused:  # others were quicker
            log.info("stream ended", why=str(refused.fault))


async def _frames(context: Context, task: Task, after: int, *, raw: bool) -> AsyncGenerator[bytes]:
    yield b"retry: 1000\n\n"
    with context.intake.streams.one(ADMIN):
        async for piece in _read(context, task, after, raw=raw):
            yield piece


async def _read(context: Context, task: Task, after: int, *, raw: bool) -> AsyncGenerator[bytes]:
    async with context.intake.watch(task.id) as watch:
        while True:
            page = await context.store.events(task.id, after=after, limit=page_size(task))
            for event in page:
                yield frame(event, raw=raw, hidden=is_hidden(task))
                after = event.seq
            # The head is read after its events: if it says "final" and we are at its number, all was sent.
            now = await context.store.task(task.id)
            if now is None:  # it was forgotten: a client that comes back gets 404
                return
            task = now
            if page and task.seq > after:
                continue
            if task.final and task.seq <= after:
                yield b"event: end\n" + _data(msgspec.json.encode(EndOut(task.id, task.status))) + b"\n"
                return
            if context.waiters.closed:
                return
            if not await context.waiters.changed(watch, context.waiters.heartbeat):
                yield b": heartbeat\n\n"


# -- one trace ---------------------------------------------------------------------------------------------------
#
# Nothing in the store is found by its trace, since that would cost every task an index. It is found by who did what.
# Below a task are its children, and what its agents asked for in the same trace while they had it. Above it is its
# parent, or what its caller was doing in the same trace.

MOST_TASKS = 100
MOST_EVENTS = 500
TASKS_SEARCHED = 500
"""Of one agent, this many tasks are searched for those of a trace."""
DEEPEST = 64


@lru_cache(maxsize=64)
def lost_between(caller: str, agent: str) -> Mapping[Feature, Lost]:
    """What never arrives between two protocols. A caller that is no protocol of ours (the API) loses nothing."""
    if caller not in FEATURES or agent not in FEATURES or caller == agent:
        return {}
    return {
        loss.feature: Lost(feature=loss.feature, how=loss.how, why=loss.why)
        for loss in losses(FEATURES[caller], FEATURES[agent])
        if loss.how is Carriage.LOST
    }


async def trace(context: Context, call: Plain) -> TraceOut:
    return await trace_of(context, await find_task(context, call.id))


async def trace_of(context: Context, task: Task) -> TraceOut:
    causes: Causes = {}
    found, left_out = await _descendants(context, await _root(context, task), causes)
    found.setdefault(task.id, task)
    traced = [await _trace_task(context, one, causes) for one in in_tree_order(found, causes)]
    return TraceOut(trace_id=task.lineage.trace_id, task_id=task.id, tasks=tuple(traced), left_out=left_out)


async def _root(context: Context, task: Task) -> Task:
    for _ in range(DEEPEST):
        above = await _above(context, task)
        if above is None:
            break
        task = above
    return task


async def _above(context: Context, task: Task) -> Task | None:
    if task.lineage.parent is not None:
        return await context.store.task(task.lineage.parent)
    asker = task.origin.principal
    if asker in (ADMIN, HUB):
        return None
    where = TaskFilter(agent=asker, before=task.created_at)
    page, _ = await context.store.tasks(where, after=None, limit=TASKS_SEARCHED)
    return next((one for one in page if one.lineage.trace_id == task.lineage.trace_id), None)


async def _descendants(context: Context, root: Task, causes: Causes) -> tuple[dict[TaskId, Task], int]:
    """All tasks below the root, and at least how many were left out. `causes` gets the task that led to each."""
    found: dict[TaskId, Task] = {root.id: root}
    waiting, left_out = [root], 0
    while waiting:
        task = waiting.pop(0)
        related, more = await _below(context, task)
        left_out += more
        for one in related:
            if one.id in found:
                continue
            if len(found) >= MOST_TASKS:
                left_out += 1
                continue
            found[one.id] = one
            causes[one.id] = task.id
            waiting.append(one)
    return found, left_out


async def _below(context: Context, task: Task) -> tuple[list[Task], bool]:
    """The tasks that a task led to, and whether there may be more."""
    found: list[Task] = []
    more = False
    if task.lineage.has_children:
        page, on = await context.store.tasks(TaskFilter(parent=task.id), after=None, limit=MOST_TASKS)
        found, more = list(page), on is not None
    until = Instant((task.finished_at or context.intake.now()) + 1)
    for agent in _agents_of(task):
        where = TaskFilter(principal=agent, since=task.created_at, before=until)
        page, on = await context.store.tasks(where, after=None, limit=TASKS_SEARCHED)
        found += [
            one
            for one in page
            if one.lineage.parent is None and one.lineage.trace_id == task.lineage.trace_id and one.id != task.id
        ]
        more = more or on is not None
    return found, more


def _agents_of(task: Task) -> list[AgentId]:
    """The agents that had it."""
    agents = dict.fromkeys((task.owner, *(agent for pair in task.lineage.handed for agent in pair)))
    return [agent for agent in agents if agent is not None and agent not in (ADMIN, HUB)]


async def _trace_task(context: Context, task: Task, causes: Causes) -> TraceTask:
    found: list[Event] = []
    after = 0
    while after < task.seq and len(found) < MOST_EVENTS:
        page = await context.store.events(task.id, after=after, limit=min(page_size(task), MOST_EVENTS - len(found)))
        if not page:
            break
        found += page
        after = page[-1].seq
    return trace_task(task, found, lambda agent: agent_protocol(context, agent), lost_between, causes.get(task.id))


# -- what went wrong -------------------------------------------------------------------------------------------

ERRORS = frozenset({EventKind.ERROR_REPORTED, EventKind.ATTEMPT_FAILED, EventKind.FAILED})
MOST_ERRORS = 200


class TaskError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`report` is the agent's own; `error` says why an attempt or the task failed."""

    seq: int
    at: str
    kind: str
    agent: str | None
    severity: str | None = None
    report: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first; the newest `MOST_ERRORS` of them."""

    errors: tuple[TaskError, ...]


async def errors(context: Context, call: Plain) -> TaskErrors:
    task = await find_task(context, call.id)
    found = []
    async for event in events(context, task):
        if event.kind not in ERRORS:
            continue
        content = event.content
        found.append(
            TaskError(
                seq=event.seq,
                at=rfc3339(event.at),
                kind=event.kind.value,
                agent=event.agent,
                severity=getattr(content, "severity", None),
                report=getattr(content, "report", None),
                error=msgspec.to_builtins(fault) if (fault := getattr(content, "fault", None)) is not None else None,
            )
        )
    return TaskErrors(errors=tuple(found[-MOST_ERRORS:]))
