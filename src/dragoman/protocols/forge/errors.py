"""The six codes of forge, and a peer's broken message as an exception that knows its answer.

A code says what to do about it; `details` says what exactly. Rate limiting has no code of its own: it is an
INVALID_REQUEST whose `details.reason` is RATE_LIMITED (D9).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dragoman.messages.faults import Kind
from dragoman.protocols.forge.types import ErrorBody
from dragoman.wire.errors import RemoteProtocolError, Stage


class Code(enum.StrEnum):
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_MESSAGE_TYPE = "INVALID_MESSAGE_TYPE"
    UNAUTHORIZED = "UNAUTHORIZED"
    NOT_FOUND = "NOT_FOUND"
    TIMEOUT = "TIMEOUT"
    INTERNAL_ERROR = "INTERNAL_ERROR"


class Rule(Struct, frozen=True):
    meaning: str
    retry: bool


TABLE: dict[Code, Rule] = {
    Code.INVALID_REQUEST: Rule("Malformed request", retry=False),
    Code.INVALID_MESSAGE_TYPE: Rule("Unknown message type", retry=False),
    Code.UNAUTHORIZED: Rule("Agent not authorized for operation", retry=False),
    Code.NOT_FOUND: Rule("Resource not found", retry=False),
    Code.TIMEOUT: Rule("Request timed out", retry=True),
    Code.INTERNAL_ERROR: Rule("Unexpected error", retry=True),
}

CODES: Mapping[Kind, Code] = {
    Kind.INVALID: Code.INVALID_REQUEST,
    Kind.TOO_LARGE: Code.INVALID_REQUEST,
    Kind.UNSUPPORTED_VERSION: Code.INVALID_REQUEST,
    Kind.UNSUPPORTED_WORK: Code.INVALID_REQUEST,
    Kind.UNAUTHENTICATED: Code.UNAUTHORIZED,
    Kind.FORBIDDEN: Code.UNAUTHORIZED,
    Kind.NOT_FOUND: Code.NOT_FOUND,
    Kind.CONFLICT: Code.INVALID_REQUEST,
    Kind.MISMATCH: Code.INVALID_REQUEST,
    Kind.CONTRACT: Code.INVALID_REQUEST,
    Kind.RATE_LIMITED: Code.INVALID_REQUEST,
    Kind.OVERLOADED: Code.INTERNAL_ERROR,
    Kind.UNAVAILABLE: Code.INTERNAL_ERROR,
    Kind.TIMEOUT: Code.TIMEOUT,
    Kind.RESOURCES: Code.INTERNAL_ERROR,
    Kind.CANCELLED: Code.INVALID_REQUEST,
    Kind.DEPENDENCY: Code.INVALID_REQUEST,
    Kind.WORK_FAILED: Code.INTERNAL_ERROR,
    Kind.INTERNAL: Code.INTERNAL_ERROR,
}
"""What the hub says of each of its faults."""

RATE_LIMITED = "RATE_LIMITED"


def is_retryable(error: ErrorBody) -> bool:
    """Whether sending the same again can help. A code that nobody here knows is not retried."""
    if error.details.get("reason") == RATE_LIMITED:
        return True
    retryable = error.details.get("retryable")
    if type(retryable) is bool:
        return retryable
    return error.code in TABLE and TABLE[Code(error.code)].retry


class ForgeError(RemoteProtocolError):
    """A peer's message was refused. `about` is the id of the request to answer, or None: events get no answer."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        code: Code = Code.INVALID_REQUEST,
        field: str | None = None,
        about: str | None = None,
        asks: bool = False,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(what, stage=stage, field=field)
        self.code = code
        self.about = about
        self.asks = asks
        self.details = details or {}

    @property
    def answer(self) -> ErrorBody:
        details = dict(self.details)
        if self.field is not None:
            details["field"] = self.field
        return ErrorBody(code=self.code, message=str(self), details=details)
