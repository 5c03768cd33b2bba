"""The intake of a following node: it hands every command to the leader, and answers everything else from the mirror.

Endpoints, the API and the supervisor use it as they use the leader's own (`app.intake.Intake`). What a batch of the
leader says takes effect in one turn of the loop, in this order: the mirror, the outcomes, the deliveries, the links
that the hub closed, the watches. So a handler that gets an outcome sees what the commit changed, and a poll that is
told how much it got has it.

When the stream ends, no handler learns what became of its command: neither an outcome nor a refusal would be true. What
waits for one waits on, until the node ends its term and with it the requests that are under way (`HttpServer.stop`).
Every session is hung up as by a hub that stops. `lost` says why. Only a link that closes is known to be closed: the
leader closes all links of a node that is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from dragoman.app.cluster.link.leader import check_tls, note_elsewhere
from dragoman.app.cluster.link.messages import (
    COMMAND_ITEMS,
    REASONS,
    VERSION,
    AskRecent,
    Attach,
    Batch,
    Detach,
    Hello,
    LinkRefused,
    NodeStops,
    Pipelining,
    Published,
    RecentItem,
    RefusalItem,
    RefusedHere,
    Rejected,
    Subscribed,
    Unwatch,
    Watch,
    WatchLive,
    Welcome,
    answer_from,
    digest_of,
    encode,
    shape,
)
from dragoman.app.cluster.link.mirror import Mirror
from dragoman.app.cluster.link.remote_live import RemoteLive, RemoteSeries
from dragoman.app.cluster.link.stream import CAP, LARGEST, PART, TTL_SECONDS, Stream
from dragoman.app.command_queue import CommandQueue
from dragoman.app.directory_view import DirectoryView
from dragoman.core.commands import CloseLink, Command
from dragoman.core.ids import SECOND, Instant, SessionId
from dragoman.core.memory import MemoryBudget
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.series import Bucket
from dragoman.core.pipelining import Pipelined, Then
from dragoman.core.ports import LinkEnd, Store
from dragoman.core.rules import Rules
from dragoman.core.streams import Streams
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.cluster")

CONNECT_SECONDS = 5.0
SNAPSHOT_SECONDS = 30.0
MOST_UNANSWERED = 50_000
"""Commands under way before new ones are refused, as in `app.intake`."""
MOST_UNSENT = 64 * 1024 * 1024
"""Bytes of commands that the leader has not read."""
STOP_SECONDS = 5.0


class RemoteIntake(CommandQueue, DirectoryView):
    """`core.ports.Intake` at a following node. Made by `connect`."""

    leads = False

    def __init__(
        self,
        *,
        store: Store,
        rules: Rules,
        now: Callable[[], Instant],
        mint: Callable[[], str],
        memory: MemoryBudget | None = None,
        streams: Streams | None = None,
        ttl: float = TTL_SECONDS,
        cap: int = CAP,
    ) -> None:
        super().__init__(store, rules, now)
        self.mint = mint
        self.memory = memory or MemoryBudget()
        self.streams = streams or Streams()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the stream has ended, with the reason."""
        self._mirror = Mirror()
        self._directory = self._mirror.directory
        self.live = RemoteLive(now, self.watch_live)
        self.series = RemoteSeries(now, self.recent_buckets)
        self.bus.meet(self)
        self._ends: dict[SessionId, LinkEnd] = {}
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, tuple[Then, Instant]] = {}
        self._closing: set[int] = set()
        """Those of them that close a link."""
        self._answers: dict[int, asyncio.Future[Any]] = {}
        """What this module itself asked the leader for."""
        self._items: deque[bytes] = deque()
        self._size = 0
        self._flushing = False
        self._last: Then | None = None
        """The last pipelined message: one may be several commands."""
        self._pending: Batch | None = None
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle: asyncio.Future[None] | None = None
        self._stopping = False
        self.last_failure: str | None = None
        self._stream = Stream(self._on_frame, self._on_end, ttl=ttl, cap=cap, on_writable=self._flush)

    # -- life ----------------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        address: tuple[str, int],
        *,
        node: str,
        store: Store,
        rules: Rules,
        now: Callable[[], Instant],
        mint: Callable[[], str],
        tls: ssl.SSLContext | None,
        leader: str = "",
        realm: str = "default",
        epoch: int = 0,
        seconds: float = CONNECT_SECONDS,
        **more: Any,
    ) -> RemoteIntake:
        """Follow the leader at this address; returns when the mirror is complete. `leader` is the name that its
        certificate must have.

        Raises `LinkRefused` where the leader does not take this node (or is none of this version), and `OSError` where
        it cannot be reached in time.
        """
        host, port = address
        check_tls(tls, host)
        loop = asyncio.get_running_loop()
        intake = cls(store=store, rules=rules, now=now, mint=mint, **more)
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {
                "ssl": tls,
                "server_hostname": leader or host,
                "ssl_handshake_timeout": seconds,
                "ssl_shutdown_timeout": 1.0,
            }
        stream = intake._stream
        stream.largest = LARGEST
        hello = Hello(
            version=VERSION, node=node, realm=realm, epoch=epoch, rules=digest_of(rules), shape=shape()
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(lambda: stream, host, port, **secured)
                stream.write(encode(hello))
                await intake._welcomed
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                await intake._is_here
        except ssl.SSLError as error:
            stream.end("no TLS")
            raise LinkRefused(f"TLS with the leader at {host}:{port} failed: {error}") from None
        except BaseException:
            stream.end("not connected")
            raise
        return intake

    def part(self) -> None:
        """From now on this node is about to stop: closing its links is no failure of the agents."""
        if not self._stopping:
            self._stopping = True
            self._send(NodeStops())

    async def stop(self) -> None:
        """Hand over what was accepted, wait a moment for its outcomes, then end the stream. The store stays open: its
        owner closes it."""
        self.part()
        if self._unanswered and not self.lost.done():
            self._idle = asyncio.get_running_loop().create_future()
            either: set[asyncio.Future[Any]] = {self._idle, self.lost}
            await asyncio.wait(either, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._flush()
        self._stream.close("this node stops")
        await asyncio.wait({self.lost}, timeout=1.0)
        self._stream.end("this node stops")

    def fence(self) -> None:
        """This node follows that leader no more: say nothing of what is unanswered."""
        self._stream.end("this node follows no more")

    # -- the port: commands --------------------------------------------------------------------------------------------

    def enqueue_then(self, command: Command, then: Then) -> None:
        if self.lost.done():
            if type(command) is CloseLink:
                then(None, None)
            return
        pipelining = self._place_of(then) if type(then) is Pipelined else None
        full = self.depth >= MOST_UNANSWERED or self._size >= MOST_UNSENT
        if full and type(command) is not CloseLink:
            if pipelining is not None:
                self._send(RefusedHere(pipelining))
            why = f"{self.depth} commands already wait for the leader"
            then(None, refuse(Kind.OVERLOADED, why, next="try again in a moment", retryable=True))
            return
        number = next(self._numbers)
        self._send(COMMAND_ITEMS[type(command)](number, pipelining, command))
        self._unanswered[number] = then, self.now()
        if type(command) is CloseLink:
            self._closing.add(number)

    def _place_of(self, then: Pipelined) -> Pipelining:
        again, self._last = self._last is then, then
        return Pipelining(then.pipeline.session, then.task, then.id, then.stream, then.begins, again)

    def enqueue_and_forget(self, command: Command) -> None:
        self._send(COMMAND_ITEMS[type(command)](0, None, command))

    def attach(self, session: SessionId, end: LinkEnd) -> None:
        if self.lost.done():
            end.hang_up(CloseReason.HUB_STOPS)
            return
        self._ends[session] = end
        self._send(Attach(session))

    def detach(self, session: SessionId) -> None:
        self._ends.pop(session, None)
        self._send(Detach(session))

    # -- what only the hub as a whole asks -----------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Commands whose outcome is not known yet."""
        return len(self._unanswered)

    @property
    def stalled(self) -> tuple[int, int]:
        """As of `IntakeHealth`: no unit is under way here; for how long the oldest command has waited."""
        oldest = next(iter(self._unanswered.values()), None)
        return 0, 0 if oldest is None else max(0, self.now() - oldest[1])

    def why_stalled(self, seconds: float) -> str | None:
        waits = self.stalled[1] / SECOND
        if waits > seconds:
            return f"the oldest of {self.depth} commands has waited for the leader for {waits:.0f} s"
        return None

    async def recent_buckets(self) -> list[Bucket]:
        """The buckets of the plots that the store does not have yet."""
        buckets: list[Bucket] = await self._ask(AskRecent)
        return buckets

    def watch_live(self, on: bool) -> asyncio.Future[None]:
        """Have the leader send the moments of the event stream, or not; done when it does."""
        return self._ask(lambda number: WatchLive(number, on))

    def _ask(self, question: Callable[[int], msgspec.Struct]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost.done():
            return future
        number = next(self._numbers)
        self._answers[number] = future
        self._send(question(number))
        return future

    def _subscribe(self, about: str, *, on: bool) -> None:
        self._send(Watch(about) if on else Unwatch(about))

    # -- publish and subscribe: `server.forge.bus.Neighbours`

    def subscribed(self, pattern: str, readers: int) -> None:
        self._send(Subscribed(pattern, readers))

    def published(self, topic: str, publisher: str, data: Any) -> None:
        self._send(Published(topic, publisher, data))

    # -- out -----------------------------------------------------------------------------------------------------------

    def _send(self, item: msgspec.Struct) -> None:
        if self.lost.done():
            return
        encoded = encode(item)
        self._items.append(encoded)
        self._size += len(encoded)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what was enqueued in this turn of the loop, as long as the leader reads."""
        self._flushing = False
        items = self._items
        while items and self._stream.writable and not self.lost.done():
            together, size = [items.popleft()], 0
            while items and size < PART:
                size += len(items[0])
                together.append(items.popleft())
            self._size -= sum(map(len, together))
            self._stream.write(b"[%b]" % b",".join(together))

    # -- in ------------------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: bytes) -> None:
        try:
            answer = answer_from(frame)
        except msgspec.DecodeError as error:
            self._stream.end(f"the leader sent a frame that none of this version sends: {error}")
            return
        if isinstance(answer, Batch):
            if self._pending is not None:
                self._pending.extend(answer)
            else:
                self._pending = answer
            if answer.ends:
                batch, self._pending = self._pending, None
                self._apply(batch)
        elif isinstance(answer, Welcome):
            self._serving_since = answer.serving_since
            if not self._welcomed.done():
                self._welcomed.set_result(None)
        elif isinstance(answer, Rejected):
            for future in (self._welcomed, self._is_here):
                if not future.done():
                    future.set_exception(LinkRefused(answer.why))
                    future.exception()  # one of them is never waited for

    def _apply(self, batch: Batch) -> None:
        """What one commit means for this node."""
        state_changed = False
        for delta in batch.deltas:
            self._mirror.apply(delta)
            state_changed = state_changed or delta.state_cursor is not None
            for id in delta.contracts:
                self._contracts.pop(id, None)
        for item in batch.outcomes:
            if isinstance(item, RefusalItem):
                self._answer(item.number, None, Refused(item.fault, keep=item.keep))
            elif isinstance(item, RecentItem):
                self._answer(item.number, item.buckets, None)
            else:
                self._answer(item.number, item.outcome, None)
        by_session: dict[SessionId, list[Outgoing]] = {}
        for delivered in batch.delivered:
            by_session.setdefault(delivered.session, []).append(delivered.message.outgoing)
        for session, outgoing_messages in by_session.items():
            if (end := self._ends.get(session)) is not None:  # else it was detached, and the leader will know it
                try:
                    end.deliver(outgoing_messages)
                except Exception:
                    log.exception("a delivery failed", session=session)
        for session, reason in batch.hung_up:
            if (end := self._ends.pop(session, None)) is not None:
                end.hang_up(REASONS[reason])
        for about in batch.touched:
            self._wake(about)
        if state_changed:
            self._wake_state()
        for readers in batch.subscribed:
            note_elsewhere(self.bus, readers)
        for one in batch.published:
            self.bus.deliver(one.topic, one.publisher, one.data)
        for moment in batch.moments:
            self.live.take(moment)
        if not self._is_here.done():
            self._is_here.set_result(None)
        if self._idle is not None and not self._unanswered and not self._idle.done():
            self._idle.set_result(None)

    def _answer(self, number: int, outcome: Any, refusal: Refused | None) -> None:
        asked = self._answers.pop(number, None)
        if asked is not None:
            if not asked.done():
                asked.set_result(outcome)
            return
        found = self._unanswered.pop(number, None)
        if found is None:
            return
        self._closing.discard(number)
        try:
            found[0](outcome, refusal)
        except Exception:
            log.exception("an outcome was not taken", number=number)

    def _on_end(self, why: str) -> None:
        """What is unanswered stays so: it may have been done."""
        if self.lost.done():
            return
        self.lost.set_result(why)
        log.warning("the stream to the leader ended", why=why, unanswered=len(self._unanswered))
        closed = [self._unanswered[number][0] for number in self._closing]
        self._unanswered.clear()
        self._closing.clear()
        self._items.clear()
        for waiting in (self._welcomed, self._is_here):
            if not waiting.done():
                waiting.set_exception(ConnectionError(why))
                waiting.exception()  # it may be that nobody waits for it any more
        ends = list(self._ends.values())
        self._ends.clear()
        for end in ends:
            try:
                end.hang_up(CloseReason.HUB_STOPS)
            except Exception:
                log.exception("a connection was not closed")
        for then in closed:
            then(None, None)
