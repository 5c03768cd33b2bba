"""What an agentmsg connection tells its owner: one value for each thing a peer can say, or fail to say.

`tree` is the JSON object as it came, with the fields nobody knows; `raw` its bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.protocols.agentmsg.errors import AgentmsgError, Refusal
from dragoman.protocols.agentmsg.types import Message
from dragoman.wire.errors import Stage


class Received(Struct, frozen=True):
    """A message came for the first time. If `wants_ack`, call `acknowledge` once it cannot be lost any more."""

    message: Message
    tree: dict[str, Any]
    raw: bytes
    wants_ack: bool
    content: bytes
    """What it says, as `codec.fingerprint` tells it from others."""


class Repeated(Struct, frozen=True):
    """A message came again and is not acted on again. `acknowledged`: it was before; say the ACK again."""

    message: Message
    acknowledged: bool


class Acknowledged(Struct, frozen=True):
    """The peer has these messages of ours, and will not lose them. `message_ids` holds only what was waited for."""

    message: Message
    message_ids: tuple[str, ...]


class Outlived(Struct, frozen=True):
    """A message whose time to live is over: dropped (D6). `refusal` is for its sender, where it was promised more."""

    message: Message
    refusal: Refusal | None


class Invalid(Struct, frozen=True):
    """The peer broke the protocol. If `asks`, answer with `refusal` about the message `about`."""

    refusal: Refusal
    about: str | None
    what: str
    field: str | None
    stage: Stage
    asks: bool = True

    @classmethod
    def of(cls, error: AgentmsgError, *, asks: bool = True) -> Invalid:
        """The event for a refusal."""
        return cls(error.answer, error.about, error.what, error.field, error.stage, asks)


Event: TypeAlias = Received | Repeated | Acknowledged | Outlived | Invalid


class SendAgain(Struct, frozen=True):
    """Nobody acknowledged it: put these bytes on the link once more."""

    message_id: str
    data: bytes


class DeadLetter(Struct, frozen=True):
    """Nobody acknowledged it however often it was sent (D7)."""

    message: Message


Late: TypeAlias = SendAgain | DeadLetter | Outlived
