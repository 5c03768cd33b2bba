"""What was probably meant by an address where somebody answers, but not as expected: TLS or none, the other port.

Libraries say what they saw, in their own words; what to do about it stands in this table.
"""

from __future__ import annotations

import os

from dragoman.sdk.address import Address
from dragoman.sdk.links import LinkDown

_TLS = "if the hub speaks TLS, say so in the address: wss, https or covens"
_PLAIN = "no TLS is spoken there: write ws, http or coven"

ADVICE: tuple[tuple[str, str], ...] = (
    ("CERTIFICATE_VERIFY_FAILED", "name the hub's CA in SSL_CERT_FILE, and the hub as its certificate does"),
    ("WRONG_VERSION_NUMBER", _PLAIN),
    ("http1.x server", "coven is spoken on the hub's gRPC port (50051), not on this one"),
    ("illegal request line", "that may be the gRPC port: this is spoken on the hub's HTTP port (8420)"),
    ("Server disconnected without sending a response", _TLS),
    ("did not receive a valid HTTP response", _TLS),
    ("Socket closed", _TLS),
)
"""A part of what is said → what to do."""


def advised(text: str) -> str:
    """What is said of a failure, with what to do about it where that is known."""
    said = text.rstrip(".")
    return next((f"{said}; {what}" for part, what in ADVICE if part in said and what not in said), said)


def asks(text: str, question: str) -> str:
    """The text as a sentence, and the question that is left where nothing better is known."""
    known = any(part in text for part, _ in ADVICE)
    return f"{text}." if known else f"{text}. {question}"


def sentence(error: BaseException) -> str:
    """What an error says, as `advised`."""
    return advised(str(error) or type(error).__name__)


def not_made(address: Address, error: BaseException) -> LinkDown:
    """Nobody answers at an address."""
    is_known = isinstance(error, OSError) and error.errno is not None
    why = advised(os.strerror(error.errno)) if is_known else sentence(error)  # type: ignore[attr-defined]
    return LinkDown(f"{address.shown}: {why}")
