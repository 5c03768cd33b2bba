"""How a stream can go wrong: what ends it, by gRPC's status, and what is only ignored and counted.

    broken rule                                      the stream ends with     decision
    -----------------------------------------------  -----------------------  --------
    bytes that are no message; a message too large   INVALID_ARGUMENT         D9
    the first message is not `register`              INVALID_ARGUMENT         D3
    `register` without an agent_id                   INVALID_ARGUMENT         document
    no `register` in time                            DEADLINE_EXCEEDED        D3
    the agent is connected already                   ALREADY_EXISTS           document, D4
    the hub leaves, its patience is over             UNAVAILABLE              D10

Everything in `Oddity` is harmless: it is dropped and counted, and the stream goes on.
"""

from __future__ import annotations

from enum import StrEnum

from dragoman.wire.errors import RemoteProtocolError, Stage


class Oddity(StrEnum):
    """Why something a peer sent was ignored."""

    SECOND_REGISTER = "second_register"  # D3
    EMPTY_EVENT = "empty_event"  # no event that we know (D1)
    EMPTY_MESSAGE = "empty_message"  # no payload that we know (D1)
    UNKNOWN_REQUEST = "unknown_request"  # D7
    FINISHED_REQUEST = "finished_request"  # D7
    ABANDONED_REQUEST = "abandoned_request"  # about a request that was given up (B4)
    MISPLACED = "misplaced"  # the right message at the wrong time


class Malformed(RemoteProtocolError):
    """The peer's bytes are no message of coven, or one that breaks a bound."""

    def __init__(self, what: str, *, stage: Stage = Stage.SHAPE, field: str | None = None) -> None:
        super().__init__(what, stage=stage, field=field)


class NotRegistered(RemoteProtocolError):
    """Something came before a good `register` (D3)."""

    def __init__(self, what: str, *, field: str | None = None) -> None:
        super().__init__(what, stage=Stage.ORDER, field=field)
