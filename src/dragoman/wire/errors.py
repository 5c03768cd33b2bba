"""Which end broke the protocol: this one or the peer.

The distinction is h11's, and it decides what happens next. A `LocalProtocolError` is a defect at this end: it is raised
before a byte leaves, and the connection is as it was. A `RemoteProtocolError` is the peer's fault: this end answers it
in the protocol's own form, so it carries facts (what, where, at which check, whether to try again) rather than a
sentence to be parsed.
"""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """The check that refused an input. The members stand in the order of the checks (all-D3)."""

    SIZE = "size"
    DEPTH = "depth"
    JSON = "json"
    SHAPE = "shape"
    MEANING = "meaning"
    ORDER = "order"


def with_next(what: str, next: str) -> str:
    """What is wrong, and what to do next where that is known: the one way to put them together."""
    return f"{what}; {next}" if next else what


class ProtocolError(Exception):
    """A rule of a protocol was broken; `field` is a dotted path where one is known."""

    def __init__(self, what: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.what = what
        self.field = field


class LocalProtocolError(ProtocolError):
    """This end was about to break the protocol. Nothing was sent and no state has changed."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. `retryable` says whether sending the same again can help, and `next` what to do:
    `what` ends with it."""

    def __init__(
        self, what: str, *, stage: Stage, field: str | None = None, retryable: bool = False, next: str = ""
    ) -> None:
        super().__init__(with_next(what, next), field=field)
        self.next = next
        self.stage = stage
        self.retryable = retryable
