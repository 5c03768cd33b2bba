"""A copy of the store, made by the hub itself, for callers on its own machine: the target is a path there."""

from __future__ import annotations

from ipaddress import ip_address

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.bodies import BackupIn, read_body
from dragoman.api.context import Context
from dragoman.api.problems import Problem
from dragoman.api.route import respond
from dragoman.messages.faults import Kind


class Copied(msgspec.Struct, frozen=True):
    target: str


async def copy(context: Context, request: Request) -> Response:
    if not _is_here(request):
        raise Problem(
            Kind.FORBIDDEN,
            "a backup is written to the hub's own machine, and you are on another",
            next="Run `dragoman backup` there.",
        )
    wanted = await read_body(context, request, BackupIn)
    try:
        await context.store.backup(wanted.target)
    except FileExistsError:
        raise Problem(Kind.CONFLICT, "the target exists already", field="target", next="Name a new file.") from None
    except OSError as error:
        raise Problem(
            Kind.INVALID,
            f"the copy cannot be written: {error.strerror or 'no reason given'}",
            field="target",
            next="Check the directory, its space and its permissions.",
        ) from None
    return respond(200, Copied(wanted.target))


def _is_here(request: Request) -> bool:
    if request.client is None:  # a Unix socket
        return True
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False
