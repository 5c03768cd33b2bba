"""Envelopes posted to agents that registered a callback URL (D10).

Each such agent has an ordered link that is always open while it is registered. An outgoing message is one POST; 2xx
acknowledges it. Outgoing messages of one task go one after the other, those of different tasks side by side.

    what fails     then
    -------------  ---------------------------------------------------------------------------
    work           this attempt failed: the hub retries, and counts it against the agent
    a notice       the link is closed and opened again after a pause, which doubles each time;
                   the hub offers what was not acknowledged again, in order

An agent that opens another ordered link (a WebSocket) takes it over; the callback connection stands back until that one
is gone.

URLs are resolved and checked each time the link opens, and the connections go to that address (`security.urls`).
Redirects are failures, proxies of the environment are not used, and nothing of ours is sent but the envelope, the
delivery's id and the trace it belongs to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from dragoman.core.commands import Acknowledge, CloseLink, OpenLink, ReportFault
from dragoman.core.ids import AgentId, Instant, SessionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.ports import Intake
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.chiffon.mapping import PROTOCOL
from dragoman.security.redaction import disclosed
from dragoman.security.urls import Network, Pinned, Resolve, UrlRefused, pin
from dragoman.server.chiffon.outbound import receipts, traceparent
from dragoman.server.connection import close_link
from dragoman.server.handler import Endpoint
from dragoman.wire.closing import CloseReason

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger("dragoman.push")

POST_SECONDS = 10.0
SIDE_BY_SIDE = 8
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
ANSWER_BYTES = 64 * 1024
"""So much of an answer is read, to keep the connection; its content says nothing to us."""

Carry = Callable[[Outgoing, Agent, Instant], Awaitable[Sequence[bytes]]]
"""An outgoing message as its messages (`ChiffonHandler.carry`)."""


class Callbacks:
    """Sends to callback URLs (`CallbackSender`). This one takes none."""

    async def check(self, url: str) -> None:
        raise UrlRefused("this hub calls no callback URLs; poll or open a WebSocket instead.")

    def follow(self, agent: AgentId) -> None: ...


class CallbackSender(Callbacks, Endpoint):
    """All the callback connections."""

    def __init__(
        self,
        hub: Intake,
        carry: Carry,
        *,
        allowed: Sequence[Network] = (),
        resolve: Resolve | None = None,
        seconds: float = POST_SECONDS,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self._hub = hub
        self.carry = carry
        self._allowed = tuple(allowed)
        self._resolve = resolve
        self._seconds = seconds
        self._first_pause = first_pause
        self._couriers: dict[AgentId, tuple[str, asyncio.Task[None]]] = {}
        self._client: httpx2.AsyncClient | None = None

    def start(self) -> None:
        """Take up where the last run of the hub ended."""
        for agent in self._hub.agents():
            if agent.protocol == PROTOCOL and agent.callback_url:
                self.follow(agent.id)

    async def drain(self, seconds: float = 0) -> None:
        tasks = [task for _, task in self._couriers.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        self._couriers.clear()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def check(self, url: str) -> None:
        await self.pinned(url)

    async def pinned(self, url: str) -> Pinned:
        return await pin(url, allowed=self._allowed, resolve=self._resolve)

    def follow(self, agent: AgentId) -> None:
        """The agent (re)registered: serve the URL it has now, if it has one."""
        known = self._hub.agent(agent)
        url = known.callback_url if known is not None else None
        old = self._couriers.get(agent)
        if old is not None:
            if old[0] == url and not old[1].done():
                return
            old[1].cancel()
            del self._couriers[agent]
        if url is not None:
            courier = CallbackConnection(self, self._hub, agent, url, self._first_pause)
            self._couriers[agent] = (url, asyncio.ensure_future(courier.run()))

    async def post(self, to: Pinned, frame: bytes, about: Mapping[str, str]) -> bool:
        """Whether the agent took it."""
        import httpx2  # here, because it is slow to import and most hubs push to nobody

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


class CallbackConnection:
    """One agent's link: `core.ports.LinkEnd`."""

    def __init__(self, push: CallbackSender, hub: Intake, agent: AgentId, url: str, first_pause: float) -> None:
        self._push = push
        self._hub = hub
        self._agent = agent
        self._url = url
        self._pause = self._first_pause = first_pause
        self._turns = asyncio.Semaphore(SIDE_BY_SIDE)
        self._broken = asyncio.Event()
        self._replaced = False
        self._lanes: dict[TaskId, deque[Outgoing]] = {}
        self._carriers: set[asyncio.Task[None]] = set()
        self._session = SessionId("")
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
            while self._replaced and self._hub.reachable(self._agent):  # noqa: ASYNC110 - links tell nobody that they go
                await asyncio.sleep(self._first_pause * 5)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _serve(self) -> None:
        """Open the link and carry outgoing messages until it breaks."""
        self._to = await self._push.pinned(self._url)
        self._session = SessionId(self._hub.mint())
        self._broken.clear()
        self._replaced = False
        self._hub.attach(self._session, self)
        try:
            await self._hub.execute(
                OpenLink(
                    principal=self._agent, protocol=PROTOCOL, session=self._session, ordered=True, acknowledges=True
                )
            )
            await self._broken.wait()
        finally:
            for carrier in self._carriers:
                carrier.cancel()
            self._lanes.clear()
            close_link(self._hub, CloseLink(principal=self._agent, session=self._session))

    # -- the hub calls

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        for outgoing in outgoing_messages:
            task = outgoing.delivery.task
            if task in self._lanes:
                self._lanes[task].append(outgoing)
                continue
            self._lanes[task] = deque((outgoing,))
            carrier = asyncio.ensure_future(self._carry(task, self._lanes[task]))
            self._carriers.add(carrier)
            carrier.add_done_callback(self._carriers.discard)

    def hang_up(self, reason: CloseReason) -> None:
        self._replaced = reason is CloseReason.NEWER_CONNECTION
        self._broken.set()

    # -- the work

    async def _carry(self, task: TaskId, lane: deque[Outgoing]) -> None:
        while lane:
            outgoing = lane[0]
            try:
                async with self._turns:
                    taken = await self._hand_over(outgoing)
            except Exception as error:  # nobody would carry this lane any more
                why = disclosed(error, personal=outgoing.personal)
                log.error("not carried", task=task, kind=outgoing.delivery.kind.value, exc_info=why)
                taken = False
            if not taken and outgoing.delivery.kind is not MessageKind.WORK:
                self._broken.set()
                return
            try:
                await self._report(outgoing, taken)
            except Refused as refused:
                log.info("not recorded", agent=self._agent, why=refused.fault.kind.value)
            lane.popleft()
        if self._lanes.get(task) is lane:
            del self._lanes[task]

    async def _hand_over(self, outgoing: Outgoing) -> bool:
        agent = self._hub.agent(self._agent)
        if agent is None or self._to is None:
            return False
        delivery = outgoing.delivery.id
        trace = traceparent(outgoing.task, delivery)  # all-D7
        frames = await self._push.carry(outgoing, agent, self._hub.now())
        for id, frame in zip(receipts(delivery, len(frames)), frames, strict=True):
            about = {"x-delivery-id": id, "traceparent": trace}
            if not await self._push.post(self._to, frame, about):
                return False
        return True

    async def _report(self, outgoing: Outgoing, taken: bool) -> None:
        if taken:
            self._pause = self._first_pause
            await self._hub.execute(
                Acknowledge(principal=self._agent, deliveries=(outgoing.delivery.id,), session=self._session)
            )
            return
        fault = Fault(
            kind=Kind.UNAVAILABLE,
            message="the agent's callback URL did not take the work",
            retryable=True,
            facts={"agent_id": self._agent, "last_heartbeat": None},
        )
        await self._hub.execute(
            ReportFault(principal=self._agent, protocol=PROTOCOL, fault=fault, task_id=outgoing.delivery.task)
        )
