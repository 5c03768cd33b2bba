"""Callbacks: the hub posts messages to agents that registered a URL (chiffon-D10).

Each such agent has an ordered session that is open as long as the agent is registered. An outgoing message is one POST;
2xx acknowledges it (`server.lanes`). When a notice fails, the session is closed and opened again after a pause, which
doubles each time.

In a cluster the leader has all of them (`CallbackSender`): two nodes that post to one agent would end each other's
session. The other nodes only check the URLs of agents that register there (`CallbackUrls`).

An ordered session that the agent opens itself (a WebSocket) replaces this one, which opens again when that one ends.

The hub resolves and checks a URL each time the session opens, and connects to that address (`security.urls`). Redirects
are failures, proxies of the environment are not used, and the hub sends nothing but the message, the delivery's id and
the trace it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.messages.faults import Refused
from dragoman.security.urls import Network, Pinned, Resolve, UrlRefused, pin
from dragoman.server.content import traceparent
from dragoman.server.handler import Endpoint, HttpHandler
from dragoman.server.lanes import LaneLink
from dragoman.wire.closing import CloseReason

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger("dragoman.push")

POST_SECONDS = 10.0
SIDE_BY_SIDE = 8
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
ANSWER_BYTES = 64 * 1024
"""The hub reads so much of an answer, to keep the connection; its content does not matter."""


class Callbacks:
    """Does nothing: for a hub that calls no URLs."""

    async def check(self, url: str) -> None:
        """Raises `UrlRefused`."""
        raise UrlRefused("this hub calls no callback URLs", "poll or open a WebSocket instead")


class CallbackUrls(Callbacks):
    """Checks URLs that the leader will call."""

    def __init__(self, *, allowed: Sequence[Network] = (), resolve: Resolve | None = None) -> None:
        self._allowed = tuple(allowed)
        self._resolve = resolve

    async def check(self, url: str) -> None:
        await self.pinned(url)

    async def pinned(self, url: str) -> Pinned:
        return await pin(url, allowed=self._allowed, resolve=self._resolve)


class CallbackSender(CallbackUrls, Endpoint):
    """All callback connections of one protocol."""

    def __init__(
        self,
        handler: HttpHandler,
        *,
        allowed: Sequence[Network] = (),
        resolve: Resolve | None = None,
        seconds: float = POST_SECONDS,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        super().__init__(allowed=allowed, resolve=resolve)
        self._handler = handler
        self._hub = handler.hub
        self._seconds = seconds
        self._first_pause = first_pause
        self._connections: dict[AgentId, tuple[str, asyncio.Task[None]]] = {}
        self._client: httpx2.AsyncClient | None = None

    def start(self) -> None:
        """Open the sessions of all agents that have a URL, now and when they register."""
        self._hub.watch_callbacks(self.follow)
        for agent in self._hub.agents():
            if agent.callback_url:
                self.follow(agent.id)

    async def drain(self, seconds: float = 0) -> None:
        self._hub.watch_callbacks(None)
        tasks = [task for _, task in self._connections.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        self._connections.clear()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def abort(self) -> None:
        await self.drain()

    def follow(self, agent: AgentId) -> None:
        """The agent registered, changed its URL, or was removed: post to the one it has now, if any."""
        known = self._hub.agent(agent)
        url = known.callback_url if known is not None and known.protocol == self._handler.protocol else None
        old = self._connections.get(agent)
        if old is not None:
            if old[0] == url and not old[1].done():
                return
            old[1].cancel()
            del self._connections[agent]
        if url is not None:
            connection = CallbackConnection(self, self._handler, agent, url, self._first_pause)
            self._connections[agent] = (url, asyncio.ensure_future(connection.run()))

    async def post(self, to: Pinned, frame: bytes, about: Mapping[str, str]) -> bool:
        """Post a frame; gives whether the agent accepted it."""
        import httpx2  # imported here because it is slow to import, and most hubs call no URL

        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=self._seconds, follow_redirects=False, trust_env=False)
        headers = {"host": to.host_header, "content-type": "application/json", **about}
        extensions = {"sni_hostname": to.host} if to.scheme == "https" else {}
        try:
            async with asyncio.timeout(self._seconds):
                request = self._client.build_request(
                    "POST", to.url, content=frame, headers=headers, extensions=extensions
                )
                response = await self._client.send(request, stream=True)
                try:
                    await _skim(response)
                finally:
                    await response.aclose()
        except (httpx2.HTTPError, TimeoutError, OSError, AttributeError) as error:
            # The last: uvloop's socket of a connection that was reset at once is None, which anyio does not expect.
            log.info("push failed", host=to.host, error=type(error).__name__)
            return False
        if not response.is_success:
            log.info("push refused", host=to.host, status=response.status_code)
        return bool(response.is_success)


async def _skim(response: httpx2.Response) -> None:
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > ANSWER_BYTES:
            return


class CallbackConnection(LaneLink):
    """One agent's link."""

    not_taken = "the agent's callback URL did not take the work"

    def __init__(
        self, sender: CallbackSender, handler: HttpHandler, agent: AgentId, url: str, first_pause: float
    ) -> None:
        super().__init__(handler, agent, side_by_side=SIDE_BY_SIDE)
        self._sender = sender
        self._url = url
        self._pause = self._first_pause = first_pause
        self._over = asyncio.Event()
        self._replaced = False
        self._to: Pinned | None = None

    async def run(self) -> None:
        while True:
            agent = self._hub.agent(self._agent)
            if agent is None or agent.callback_url != self._url:
                return
            try:
                await self._serve()
            except UrlRefused as refused:
                log.warning("callback refused", agent=self._agent, why=str(refused))
            except Refused as refused:
                log.warning("no link", agent=self._agent, why=refused.fault.kind.value)
            while self._replaced and self._hub.reachable(self._agent):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(self._first_pause * 5)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _serve(self) -> None:
        """Open the session and send outgoing messages until it breaks."""
        self._to = await self._sender.pinned(self._url)
        self._over.clear()
        self._replaced = False
        try:
            await self.open()
            await self._over.wait()
        finally:
            self.close()

    def hang_up(self, reason: CloseReason) -> None:
        self._replaced = reason is CloseReason.NEWER_CONNECTION
        self._over.set()

    def _broken(self) -> None:
        self._over.set()

    def _took(self) -> None:
        self._pause = self._first_pause

    async def _send(self, outgoing: Outgoing, agent: Agent) -> bool:
        if self._to is None:
            return False
        trace = traceparent(outgoing.task, outgoing.delivery.id)  # all-D7
        frames = await self._handler.encode(outgoing, agent, self._hub.now())
        for id, frame in zip(self._handler.receipts(outgoing, len(frames)), frames, strict=True):
            about = {"x-delivery-id": id, "traceparent": trace}
            if not await self._sender.post(self._to, frame, about):
                return False
        return True
