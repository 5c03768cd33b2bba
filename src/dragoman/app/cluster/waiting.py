"""What a node serves while it neither leads nor follows: that it lives, that it is not ready, and 503 for the rest.

Every answer says why, and when to ask again. A load balancer that asks `/readyz` sends callers to another node.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.responses import Response

from dragoman.api.context import respond
from dragoman.api.operations import Health
from dragoman.api.problems import problem
from dragoman.core.ids import Instant
from dragoman.core.memory import MemoryBudget
from dragoman.messages.faults import Fault, Kind
from dragoman.server.asgi import Receive, Scope, Send

RETRY_AFTER = {"Retry-After": "1"}


class WaitingHub(msgspec.Struct, frozen=True, eq=False):
    """What the HTTP server asks of a hub."""

    now: Callable[[], Instant]
    memory: MemoryBudget


class WaitingApp:
    """The ASGI application of the whole port. `why` is asked for every answer."""

    speaks_websocket = True

    def __init__(self, why: Callable[[], str]) -> None:
        self._why = why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
        await self._answer(scope.get("path", ""))(scope, receive, send)

    def _answer(self, path: str) -> Response:
        if path == "/livez":
            return respond(200, Health("ok"))
        if path == "/readyz":
            return respond(503, Health("unready", self._why()), RETRY_AFTER)
        message = f"{self._why()}; ask again in a moment, or ask another node"
        return problem(Fault(kind=Kind.OVERLOADED, message=message, retryable=True), path)
