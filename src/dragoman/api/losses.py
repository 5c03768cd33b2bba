"""What cannot be carried between protocols, for whoever plans to join them."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.bodies import LossesQuery, read_query
from dragoman.api.context import Context
from dragoman.api.problems import Problem
from dragoman.api.route import respond
from dragoman.bindings import losses
from dragoman.messages.faults import Kind


class LossMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Every caller's protocol with every agent's. What is not in a pair's `losses` arrives as it was said."""

    protocols: tuple[str, ...]
    features: dict[str, tuple[str, ...]]
    pairs: tuple[losses.Pair, ...]


async def matrix(context: Context, request: Request) -> Response:
    query = read_query(request, LossesQuery)
    for name in (query.caller, query.agent):
        if name is not None and name not in losses.VOICES:
            raise Problem(Kind.NOT_FOUND, f"no protocol {name[:40]!r}", next=f"There are: {', '.join(losses.VOICES)}.")
    callers = [query.caller] if query.caller else list(losses.VOICES)
    agents = [query.agent] if query.agent else list(losses.VOICES)
    told = LossMatrix(
        protocols=tuple(losses.VOICES),
        features={"agent": losses.TO_AGENT, "caller": losses.TO_CALLER},
        pairs=tuple(losses.matrix(callers, agents)),
    )
    return respond(200, told)
