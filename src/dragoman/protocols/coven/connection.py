"""One end of a coven stream, on whole message bytes, in either role. `server.coven` and `sdk.coven` both run it.

    OPENED ──register──▶ REGISTERED ──welcome──▶ READY ──message──▶ BUSY ──end──▶ READY …
                                                   │                  │
                                               shutdown            shutdown
                                                   ▼                  ▼
                                                LEAVING ◀──end─── FINISHING

A stream carries one request at a time (D5): `message` is only allowed in READY. After a shutdown the request under way
is finished and none follows. Heartbeats may be sent at any time once the agent has registered.

A connection remembers the open request: its id, whether it was answered yet, and its text so far, so that `done`
without a `full_response` still has the whole answer (D8). It also remembers the last few requests that are over, only
to tell "finished" from "unknown" when it counts what it drops (D7).

What a peer does wrongly is of two kinds. Breaking the opening, or sending bytes that are no message, is `Invalid`: the
owner ends the stream. Everything else is `Ignored`: dropped, counted, and the stream goes on.

A hub may give a request up although the agent does not understand `cancel` (`abandon`): then the agent is busy until it
ends the request, and what it sends about it is dropped (B4).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from dragoman.protocols.coven import codec
from dragoman.protocols.coven.codec import LIMITS, Limits
from dragoman.protocols.coven.errors import NotRegistered, Oddity
from dragoman.protocols.coven.types import (
    CANCEL_EXTENSION,
    INPUT_EXTENSION,
    AgentMessage,
    Cancel,
    Done,
    Heartbeat,
    MessageResponse,
    RegisterAgent,
    SendMessage,
    ServerMessage,
    Shutdown,
    Text,
    Welcome,
)
from dragoman.wire.errors import LocalProtocolError, RemoteProtocolError
from dragoman.wire.role import Role

# --- the states of a stream, as a table; both ends are held to it ---


class State(StrEnum):
    OPENED = "opened"
    REGISTERED = "registered"
    READY = "ready"
    BUSY = "busy"
    FINISHING = "finishing"
    LEAVING = "leaving"


class Input(StrEnum):
    """What moves the state: a message, or the response that ends a request."""

    REGISTER = "register"
    WELCOME = "welcome"
    MESSAGE = "send_message"
    RESPONSE = "response"
    END = "the end of a request"
    HEARTBEAT = "heartbeat"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"


STREAM: Mapping[State, Mapping[Input, State]] = {
    State.OPENED: {Input.REGISTER: State.REGISTERED},
    State.REGISTERED: {Input.WELCOME: State.READY, Input.HEARTBEAT: State.REGISTERED},
    State.READY: {
        Input.MESSAGE: State.BUSY,
        Input.HEARTBEAT: State.READY,
        Input.SHUTDOWN: State.LEAVING,
    },
    State.BUSY: {
        Input.RESPONSE: State.BUSY,
        Input.END: State.READY,
        Input.HEARTBEAT: State.BUSY,
        Input.CANCEL: State.BUSY,
        Input.SHUTDOWN: State.FINISHING,
    },
    State.FINISHING: {
        Input.RESPONSE: State.FINISHING,
        Input.END: State.LEAVING,
        Input.HEARTBEAT: State.FINISHING,
        Input.CANCEL: State.FINISHING,
    },
    State.LEAVING: {Input.HEARTBEAT: State.LEAVING},
}
"""The state that follows each input; an input without a cell is not allowed in that state."""

OF_AGENTS = frozenset({Input.REGISTER, Input.RESPONSE, Input.END, Input.HEARTBEAT})
"""What agents send; the hub sends the rest."""

_INPUTS: dict[type[AgentMessage | ServerMessage], Input] = {
    RegisterAgent: Input.REGISTER,
    MessageResponse: Input.RESPONSE,
    Heartbeat: Input.HEARTBEAT,
    Welcome: Input.WELCOME,
    SendMessage: Input.MESSAGE,
    Shutdown: Input.SHUTDOWN,
    Cancel: Input.CANCEL,
}


def _input(message: AgentMessage | ServerMessage) -> Input:
    return Input.END if isinstance(message, MessageResponse) and message.last else _INPUTS[type(message)]


# --- what a connection reports to its owner: the message itself, or one of these ---


class Responded(Struct, frozen=True):
    """An event about the open request. `first` acknowledges the message it answers."""

    message: MessageResponse
    first: bool = False


class Completed(Struct, frozen=True):
    """The open request is over, by `done` or by `error`.

    `text` is the whole answer: `full_response`, or all text that came (D8). It is None if there was more than the
    connection keeps: then only its pieces are whole. `streamed`: it is nothing but the text that came.
    """

    message: MessageResponse
    text: str | None
    streamed: bool
    first: bool = False


class Interrupted(Struct, frozen=True):
    """The stream ended with a request open (D6)."""

    request_id: str


class Ignored(Struct, frozen=True):
    """Something was dropped, and counted in `Connection.ignored`."""

    why: Oddity
    request_id: str = ""


class Invalid(Struct, frozen=True):
    """The peer broke the protocol in a way that ends the stream."""

    error: RemoteProtocolError


Event: TypeAlias = (
    RegisterAgent
    | Responded
    | Completed
    | Heartbeat
    | Welcome
    | SendMessage
    | Shutdown
    | Cancel
    | Interrupted
    | Ignored
    | Invalid
)


REMEMBERED = 64
"""Finished requests that are not taken for unknown ones."""

HARMLESS = {"request_id": Oddity.UNKNOWN_REQUEST} | dict.fromkeys(
    RegisterAgent.__struct_fields__, Oddity.SECOND_REGISTER
)
"""Fields that a registered agent may get wrong: no open request has such an id (D7), and it has registered (D3)."""


class Connection:
    """A coven stream as seen from one end."""

    def __init__(self, role: Role, *, limits: Limits = LIMITS) -> None:
        self.role = role
        self.state = State.OPENED
        self.limits = limits
        self.agent: RegisterAgent | None = None
        """The registration, at both ends."""
        self.ignored: Counter[Oddity] = Counter()
        self._request: str | None = None
        self._answered = False
        self._abandoned = False
        self._cancel_sent = False
        self._text: list[str] = []
        self._kept = 0
        self._whole = True
        self._over: deque[str] = deque(maxlen=REMEMBERED)
        self._ended = False

    @property
    def request(self) -> str | None:
        """The open request."""
        return self._request

    @property
    def abandoned(self) -> bool:
        """Whether no caller waits for the open request any more."""
        return self._abandoned

    @property
    def ready(self) -> bool:
        """Whether a message may be sent now."""
        return self.state is State.READY

    @property
    def understands_cancel(self) -> bool:
        return self.agent is not None and CANCEL_EXTENSION in self.agent.extensions

    @property
    def reads_input(self) -> bool:
        """Whether the agent takes the input from `input_json`, and needs no copy of it in `content`."""
        return self.agent is not None and INPUT_EXTENSION in self.agent.extensions

    # --- from the peer ---

    def receive(self, data: bytes) -> list[Event]:
        """One message from the peer. Never raises for what the peer did."""
        try:
            decode = codec.decode_agent if self.role is Role.HUB else codec.decode_server
            return [self._received(decode(data, self.limits))]
        except RemoteProtocolError as error:
            harmless = HARMLESS.get(error.field or "")
            if harmless is None or self.role is Role.AGENT or self.state is State.OPENED:
                return [Invalid(error)]
            return [self._ignore(harmless)]

    def end_of_stream(self) -> list[Event]:
        """The stream is over, however it ended. Reported once, and only if a request was open (D6)."""
        open_request, self._request = self._request, None
        if self._ended or open_request is None or self._abandoned:
            self._ended = True
            return []
        self._ended = True
        return [Interrupted(open_request)]

    def _received(self, message: AgentMessage | ServerMessage | None) -> Event:
        if self.state is State.OPENED and self.role is Role.HUB and not isinstance(message, RegisterAgent):
            raise NotRegistered("the first message must be `register`", field="payload")
        if message is None:
            return self._ignore(Oddity.EMPTY_MESSAGE)
        if isinstance(message, RegisterAgent):
            return self._registered(message)
        if isinstance(message, MessageResponse):
            return self._responded(message)
        if isinstance(message, Heartbeat):
            return message
        following = STREAM[self.state].get(_input(message))
        if following is None:
            return self._ignore(Oddity.MISPLACED)
        if isinstance(message, Cancel):
            if message.request_id != self._request:
                return self._ignore(self._stranger(message.request_id), message.request_id)
            return message
        self.state = following
        if isinstance(message, SendMessage):
            self._begin(message.request_id)
        return message

    def _registered(self, message: RegisterAgent) -> Event:
        if self.state is not State.OPENED:
            return self._ignore(Oddity.SECOND_REGISTER)
        if not message.agent_id:
            raise NotRegistered("`register` without an agent_id", field="agent_id")
        self.agent = message
        self.state = State.REGISTERED
        return message

    def _responded(self, message: MessageResponse) -> Event:
        request = message.request_id
        if request != self._request or self._request is None:
            return self._ignore(self._stranger(request), request)
        if message.empty:
            return self._ignore(Oddity.EMPTY_EVENT, request)
        first, self._answered = not self._answered, True
        abandoned = self._abandoned
        event = message.event
        if not message.last:
            if isinstance(event, Text) and not abandoned:
                self._keep(event.text)
            return self._ignore(Oddity.ABANDONED_REQUEST, request) if abandoned else Responded(message, first)
        text, streamed = self._answer(event)
        self._finish()
        if abandoned:
            return self._ignore(Oddity.ABANDONED_REQUEST, request)
        return Completed(message, text, streamed, first)

    def _ignore(self, why: Oddity, request_id: str = "") -> Ignored:
        self.ignored[why] += 1
        return Ignored(why, request_id)

    def _stranger(self, request_id: str) -> Oddity:
        return Oddity.FINISHED_REQUEST if request_id in self._over else Oddity.UNKNOWN_REQUEST

    # --- the open request ---

    def _begin(self, request_id: str) -> None:
        self._request = request_id
        self._answered = self._abandoned = self._cancel_sent = False
        self._text, self._kept, self._whole = [], 0, True

    def _keep(self, text: str) -> None:
        self._kept += len(text.encode("utf-8", "surrogatepass"))
        if self._kept > self.limits.text_bytes:
            self._whole = False
            self._text = []
        elif self._whole:
            self._text.append(text)

    def _answer(self, event: object) -> tuple[str | None, bool]:
        """The whole answer (D8), and whether it is just what was streamed."""
        if isinstance(event, Done) and event.full_response:
            return event.full_response, False
        return ("".join(self._text) if self._whole else None), True

    def _finish(self) -> None:
        following = STREAM[self.state].get(Input.END)
        assert following is not None  # a request is only open in BUSY and FINISHING
        self.state = following
        if self._request is not None:
            self._over.append(self._request)
        self._request = None
        self._abandoned = False
        self._text = []

    def abandon(self) -> None:
        """No caller waits for the open request any more: drop what comes about it, until it ends."""
        if self._request is not None:
            self._abandoned = True
            self._text = []

    def resume(self) -> bool:
        """The hub wants the open request after all. It can go on only if nothing of it was dropped and no `cancel` was
        sent; otherwise it must end first, and be sent again."""
        if self._abandoned and not self._answered and not self._cancel_sent:
            self._abandoned = False
        return self._request is not None and not self._abandoned

    # --- to the peer ---

    def send(self, message: AgentMessage | ServerMessage) -> bytes:
        """The bytes of a message, or `LocalProtocolError`, and then nothing has changed."""
        input = _input(message)
        if (input in OF_AGENTS) is not (self.role is Role.AGENT):
            raise LocalProtocolError(f"the {self.role.value} does not send {input}")
        if isinstance(message, MessageResponse):
            self._check_response(message)
        elif isinstance(message, Cancel):
            self._check_cancel(message)
        elif isinstance(message, RegisterAgent) and not message.agent_id:
            raise LocalProtocolError("an agent needs an id", field="agent_id")
        elif isinstance(message, SendMessage) and not message.request_id:
            raise LocalProtocolError("a request needs an id", field="request_id")
        following = STREAM[self.state].get(input)
        if following is None:
            raise LocalProtocolError(f"{input} is not allowed when the stream is {self.state}")
        data = self._encode(message)
        if len(data) > self.limits.message_bytes:
            raise LocalProtocolError(f"message of {len(data)} bytes exceeds {self.limits.message_bytes}")
        if isinstance(message, RegisterAgent):
            self.agent = message
        if isinstance(message, SendMessage):
            self._begin(message.request_id)
        if input is Input.END:
            self._finish()
        else:
            self.state = following
        return data

    def _encode(self, message: AgentMessage | ServerMessage) -> bytes:
        try:
            if isinstance(message, RegisterAgent | MessageResponse | Heartbeat):
                return codec.encode_agent(message)
            return codec.encode_server(message)
        except (ValueError, TypeError) as error:  # no UTF-8, or a number that does not fit
            raise LocalProtocolError(f"cannot be written: {error}") from None

    def _check_response(self, message: MessageResponse) -> None:
        if message.request_id != self._request or self._request is None:
            raise LocalProtocolError(f"{message.request_id!r} is not the open request", field="request_id")
        if message.empty:
            raise LocalProtocolError("a response needs an event", field="event")

    def _check_cancel(self, message: Cancel) -> None:
        if not self.understands_cancel:
            raise LocalProtocolError("this agent did not say that it understands `cancel`", field="payload")
        if message.request_id != self._request:
            raise LocalProtocolError(f"{message.request_id!r} is not the open request", field="request_id")

    def send_register(
        self,
        agent_id: str,
        *,
        name: str = "",
        capabilities: Iterable[str] = (),
        work_types: Iterable[str] = (),
        version: str = "",
        extensions: Iterable[str] = (CANCEL_EXTENSION, INPUT_EXTENSION),
    ) -> bytes:
        """The first message of a stream."""
        return self.send(
            RegisterAgent(
                agent_id=agent_id,
                name=name,
                capabilities=tuple(capabilities),
                work_types=tuple(work_types),
                version=version,
                extensions=tuple(extensions),
            )
        )

    def send_welcome(self, server_id: str) -> bytes:
        """Confirm a registration."""
        if self.agent is None:
            raise LocalProtocolError("no agent has registered")
        return self.send(Welcome(server_id=server_id, agent_id=self.agent.agent_id))

    def send_heartbeat(self, timestamp_ms: int) -> bytes:
        return self.send(Heartbeat(timestamp_ms))

    def send_shutdown(self, reason: str) -> bytes:
        return self.send(Shutdown(reason))

    def send_cancel(self, reason: str = "") -> bytes:
        """Ask the agent to stop the open request; implies `abandon`."""
        data = self.send(Cancel(request_id=self._request or "", reason=reason))
        self._cancel_sent = True
        self.abandon()
        return data
