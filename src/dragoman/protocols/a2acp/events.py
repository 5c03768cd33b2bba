"""What an A2ACP connection tells its owner: one value for each thing a peer can say, or fail to say.

`tree` is the JSON object as it came, with the fields nobody knows, in our major version; `raw` its bytes. Both have the
sender's credential in them: it is neither kept nor passed on, and these values do not show it (all-D4).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.protocols.a2acp.errors import A2acpError, ErrorBody, Refusal
from dragoman.protocols.a2acp.intents import Body
from dragoman.protocols.a2acp.types import Agent, Message
from dragoman.wire.errors import Stage


class Received(Struct, frozen=True):
    """A message came. `body` is its payload where the intent is one of the broker's."""

    message: Message
    tree: dict[str, Any]
    raw: bytes
    body: Body | None = None

    def __repr__(self) -> str:
        return f"Received({self.message!r}, body={self.body!r})"


class Answered(Struct, frozen=True):
    """A request of ours was answered: `error` is None, or says why there is no answer."""

    message: Message
    request: Message
    tree: dict[str, Any]
    raw: bytes
    body: Body | None = None
    error: ErrorBody | None = None

    def __repr__(self) -> str:
        return f"Answered({self.message!r}, body={self.body!r}, error={self.error!r})"


class Unexpected(Struct, frozen=True):
    """An answer to nothing we asked, or to what was answered before: counted and dropped."""

    message: Message


class Invalid(Struct, frozen=True):
    """The peer broke the protocol. If `asks`, answer with `refusal`, to `sender` where that can be read."""

    refusal: Refusal
    about: str | None
    thread: str | None
    sender: Agent | None
    what: str
    field: str | None
    stage: Stage
    asks: bool = True

    @classmethod
    def of(cls, error: A2acpError, sender: Agent | None, *, asks: bool = True) -> Invalid:
        """The event for a refusal."""
        return cls(error.answer, error.about, error.thread, sender, error.what, error.field, error.stage, asks)


Event: TypeAlias = Received | Answered | Unexpected | Invalid


class Overdue(Struct, frozen=True):
    """A request of ours that nobody answered in its time."""

    request: Message
    refusal: Refusal
