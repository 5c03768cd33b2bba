"""A task's events as they happen: server-sent events, read from the store by number.

The watch only wakes; what is sent is always what the store has after the last number sent. So nothing is lost or
doubled however often the client comes back: it says the last number it saw (`Last-Event-ID`, or `?after=`).

    id: 7                   the event's number
    event: progress         its kind
    data: {…}               `EventOut`

    event: end              the task is final and everything was told; carries no id, so a resume stays where it is
    data: {"status": …}

    : heartbeat             when nothing happens
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.api.bodies import EventsQuery, read_query
from dragoman.api.context import Context
from dragoman.api.problems import Problem
from dragoman.api.store_reads import find_task, page_size
from dragoman.core.ids import ADMIN
from dragoman.core.model.tasks import Event, Status, Task
from dragoman.core.ports import StoreFailed
from dragoman.core.queries import event_out, is_hidden
from dragoman.messages.faults import Kind, Refused

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


async def follow(context: Context, request: Request) -> Response:
    query = read_query(request, EventsQuery)
    task = await find_task(context, request.path_params["id"])
    after = query.after
    last = request.headers.get("last-event-id")
    if last:
        if not (last.isascii() and last.isdigit() and len(last) < 19):
            raise Problem(Kind.INVALID, "Last-Event-ID is the number of an event of this task", field="Last-Event-ID")
        # A browser that reconnects repeats the address it began with, so what it saw since counts more.
        after = max(after, int(last))
    if request.method == "HEAD":  # it wants to know what it would get, not to wait until it is over
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
        async for piece in _told(context, task, after, raw=raw):
            yield piece


async def _told(context: Context, task: Task, after: int, *, raw: bool) -> AsyncGenerator[bytes]:
    async with context.intake.watch(task.id) as watch:
        while True:
            page = await context.store.events(task.id, after=after, limit=page_size(task))
            for event in page:
                yield frame(event, raw=raw, hidden=is_hidden(task))
                after = event.seq
            # The head is read after its events: if it says "final" and we are at its number, all was told.
            now = await context.store.task(task.id)
            if now is None:  # it was forgotten: whoever comes back hears so
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
