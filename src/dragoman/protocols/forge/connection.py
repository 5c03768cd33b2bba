"""One end of a forge link, in either role: lines or frames in, events out; messages in, bytes out.

An agent's end matches responses to its requests and notices which were never answered; the orchestrator's end sees
to it that each request gets one response. Both take the time as a value: `now` is seconds of a clock that never jumps.

    framing    pipes carry lines (`lines=True`): bytes come in any pieces, and `send…` gives a line with its end
               a WebSocket carries frames: each `receive` is one, and `send…` gives one

Requests outlive links. A question to a person may be answered after the agent, or the hub, was away; its response names
the request, and `adopt` tells a new connection to expect it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.protocols.forge import codec
from dragoman.protocols.forge.errors import TABLE, Code
from dragoman.protocols.forge.events import (
    Dropped,
    Event,
    Invalid,
    LogReceived,
    RequestReceived,
    ResponseReceived,
    TimedOut,
)
from dragoman.protocols.forge.state import Requests, State
from dragoman.protocols.forge.types import (
    EVENTS,
    NOTICES,
    REQUEST_SECONDS,
    REQUESTS,
    Anything,
    AskUser,
    Encoding,
    ErrorBody,
    Message,
    Payload,
    Stamp,
)
from dragoman.wire.connection import Connection as BaseConnection
from dragoman.wire.errors import LocalProtocolError, Stage
from dragoman.wire.guard import Limits
from dragoman.wire.lines import LineFraming, Overlong
from dragoman.wire.role import Role


class Connection(BaseConnection[Event, Anything]):
    """A forge link as seen from one end.

    `limits` bound what an agent says; what it hears may be longer. `agent_id` is who is at the other end of an
    orchestrator's link (D4). `seconds` is how long a request waits that does not say so itself; `most` bounds the open
    requests, and those remembered after their end.
    """

    def __init__(
        self,
        role: Role,
        *,
        lines: bool = False,
        encoding: Encoding = Encoding.JSON,
        limits: Limits = codec.LIMITS,
        agent_id: str | None = None,
        seconds: float = REQUEST_SECONDS,
        most: int = 10_000,
    ) -> None:
        if lines and encoding is not Encoding.JSON:
            raise LocalProtocolError("lines carry JSON only", field="encoding")
        super().__init__(role)
        self.encoding = encoding
        self.logs = 0
        hears = limits.bytes if role is Role.HUB else max(limits.bytes, codec.AGENT_HEARS)
        self._framing = LineFraming(hears) if lines else None
        self._limits = msgspec.structs.replace(limits, bytes=hears)
        self._longest = limits.bytes if role is Role.AGENT else None
        self._agent_id = agent_id if role is Role.HUB else None
        self._seconds = seconds
        self._requests = Requests(most)

    # --- from the peer ---

    def receive(self, data: bytes, now: float = 0.0) -> list[Event]:
        """A piece of a stream of lines, or one frame. Never raises for what the peer did."""
        if self._framing is None:
            return self._hear(data, now)
        events: list[Event] = []
        for line in self._framing.feed(data):
            events.extend([Dropped(line.length)] if isinstance(line, Overlong) else self._hear(line, now))
        return events

    def ended(self, now: float = 0.0) -> list[Event]:
        """The stream of lines has ended; a last line may have had no end."""
        rest = self._framing.finish() if self._framing is not None else []
        events: list[Event] = []
        for line in rest:
            events.extend([Dropped(line.length)] if isinstance(line, Overlong) else self._hear(line, now))
        return events

    def _hear(self, data: bytes, now: float) -> list[Event]:
        heard = codec.read(data, self.role, encoding=self.encoding, limits=self._limits, agent_id=self._agent_id)
        return [self._note(event, now) for event in heard]

    def _note(self, event: Event, now: float) -> Event:
        if isinstance(event, LogReceived):
            self.logs += 1
        elif isinstance(event, RequestReceived):
            if self._requests.full and self._requests.state(event.message.id) is not State.WAITING:
                what = f"more than {self._requests.most} requests are open"
                answer = ErrorBody(code=Code.INVALID_REQUEST, message=what, details={"reason": "RATE_LIMITED"})
                return Invalid(answer, event.message.id, True, what, None, Stage.ORDER)
            self._requests.open(event.message.id, event.message.type, self._deadline(event.message.payload, now, None))
        elif isinstance(event, ResponseReceived):
            about = event.message.correlation_id
            if about is None or not self._requests.answered(about):
                return ResponseReceived(event.message, event.tree, expected=False)
        return event

    # --- to the peer ---

    def send(self, message: Anything, now: float = 0.0, *, timeout: float | None = None) -> bytes:
        """The bytes of any message that this end may say."""
        data = self._sized(codec.write(message, self.encoding))
        self._check(message, now, timeout)
        return data + b"\n" if self._framing is not None else data

    def send_batch(self, messages: Iterable[Anything], now: float = 0.0) -> bytes:
        """Several messages in one frame or line (D12)."""
        said = list(messages)
        data = self._sized(codec.write_batch(said, self.encoding))
        for message in said:
            self._check(message, now, None)
        return data + b"\n" if self._framing is not None else data

    def _sized(self, data: bytes) -> bytes:
        if self._longest is not None and len(data) > self._longest:
            raise LocalProtocolError(f"a message of {len(data)} bytes exceeds the limit of {self._longest}")
        return data

    def _check(self, message: Anything, now: float, timeout: float | None) -> None:
        if isinstance(message, Message):
            if message.type in NOTICES:
                return self._only(Role.HUB, message.type)
            self._only(Role.AGENT, message.type)
            if message.type in REQUESTS:
                if self._requests.full:
                    raise LocalProtocolError(f"more than {self._requests.most} requests are open")
                self._requests.open(message.id, message.type, self._deadline(message.payload, now, timeout))
            elif message.type not in EVENTS:
                raise LocalProtocolError(f"unknown message type {message.type!r}", field="type")
            return None
        self._only(Role.HUB, "a response")
        about = message.correlation_id
        if about is not None and not self._requests.answered(about):
            state = self._requests.state(about)
            raise LocalProtocolError(f"request {about} is {state}, not waiting", field="correlationId")
        return None

    def request(
        self, payload: Payload, stamp: Stamp, now: float = 0.0, *, timeout: float | None = None, **extra: Any
    ) -> bytes:
        """Ask the orchestrator; say it again with the same stamp id to repeat it. Only an agent does."""
        return self.send(codec.message(payload, stamp, **extra), now, timeout=timeout)

    def event(self, payload: Payload, stamp: Stamp, **extra: Any) -> bytes:
        """Tell the orchestrator. Only an agent does."""
        return self.send(codec.message(payload, stamp, **extra))

    def notify(self, payload: Payload, stamp: Stamp, **extra: Any) -> bytes:
        """Tell the agent. Only the orchestrator does."""
        return self.send(codec.message(payload, stamp, **extra))

    def succeed(self, request_id: str, payload: dict[str, Any], stamp: Stamp) -> bytes:
        """Answer a request."""
        return self.send(codec.success(request_id, payload, stamp))

    def fail(self, request_id: str | None, error: ErrorBody, stamp: Stamp) -> bytes:
        """Refuse a request; `request_id` None where its id could not be read."""
        return self.send(codec.failure(request_id, error, stamp))

    def refuse(self, invalid: Invalid, stamp: Stamp) -> bytes | None:
        """The answer to a broken message, or None where nobody waits for one."""
        if not invalid.asks:
            return None
        data = codec.write(codec.failure(invalid.about, invalid.answer, stamp), self.encoding)
        return data + b"\n" if self._framing is not None else data

    # --- time ---

    def expire(self, now: float) -> list[TimedOut]:
        """The requests whose time is up: an agent stops waiting for them, the orchestrator answers TIMEOUT."""
        return [TimedOut(request_id) for request_id in self._requests.expire(now)]

    def too_late(self, late: TimedOut, stamp: Stamp) -> bytes:
        """The orchestrator's word for a request that it could not answer in time."""
        self._only(Role.HUB, "a response")
        error = ErrorBody(code=Code.TIMEOUT, message=TABLE[Code.TIMEOUT].meaning)
        data = codec.write(codec.failure(late.request_id, error, stamp), self.encoding)
        return data + b"\n" if self._framing is not None else data

    @property
    def next_deadline(self) -> float | None:
        return self._requests.next_deadline

    def adopt(self, request_id: str, kind: str, deadline: float | None = None) -> None:
        """Expect the response to a request that an earlier link carried."""
        self._requests.open(request_id, kind, deadline)

    def state(self, request_id: str) -> State:
        """Where a request is; IDLE if it is unknown or forgotten."""
        return self._requests.state(request_id)

    def __len__(self) -> int:
        """How many requests are open."""
        return len(self._requests)

    def _deadline(self, payload: Any, now: float, timeout: float | None) -> float | None:
        if timeout is not None:
            return now + timeout
        if isinstance(payload, AskUser):
            own = self._seconds if payload.timeout is None else payload.timeout / 1000  # D8
            # It is the orchestrator that says TIMEOUT; whoever asked gives that word the time to arrive.
            return now + own + (self._seconds if self.role is Role.AGENT else 0)
        return now + self._seconds

    def _only(self, role: Role, what: str) -> None:
        if self.role is not role:
            raise LocalProtocolError(f"{what} is not for this end to say", field="type")
