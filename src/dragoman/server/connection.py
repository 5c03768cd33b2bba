"""The connection loop, the same for every connection that keeps its order: it reads frames, enqueues commands, writes
outgoing messages, and acknowledges deliveries.

It knows no protocol: a `session.Session` decodes a frame and encodes an outgoing message. It knows no transport: a
`Wire` writes frames, and stops and resumes reading. The loop keeps the promises that are the same for all:

- *Order*: frames of one connection reach the intake in the order in which they came. They do not wait for each other's
  commits: many may be under way at once, and one commit takes them all. Only a frame that reads what the ones before
  it may have changed waits until they are committed, so a request sees the effect of every message sent before it.
- *Backpressure, in*: beyond `unanswered` frames under way, or `BEHIND` bytes that wait for their turn, or when the hub
  holds as many bytes of messages as it may (`core.memory`), the loop stops reading, so a slow disk slows the sender. A
  protocol with a rate limit refuses an agent that exceeds it at once: `measured` frames are decoded when they come,
  even while an earlier one is looked up, unless they are long.
- *Backpressure, out*: the hub gives a connection at most a window of unacknowledged outgoing messages, and of bytes
  that were not written yet, for which the loop reports how far writing has come; what a peer does not read stays in the
  store.
- *Answers*: a refused frame is answered with an error of its protocol, and the connection goes on. Receipts for
  accepted ones, where the peer wants them, are gathered and sent together. What follows a frame about a task that was
  refused for now does not overtake it (`core.pipelining`).
- *Acknowledgment*: the hub believes a peer that acknowledges explicitly. To any other it sends a ping behind what it
  wrote, and the pong acknowledges the notices before it: they have arrived in the peer's WebSocket. Where the protocol
  has acknowledgments, the peer has `acknowledgment_seconds` for its first ones. A pong never acknowledges work: the
  first status of the task does that (chiffon-D5), or its lease ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from dragoman.core.commands import Acknowledge, CloseLink, Command, NoteRefusal, PaceLink
from dragoman.core.ids import AgentId, DeliveryId, SessionId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.pipelining import Pipeline, Pipelined, Then
from dragoman.core.ports import Future, Intake, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.server.refusals import UNREADABLE
from dragoman.server.session import (
    LATER,
    Acknowledged,
    Answered,
    Batch,
    CommandFrame,
    Connection,
    Decoded,
    Ignored,
    Invalid,
    LookUp,
    Piece,
    Request,
    Session,
    report_unencodable,
)
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.server")


PACE = 1024 * 1024
"""The loop reports to the hub after so many written bytes: a fraction of what a link may have (`link_bytes`)."""
AGAIN_SECONDS = 1.0
BEHIND = 4 * 1024 * 1024
JOINED = 1024 * 1024
"""Pieces of text of so many characters wait to be joined; beyond that the loop stops reading."""
LONG = 4 * 1024
"""A frame of more bytes is not decoded before its turn: decoded it takes many times the memory."""

FIRST_ACKNOWLEDGMENT_SECONDS = 1.0
"""How long a peer that can acknowledge explicitly has for its first acknowledgments, before its pongs count instead: it
may crash while it reads the first notices of a connection, and then the hub must deliver them again."""


class Wire(Protocol):
    """The transport as the connection loop needs it: a WebSocket, a child's pipes, a gRPC stream."""

    @property
    def has_room(self) -> bool:
        """Whether the peer keeps up with what is written. The wire calls the loop's `writable` when it does again."""
        ...

    def write(self, frames: Sequence[bytes]) -> None: ...

    def ping(self) -> None:
        """Ask the peer to confirm that everything written so far has arrived. The wire calls the loop's `ponged`
        then."""
        ...

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


S = TypeVar("S", bound=Session)


