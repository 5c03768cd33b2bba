"""What a coven connection tells its owner: one value for each thing a peer can say."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dragoman.protocols.coven.errors import Oddity
from dragoman.protocols.coven.types import (
    Cancel,
    Heartbeat,
    MessageResponse,
    RegisterAgent,
    SendMessage,
    Shutdown,
    Welcome,
)
from dragoman.wire.errors import RemoteProtocolError

# --- told to a hub ---


class Registered(Struct, frozen=True):
    """An agent introduces itself: answer with `welcome`, or end the stream."""

    message: RegisterAgent


class Responded(Struct, frozen=True):
    """An event about the open request. `first` acknowledges the message it answers."""

    message: MessageResponse
    first: bool = False


class Completed(Struct, frozen=True):
    """The open request is over, by `done` or by `error`.

    `text` is the whole answer: `full_response`, or all text that came (D8). It is None if there was more than the
    connection keeps: then only its pieces are whole. `streamed` says that it is nothing but the text that came.
    """

    message: MessageResponse
    text: str | None
    streamed: bool
    first: bool = False


class Beat(Struct, frozen=True):
    """A heartbeat."""

    message: Heartbeat


# --- told to an agent ---


class Welcomed(Struct, frozen=True):
    message: Welcome


class MessageReceived(Struct, frozen=True):
    """A request to answer with events, ending with `done` or `error`."""

    message: SendMessage


class ShutdownReceived(Struct, frozen=True):
    """Finish what is under way, then close the stream."""

    message: Shutdown


class CancelReceived(Struct, frozen=True):
    """Nobody waits for this request any more; end it soon."""

    message: Cancel


# --- told to both ---


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
    Registered
    | Responded
    | Completed
    | Beat
    | Welcomed
    | MessageReceived
    | ShutdownReceived
    | CancelReceived
    | Interrupted
    | Ignored
    | Invalid
)
