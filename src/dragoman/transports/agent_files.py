"""Files of agents whose protocol has no message for them, over HTTP with the agent's own token.

    POST /api/agent/files?name=NAME             201 {"id", "name", "mime_type", "size", "sha256"}; the body is the file
    GET  /api/agent/files/ID[?task_id=TASK]     200, the file

A file is kept first and then named in a message: chiffon's `x_custom_fields.files` of a work_request, and
`x_custom_fields.file` of a work_status. Only whoever brought a file may make it part of a task; it can be fetched by
them, and by whoever asked for or does a task that it belongs to. Anything else is not found.
"""

from __future__ import annotations

from urllib.parse import parse_qs, quote

import msgspec

from dragoman.bindings import chiffon
from dragoman.core.errors import Fault, Kind, Refused, refuse
from dragoman.core.files import FileRef
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.ports import Files, Store
from dragoman.core.tasks.parts import is_party
from dragoman.transports.asgi import Disconnected, Receive, Scope, Send, answer, header, read_body
from dragoman.transports.chiffon.desk import ChiffonDesk
from dragoman.wire.errors import RemoteProtocolError

LARGEST = 16 * 1024 * 1024


class AgentFiles:
    PATH = "/api/agent/files"

    def __init__(self, desk: ChiffonDesk, store: Store, files: Files) -> None:
        self._desk = desk
        self._store = store
        self._files = files

    async def upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._wrong_method(send, "POST")
            return
        try:
            principal = self._desk.principal(scope)
            data = await read_body(scope, receive, LARGEST, principal)
            mime_type = (header(scope, b"content-type") or b"").decode("latin-1")
            ref = await self._files.keep(data, name=_asked(scope, "name"), mime_type=mime_type, owner=principal)
        except Disconnected:
            return
        except (Refused, RemoteProtocolError) as error:
            await self._no(send, error)
            return
        await answer(send, 201, msgspec.json.encode(ref))

    async def download(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await self._wrong_method(send, "GET")
            return
        try:
            principal = self._desk.principal(scope)
            ref = await self._visible(scope["path"].rpartition("/")[2], principal, _asked(scope, "task_id"))
            data = await self._files.fetch(ref.id)
            if data is None:
                raise refuse(Kind.NOT_FOUND, "no such file", field="file_id")
        except Refused as error:
            await self._no(send, error)
            return
        await send_file(send, ref, data)

    async def _visible(self, id: str, principal: AgentId, task_id: str) -> FileRef:
        """The file, if this principal may read it."""
        kept = await self._files.describe(id)
        if kept is not None and principal == kept.owner:
            return kept.ref
        task = await self._store.task(TaskId(task_id)) if task_id else None
        agent = self._desk.hub.agent(principal)
        if kept is not None and task is not None and is_party(agent, principal, task):
            found = next((file for file in task.files if file.id == id), None)
            if found is not None:
                return found
        raise refuse(Kind.NOT_FOUND, "no such file, or not of a task of yours; say which with task_id", field="file_id")

    async def _no(self, send: Send, error: Refused | RemoteProtocolError) -> None:
        fault = error.fault if isinstance(error, Refused) else Fault(kind=Kind.TOO_LARGE, message=error.what)
        await answer(send, chiffon.status_of(fault), self._desk.no(fault))

    async def _wrong_method(self, send: Send, allowed: str) -> None:
        fault = Fault(kind=Kind.INVALID, message=f"this path takes {allowed}; use that method")
        await answer(send, 405, self._desk.no(fault), headers=((b"allow", allowed.encode()),))


async def send_file(send: Send, ref: FileRef, data: bytes) -> None:
    kind = (b"content-type", ref.mime_type.encode("latin-1", "replace"))
    await answer(send, 200, data, headers=download_headers(ref), kind=kind)


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
