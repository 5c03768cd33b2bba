"""What the hub says about itself: its health, its metrics, the protocols' schemas and what is lost between them; and
the copy of its store."""

from __future__ import annotations

from importlib import resources
from ipaddress import ip_address
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.bodies import BackupIn, LossesQuery
from dragoman.api.context import Call, Context, Plain, respond
from dragoman.api.openapi import PROTOCOLS
from dragoman.api.problems import Next, Problem
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Kind
from dragoman.messages.features import TO_AGENT, TO_CALLER, Pair, matrix
from dragoman.protocols.features import FEATURES


class Health(msgspec.Struct, frozen=True):
    """`status` is "ok" or "unready"; `detail` says why. Open to every client that can reach the port, so it names no
    task, agent or person."""

    status: str
    detail: str = ""


async def livez(context: Context, call: Plain) -> Health:
    """The event loop turns: that is all this says, so that a full disk does not get the hub killed."""
    return Health("ok")


async def readyz(context: Context, call: Plain) -> Response:
    """Whether new work would be taken now."""
    is_ready, detail = context.ready()
    return respond(200, Health("ok", detail)) if is_ready else respond(503, Health("unready", detail))


async def metrics(context: Context, call: Plain) -> Response:
    """A store that cannot be read costs its gauges, not the scrape."""
    context.admit_to_metrics(call.request)
    try:
        counts = await context.store.counts()
    except StoreFailed:
        counts = {}
    headers = {"Content-Type": context.metrics.content_type, "Cache-Control": "no-store"}
    return Response(context.metrics.expose(counts), headers=headers)


async def schema(context: Context, call: Plain) -> dict[str, Any]:
    protocol = call.request.path_params["protocol"]
    if protocol not in PROTOCOLS:
        raise Problem(
            Kind.NOT_FOUND, f"no schema of {protocol[:40]!r}", next=Next(f"use one of: {', '.join(PROTOCOLS)}")
        )
    return PROTOCOLS[protocol]()


async def coven_proto(context: Context, call: Plain) -> Response:
    """The proto file that the hub's messages are generated from, as it is in the package."""
    source = resources.files("dragoman.protocols.coven").joinpath("coven.proto").read_text("utf-8")
    return Response(source, media_type="text/plain")


# -- losses ----------------------------------------------------------------------------------------------------------


class LossMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Every caller's protocol with every agent's. What is not in a pair's `losses` arrives as it was sent."""

    protocols: tuple[str, ...]
    features: dict[str, tuple[str, ...]]
    pairs: tuple[Pair, ...]


async def loss_matrix(context: Context, call: Call[LossesQuery, None]) -> LossMatrix:
    query = call.query
    for name in (query.caller, query.agent):
        if name is not None and name not in FEATURES:
            raise Problem(Kind.NOT_FOUND, f"no protocol {name[:40]!r}", next=Next(f"use one of: {', '.join(FEATURES)}"))
    callers = [FEATURES[query.caller]] if query.caller else FEATURES.values()
    agents = [FEATURES[query.agent]] if query.agent else FEATURES.values()
    return LossMatrix(
        protocols=tuple(FEATURES),
        features={"agent": TO_AGENT, "caller": TO_CALLER},
        pairs=tuple(matrix(callers, agents)),
    )


# -- the copy of the store -------------------------------------------------------------------------------------------


class Copied(msgspec.Struct, frozen=True):
    target: str


async def copy_store(context: Context, call: Call[None, BackupIn]) -> Copied:
    if not _is_here(call.request):
        raise Problem(
            Kind.FORBIDDEN,
            "a backup is written to the hub's own machine, and you are on another",
            next=Next("run `dragoman backup` there"),
        )
    wanted = call.body
    try:
        await context.store.backup(wanted.target)
    except FileExistsError:
        raise Problem(
            Kind.CONFLICT, "the target exists already", field="target", next=Next("name a new file")
        ) from None
    except OSError as error:
        raise Problem(
            Kind.INVALID,
            f"the copy cannot be written: {error.strerror or 'no reason given'}",
            field="target",
            next=Next("check the directory, its space and its permissions"),
        ) from None
    return Copied(wanted.target)


def _is_here(request: Request) -> bool:
    if request.client is None:  # a Unix socket
        return True
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False
