"""What a route is, and what its handler gets.

A route is one value: path and method, the types of query, body and answer, who may call it, the handler, and the words
of its documentation. `routes.py` lists them; routing, validation and OpenAPI are all made from that list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.live import Live
from dragoman.api.oidc_client import OidcClient
from dragoman.api.problems import Next, Problem
from dragoman.api.series import Series
from dragoman.api.sessions import Caller, Sessions
from dragoman.core.commands import Command
from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.people import Role
from dragoman.core.ports import Files, Intake, Store, Watch
from dragoman.messages.faults import Kind
from dragoman.security.tokens import DEFAULT, bearer, same, token_hash
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.asgi import Hosts
from dragoman.server.refusals import RefusalLog
from dragoman.supervisor.supervisor import Supervisor
from dragoman.wire import guard

HEARTBEAT = 15.0
MOST_BYTES = 4 * 1024 * 1024
PROTOCOL = "api"
"""What the audit record and tasks call this API."""


class Exposition(Protocol):
    """The metrics of the process, as text (app.metrics.Metrics)."""

    @property
    def content_type(self) -> str: ...

    def expose(self, counts: Mapping[str, int]) -> bytes:
        """Everything, with the gauges of `Store.counts` as of now."""
        ...


Encode = Callable[[Outgoing, Agent, Instant], Sequence[bytes]]


class Context:
    def __init__(
        self,
        intake: Intake,
        store: Store,
        *,
        admin_token: str,
        ready: Callable[[], tuple[bool, str]],
        metrics: Exposition,
        protocols: Collection[str] = ("chiffon",),
        max_body_bytes: int = MOST_BYTES,
        heartbeat: float = HEARTBEAT,
        files: Files | None = None,
        metrics_token_hash: str | None = None,
        children: Supervisor | None = None,
        auth: AuthService | None = None,
        live: Live,
        series: Series,
        encode: Encode | None = None,
        playground: Any = None,  # Any: `api.playground.Playground`, which is above
        hosts: Hosts | None = None,
        oidc: OidcClient | None = None,
        cluster: Any = None,  # Any: `api.cluster.Cluster`, which is above
    ) -> None:
        """`children` where the hub runs agents itself, `auth` where it signs tokens. `encode` puts an outgoing message
        into the bytes of its receiver's protocol, to show them. `hosts` are the names that this hub answers to,
        `oidc` the identity provider that logs people in, `cluster` the one that this hub is a node of."""
        self.intake = intake
        self.files = files
        self.store = store
        self.ready = ready
        self.metrics = metrics
        self.protocols = tuple(protocols)
        self.limits = guard.Limits(bytes=max_body_bytes)
        self.waiters = Waiters(heartbeat)
        self.refusals = RefusalLog(intake)
        self.children = children
        self.auth = auth
        self.live = live
        self.series = series
        self.encode = encode
        self.oidc = oidc
        self.playground = playground
        self.cluster = cluster
        self.audit_verdict: Any = None  # Any: `api.audit.Verdict`, which is above
        self.overviews: dict[str, tuple[float, Any]] = {}
        self._counts: tuple[float, Mapping[str, int]] = (0.0, {})
        self._counting = asyncio.Lock()
        self.sessions = Sessions(admin_token, lambda: intake.people, hosts or Hosts())
        self._admin_token_hash = token_hash(admin_token)
        self._metrics_token_hash = metrics_token_hash

    @property
    def realm(self) -> str:
        """Whose tokens this hub makes."""
        return DEFAULT if self.cluster is None else str(self.cluster.realm)

    def admit(self, request: Request, caller: Caller, role: Role) -> None:
        """Raises `Problem` for a request that another site may have made, or whose caller has a lower role."""
        self.sessions.check_site(request, caller)
        if not caller.role.includes(role):
            raise Problem(
                Kind.FORBIDDEN,
                f"this needs the role {role.value}, and {caller.name} has the role {caller.role.value}",
                next=Next("ask an admin for the role", command=f"dragoman user role NAME {role.value}"),
            )

    async def counts(self) -> Mapping[str, int]:
        """`Store.counts`, read at most once a second however many pages ask."""
        clock = asyncio.get_running_loop().time
        if clock() - self._counts[0] > 1:
            async with self._counting:
                if clock() - self._counts[0] > 1:
                    self._counts = clock(), await self.store.counts()
        return self._counts[1]

    async def execute(self, call: Call[Any, Any], command: Command) -> Any:
        """Have a command decided, in the name of the person that asks: the audit record names them."""
        if call.caller is not None and call.caller.person is not None:
            command = msgspec.structs.replace(command, person=call.caller.person)
        return await self.intake.execute(command)

    def admit_to_metrics(self, request: Request) -> None:
        """Any client passes, unless a metrics token is set: then its holder, and the administrator."""
        if self._metrics_token_hash is None:
            return
        token = bearer(request.headers.get("authorization", "").encode("latin-1"))
        hashed = None if token is None else token_hash(token)
        if hashed is None or not (same(hashed, self._metrics_token_hash) or same(hashed, self._admin_token_hash)):
            raise Problem(
                Kind.UNAUTHENTICATED,
                "the metrics of this hub need a token",
                next=Next("send the token of server.metrics_token as `Authorization: Bearer …`"),
            )


T = TypeVar("T")


class Waiters:
    """Requests that wait for a task to change. When the hub drains, `close` ends them all at once."""

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

    async def until_closed(self, waiting: Awaitable[T], otherwise: T, seconds: float | None = None) -> T:
        """What is waited for; `otherwise` at once when closed, and after so many seconds."""
        if self.closed:
            return otherwise
        try:
            async with asyncio.timeout(seconds) as clock:
                self._clocks.add(clock)
                try:
                    return await waiting
                finally:
                    self._clocks.discard(clock)
        except TimeoutError:
            return otherwise

    def close(self) -> None:
        """Call on the event loop, when the hub stops serving."""
        self.closed = True
        now = asyncio.get_running_loop().time()
        for clock in tuple(self._clocks):
            clock.reschedule(now)


Q = TypeVar("Q")
B = TypeVar("B")


@dataclass(frozen=True)
class Call(Generic[Q, B]):
    """One request. `query` and `body` have the types that the route declares, None where it declares none; `tree` is
    the body as it was parsed."""

    request: Request
    query: Q
    body: B
    tree: Any = None
    caller: Caller | None = None
    """Who asks; None where the route needs no credential."""

    @property
    def id(self) -> str:
        """The id in the path."""
        return str(self.request.path_params["id"])


Plain = Call[None, None]
Handler = Callable[[Context, Call[Any, Any]], Awaitable[Any]]
"""Returns the content of the first of the route's `answers`, or a whole `Response`."""


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """`answers` maps a status to the type of its body: a Struct, a media type as text, or None for no body.

    `handler` is None for what another transport serves and this one only documents. With `drop_nulls`, null in a field
    of the body is the same as a missing field: many clients write every field.
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
    drop_nulls: bool = False
    headers: Mapping[str, str] = {}
    refusals: tuple[Kind, ...] = ()
    auth: Role | str | None = Role.ADMIN
    """The role that the caller needs; "agent" where an agent's credential is checked elsewhere; None: no credential."""
    secret_path: bool = False
    """The path has a credential: an answer that refuses does not repeat it."""


def respond(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer; without a body if the content is None. Nothing here may be cached or guessed to be a page."""
    if content is None:
        return Response(status_code=status, headers={"Cache-Control": "no-store"})
    extra = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(msgspec.json.encode(content), status_code=status, headers=extra, media_type="application/json")


def page_of(rows: Sequence[T], limit: int, cursor: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """The first `limit` of rows of which one more was read, and the cursor of the next page."""
    page = rows[:limit]
    return page, cursor(page[-1]) if len(rows) > limit else None
