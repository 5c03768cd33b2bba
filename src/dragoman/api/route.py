"""What a route is: where it answers, who answers, and what its documentation says, in one value.

`routes.py` lists them; Starlette's routes and OpenAPI's paths are both made from it, so that neither can say
what the other does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.context import Context
from dragoman.messages.faults import Kind

Handler = Callable[[Context, Request], Awaitable[Response]]


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """`answers` maps a status to the type of its body: a Struct, a media type as text, or None for no body.

    `handler` is None for what another transport serves and this one only documents.
    """

    method: str
    path: str
    summary: str
    tag: str
    answers: Mapping[int, Any]
    handler: Handler | None = None
    query: type[msgspec.Struct] | None = None
    body: Any = None
    body_optional: bool = False
    headers: Mapping[str, str] = {}
    refusals: tuple[Kind, ...] = ()
    auth: str | None = "admin"  # "admin", "agent", or None


def respond(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer. Nothing here may be cached or guessed to be a page."""
    extra = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(msgspec.json.encode(content), status_code=status, headers=extra, media_type="application/json")
