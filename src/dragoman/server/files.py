"""Files of agents, for every endpoint that uploads, attaches or downloads them.

Chiffon, agentmsg and a2acp have no message for a file itself: an agent uploads it first (`POST /api/agent/files`) and
then names its id in a field of the protocol. The meaning is the same in all of them.

A download may be a part of a file (RFC 9110, 14): `Range`, `If-Range`, 206 and 416.

    bytes=0-99     the first hundred bytes          bytes=-100     the last hundred
    bytes=100-     from there to the end            bytes=0-,5-9   several: the whole file is given instead

The hub ignores any other range, as the RFC requires, and gives the whole file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
import structlog

from dragoman.core.commands import NoteRead, ReportProgress
from dragoman.core.ids import SECOND, AgentId, Instant
from dragoman.core.ports import Files, Intake, Store
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef
from dragoman.server.asgi import Scope, Send, answer, header_text

log = structlog.get_logger("dragoman.server")
T = TypeVar("T")

LARGEST = 16 * 1024 * 1024
CLAIM = 30 * SECOND
"""The hub keeps a file so long after a message named it: the message may still be on its way to a task."""
FIELD = "payload.file"
_id = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.IGNORECASE)
LONGEST = 20
"""Digits; no file has more bytes."""
_RANGES = (b"range", b"if-range")


# -- files that a message names


async def find_named(
    files: Files | None, owner: AgentId, ids: Sequence[str], *, field: str | None = None
) -> list[FileRef]:
    """The files with these ids; raises `Refused` where one does not exist or belongs to another principal."""
    found = []
    for id in ids:
        kept = None if files is None else await files.describe(id)
        if kept is None or kept.owner != owner:
            raise refuse(
                Kind.NOT_FOUND, f"no file {id[:40]!r} of yours", next="keep it at /api/agent/files first", field=field
            )
        found.append(kept.ref)
    return found


def file_id_in(payload: Any) -> str | None:
    """The id in the field `file` of a progress report: a string, or `{"id": …}` as the hub itself writes it. Any other
    `file` is an unknown field (all-D6)."""
    named = payload.get("file") if type(payload) is dict else None
    if type(named) is dict:
        named = named.get("id")
    return named.lower() if type(named) is str and _id(named) else None


async def with_file(command: ReportProgress, files: Files | None, id: str) -> ReportProgress:
    """The report, with the file that it names as part of the task; raises `Refused`."""
    [ref] = await find_named(files, command.principal, [id], field=FIELD)
    extra = {name: value for name, value in (command.content.extra or {}).items() if name != "file"}
    content = msgspec.structs.replace(command.content, file=ref, extra=extra or None)
    return msgspec.structs.replace(command, files=(ref,), content=content)


# -- keeping


class FileKeeper:
    """The files port, for calls that may be cancelled.

    A cancelled call must leave neither bytes that no task refers to nor a task that refers to dropped bytes. So keeping
    always runs to its end; only then does the keeper decide whether to drop the file.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._under_way: set[asyncio.Task[Any]] = set()

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str) -> FileRef:
        """Keep a file; drop it again if the call is cancelled meanwhile."""
        keeping = self._begin(self._files.keep(data, name=name, mime_type=mime_type, owner=owner))
        try:
            return await asyncio.shield(keeping)
        except asyncio.CancelledError:
            keeping.add_done_callback(self._unwanted)
            raise

    async def fetch(self, id: str) -> bytes | None:
        return await self._files.fetch(id)

    def drop(self, id: str) -> None:
        """Drop a file, in a task of its own."""
        self._begin(self._files.drop(id))

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this work to its end even if the call is cancelled."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a file or a request was refused", why=str(error))

    def _unwanted(self, task: asyncio.Task[FileRef]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.drop(task.result().id)


# -- removing and giving


async def remove_file(
    hub: Intake, store: Store, files: Files, id: str, *, by: AgentId, attached_too: bool = False
) -> None:
    """Remove a file and record who asked for that; raises `Refused`. `attached_too`: also one that belongs to a task,
    which then refers to a missing file."""
    if await store.attached([id]):
        if not attached_too:
            what = "the file belongs to a task, and stays as long as that is kept"
            raise refuse(Kind.CONFLICT, what, field="file_id")
    elif await files.is_claimed(id, Instant(hub.now() - CLAIM)):
        seconds = CLAIM // SECOND
        raise refuse(
            Kind.CONFLICT,
            f"a message that names the file came within the last {seconds} s",
            next="try again after that",
            field="file_id",
            retryable=True,
            retry_after=seconds,
        )
    await hub.execute(NoteRead(principal=by, what="file.remove", about=id))
    await files.drop(id)


async def send_file(scope: Scope, send: Send, ref: FileRef, data: bytes) -> None:
    kind = (b"content-type", ref.mime_type.encode("latin-1", "replace"))
    wanted, unless = (header_text(scope, name) for name in _RANGES)
    part = part_of(ref, len(data), wanted, unless)
    headers = *download_headers(ref), *((name.encode(), value.encode()) for name, value in part.headers)
    await answer(send, part.status, data[part.start : part.end], headers=headers, kind=kind)


def download_headers(ref: FileRef) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of a download: no browser may show the file as a page of the hub, whatever its type."""
    return (
        (b"content-disposition", f"attachment; filename*=UTF-8''{quote(ref.name, safe='')}".encode("latin-1")),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"cache-control", b"no-store"),
    )


# -- a part of a file


class Part(NamedTuple):
    """What is answered: the status, the bytes from `start` to before `end`, and the headers that say so."""

    status: int
    start: int
    end: int
    headers: tuple[tuple[str, str], ...]


def etag(ref: FileRef) -> str:
    return f'"{ref.sha256}"'


def part_of(ref: FileRef, size: int, wanted: str | None, if_range: str | None) -> Part:
    """The part of a file that a request wants: of `size` bytes, all of it, or none (416)."""
    always = (("accept-ranges", "bytes"), ("etag", etag(ref)))
    whole = Part(200, 0, size, always)
    found = None if wanted is None else _RANGE.fullmatch(wanted.strip())
    if found is None or (if_range is not None and if_range.strip() != etag(ref)):
        return whole
    first, last = found[1][:LONGEST], found[2][:LONGEST]
    if first:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < int(first):
            return whole  # no range at all
    elif last:
        start, end = max(0, size - int(last)), size
    else:
        return whole
    if start >= size:
        return Part(416, 0, 0, (*always, ("content-range", f"bytes */{size}")))
    return Part(206, start, end, (*always, ("content-range", f"bytes {start}-{end - 1}/{size}")))
