"""One end of a coven stream, on whole message bytes, in either role.

A stream carries one request at a time (D5), so a connection remembers one request: its id, whether it was answered
yet, and the text that came so far, so that `done` without a `full_response` still has the whole answer (D8). It
also remembers the last few requests that are over, only to tell "finished" from "never heard of" when it counts
what it drops (D7).

What a peer does wrongly is of two kinds. Breaking the opening, or sending bytes that are no message, is `Invalid`:
the stream is to be ended. Everything else is `Ignored`: dropped, counted, and the stream goes on.

A hub may give a request up without the agent knowing how to hear it (`abandon`): then the agent is busy until it ends
the request, and what it says about it is dropped (B4).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from dragoman.protocols.coven import codec
from dragoman.protocols.coven.codec import LIMITS, Limits
from dragoman.protocols.coven.errors import NotRegistered, Oddity
from dragoman.protocols.coven.events import (
    Beat,
    CancelReceived,
    Completed,
    Event,
    Ignored,
    Interrupted,
    Invalid,
    MessageReceived,
    Registered,
    Responded,
    ShutdownReceived,
    Welcomed,
)
from dragoman.protocols.coven.state import SPEAKER, STREAM, Said, State, said
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

REMEMBERED = 64
"""So many finished requests are remembered, and so not taken for unknown ones."""

HARMLESS = {"request_id": Oddity.UNKNOWN_REQUEST} | dict.fromkeys(
    RegisterAgent.__struct_fields__, Oddity.SECOND_REGISTER
)
"""Fields of which a registered agent may say what it likes: no request of ours has such an id (D7), and what it says of
itself was said (D3)."""


class Connection:
    """A coven stream as seen from one end."""

    def __init__(self, role: Role, *, limits: Limits = LIMITS) -> None:
        self.role = role
        self.state = State.OPENED
        self.limits = limits
        self.agent: RegisterAgent | None = None
        """What the agent said about itself, on both ends."""
        self.ignored: Counter[Oddity] = Counter()
        self._request: str | None = None
        self._answered = False
        self._abandoned = False
        self._told = False
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
        """Whether nobody waits for the open request any more."""
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
            return [self._hear(decode(data, self.limits))]
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

    def _hear(self, message: AgentMessage | ServerMessage | None) -> Event:
        if self.state is State.OPENED and self.role is Role.HUB and not isinstance(message, RegisterAgent):
            raise NotRegistered("the first message must be `register`", field="payload")
        if message is None:
            return self._ignore(Oddity.EMPTY_MESSAGE)
        if isinstance(message, RegisterAgent):
            return self._hear_register(message)
        if isinstance(message, MessageResponse):
            return self._hear_response(message)
        if isinstance(message, Heartbeat):
            return Beat(message)
        following = STREAM.after(self.state, said(message))
        if following is None:
            return self._ignore(Oddity.MISPLACED)
        if isinstance(message, Cancel):
            if message.request_id != self._request:
                return self._ignore(self._stranger(message.request_id), message.request_id)
            return CancelReceived(message)
        self.state = following
        if isinstance(message, SendMessage):
            self._begin(message.request_id)
            return MessageReceived(message)
        return Welcomed(message) if isinstance(message, Welcome) else ShutdownReceived(message)

    def _hear_register(self, message: RegisterAgent) -> Event:
        if self.state is not State.OPENED:
            return self._ignore(Oddity.SECOND_REGISTER)
        if not message.agent_id:
            raise NotRegistered("`register` without an agent_id", field="agent_id")
        self.agent = message
        self.state = State.REGISTERED
        return Registered(message)

    def _hear_response(self, message: MessageResponse) -> Event:
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
        self._finish(Said.END)
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
        self._answered = self._abandoned = self._told = False
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

    def _finish(self, word: Said) -> None:
        following = STREAM.after(self.state, word)
        assert following is not None  # a request is only open in BUSY and FINISHING
        self.state = following
        if self._request is not None:
            self._over.append(self._request)
        self._request = None
        self._abandoned = False
        self._text = []

    def abandon(self) -> None:
        """Nobody waits for the open request any more: what comes about it is dropped, until it ends."""
        if self._request is not None:
            self._abandoned = True
            self._text = []

    def resume(self) -> bool:
        """Somebody asks for the open request again. It can be heard again only if nothing of it was dropped and the
        agent was not told to stop; otherwise it must end first, and be sent anew."""
        if self._abandoned and not self._answered and not self._told:
            self._abandoned = False
        return self._request is not None and not self._abandoned

    # --- to the peer ---

    def send(self, message: AgentMessage | ServerMessage) -> bytes:
        """The bytes of a message, or `LocalProtocolError`, and then nothing has changed."""
        word = said(message)
        if SPEAKER[word] is not self.role:
            raise LocalProtocolError(f"the {self.role.value} does not send {word}")
        if isinstance(message, MessageResponse):
            self._check_response(message)
        elif isinstance(message, Cancel):
            self._check_cancel(message)
        elif isinstance(message, RegisterAgent) and not message.agent_id:
            raise LocalProtocolError("an agent needs an id", field="agent_id")
        elif isinstance(message, SendMessage) and not message.request_id:
            raise LocalProtocolError("a request needs an id", field="request_id")
        following = STREAM.after(self.state, word)
        if following is None:
            raise LocalProtocolError(f"{word} is not allowed when the stream is {self.state}")
        data = self._encode(message)
        if len(data) > self.limits.message_bytes:
            raise LocalProtocolError(f"message of {len(data)} bytes exceeds {self.limits.message_bytes}")
        if isinstance(message, RegisterAgent):
            self.agent = message
        if isinstance(message, SendMessage):
            self._begin(message.request_id)
        if word is Said.END:
            self._finish(word)
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
        """Introduce ourselves; the first message of a stream."""
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
            raise LocalProtocolError("nobody has registered")
        return self.send(Welcome(server_id=server_id, agent_id=self.agent.agent_id))

    def send_heartbeat(self, timestamp_ms: int) -> bytes:
        return self.send(Heartbeat(timestamp_ms))

    def send_shutdown(self, reason: str) -> bytes:
        return self.send(Shutdown(reason))

    def send_cancel(self, reason: str = "") -> bytes:
        """Tell the agent that nobody waits for the open request any more; implies `abandon`."""
        data = self.send(Cancel(request_id=self._request or "", reason=reason))
        self._told = True
        self.abandon()
        return data
