"""The connection loop behind every ordered link: frames in, commands on; outgoing messages out, acknowledgments back.

It speaks no protocol. A `session.Session` turns a frame into what was heard and an outgoing message into frames; the
connection loop keeps the promises that are the same for all:

- *Order*: frames of one link reach the intake in the order in which they came. They do not wait for each other's
  commits: many may be under way at once, and one commit takes them all. Only a frame that reads what the ones before
  it may have changed waits until they are committed, so a request sees the effect of every message sent before it.
- *Backpressure, in*: beyond `unanswered` frames under way, or `BEHIND` bytes that wait for their turn, or when the hub
  holds as many bytes of messages as it may (`core.memory`), we stop reading, so a slow disk slows the sender. Who talks
  too fast is told so at once, where the protocol has a measure for that: `measured` frames are heard when they come,
  even if it is somebody else's turn, unless they are long.
- *Backpressure, out*: the hub gives a link at most a window of unacknowledged outgoing messages, and of bytes that were
  not written yet, for which it is told how far writing has come; a peer that does not read keeps what it is owed in the
  store.
- *Answers*: a refused frame is answered with an error in the protocol's words, and the link goes on. Receipts for
  accepted ones, where the peer wants them, are gathered and sent together. What follows a frame about a task that was
  refused for now does not overtake it (`core.pipelining`).
- *Acknowledgment*: a peer that acknowledges explicitly is taken at its word. For one that does not, a ping goes
  behind what was written, and its pong acknowledges the notices before it: they have arrived in the peer's
  WebSocket. Where it could do so in words, it is given a moment for its first ones. Work is not acknowledged so: its
  first status does that (chiffon-D5), or the hub's clock runs out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from dragoman.core.commands import Acknowledge, Command, NoteRefusal, PaceLink
from dragoman.core.ids import AgentId, DeliveryId, SessionId
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.pipelining import Pipeline, Pipelined, Then
from dragoman.core.ports import Intake, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.server.refusals import UNREADABLE
from dragoman.server.session import LATER, Heard, Session, Streaming, Talkative
from dragoman.server.unencodable import unspeakable

log = structlog.get_logger("dragoman.server")


PACE = 1024 * 1024
"""After so many bytes the hub is told how far writing has come: a fraction of what a link may have (`link_bytes`)."""
AGAIN_SECONDS = 1.0
BEHIND = 4 * 1024 * 1024
LONG = 4 * 1024
"""Bytes above which a frame is kept as it came until its turn: what was heard takes many times the room."""

WORD_SECONDS = 1.0
"""So long a peer that could acknowledge in words is given for its first ones, before its pongs are taken for them: it
may die over the first notices of a link, and then they must come again."""


class Wire(Protocol):
    """The socket as the connection loop needs it (`websocket.Socket`)."""

    @property
    def has_room(self) -> bool: ...

    def write(self, frames: Sequence[bytes]) -> None: ...

    def mark(self) -> None: ...

    def stop_reading(self) -> None: ...

    def go_on_reading(self) -> None: ...


class ConnectionLoop:
    """One link: `core.ports.LinkEnd` towards the hub, `websocket.Listener` towards the socket."""

    def __init__(
        self,
        hub: Intake,
        agent: AgentId,
        session: SessionId,
        tongue: Session,
        wire: Wire,
        *,
        hang_up: Callable[[str], None],
        receipts: bool = False,
        one_by_one: bool = False,
        unanswered: int = 256,
        word_seconds: float = 0.0,
        measured: bool = False,
    ) -> None:
        self._hub = hub
        self._agent = agent
        self._session = session
        self._tongue = tongue
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
        self._held: deque[tuple[bytes, int]] = deque()
        """Frames for which the peer has no room, and how much of what the hub gave us is written with each."""
        self._written = 0
        self._paced = 0
        self._looking: asyncio.Future[None] | None = None
        self._pipeline = Pipeline()
        self._undecided = 0
        """Messages whose commands the hub has not decided and committed yet."""
        self._all_decided: asyncio.Future[None] | None = None
        """There while a frame that reads waits for them."""
        self._behind: deque[bytes | Heard] = deque()
        self._behind_bytes = 0
        self._accepted: list[str] = []
        self._unmarked: list[DeliveryId] = []
        self._marked: list[DeliveryId] = []
        self._arrived: list[DeliveryId] = []
        """Notices whose pong came, while the peer may still acknowledge them in its own words."""
        self._word_seconds = word_seconds
        self._closed = False
        self._draining = False
        self._memory = hub.memory
        self._crowded = False
        """Whether we do not read because the hub holds too many bytes."""
        self._streaming = tongue if isinstance(tongue, Streaming) else None
        if isinstance(tongue, Talkative):
            tongue.meet(self.tell)

    # -- in: the socket calls

    def heard(self, frame: bytes) -> None:
        agent = self._hub.agent(self._agent)
        if agent is None or self._closed:
            return  # the hub is about to hang up
        if self._looking is not None and not (self._measured and len(frame) <= LONG):  # what came first goes first
            self._behind.append(frame)
            self._behind_bytes += len(frame)
            self._begin(len(frame))
            return
        heard = self._tongue.hear(agent, frame)
        if self._looking is not None and (heard.look or heard.command or heard.fault):
            self._behind.append(heard)
            self._begin()
            return
        self._act(heard, len(frame))

    def _act(self, heard: Heard, size: int = 0) -> None:
        """`size`: how many bytes the hub holds of it until it is decided."""
        if heard.acks:
            self.acknowledges = True
            self._hub.enqueue_and_forget(
                Acknowledge(principal=self._agent, deliveries=heard.acks, session=self._session)
            )
            return
        if heard.answers:
            self._write(heard.answers)
            return
        if heard.parts:
            for part in heard.parts:
                self.heard(part)
            return
        if heard.look is not None:
            self._begin(size)
            self._looking = asyncio.ensure_future(self._look(heard, heard.look, size))
            return
        if heard.command is not None:
            command: Command = heard.command
        elif heard.fault is not None:
            what = f"{self._tongue.protocol}.frame"
            command = NoteRefusal(
                principal=self._agent,
                protocol=self._tongue.protocol,
                what=what,
                fault=heard.fault,
                about=heard.message_id,
            )
        else:
            return
        self._begin(size)
        self._hand_in(heard, command, size)

    def _hand_in(self, heard: Heard, command: Command, size: int) -> None:
        self._undecided += 1
        then = partial(self._answered, heard, size)
        if not heard.also or heard.fault is not None:
            self._hub.enqueue_then(command, self._in_turn(heard, command, then))
            return
        verdicts = self._in_turn(heard, command, _Verdicts(1 + len(heard.also), then))
        for one in (command, *heard.also):
            self._hub.enqueue_then(one, verdicts)

    def _in_turn(self, heard: Heard, command: Command, then: Then) -> Then:
        """No message about a task overtakes one that was refused for now."""
        if heard.lane is None or heard.message_id is None or heard.fault is not None:
            return then
        span = getattr(command, "span", None)
        return Pipelined(
            self._pipeline,
            heard.lane,
            heard.message_id,
            then,
            stream=None if span is None else getattr(command, "stream", ""),
            begins=span is not None and span.start == 0,
        )

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
            self._go_on()

    def _room_again(self) -> None:
        self._crowded = False
        if not self._draining and not self._closed and self.under_way < self._unanswered:
            self._go_on()

    def _go_on(self) -> None:
        if not self._crowded:
            self._wire.go_on_reading()

    async def _look(self, heard: Heard, look: Callable[[], Awaitable[Sequence[bytes] | Command]], size: int) -> None:
        """Answer what needs reading, or find the command it comes to; then go on with what came behind it."""
        try:
            if heard.reads and self._undecided:
                self._all_decided = asyncio.get_running_loop().create_future()
                await self._all_decided
            found = await look()
            if isinstance(found, Command):
                self._begin(size)
                self._hand_in(heard, found, size)
            else:
                self._write(found)
        except Refused as refused:
            self._refuse(refused.fault, heard.about)
        except StoreFailed as error:
            log.error("the store cannot be read", protocol=self._tongue.protocol, agent=self._agent, why=str(error))
            self._refuse(UNREADABLE, heard.about)
        except Exception:
            log.exception("look", protocol=self._tongue.protocol, agent=self._agent)
            self._refuse(Fault(kind=Kind.INTERNAL, message="the hub could not look that up"), heard.about)
        self._looking = None
        self._end(size)
        while self._behind and self._looking is None:
            waiting = self._behind.popleft()
            held = 0
            if isinstance(waiting, Heard):
                self._act(waiting)
            else:
                held = len(waiting)
                self._behind_bytes -= held
                later, self._behind = self._behind, deque()
                self.heard(waiting)
                self._behind.extend(later)  # behind all the parts of this one
            self._end(held)

    def _answered(self, heard: Heard, size: int, outcome: Any, refusal: Refused | None) -> None:
        if refusal is not None and heard.otherwise is not None:
            meant = heard.otherwise(refusal.fault)
            if meant is not None:
                then = partial(self._answered, msgspec.structs.replace(heard, otherwise=None), size)
                self._hub.enqueue_then(meant, self._in_turn(heard, meant, then))
                return
        self._undecided -= 1
        if not self._undecided and self._all_decided is not None:
            self._all_decided.set_result(None)
            self._all_decided = None
        self._end(size)
        fault = heard.fault
        if fault is None and refusal is not None:
            fault = refusal.fault
        if fault is not None:
            self._refuse(fault, heard.about)
            return
        agent = self._hub.agent(self._agent)
        if agent is not None and (said := self._tongue.answer(heard, outcome, agent)):
            self._write(said)
        if self._receipts and heard.receipt and heard.message_id is not None:
            if not self._accepted:
                asyncio.get_running_loop().call_soon(self._send_receipts)
            self._accepted.append(heard.message_id)

    def _refuse(self, fault: Fault, about: Any) -> None:
        agent = self._hub.agent(self._agent)
        if agent is not None:
            said = self._tongue.refuse(fault, about, agent, self._hub.now(), self._hub.mint())
            if said:
                self._write([said])

    def _send_receipts(self) -> None:
        accepted, self._accepted = self._accepted, []
        if accepted:
            together = [(id,) for id in accepted] if self._one_by_one else [accepted]
            self._write([self._tongue.receipt(ids) for ids in together])

    # -- out: the hub calls

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        agent = self._hub.agent(self._agent)
        if agent is None or self._closed:
            return
        now = self._hub.now()
        free = not self._held and self._wire.has_room
        frames: list[bytes] = []
        written = 0
        for outgoing in outgoing_messages:
            try:
                said = self._tongue.say(outgoing, agent, now)
            except Exception as error:
                unspeakable(self._hub, self._agent, outgoing, error)
                written += outgoing.weight
                continue
            if free or not said:
                frames.extend(said)
                written += outgoing.weight
            else:
                self._held.extend((frame, 0) for frame in said[:-1])
                self._held.append((said[-1], outgoing.weight))
            if outgoing.delivery.kind is not MessageKind.WORK and said is not LATER:
                self._unmarked.append(outgoing.delivery.id)
        if frames:
            self._wire.write(frames)
        self._wrote(written)
        if free:
            self._mark()

    def hang_up(self, reason: str) -> None:
        self.part()
        self._hang_up(reason)

    def part(self) -> None:
        """The link is gone: nothing more is heard or said over it."""
        self._closed = True
        self._memory.no_matter(self._room_again)
        self._fall_silent()

    def _fall_silent(self) -> None:
        if isinstance(self._tongue, Talkative):
            self._tongue.part()

    def tell(self, frames: Sequence[bytes], outgoing: Outgoing | None = None) -> bool:
        """Write frames that nobody waits for, if there is room; or those of an outgoing message that was to follow."""
        if self._closed or self._held or not self._wire.has_room:
            return False
        if outgoing is not None and outgoing.delivery.kind is not MessageKind.WORK:
            self._unmarked.append(outgoing.delivery.id)
        self._write(frames)
        return True

    # -- writing

    def add(self, frames: Sequence[bytes]) -> None:
        """Frames of the door's own, behind all that waits for room."""
        self._write(frames)

    def _write(self, frames: Sequence[bytes]) -> None:
        if self._held or not self._wire.has_room:
            self._held.extend((frame, 0) for frame in frames)
            return
        self._wire.write(frames)
        self._mark()

    def writable(self) -> None:
        while self._held and self._wire.has_room:
            frame, weight = self._held.popleft()
            self._wire.write([frame])
            self._wrote(weight)
        if not self._held:
            self._mark()
            if self._streaming is not None and self._wire.has_room:
                self._streaming.room()

    def _wrote(self, weight: int) -> None:
        self._written += weight
        if self._written - self._paced >= PACE:
            self._tell_pace()

    def _tell_pace(self) -> None:
        self._paced = self._written
        told = PaceLink(principal=self._agent, session=self._session, written=self._written)
        self._hub.enqueue_then(told, self._pace_told)

    def _pace_told(self, outcome: Any, refusal: Refused | None) -> None:
        if refusal is not None and not self._closed:  # nothing is committed just now; but told it must be
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._tell_pace)

    def _mark(self) -> None:
        """Ask for a sign that what was written arrived, one at a time."""
        if self._marked or not self._unmarked:
            return
        if self.acknowledges:
            self._unmarked.clear()
            return
        self._marked, self._unmarked = self._unmarked, []
        self._wire.mark()

    def marked(self) -> None:
        arrived, self._marked = self._marked, []
        if arrived and not self.acknowledges:
            if self._word_seconds and not self._arrived:
                asyncio.get_running_loop().call_later(self._word_seconds, self._no_word)
            self._arrived += arrived
            if not self._word_seconds:
                self.take_as_acknowledged()
        if not self._held:
            self._mark()

    def _no_word(self) -> None:
        """A peer that does not acknowledge by itself, then."""
        if not self._closed and not self._draining:
            self._word_seconds = 0.0
            self.take_as_acknowledged()

    def take_as_acknowledged(self) -> None:
        """Whatever has arrived, unless the peer acknowledges by itself."""
        arrived, self._arrived = self._arrived, []
        if arrived and not self.acknowledges:
            self._hub.enqueue_and_forget(
                Acknowledge(principal=self._agent, deliveries=tuple(arrived), session=self._session)
            )

    # -- the end

    async def drain(self) -> None:
        """Stop reading, and wait until what was heard is answered."""
        self._draining = True
        self._wire.stop_reading()
        await self._idle.wait()
        self._send_receipts()
        self._fall_silent()


class _Verdicts:
    """What the commands of one message came to, in their order: the first one's outcome, and the first refusal."""

    def __init__(self, expected: int, then: Callable[[Any, Refused | None], None]) -> None:
        self._expected = expected
        self._then = then
        self._outcomes: list[Any] = []
        self._refusal: Refused | None = None

    def __call__(self, outcome: Any, refusal: Refused | None) -> None:
        self._outcomes.append(outcome)
        self._refusal = self._refusal or refusal
        if len(self._outcomes) == self._expected:
            self._then(self._outcomes[0], self._refusal)
