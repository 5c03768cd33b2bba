"""What every handler has at hand, and who may come to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from starlette.requests import Request

from dragoman.api.problems import Problem
from dragoman.core.ports import Files, Intake, Store, Watch
from dragoman.messages.faults import Kind
from dragoman.security.tokens import bearer, same, token_hash
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.operations import Exposition
from dragoman.server.refusals import RefusalLog
from dragoman.supervisor.supervisor import Supervisor
from dragoman.wire import guard


class Context:
    def __init__(
        self,
        intake: Intake,
        store: Store,
        *,
        admin_token_hash: str,
        ready: Callable[[], tuple[bool, str]],
        metrics: Exposition,
        protocols: Collection[str],
        limits: guard.Limits,
        heartbeat: float,
        files: Files | None = None,
        metrics_token_hash: str | None = None,
    ) -> None:
        self.intake = intake
        self.files = files
        self.store = store
        self.ready = ready
        self.metrics = metrics
        self.protocols = tuple(protocols)
        self.limits = limits
        self.waiters = Waiters(heartbeat)
        self.refusals = RefusalLog(intake)
        self.children: Supervisor | None = None
        """Set where the hub runs agents itself."""
        self.auth: AuthService | None = None
        """Set where the hub signs tokens."""
        self._admin_token_hash = admin_token_hash
        self._metrics_token_hash = metrics_token_hash

    def admit(self, request: Request) -> None:
        """Only the holder of the admin token passes. Hashes are compared, in constant time."""
        token = bearer(request.headers.get("authorization", "").encode("latin-1"))
        if token is None:
            raise Problem(Kind.UNAUTHENTICATED, "the management API needs the admin token")
        if not same(token_hash(token), self._admin_token_hash):
            raise Problem(Kind.UNAUTHENTICATED, "this is not the admin token of this hub")

    def admit_to_metrics(self, request: Request) -> None:
        """Everybody, unless a token is wanted: then its holder, and the admin."""
        if self._metrics_token_hash is None:
            return
        token = bearer(request.headers.get("authorization", "").encode("latin-1"))
        hashed = None if token is None else token_hash(token)
        if hashed is None or not (same(hashed, self._metrics_token_hash) or same(hashed, self._admin_token_hash)):
            raise Problem(
                Kind.UNAUTHENTICATED,
                "the metrics of this hub need a token",
                next="Send the token of server.metrics_token as `Authorization: Bearer …`.",
            )


class Waiters:
    """Requests that wait for a task to change. When the hub drains, `close` sends them all home at once."""

    def __init__(self, heartbeat: float) -> None:
        self.heartbeat = heartbeat
        self.closed = False
        self._clocks: set[asyncio.Timeout] = set()

    async def changed(self, watch: Watch, seconds: float) -> bool:
        """As `Watch.changed`; returns False at once when closed."""
        if self.closed:
            return False
        try:
            async with asyncio.timeout(None) as clock:
                self._clocks.add(clock)
                try:
                    return await watch.changed(seconds)
                finally:
                    self._clocks.discard(clock)
        except TimeoutError:
            return False

    def close(self) -> None:
        """Call on the event loop, when the hub stops serving."""
        self.closed = True
        now = asyncio.get_running_loop().time()
        for clock in tuple(self._clocks):
            clock.reschedule(now)
