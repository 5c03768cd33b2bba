"""Files of agents, over HTTP with the agent's own credential, whatever protocol it speaks.

    POST   /api/agent/files?name=NAME           201 {"id", "name", "mime_type", "size", "sha256"}; the body is the file
    GET    /api/agent/files/ID[?task_id=TASK]   200, the file; 206 for a `Range`, 416 for one outside of it
    DELETE /api/agent/files/ID                  204; only by its owner, and only while it belongs to no task

A file is kept first and then named in a message: chiffon's `x_custom_fields.files` of a work_request and `.file` of a
work_status, `file` in agentmsg's TASK_UPDATE and in a2acp's event `progress`. Only the agent that brought a file may
make it part of a task; it can be fetched by that agent, and by those who asked for or do a task that it belongs to.
Anything else is not found.
"""

from __future__ import annotations

from urllib.parse import parse_qs, quote

import msgspec

from dragoman.bindings import chiffon
from dragoman.core.commands import NoteRead
from dragoman.core.ids import SECOND, AgentId, Instant, TaskId
from dragoman.core.model.authorization import is_party
from dragoman.core.ports import Files, Intake, Store, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.messages.files import FileRef
from dragoman.server.asgi import Disconnected, Receive, Scope, Send, answer, header, read_body, retry_after
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.ranges import part_of
from dragoman.server.refusals import UNREADABLE
from dragoman.wire.errors import RemoteProtocolError

LARGEST = 16 * 1024 * 1024
CLAIM = 30 * SECOND
"""So long after a message named a file it is not removed: the message may still be on its way to a task."""
_RANGES = (b"range", b"if-range")


class AgentFiles:
    PATH = "/api/agent/files"

    def __init__(self, handler: ChiffonHandler, store: Store, files: Files) -> None:
        self._handler = handler
        self._store = store
        self._files = files

    async def upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._wrong_method(send, "POST")
            return
        try:
            principal = self._handler.principal(scope)
            data = await read_body(scope, receive, LARGEST, principal)
            mime_type = (header(scope, b"content-type") or b"").decode("latin-1")
            ref = await self._files.keep(data, name=_asked(scope, "name"), mime_type=mime_type, owner=principal)
        except Disconnected:
            return
        except (Refused, RemoteProtocolError) as error:
            await self._no(send, error)
            return
        await answer(send, 201, msgspec.json.encode(ref))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is done with a file that is there."""
        match scope["method"]:
            case "GET":
                await self.download(scope, receive, send)
            case "DELETE":
                await self.remove(scope, receive, send)
            case _:
                await self._wrong_method(send, "GET, DELETE")

    async def remove(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = self._handler.principal(scope)
            id = scope["path"].rpartition("/")[2]
            kept = await self._files.describe(id, claim=False)
            if kept is None or principal != kept.owner:
                raise refuse(Kind.NOT_FOUND, "no such file of yours", field="file_id")
            await remove_file(self._handler.hub, self._store, self._files, id, by=principal)
        except Refused as error:
            await self._no(send, error)
            return
        await answer(send, 204, b"")

    async def download(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = self._handler.principal(scope)
            ref = await self._visible(scope["path"].rpartition("/")[2], principal, _asked(scope, "task_id"))
            data = await self._files.fetch(ref.id)
            if data is None:
                raise refuse(Kind.NOT_FOUND, "no such file", field="file_id")
        except Refused as error:
            await self._no(send, error)
            return
        except StoreFailed:
            await self._no(send, Refused(UNREADABLE))
            return
        await send_file(scope, send, ref, data)

    async def _visible(self, id: str, principal: AgentId, task_id: str) -> FileRef:
        """The file, if this principal may read it."""
        kept = await self._files.describe(id, claim=False)
        if kept is not None and principal == kept.owner:
            return kept.ref
        task = await self._store.task(TaskId(task_id)) if task_id else None
        agent = self._handler.hub.agent(principal)
        if kept is not None and task is not None and is_party(agent, principal, task):
            found = next((file for file in task.files if file.id == id), None)
            if found is not None:
                return found
        raise refuse(Kind.NOT_FOUND, "no such file, or not of a task of yours; say which with task_id", field="file_id")

    async def _no(self, send: Send, error: Refused | RemoteProtocolError) -> None:
        fault = error.fault if isinstance(error, Refused) else Fault(kind=Kind.TOO_LARGE, message=error.what)
        status = chiffon.status_of(fault)
        headers = ((b"retry-after", b"%d" % retry_after(fault)),) if status in (429, 503) else ()
        await answer(send, status, self._handler.encode_refusal(fault), headers=headers)

    async def _wrong_method(self, send: Send, allowed: str) -> None:
        fault = Fault(kind=Kind.INVALID, message=f"this path takes {allowed}; use that method")
        await answer(send, 405, self._handler.encode_refusal(fault), headers=((b"allow", allowed.encode()),))


async def remove_file(
    hub: Intake, store: Store, files: Files, id: str, *, by: AgentId, attached_too: bool = False
) -> None:
    """Forget a file, and note in the audit record who wanted that; raises `Refused`. `attached_too`: also one that
    belongs to a task, which then names a file that is not there any more."""
    if await store.attached([id]):
        if not attached_too:
            what = "the file belongs to a task, and stays as long as that is kept"
            raise refuse(Kind.CONFLICT, what, field="file_id")
    elif files.is_claimed(id, Instant(hub.now() - CLAIM)):
        seconds = CLAIM // SECOND
        what = f"a message that names the file came within the last {seconds} s; try again after that"
        raise refuse(Kind.CONFLICT, what, field="file_id", retryable=True, retry_after=seconds)
    await hub.execute(NoteRead(principal=by, what="file.remove", about=id))
    await files.drop(id)


async def send_file(scope: Scope, send: Send, ref: FileRef, data: bytes) -> None:
    kind = (b"content-type", ref.mime_type.encode("latin-1", "replace"))
    wanted, unless = (None if (said := header(scope, name)) is None else said.decode("latin-1") for name in _RANGES)
    part = part_of(ref, len(data), wanted, unless)
    headers = *download_headers(ref), *((name.encode(), value.encode()) for name, value in part.headers)
    await answer(send, part.status, data[part.start : part.end], headers=headers, kind=kind)


def download_headers(ref: FileRef) -> tuple[tuple[bytes, bytes], ...]:
    """A file is a download: whatever it claims to be, no browser shall show it as a page of ours."""
    return (
        (b"content-disposition", f"attachment; filename*=UTF-8''{quote(ref.name, safe='')}".encode("latin-1")),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"cache-control", b"no-store"),
    )


def _asked(scope: Scope, name: str) -> str:
    query: str = scope["query_string"].decode("latin-1")
    return parse_qs(query).get(name, [""])[-1]