class ConnectionLoop(Generic[S]):
    """One connection. The hub calls it as a `core.ports.LinkEnd`, the wire as its listener; `session` makes the
    protocol's side."""

    def __init__(
        self,
        hub: Intake,
        agent: AgentId,
        session_id: SessionId,
        session: Callable[[Connection], S],
        wire: Wire,
        *,
        hang_up: Callable[[CloseReason], None],
        receipts: bool = False,
        one_by_one: bool = False,
        unanswered: int = 256,
        acknowledgment_seconds: float = 0.0,
        measured: bool = False,
        joined_bytes: int = JOINED,
        paced: bool = True,
    ) -> None:
        self._hub = hub
        self._agent = agent
        self._session_id = session_id
        self._wire = wire
        self._hang_up = hang_up
        self._receipts = receipts
        self._one_by_one = one_by_one
        self._unanswered = unanswered
        self._measured = measured
        self.acknowledges = receipts
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._unwritten: deque[tuple[bytes, int]] = deque()
        """Frames that wait until the peer reads, each with the weight of the outgoing message that it completes."""
        self._written = 0
        self._paced = 0
        self._reports_pace = paced
        self._looking: asyncio.Future[None] | None = None
        self._pipeline = Pipeline(session_id)
        self._undecided = 0
        """Messages whose commands the hub has not decided and committed yet."""
        self._all_decided: asyncio.Future[None] | None = None
        """Set while a lookup waits until those are decided."""
        self._behind: deque[bytes | Decoded] = deque()
        self._behind_bytes = 0
        self._pieces: list[Piece] = []
        """Text that waits until the text before it is decided; then it becomes one command."""
        self._pieces_size = 0
        self._joined_bytes = joined_bytes
        self._texts_undecided = 0
        self._accepted: list[str] = []
        self._unpinged: list[DeliveryId] = []
        self._pinged: list[DeliveryId] = []
        self._arrived: list[DeliveryId] = []
        """Notices whose pong came, while the peer may still acknowledge them explicitly."""
        self._acknowledgment_seconds = acknowledgment_seconds
        self._closed = False
        self._draining = False
        self._memory = hub.memory
        self._crowded = False
        """Whether the loop does not read because the hub holds too many bytes."""
        self.session = session(self)

    # -- in: the wire calls

    def receive(self, frame: bytes) -> None:
        agent = self._hub.agent(self._agent)
        if agent is None or self._closed:
            return  # the hub is about to hang up
        if self._looking is not None and not (self._measured and len(frame) <= LONG):  # what came first goes first
            self._behind.append(frame)
            self._behind_bytes += len(frame)
            self._begin(len(frame))
            return
        decoded = self.session.decode(agent, frame)
        if self._looking is not None and isinstance(decoded, CommandFrame | LookUp | Invalid):
            self._behind.append(decoded)
            self._begin()
            return
        self._act(decoded, len(frame))

    def _act(self, decoded: Decoded, size: int = 0) -> None:
        """`size`: how many bytes of the frame the hub holds until it has decided."""
        match decoded:
            case CommandFrame(command=command, request=request):
                self.enqueue(command, request, size)
            case Piece():
                self._join(decoded)
            case Acknowledged(deliveries=deliveries) if deliveries:
                self.acknowledges = True
                self._hub.enqueue_and_forget(
                    Acknowledge(principal=self._agent, deliveries=deliveries, session=self._session_id)
                )
            case LookUp():
                self._flush_pieces()
                self._begin(size)
                self._looking = asyncio.ensure_future(self._look_up(decoded, size))
            case Invalid():
                self._begin(size)
                self._note_refusal(decoded, size)
            case Answered(frames=frames):
                self.write(frames)
            case Batch(frames=frames):
                for frame in frames:
                    self.receive(frame)
            case Acknowledged() | Ignored():
                pass

    def enqueue(self, command: Command, request: Request, size: int = 0) -> None:
        if self._pieces:
            self._flush_pieces()
        self._begin(size)
        self._undecided += 1
        then = partial(self._decided, command, request, size)
        if not request.also:
            self._hub.enqueue_then(command, self._in_order(command, request, then))
            return
        outcomes = self._in_order(command, request, _Outcomes(1 + len(request.also), then))
        for one in (command, *request.also):
            self._hub.enqueue_then(one, outcomes)

    def _in_order(self, command: Command, request: Request, then: Then) -> Then:
        """No message about a task overtakes one that was refused for now."""
        if request.lane is None or request.message_id is None:
            return then
        span = getattr(command, "span", None)
        return Pipelined(
            self._pipeline,
            request.lane,
            request.message_id,
            then,
            stream=None if span is None else getattr(command, "stream", ""),
            begins=span is not None and span.start == 0,
        )

    def _join(self, piece: Piece) -> None:
        """Text that comes while earlier text is being committed becomes one command after that commit. Every other
        command goes behind the text before it, so the order stays."""
        if self._pieces and self._pieces[0].about != piece.about:
            self._flush_pieces()
        if not self._texts_undecided and not self._pieces:
            self._enqueue_text(piece, piece.text)
            return
        self._pieces.append(piece)
        self._pieces_size += len(piece.text)
        if self._pieces_size >= self._joined_bytes:
            self._wire.stop_reading()

    def _flush_pieces(self) -> None:
        if self._pieces:
            pieces, size = self._pieces, self._pieces_size
            self._pieces, self._pieces_size = [], 0
            self._enqueue_text(pieces[0], "".join(piece.text for piece in pieces))
            if size >= self._joined_bytes and not self._draining and self.under_way < self._unanswered:
                self._resume_reading()

    def _enqueue_text(self, piece: Piece, text: str) -> None:
        self._texts_undecided += 1
        self._undecided += 1
        command, size = piece.command(text), len(text)
        self._begin(size)

        def decided(outcome: Any, refusal: Refused | None) -> None:
            self._texts_undecided -= 1
            if not self._texts_undecided:
                self._flush_pieces()
            self._decided(command, piece.request, size, outcome, refusal)

        self._hub.enqueue_then(command, self._in_order(command, piece.request, decided))

    def _note_refusal(self, invalid: Invalid, size: int) -> None:
        """Record the refusal, then answer with it."""
        self._undecided += 1
        protocol = self.session.protocol
        note = NoteRefusal(
            principal=self._agent,
            protocol=protocol,
            what=f"{protocol}.frame",
            fault=invalid.fault,
            about=invalid.message_id,
        )

        def noted(_outcome: Any, _refusal: Refused | None) -> None:
            self._end_decision(size)
            self._refuse(invalid.fault, invalid.context)

        self._hub.enqueue_then(note, noted)

    def _begin(self, size: int = 0) -> None:
        self.under_way += 1
        self._idle.clear()
        if size > LONG:  # `unanswered` bounds the others
            self._memory.add(self._agent, size)
            if not self._crowded and not self._memory.has_room(self._agent):
                self._crowded = True
                self._memory.when_room(self._agent, self._room_again)
                self._wire.stop_reading()
        if self.under_way >= self._unanswered or self._behind_bytes >= BEHIND:
            self._wire.stop_reading()

    def _end(self, size: int = 0) -> None:
        self.under_way -= 1
        if self.under_way == 0:
            self._idle.set()
        if size > LONG:
            self._memory.give_back(self._agent, size)
        if not self._draining and (self.under_way == self._unanswered // 2 or not self.under_way):
            self._resume_reading()

    def _room_again(self) -> None:
        self._crowded = False
        if not self._draining and not self._closed and self.under_way < self._unanswered:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not self._crowded and self._pieces_size < self._joined_bytes:
            self._wire.resume_reading()

    async def _look_up(self, lookup: LookUp, size: int) -> None:
        """Read what the frame asks for and answer, or enqueue the command that it becomes; then process the frames that
        waited behind it."""
        request, protocol = lookup.request, self.session.protocol
        try:
            if lookup.after_commits and self._undecided:
                self._all_decided = asyncio.get_running_loop().create_future()
                await self._all_decided
            found = await lookup.find()
            if isinstance(found, Command):
                self.enqueue(found, request, size)
            elif found:
                self.write(found)
        except Refused as refused:
            self._refuse(refused.fault, request.context)
        except StoreFailed as error:
            log.error("the store cannot be read", protocol=protocol, agent=self._agent, why=str(error))
            self._refuse(UNREADABLE, request.context)
        except Exception:
            log.exception("lookup", protocol=protocol, agent=self._agent)
            self._refuse(Fault(kind=Kind.INTERNAL, message="the hub could not look that up"), request.context)
        self._looking = None
        self._end(size)
        while self._behind and self._looking is None:
            waiting = self._behind.popleft()
            held = 0
            if isinstance(waiting, bytes):
                held = len(waiting)
                self._behind_bytes -= held
                later, self._behind = self._behind, deque()
                self.receive(waiting)
                self._behind.extend(later)  # behind all the messages of this one
            else:
                self._act(waiting)
            self._end(held)

    def _decided(self, command: Command, request: Request, size: int, outcome: Any, refusal: Refused | None) -> None:
        """The hub has decided and committed the command of a message."""
        if refusal is not None and request.otherwise is not None:
            meant = request.otherwise(refusal.fault)
            if meant is not None:
                last = msgspec.structs.replace(request, otherwise=None)
                then = partial(self._decided, meant, last, size)
                self._hub.enqueue_then(meant, self._in_order(meant, last, then))
                return
        self._end_decision(size)
        if refusal is not None:
            self._refuse(refusal.fault, request.context)
            return
        agent = self._hub.agent(self._agent)
        if agent is not None and (answer := self.session.encode_answer(command, request, outcome, agent)):
            self.write(answer)
        if self._receipts and request.receipt and request.message_id is not None:
            if not self._accepted:
                asyncio.get_running_loop().call_soon(self._send_receipts)
            self._accepted.append(request.message_id)

    def _end_decision(self, size: int) -> None:
        self._undecided -= 1
        if not self._undecided and self._all_decided is not None:
            self._all_decided.set_result(None)
            self._all_decided = None
        self._end(size)

    def _refuse(self, fault: Fault, context: Any) -> None:
        agent = self._hub.agent(self._agent)
        if agent is not None and (refusal := self.session.encode_refusal(fault, context, agent)):
            self.write([refusal])

    def _send_receipts(self) -> None:
        accepted, self._accepted = self._accepted, []
        if accepted:
            together = [(id,) for id in accepted] if self._one_by_one else [accepted]
            self.write([self.session.encode_receipt(ids) for ids in together])

    # -- out: the hub calls

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        agent = self._hub.agent(self._agent)
        if agent is None or self._closed:
            return
        now = self._hub.now()
        free = not self._unwritten and self._wire.has_room
        frames: list[bytes] = []
        written = 0
        for outgoing in outgoing_messages:
            try:
                encoded = self.session.encode(outgoing, agent, now)
            except Exception as error:
                report_unencodable(self._hub, self._agent, outgoing, error)
                written += outgoing.weight
                continue
            if free or not encoded:
                frames.extend(encoded)
                written += outgoing.weight
            else:
                self._unwritten.extend((frame, 0) for frame in encoded[:-1])
                self._unwritten.append((encoded[-1], outgoing.weight))
            if outgoing.delivery.kind is not MessageKind.WORK and encoded is not LATER:
                self._unpinged.append(outgoing.delivery.id)
        if frames:
            self._wire.write(frames)
        self._count_written(written)
        if free:
            self._ping()

    def hang_up(self, reason: CloseReason) -> None:
        self.close()
        self._hang_up(reason)

    def close(self) -> None:
        """The connection is gone: nothing more is read from it or written to it."""
        self._flush_pieces()
        self._closed = True
        self._memory.no_matter(self._room_again)
        self.session.closed()

    # -- writing

    def write(self, frames: Sequence[bytes]) -> None:
        """Write the frames, behind those that wait for room."""
        if self._unwritten or not self._wire.has_room:
            self._unwritten.extend((frame, 0) for frame in frames)
            return
        self._wire.write(frames)
        self._ping()

    def write_if_room(self, frames: Sequence[bytes], outgoing: Outgoing | None = None) -> bool:
        if self._closed or self._unwritten or not self._wire.has_room:
            return False
        if outgoing is not None and outgoing.delivery.kind is not MessageKind.WORK:
            self._unpinged.append(outgoing.delivery.id)
        self.write(frames)
        return True

    def writable(self) -> None:
        """The wire calls: the peer reads again."""
        while self._unwritten and self._wire.has_room:
            frame, weight = self._unwritten.popleft()
            self._wire.write([frame])
            self._count_written(weight)
        if not self._unwritten:
            self._ping()
            if self._wire.has_room:
                self.session.writable()

    def _count_written(self, weight: int) -> None:
        self._written += weight
        if self._reports_pace and self._written - self._paced >= PACE:
            self._report_pace()

    def _report_pace(self) -> None:
        self._paced = self._written
        pace = PaceLink(principal=self._agent, session=self._session_id, written=self._written)
        self._hub.enqueue_then(pace, self._pace_reported)

    def _pace_reported(self, outcome: Any, refusal: Refused | None) -> None:
        if refusal is not None and not self._closed:  # the store cannot commit now: report again
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._report_pace)

    # -- acknowledgments of a peer that sends none

    def _ping(self) -> None:
        """Send a ping behind what was written, unless one is under way."""
        if self._pinged or not self._unpinged:
            return
        if self.acknowledges:
            self._unpinged.clear()
            return
        self._pinged, self._unpinged = self._unpinged, []
        self._wire.ping()

    def ponged(self) -> None:
        """The wire calls: everything before the last ping has arrived."""
        arrived, self._pinged = self._pinged, []
        if arrived and not self.acknowledges:
            if self._acknowledgment_seconds and not self._arrived:
                asyncio.get_running_loop().call_later(self._acknowledgment_seconds, self._none_came)
            self._arrived += arrived
            if not self._acknowledgment_seconds:
                self.acknowledge_arrived()
        if not self._unwritten:
            self._ping()

    def _none_came(self) -> None:
        """The peer sent no acknowledgment in time: from now on its pongs count."""
        if not self._closed and not self._draining:
            self._acknowledgment_seconds = 0.0
            self.acknowledge_arrived()

    def acknowledge_arrived(self) -> None:
        """Acknowledge what has arrived, unless the peer acknowledges explicitly."""
        arrived, self._arrived = self._arrived, []
        if arrived and not self.acknowledges:
            self._hub.enqueue_and_forget(
                Acknowledge(principal=self._agent, deliveries=tuple(arrived), session=self._session_id)
            )

    # -- the end

    async def drain(self) -> None:
        """Stop reading, and wait until everything that came is answered."""
        self._draining = True
        self._wire.stop_reading()
        self._flush_pieces()
        await self._idle.wait()
        self._send_receipts()
        self.session.closed()


class _Outcomes:
    """The outcomes of the commands of one message, in their order: the first one's, and the first refusal."""

    def __init__(self, expected: int, then: Then) -> None:
        self._expected = expected
        self._then = then
        self._outcomes: list[Any] = []
        self._refusal: Refused | None = None

    def __call__(self, outcome: Any, refusal: Refused | None) -> None:
        self._outcomes.append(outcome)
        self._refusal = self._refusal or refusal
        if len(self._outcomes) == self._expected:
            self._then(self._outcomes[0], self._refusal)


def close_link(hub: Intake, command: CloseLink) -> Future[Any]:
    """Enqueue the end of a link, and detach its session when that is decided: until then the hub may still give it
    outgoing messages. A failed commit does no harm: after a restart the hub has no open links."""
    session = command.session

    def closed(done: asyncio.Future[Any]) -> None:
        hub.detach(session)
        if not done.cancelled() and done.exception() is not None:
            log.info("link not closed", session=session)

    closing = hub.enqueue(command)
    closing.add_done_callback(closed)
    return closing
