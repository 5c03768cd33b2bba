"""What a line or a frame of forge turned out to be: one value for each thing a peer can say.

`tree` is the JSON object as it came, with the fields nobody knows.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.protocols.forge.errors import ForgeError
from dragoman.protocols.forge.types import ErrorBody, Message, Response
from dragoman.wire.errors import Stage


class RequestReceived(Struct, frozen=True):
    """An agent wants something, and waits for the response with its id."""

    message: Message
    tree: dict[str, Any]


class EventReceived(Struct, frozen=True):
    """An agent tells something, and waits for nothing."""

    message: Message
    tree: dict[str, Any]


class ResponseReceived(Struct, frozen=True):
    """The orchestrator answers."""

    message: Response
    tree: dict[str, Any]


class NoticeReceived(Struct, frozen=True):
    """The orchestrator tells something."""

    message: Message
    tree: dict[str, Any]


class LogReceived(Struct, frozen=True):
    """Words that are no message (D3): what a program prints. `type` is there if it was a message nobody knows."""

    text: str
    type: str | None = None


class Dropped(Struct, frozen=True):
    """A message above the limit was dropped (D1)."""

    length: int


class Invalid(Struct, frozen=True):
    """The peer broke the protocol. If `asks`, send `answer` back as the response to `about`; events get none."""

    answer: ErrorBody
    about: str | None
    asks: bool
    what: str
    field: str | None
    stage: Stage

    @classmethod
    def of(cls, error: ForgeError) -> Invalid:
        """The event for a refusal."""
        return cls(error.answer, error.about, error.asks, error.what, error.field, error.stage)


Event: TypeAlias = RequestReceived | EventReceived | ResponseReceived | NoticeReceived | LogReceived | Dropped | Invalid
