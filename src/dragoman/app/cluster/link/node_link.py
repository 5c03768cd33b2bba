"""One following node, as the leader sees it: `LeaderPort` has one for each stream.

It takes the node's items in their order and hands commands to the intake; it gathers what each commit means for the
node, and sends that as one batch at the end of the commit. When the stream ends, the links of the node's sessions are
closed like links that broke.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dragoman.api.live import Live
from dragoman.api.series import Series
from dragoman.app.cluster.link.messages import (
    AskRecent,
    Attach,
    Batch,
    Carried,
    CommandItem,
    Delivered,
    Detach,
    Hello,
    MomentItem,
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
    encode,
    hello_from,
    items_from,
    outcome_item,
)
from dragoman.app.cluster.link.mirror import Delta
from dragoman.app.cluster.link.stream import LARGEST, PART, Stream
from dragoman.core.commands import CloseLink
from dragoman.core.ids import HUB, SessionId
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.pipelining import BEHIND, Pipeline, Pipelined, Then
from dragoman.messages.faults import Refused
from dragoman.server.connection import close_link
from dragoman.wire.closing import CloseReason

if TYPE_CHECKING:
    from dragoman.app.intake import Intake

log = structlog.get_logger("dragoman.cluster")

UNDECIDED_BYTES = 64 * 1024 * 1024
"""Bytes of one node's commands that may wait for their decision; beyond that the leader does not read its stream."""
UNDECIDED = 20_000
MOST_PIPELINES = 1000
"""Pipelines of sessions that are not attached."""
LIVE_BACKLOG = 8 * 1024 * 1024
"""While so much waits for a node, its moments are left out: watchers read the store instead."""
MOMENT_SECONDS = 15.0


