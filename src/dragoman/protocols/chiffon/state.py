"""The life of one exchange, from the request for work to its end.

Two sides take part, whichever role they play on the link: the *requester* asks, the *performer* works and
answers. The hub performs towards an orchestrator and requests from an agent, with the same table. Both ends keep
a copy; each checks what it is about to say and what it is told.

    IDLE --request--> REQUESTED --status--> RUNNING <--pause/status--> PAUSED
                          |                    |
                          +------ part --------+--> FINISHING --result--> DONE
                          +------ setback -----+--> SET_BACK --request--> REQUESTED
                          +------ refusal -----+--> FAILED

Four things look odd and are meant:

- A request may be said again in every state, because a requester who lost the answer repeats it with the
  same request_id. Work under way goes on (the repetition joins it); after the end it starts anew, and it is the
  performer's memory (`idempotency`) that turns "anew" into "the first result again".
- Nothing new follows a result but a repeated request or a complaint. A second result or a late status is the
  peer's error. (The very same message once more is not: `connection` knows it by its message_id.)
- Blocks of a result that is repeated may trail behind its end; only the last one is known by its id.
- Errors may cross on the link, so an exchange that failed may hear of another failure.
"""

from __future__ import annotations

from enum import StrEnum

from dragoman.protocols.chiffon import chunks
from dragoman.protocols.chiffon.errors import is_retryable
from dragoman.protocols.chiffon.types import ErrorPayload, Payload, WorkRequest, WorkStatus
from dragoman.wire.machine import Table


class Side(StrEnum):
    """Who somebody is in one exchange."""

    REQUESTER = "requester"
    PERFORMER = "performer"

    @property
    def other(self) -> Side:
        """The side across."""
        return Side.PERFORMER if self is Side.REQUESTER else Side.REQUESTER


class State(StrEnum):
    """Where an exchange is."""

    IDLE = "idle"
    REQUESTED = "requested"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHING = "finishing"
    SET_BACK = "set_back"
    DONE = "done"
    FAILED = "failed"


class Said(StrEnum):
    """Everything that can be said in an exchange."""

    REQUEST = "work_request"
    COMPLAINT = "retryable error of the requester"
    ABORT = "error of the requester"

    STATUS = "work_status"
    PAUSE = "work_status paused"
    PART = "part of a work_result"
    RESULT = "work_result"
    SETBACK = "retryable error"
    REFUSAL = "error"


SPEAKER: dict[Said, Side] = {
    Said.REQUEST: Side.REQUESTER,
    Said.COMPLAINT: Side.REQUESTER,
    Said.ABORT: Side.REQUESTER,
    Said.STATUS: Side.PERFORMER,
    Said.PAUSE: Side.PERFORMER,
    Said.PART: Side.PERFORMER,
    Said.RESULT: Side.PERFORMER,
    Said.SETBACK: Side.PERFORMER,
    Said.REFUSAL: Side.PERFORMER,
}

EXCHANGE: Table[State, Said] = Table(
    {
        State.IDLE: {
            Said.REQUEST: State.REQUESTED,
        },
        State.REQUESTED: {
            Said.REQUEST: State.REQUESTED,
            Said.COMPLAINT: State.REQUESTED,
            Said.ABORT: State.FAILED,
            Said.STATUS: State.RUNNING,
            Said.PAUSE: State.PAUSED,
            Said.PART: State.FINISHING,
            Said.RESULT: State.DONE,
            Said.SETBACK: State.SET_BACK,
            Said.REFUSAL: State.FAILED,
        },
        State.RUNNING: {
            Said.REQUEST: State.RUNNING,
            Said.COMPLAINT: State.RUNNING,
            Said.ABORT: State.FAILED,
            Said.STATUS: State.RUNNING,
            Said.PAUSE: State.PAUSED,
            Said.PART: State.FINISHING,
            Said.RESULT: State.DONE,
            Said.SETBACK: State.SET_BACK,
            Said.REFUSAL: State.FAILED,
        },
        State.PAUSED: {
            Said.REQUEST: State.PAUSED,
            Said.COMPLAINT: State.PAUSED,
            Said.ABORT: State.FAILED,
            Said.STATUS: State.RUNNING,
            Said.PAUSE: State.PAUSED,
            Said.PART: State.FINISHING,
            Said.RESULT: State.DONE,
            Said.SETBACK: State.SET_BACK,
            Said.REFUSAL: State.FAILED,
        },
        State.FINISHING: {
            Said.REQUEST: State.FINISHING,
            Said.COMPLAINT: State.FINISHING,
            Said.ABORT: State.FAILED,
            Said.PART: State.FINISHING,
            Said.RESULT: State.DONE,
            Said.SETBACK: State.SET_BACK,
            Said.REFUSAL: State.FAILED,
        },
        State.SET_BACK: {
            Said.REQUEST: State.REQUESTED,
            Said.COMPLAINT: State.SET_BACK,
            Said.ABORT: State.FAILED,
            Said.SETBACK: State.SET_BACK,
            Said.REFUSAL: State.FAILED,
        },
        State.DONE: {
            Said.REQUEST: State.REQUESTED,
            Said.COMPLAINT: State.DONE,
            Said.ABORT: State.DONE,
            Said.PART: State.DONE,
        },
        State.FAILED: {
            Said.REQUEST: State.REQUESTED,
            Said.COMPLAINT: State.FAILED,
            Said.ABORT: State.FAILED,
            Said.SETBACK: State.FAILED,
            Said.REFUSAL: State.FAILED,
        },
    },
    start=State.IDLE,
)

#: Exchanges nobody is busy with: their memory may be given up.
OVER = frozenset({State.SET_BACK, State.DONE, State.FAILED})


def said(payload: Payload, speaker: Side) -> Said:
    """What a message says in the exchange's terms."""
    if isinstance(payload, WorkStatus):
        return Said.PAUSE if payload.status == "paused" else Said.STATUS
    if isinstance(payload, WorkRequest):
        return Said.REQUEST
    if isinstance(payload, ErrorPayload):
        if speaker is Side.REQUESTER:
            return Said.COMPLAINT if is_retryable(payload.error_code) else Said.ABORT
        return Said.SETBACK if is_retryable(payload.error_code) else Said.REFUSAL
    return Said.RESULT if chunks.is_last(payload) else Said.PART
