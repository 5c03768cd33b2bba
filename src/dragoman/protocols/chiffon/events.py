"""What a chiffon connection tells its owner: one value for each thing a peer can say."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dragoman.protocols.chiffon.errors import ChiffonError, is_retryable
from dragoman.protocols.chiffon.types import (
    Correlation,
    Envelope,
    ErrorPayload,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.wire.errors import Stage


class RequestReceived(Struct, frozen=True):
    """The peer wants work done. `raw` is the message as it came, with the fields nobody knows."""

    message: Envelope[WorkRequest]
    raw: bytes


class StatusReceived(Struct, frozen=True):
    """Work goes on. `acknowledges` is the delivery which this first answer acknowledges (D5)."""

    message: Envelope[WorkStatus]
    raw: bytes
    acknowledges: str | None = None


class ResultReceived(Struct, frozen=True):
    """Work has ended, or, while `last` is false, a block of its output came (D4)."""

    message: Envelope[WorkResult]
    raw: bytes
    acknowledges: str | None = None
    last: bool = True


class ErrorReceived(Struct, frozen=True):
    """The peer reports an error; `ends_task` if nobody should try again (D11)."""

    message: Envelope[ErrorPayload]
    raw: bytes
    acknowledges: str | None = None

    @property
    def ends_task(self) -> bool:
        """Whether the error is final."""
        return not is_retryable(self.message.payload.error_code)


class AckReceived(Struct, frozen=True):
    """A client acknowledges deliveries, and what came before each in its lane."""

    delivery_ids: tuple[str, ...]


class ReceiptReceived(Struct, frozen=True):
    """The hub has durably committed these messages of ours."""

    message_ids: tuple[str, ...]


class Invalid(Struct, frozen=True):
    """The peer broke the protocol. Send `answer` back with `Connection.send_error(answer, about=about, …)`."""

    answer: ErrorPayload
    about: Correlation | None
    what: str
    field: str | None
    stage: Stage

    @classmethod
    def of(cls, error: ChiffonError) -> Invalid:
        """The event for a refusal."""
        return cls(error.answer, error.about, error.what, error.field, error.stage)


Event: TypeAlias = (
    RequestReceived | StatusReceived | ResultReceived | ErrorReceived | AckReceived | ReceiptReceived | Invalid
)


def delivery_id(message: Envelope[WorkRequest | WorkStatus | WorkResult | ErrorPayload]) -> str | None:
    """The delivery the hub put on a message, for the client to acknowledge."""
    value = message.x_custom_fields.get("delivery_id")
    return value if isinstance(value, str) else None