class NodeLink:
    """`judge` looks at a handshake, and returns why the node is not taken, or None. `welcomed` is called when it is,
    `gone` when the stream has ended."""

    def __init__(
        self,
        intake: Intake,
        *,
        judge: Callable[[Hello, Mapping[str, Any] | None], str | None],
        welcomed: Callable[[NodeLink], Sequence[Delta]],
        gone: Callable[[NodeLink], None],
        subscribed: Callable[[NodeLink, str, int], None],
        published: Callable[[NodeLink, Published], None],
        live: Live | None,
        series: Series | None,
        ttl: float,
        cap: int,
        handshake_seconds: float,
    ) -> None:
        self._intake = intake
        self._judge = judge
        self._welcomed = welcomed
        self._gone = gone
        self._subscribed = subscribed
        self._published = published
        self._live = live
        self._series = series
        self.node = ""
        self._batch = Batch()
        self._flushing: asyncio.Handle | None = None
        self._ended = False
        self._sessions: dict[SessionId, RemoteEnd] = {}
        self._pipelines: dict[SessionId, Pipeline] = {}
        self._last: tuple[Pipelined, _Numbers] | None = None
        """The message of the last pipelined command: one message may be several commands."""
        self._stopping = False
        self.watched: set[str] = set()
        self._watching: asyncio.Task[None] | None = None
        self._undecided = 0
        self._undecided_bytes = 0
        self.stream = Stream(self._on_frame, self._on_end, ttl=ttl, cap=cap)
        self._too_late = asyncio.get_running_loop().call_later(
            handshake_seconds, self.stream.end, f"no handshake within {handshake_seconds:g} seconds"
        )

    # -- the stream calls

    def _on_frame(self, frame: bytes) -> None:
        try:
            if self.node:
                self._take(frame)
            else:
                self._shake_hands(frame)
        except msgspec.DecodeError as error:
            self.stream.end(f"a frame that nobody of this version sends: {error}")
        except Exception:
            log.exception("a frame of a node", node=self.node)
            self.stream.end("a frame of it could not be handled")

    def _on_end(self, why: str) -> None:
        self._ended = True
        self._too_late.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self.node:
            log.warning("a node is gone", node=self.node, why=why, sessions=len(self._sessions))
        else:
            log.warning("no node", why=why)
        self._batch = Batch()
        for session in self._sessions:
            # Until this is decided, the session takes what the hub still gives it, and sends it nowhere.
            close_link(self._intake, CloseLink(principal=HUB, session=session))
        self._sessions.clear()
        self._pipelines.clear()
        self._gone(self)

    # -- the handshake

    def _shake_hands(self, frame: bytes) -> None:
        hello = hello_from(frame)
        why = self._judge(hello, self.stream.certificate)
        if why is not None:
            self.stream.write(encode(Rejected(why=why)))
            self.stream.close(f"it was refused: {why}")
            return
        self._too_late.cancel()
        self.node = hello.node
        self.stream.largest = LARGEST
        self.stream.write(encode(Welcome(serving_since=self._intake.serving_since)))
        parts = self._welcomed(self)
        for number, delta in enumerate(parts, 1):
            self._send(Batch(deltas=[delta], ends=number == len(parts)))
        log.info("a node follows", node=self.node)

    # -- what it sends

    def _take(self, frame: bytes) -> None:
        items = items_from(frame)
        share = len(frame) // max(1, len(items))
        for item in items:
            if isinstance(item, CommandItem):
                self._enqueue(item, share)
                continue
            match item:
                case Attach(session=session):
                    self._attach(session)
                case Detach(session=session):
                    if self._sessions.pop(session, None) is not None:
                        self._intake.detach(session)
                    self._pipelines.pop(session, None)
                case RefusedHere(pipelining=pipelining):
                    self._note_refused(pipelining)
                case Watch(about=about):
                    self.watched.add(about)
                    self._batch.touched.append(about)
                    self._flush_soon()
                case Unwatch(about=about):
                    self.watched.discard(about)
                case WatchLive(number=number, on=on):
                    self._watch_live(number, on)
                case AskRecent(number=number):
                    buckets = [] if self._series is None else self._series.recent
                    self._batch.outcomes.append(RecentItem(number, buckets))
                    self._flush_soon()
                case Subscribed(pattern=pattern, readers=readers):
                    self._subscribed(self, pattern, readers)
                case Published():
                    self._published(self, item)
                case NodeStops():
                    self._stopping = True
            if self._ended:
                return

    def _enqueue(self, item: CommandItem, size: int) -> None:
        command = item.command
        if self._stopping and type(command) is CloseLink:
            command = msgspec.structs.replace(command, stopping=True)
        if not item.number:
            self._intake.enqueue_and_forget(command)
            return
        self._undecided += 1
        self._undecided_bytes += size
        if self._undecided >= UNDECIDED or self._undecided_bytes >= UNDECIDED_BYTES:
            self.stream.stop_reading()
        then: Then
        if item.pipelining is None:
            then = partial(self._decided, item.number, size)
        else:
            then = self._pipelined(item.pipelining, item.number, size)
        self._intake.enqueue_then(command, then)

    def _pipelined(self, of: Pipelining, number: int, size: int) -> Pipelined:
        """What a connection's loop makes beside the hub: here, since here is decided."""
        if of.again and self._last is not None:
            pipelined, numbers = self._last
            numbers.waiting.append((number, size))
            return pipelined
        numbers = _Numbers(self._decided, number, size)
        pipelined = self._place(of, numbers)
        self._last = pipelined, numbers
        return pipelined

    def _place(self, of: Pipelining, then: Then) -> Pipelined:
        pipeline = self._pipelines.get(of.session)
        if pipeline is None:
            if len(self._pipelines) > len(self._sessions) + MOST_PIPELINES:
                # Some messages come before their session is attached, and some after it is detached.
                self._pipelines = {id: one for id, one in self._pipelines.items() if id in self._sessions}
            pipeline = self._pipelines[of.session] = Pipeline(of.session)
        return Pipelined(pipeline, of.task, of.id, then, stream=of.stream, begins=of.begins)

    def _note_refused(self, of: Pipelining) -> None:
        """The node refused a message itself, for now: what comes behind it about its task is held back."""
        again = self._last is not None and of.again
        pipelined = self._last[0] if again and self._last is not None else self._place(of, _nothing)
        pipelined.decided(Refused(BEHIND), self._intake.now())

    def _decided(self, number: int, size: int, outcome: Any, refusal: Refused | None) -> None:
        self._undecided -= 1
        self._undecided_bytes -= size
        if self._ended:
            return
        if (
            not self.stream.reading
            and self._undecided <= UNDECIDED // 2
            and (self._undecided_bytes <= UNDECIDED_BYTES // 2)
        ):
            self.stream.resume_reading()
        if refusal is not None:
            self._batch.outcomes.append(RefusalItem(number, refusal.fault, refusal.keep))
        else:
            self._batch.outcomes.append(outcome_item(number, outcome))
        self._flush_soon()

    def _attach(self, session: SessionId) -> None:
        if self._intake.is_attached(session):
            self.stream.end("it holds a session that another node holds")
            return
        end = self._sessions[session] = RemoteEnd(self, session)
        self._intake.attach(session, end)

    # -- what it gets

    @property
    def ended(self) -> bool:
        return self._ended

    def settled(self, delta: msgspec.Raw) -> None:
        """A commit changed the mirror: the JSON of a `Delta`. Called before its outcomes are published."""
        self._batch.deltas.append(delta)  # type: ignore[arg-type]

    def delivered(self, touched: Sequence[str]) -> None:
        """The commit's outcomes and deliveries are all here."""
        self._batch.touched.extend(touched)
        self._flush()

    def deliver(self, session: SessionId, outgoing_messages: Sequence[Outgoing]) -> None:
        self._batch.delivered.extend(Delivered(session, Carried.of(one)) for one in outgoing_messages)
        self._flush_soon()

    def hang_up(self, session: SessionId, reason: CloseReason) -> None:
        self._batch.hung_up.append((session, reason.name))
        self._flush_soon()

    def tell_of(self, *what: Subscribed | Published) -> None:
        """Who reads at the other nodes, and what was published there."""
        for one in what:
            if isinstance(one, Published):
                self._batch.published.append(one)
            else:
                self._batch.subscribed.append(one)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        batch, self._batch = self._batch, Batch()
        if batch and not self._ended:
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        frame = encode(batch)
        if len(frame) <= PART:
            self.stream.write(frame)
            return
        first, second = batch.halves()
        if not first:  # one message alone
            self.stream.write(frame)
            return
        self._send(first)
        self._send(second)

    # -- the event stream

    def _watch_live(self, number: int, on: bool) -> None:
        if not on and self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if on and self._watching is None and self._live is not None:
            self._watching = asyncio.create_task(self._send_moments(self._live, number), name=f"live {self.node}")
        else:
            self._undecided += 1
            self._decided(number, 0, None, None)

    async def _send_moments(self, live: Live, number: int) -> None:
        async with live.watching() as watcher:
            self._undecided += 1
            self._decided(number, 0, None, None)
            while not self._ended:
                moments, _ = await watcher.next(MOMENT_SECONDS)
                if moments and self.stream.unsent < LIVE_BACKLOG:  # their numbers say what is left out
                    self._flush()
                    self._send(Batch(moments=[MomentItem.of(moment) for moment in moments]))


class RemoteEnd:
    """A session that a node holds: `core.ports.LinkEnd`."""

    def __init__(self, node: NodeLink, session: SessionId) -> None:
        self._node = node
        self._session = session

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        if not self._node.ended:
            self._node.deliver(self._session, outgoing_messages)

    def hang_up(self, reason: CloseReason) -> None:
        if not self._node.ended:
            self._node.hang_up(self._session, reason)


class _Numbers:
    """The outcomes of the commands of one pipelined message go to the node under these numbers, in this order. The node
    calls the same function for each of them."""

    def __init__(self, then: Callable[[int, int, Any, Refused | None], None], number: int, size: int) -> None:
        self._then = then
        self.waiting = deque(((number, size),))

    def __call__(self, outcome: Any, refusal: Refused | None) -> None:
        self._then(*self.waiting.popleft(), outcome, refusal)


def _nothing(outcome: Any, refusal: Refused | None) -> None:
    """No command of it waits."""
