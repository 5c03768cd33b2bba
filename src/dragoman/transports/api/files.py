"""Files of tasks: keep one to attach it, and fetch those that belong to a task."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dragoman.core.errors import Kind
from dragoman.core.files import FileRef
from dragoman.core.ids import ADMIN
from dragoman.core.ports import Files
from dragoman.core.queries import is_hidden
from dragoman.transports.agent_files import LARGEST, download_headers
from dragoman.transports.api.bodies import BODY_SECONDS, FileQuery, read_query
from dragoman.transports.api.desk import Desk
from dragoman.transports.api.endpoint import respond
from dragoman.transports.api.problems import Problem
from dragoman.transports.api.reading import find_task
from dragoman.transports.hold import hold
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.framing import WholeMessage
from dragoman.wire.guard import Limits


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[FileRef, ...]


async def keep(desk: Desk, request: Request) -> Response:
    query = read_query(request, FileQuery)
    whole = WholeMessage(Limits(bytes=LARGEST))
    try:
        async with asyncio.timeout(BODY_SECONDS * 6):
            declared = request.headers.get("content-length", "")
            held = int(declared) if declared.isdigit() and int(declared) <= LARGEST else 0
            await hold(request.scope, ADMIN, held)
            got = 0
            async for piece in request.stream():
                whole.feed(piece)
                got += len(piece)
                if got > held:
                    await hold(request.scope, ADMIN, got - held)
                    held = got
    except RemoteProtocolError as error:
        raise Problem(Kind.TOO_LARGE, error.what) from None
    except (TimeoutError, ClientDisconnect):
        raise Problem(Kind.TIMEOUT, "the file did not come in time") from None
    mime_type = request.headers.get("content-type", "")
    ref = await _files(desk).keep(whole.finish(), name=query.name, mime_type=mime_type, owner=ADMIN)
    return respond(201, ref)


async def listing(desk: Desk, request: Request) -> Response:
    task = await find_task(desk, request.path_params["id"])
    return respond(200, FileList(files=task.files))


async def fetch(desk: Desk, request: Request) -> Response:
    task = await find_task(desk, request.path_params["id"])
    if is_hidden(task):
        raise Problem(
            Kind.FORBIDDEN,
            "the task is personal",
            next="Only whoever asked for it and whoever does it can fetch its files.",
        )
    ref = next((file for file in task.files if file.id == request.path_params["file"]), None)
    data = None if ref is None else await _files(desk).fetch(ref.id)
    if ref is None or data is None:
        raise Problem(Kind.NOT_FOUND, "no such file of this task", next=f"List them: GET /api/v1/tasks/{task.id}/files")
    headers = {name.decode(): value.decode() for name, value in download_headers(ref)}
    return Response(data, headers=headers, media_type=ref.mime_type)


async def attached(desk: Desk, ids: tuple[str, ...]) -> tuple[FileRef, ...]:
    """The files that a task to be submitted names: kept before, by a person."""
    found = []
    for id in ids:
        kept = await _files(desk).describe(id)
        if kept is None or kept.owner != ADMIN:
            raise Problem(
                Kind.NOT_FOUND, f"no file {id[:40]!r}", field="attachments", next="Keep it first: POST /api/v1/files"
            )
        found.append(kept.ref)
    return tuple(found)


def _files(desk: Desk) -> Files:
    if desk.files is None:
        raise Problem(Kind.UNAVAILABLE, "this hub keeps no files")
    return desk.files
