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

from collections.abc import Mapping
from urllib.parse import parse_qs

import msgspec

from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.authorization import is_party
from dragoman.core.ports import Files, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.messages.files import FileRef
from dragoman.server.asgi import ASGIApp, Disconnected, Receive, Scope, Send, answer, header, read_body, retry_after
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.files import LARGEST, remove_file, send_file
from dragoman.server.handler import Endpoint
from dragoman.server.refusals import UNREADABLE
from dragoman.wire.errors import RemoteProtocolError


class AgentFiles(Endpoint):
    """Refusals are chiffon's, whose path it is."""

    PATH = "/api/agent/files"

    def __init__(self, handler: ChiffonHandler, files: Files) -> None:
        self._handler = handler
        self._store = handler.store
        self._files = files

    def routes(self) -> Mapping[str, ASGIApp]:
        return {self.PATH: self.upload}

    def prefixes(self) -> Mapping[str, ASGIApp]:
        return {f"{self.PATH}/": self.one}

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
            await self._refuse(send, error)
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
            await self._refuse(send, error)
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
            await self._refuse(send, error)
            return
        except StoreFailed:
            await self._refuse(send, Refused(UNREADABLE))
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
            found = next((file for file in task.output.files if file.id == id), None)
            if found is not None:
                return found
        raise refuse(
            Kind.NOT_FOUND, "no such file, or not of a task of yours", next="say which with task_id", field="file_id"
        )

    async def _refuse(self, send: Send, error: Refused | RemoteProtocolError) -> None:
        fault = error.fault if isinstance(error, Refused) else Fault(kind=Kind.TOO_LARGE, message=error.what)
        status = self._handler.status_of(fault)
        headers = ((b"retry-after", b"%d" % retry_after(fault)),) if status in (429, 503) else ()
        await answer(send, status, self._handler.encode_refusal(fault), headers=headers)

    async def _wrong_method(self, send: Send, allowed: str) -> None:
        fault = new_fault(Kind.INVALID, f"this path takes {allowed}", next="use that method")
        await answer(send, 405, self._handler.encode_refusal(fault), headers=((b"allow", allowed.encode()),))


def _asked(scope: Scope, name: str) -> str:
    query: str = scope["query_string"].decode("latin-1")
    return parse_qs(query).get(name, [""])[-1]
