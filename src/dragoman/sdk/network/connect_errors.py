"""Advice for an address where a server answers, but not as expected: TLS or none, the other port.

Libraries describe what they saw, each in other terms; this table says what to do about it.
"""

from __future__ import annotations

import os
import socket
import ssl

from dragoman.sdk.address import Address
from dragoman.sdk.links import LinkDown

_TLS = "if the hub speaks TLS, say so in the address: wss, https or covens"
_PLAIN = "no TLS is spoken there: write ws, http or coven"
_SHOW = "if the hub asks for a certificate, name yours in DRAGOMAN_CLIENT_CERTIFICATE and DRAGOMAN_CLIENT_KEY"

ADVICE: tuple[tuple[str, str], ...] = (
    ("CERTIFICATE_VERIFY_FAILED", "name the hub's CA in SSL_CERT_FILE, and the hub as its certificate does"),
    ("WRONG_VERSION_NUMBER", _PLAIN),
    ("ALERT_CERTIFICATE_REQUIRED", _SHOW),
    ("ALERT_UNKNOWN_CA", _SHOW),
    ("http1.x server", "coven is spoken on the hub's gRPC port (50051), not on this one"),
    ("illegal request line", "that may be the gRPC port: this is spoken on the hub's HTTP port (8420)"),
    ("Server disconnected without sending a response", _TLS),
    ("did not receive a valid HTTP response", _TLS),
    ("Socket closed", _TLS),
)
"""A part of the library's message → what to do."""

SECURE = {_TLS: _SHOW}
"""What to do instead where TLS was spoken."""


def advised(text: str, *, secure: bool = False) -> str:
    """The message of a failure, with what to do about it where that is known and not part of the message yet."""
    problem = text.rstrip(".")
    if any(what in problem for what in (*SECURE.values(), *(what for _, what in ADVICE))):
        return problem
    what = next((what for part, what in ADVICE if part in problem), None)
    return problem if what is None else f"{problem}; {SECURE.get(what, what) if secure else what}"


def asks(text: str, question: str) -> str:
    """The text as a sentence, and a question where no better advice is known."""
    known = any(part in text for part, _ in ADVICE)
    return f"{text}." if known else f"{text}. {question}"


def sentence(error: BaseException) -> str:
    """The message of an error, as `advised`."""
    return advised(str(error) or type(error).__name__)


def not_made(address: Address, error: BaseException) -> LinkDown:
    """No server answers at an address."""
    return LinkDown(f"{address.shown}: {advised(_problem(error), secure=address.is_secure)}")


def _problem(error: BaseException) -> str:
    """The system's message for an errno. The numbers of TLS and of the resolver are not the system's: theirs would be
    "Operation not permitted" for a certificate that is not trusted."""
    match error:
        case ssl.SSLError():
            return str(error)
        case socket.gaierror():
            return error.strerror or str(error)
        case OSError(errno=int(number)):
            return os.strerror(number)
    return str(error) or type(error).__name__
