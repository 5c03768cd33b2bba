"""The global event stream: everything that happens to tasks, and a digest of it for pages.

    id: 1789…               the instant of the commit; a stream that resumes there misses nothing
    event: task             one event of a task: `StreamEvent`
    event: changes          `detail=digest`: what changed since the last frame, at most ten times a second
    event: reset            the stream cannot go on at that id, or (`detail=digest`) too much happened: read views again
    : heartbeat             when nothing happens

A stream of events begins after `Last-Event-ID` (or `?after=`), else with what happens next. It reads what it missed
from the store, and then gets moments as they are committed (`api.live`). The id stands on the last event of a commit
only: a stream that breaks in the middle of one begins it again, and (`task_id`, `seq`) tells what was there. An id that
is later than the hub's clock is of another hub, or of this one before it was restored from a backup: the stream says so
by a `reset`, and goes on with what happens next. Without that it would be silent until that time has come.

A digest is for pages that read their view once and want to know when to read again: it carries the heads of the tasks
that changed, not every event. All digests of a moment are the same bytes. `follow` adds every event of some tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing

import msgspec
import structlog
from starlette.responses import Response, StreamingResponse

from dragoman.api.bodies import StreamQuery
from dragoman.api.context import Call, Context
from dragoman.api.live import Moment, Watcher
from dragoman.api.problems import Problem
from dragoman.api.store_reads import agent_protocol
from dragoman.api.task_events import HEADERS, MEDIA_TYPE
from dragoman.core.ids import ADMIN, MINUTE, Instant, TaskId, rfc3339
from dragoman.core.model.tasks import Event, EventKind, Status, Task, Waiting
from dragoman.core.ports import StoreFailed
from dragoman.core.queries.tasks import log_line
from dragoman.messages.faults import Kind, Refused

log = structlog.get_logger("dragoman.api")

PAGE = 500
MOST_TASKS = 100
MOST_WIRE = 50
LONGEST_TEXT = 200
DIGEST = "digest"
RESET = b"event: reset\ndata: {}\n\n"
AHEAD = MINUTE
"""How far the clocks of two nodes may be apart."""

_encode = msgspec.json.Encoder().encode


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a task. `bytes` is the size of the message that caused it; `text` says it in short."""

    task_id: str
    seq: int
    at: str
    kind: str
    agent: str | None
    protocol: str | None
    bytes: int
    text: str


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a list shows of a task."""

    id: str
    type: str
    name: str | None
    status: Status
    waiting: Waiting | None
    agent: str | None
    protocol_in: str
    protocol_out: str | None
    progress: int
    created_at: str
    updated_at: str


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    current_tasks: int


class QuestionChanges(msgspec.Struct, frozen=True, kw_only=True):
    open: int
    changed: tuple[str, ...]


class ChangesOut(msgspec.Struct, frozen=True, kw_only=True):
    """A digest. `more`: more tasks changed than are listed, or some changes were missed; `skipped` messages are not in
    `wire`."""

    n: int
    counts: dict[str, int]
    tasks: tuple[TaskRow, ...]
    more: bool
    agents: tuple[AgentRow, ...]
    questions: QuestionChanges
    deadletters: int
    wire: tuple[StreamEvent, ...]
    skipped: int


async def follow(context: Context, call: Call[StreamQuery, None]) -> Response:
    query = call.query
    after = query.after
    last = call.request.headers.get("last-event-id")
    if last:
        if not (last.isascii() and last.isdigit() and len(last) < 19):
            raise Problem(Kind.INVALID, "Last-Event-ID is the id of an event of this stream", field="Last-Event-ID")
        after = max(after or 0, int(last))
    unknown = _kinds(query.type) - {kind.value for kind in EventKind}
    if unknown:
        what = f"{min(unknown)[:80]!r} is no type of event; one is {', '.join(EventKind)}"
        raise Problem(Kind.INVALID, what, field="type", advice="several are separated by commas")
    if call.request.method == "HEAD":
        return StreamingResponse((), media_type=MEDIA_TYPE, headers=HEADERS)
    context.intake.streams.check(ADMIN)
    frames = _digests(context, query, after) if query.detail == DIGEST else _events(context, query, after)
    return StreamingResponse(_until_unreadable(frames), media_type=MEDIA_TYPE, headers=HEADERS)


async def _until_unreadable(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(frames):  # type: ignore[type-var]
        try:
            async for piece in frames:
                yield piece
        except (StoreFailed, Refused) as error:
            log.warning("an event stream ended", why=str(error))


# -- every event -------------------------------------------------------------------------------------------------------


async def _events(context: Context, query: StreamQuery, after: int | None) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    wanted = _Filter(query)
    if after is not None and after > context.intake.now() + AHEAD:
        after = None
        yield RESET
    with context.intake.streams.one(ADMIN):
        async with context.live.watching() as watcher:
            seen = Instant(context.intake.now() if after is None else after)
            behind = after is not None
            while not context.waiters.closed:
                if behind:
                    async for reached, piece in _missed(context, wanted, seen):
                        seen = reached
                        yield piece
                    behind = False
                moments, missed = await _next(context, watcher)
                if missed or any(moment.left_out for moment in moments):
                    behind = True  # the store has them in order
                    continue
                for moment in moments:
                    events = [event for event in moment.events if event.at > seen]
                    for piece in _frames(context, wanted, events):
                        yield piece
                    seen = max(seen, moment.until)
                if not moments:
                    yield b": heartbeat\n\n"


async def _missed(context: Context, wanted: _Filter, seen: Instant) -> AsyncIterator[tuple[Instant, bytes]]:
    """Events after an instant, from the store; each with the instant that the stream has reached."""
    while True:
        page = await context.store.events_since(seen, PAGE)
        if not page:
            return
        if len(page) == PAGE:  # a commit is shown whole, or with the next page
            last = page[-1].at
            whole = [event for event in page if event.at < last]
            page = whole or await context.store.events_since(seen, PAGE * 100)
        for piece in _frames(context, wanted, page):
            yield page[-1].at, piece
        seen = page[-1].at


def _frames(context: Context, wanted: _Filter, events: Sequence[Event]) -> Iterable[bytes]:
    """One frame for each event that is wanted; the id on the last one of each commit."""
    taken = [event for event in events if wanted.takes(event)]
    for index, event in enumerate(taken):
        ends = index + 1 == len(taken) or taken[index + 1].at != event.at
        id = b"id: %d\n" % event.at if ends else b""
        yield b"%sevent: task\ndata: %s\n\n" % (id, _encode(stream_event(context, event)))


def _kinds(given: str | None) -> frozenset[str]:
    """The kinds of events that a query names; none of them means all."""
    return frozenset(name.strip() for name in (given or "").split(",") if name.strip())


class _Filter:
    def __init__(self, query: StreamQuery) -> None:
        self._task = query.task
        self._agent = query.agent
        self._kinds = _kinds(query.type)

    def takes(self, event: Event) -> bool:
        return (
            (self._task is None or event.task == self._task)
            and (self._agent is None or event.agent == self._agent)
            and (not self._kinds or event.kind.value in self._kinds)
        )


def stream_event(context: Context, event: Event) -> StreamEvent:
    return StreamEvent(
        task_id=event.task,
        seq=event.seq,
        at=rfc3339(event.at),
        kind=event.kind.value,
        agent=event.agent,
        protocol=event.protocol or agent_protocol(context, event.agent),
        bytes=len(event.raw or b""),
        text="" if event.personal else " ".join(log_line(event).text.split())[:LONGEST_TEXT],
    )


# -- digests -----------------------------------------------------------------------------------------------------------


async def _digests(context: Context, query: StreamQuery, after: int | None) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    followed = frozenset(TaskId(id) for id in (query.follow or "").split(",") if id)
    with context.intake.streams.one(ADMIN):
        async with context.live.watching() as watcher:
            if after is not None:
                yield RESET
            yield await _digest(context, _quiet(context))
            while not context.waiters.closed:
                moments, missed = await _next(context, watcher)
                if missed:
                    yield RESET
                for moment in moments:
                    for event in moment.events:
                        if event.task in followed:
                            yield b"event: task\ndata: %s\n\n" % _encode(stream_event(context, event))
                    yield await _digest(context, moment)
                if not moments:
                    yield b": heartbeat\n\n"


def _quiet(context: Context) -> Moment:
    """The state of things, where nothing happened yet."""
    return Moment(0, context.intake.now(), (), {}, frozenset(), frozenset(), False, 0, {})


async def _digest(context: Context, moment: Moment) -> bytes:
    counts = await context.counts()
    cached = moment.cache.get(DIGEST)  # asked after the wait, during which another page may have encoded it
    if cached is None:
        tasks = list(moment.tasks.values())[-MOST_TASKS:]
        wire = moment.events[-MOST_WIRE:]
        content = ChangesOut(
            n=moment.number,
            counts=dict(counts),
            tasks=tuple(task_row(context, task) for task in tasks),
            more=len(moment.tasks) > len(tasks) or bool(moment.left_out),
            agents=tuple(
                AgentRow(id=id, current_tasks=len(context.intake.load_of(id))) for id in sorted(moment.agents)
            ),
            questions=QuestionChanges(open=counts.get("questions_open", 0), changed=tuple(sorted(moment.questions))),
            deadletters=counts.get("dead_letters", 0),
            wire=tuple(stream_event(context, event) for event in wire),
            skipped=len(moment.events) - len(wire) + moment.left_out,
        )
        cached = moment.cache[DIGEST] = b"id: %d\nevent: changes\ndata: %s\n\n" % (moment.until, _encode(content))
    return cached


def task_row(context: Context, task: Task) -> TaskRow:
    return TaskRow(
        id=task.id,
        type=task.type,
        name=None if task.agreement.personal else task.name,
        status=task.status,
        waiting=task.waiting,
        agent=task.owner or task.routing.pinned,
        protocol_in=task.origin.protocol,
        protocol_out=agent_protocol(context, task.owner),
        progress=task.output.progress or 0,
        created_at=rfc3339(task.created_at),
        updated_at=rfc3339(task.updated_at),
    )


async def _next(context: Context, watcher: Watcher) -> tuple[list[Moment], bool]:
    """The next moments; none after a heartbeat's time, or when the hub stops."""
    return await context.waiters.until_closed(watcher.next(), ([], False), context.waiters.heartbeat)
