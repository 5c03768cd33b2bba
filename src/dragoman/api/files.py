"""Files of tasks: upload one to attach it, and download those that belong to a task."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dragoman.api.bodies import BODY_SECONDS, FileQuery, FilesQuery, RemoveFileQuery
from dragoman.api.context import Call, Context, Plain
from dragoman.api.problems import Next, Problem, list_of
from dragoman.api.store_reads import find_task
from dragoman.core.ids import ADMIN
from dragoman.core.ports import Files
from dragoman.core.queries import is_hidden
from dragoman.messages.faults import Kind
from dragoman.messages.files import FileRef, KeptFile
from dragoman.server.asgi import hold
from dragoman.server.files import LARGEST, download_headers, part_of, remove_file
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.framing import WholeMessage
from dragoman.wire.guard import Limits


class FileOut(msgspec.Struct, frozen=True, kw_only=True):
    """A file with its owner (`admin` is a person), and whether it belongs to a task. Its name is shown where a person
    uploaded it and it belongs to no task: other names may be personal."""

    id: str
    name: str | None
    mime_type: str
    size: int
    sha256: str
    owner: str
    attached: bool

    @classmethod
    def of(cls, kept: KeptFile, *, attached: bool) -> FileOut:
        ref, named = kept.ref, kept.owner == ADMIN and not attached
        return cls(
            id=ref.id,
            name=ref.name if named else None,
            mime_type=ref.mime_type,
            size=ref.size,
            sha256=ref.sha256,
            owner=kept.owner,
            attached=attached,
        )


class FilesOut(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[FileOut, ...]
    next: str | None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[FileRef, ...]


async def upload_file(context: Context, call: Call[FileQuery, None]) -> FileRef:
    query = call.query
    whole = WholeMessage(Limits(bytes=LARGEST))
    try:
        async with asyncio.timeout(BODY_SECONDS * 6):
            declared = call.request.headers.get("content-length", "")
            held = int(declared) if declared.isdigit() and int(declared) <= LARGEST else 0
            await hold(call.request.scope, ADMIN, held)
            got = 0
            async for piece in call.request.stream():
                whole.feed(piece)
                got += len(piece)
                if got > held:
                    await hold(call.request.scope, ADMIN, got - held)
                    held = got
    except RemoteProtocolError as error:
        raise Problem(Kind.TOO_LARGE, error.what) from None
    except (TimeoutError, ClientDisconnect):
        raise Problem(Kind.TIMEOUT, "the file did not arrive in time") from None
    mime_type = call.request.headers.get("content-type", "")
    return await _files(context).keep(whole.finish(), name=query.name, mime_type=mime_type, owner=ADMIN)


async def list_task_files(context: Context, call: Plain) -> FileList:
    task = await find_task(context, call.id)
    return FileList(files=task.output.files)


async def download_file(context: Context, call: Plain) -> Response:
    task = await find_task(context, call.id)
    if is_hidden(task):
        raise Problem(
            Kind.FORBIDDEN,
            "the task is personal",
            next=Next("only its caller and its agent can download its files"),
        )
    ref = next((file for file in task.output.files if file.id == call.request.path_params["file"]), None)
    data = None if ref is None else await _files(context).fetch(ref.id)
    if ref is None or data is None:
        listed = f"GET /api/v1/tasks/{task.id}/files"
        raise Problem(Kind.NOT_FOUND, "no such file of this task", next=Next(f"list them with {listed}", listed))
    return _download(call.request, ref, data)


def _download(request: Request, ref: FileRef, data: bytes) -> Response:
    """The file, or the part of it that is wanted."""
    part = part_of(ref, len(data), request.headers.get("range"), request.headers.get("if-range"))
    headers = {name.decode(): value.decode() for name, value in download_headers(ref)} | dict(part.headers)
    return Response(data[part.start : part.end], part.status, headers=headers, media_type=ref.mime_type)


async def list_files(context: Context, call: Call[FilesQuery, None]) -> FilesOut:
    """Everything that is kept, page by page."""
    query = call.query
    files, found, after = _files(context), list[FileOut](), query.cursor or ""
    while len(found) < query.limit:
        page = await files.listing(after=after, limit=query.limit)
        if not page:
            break
        attached = set(await context.store.attached([one.ref.id for one in page]))
        for one in page:
            after = one.ref.id
            if query.owner in (None, one.owner) and query.attached in (None, after in attached):
                found.append(FileOut.of(one, attached=after in attached))
            if len(found) == query.limit:
                break
    more = len(found) == query.limit and bool(await files.listing(after=after, limit=1))
    return FilesOut(files=tuple(found), next=after if more else None)


async def delete_file(context: Context, call: Call[RemoveFileQuery, None]) -> None:
    id = call.id
    if await _files(context).describe(id, claim=False) is None:
        raise Problem(Kind.NOT_FOUND, f"no file {id[:40]!r}", next=list_of("files"))
    await remove_file(context.intake, context.store, _files(context), id, by=ADMIN, attached_too=call.query.attached)


async def attached(context: Context, ids: tuple[str, ...]) -> tuple[FileRef, ...]:
    """The files that a task to be submitted names: kept before, by a person."""
    found = []
    for id in ids:
        kept = await _files(context).describe(id)
        if kept is None or kept.owner != ADMIN:
            upload = Next("upload it first with POST /api/v1/files", "POST /api/v1/files")
            raise Problem(Kind.NOT_FOUND, f"no file {id[:40]!r}", field="attachments", next=upload)
        found.append(kept.ref)
    return tuple(found)


def _files(context: Context) -> Files:
    if context.files is None:
        raise Problem(Kind.UNAVAILABLE, "this hub does not store files")
    return context.files
