"""The life of one stream, as a table. Both ends are held to it.

    OPENED ──register──▶ REGISTERED ──welcome──▶ READY ──message──▶ BUSY ──end──▶ READY …
                                                   │                  │
                                               shutdown            shutdown
                                                   ▼                  ▼
                                                LEAVING ◀──end─── FINISHING

One request at a time: `message` is only allowed in READY (D5). After a shutdown the request under way is finished
and none follows. Heartbeats may be sent at any time once the agent has registered.
"""

from __future__ import annotations

from enum import StrEnum

from dragoman.protocols.coven.types import (
    AgentMessage,
    Cancel,
    Heartbeat,
    MessageResponse,
    RegisterAgent,
    SendMessage,
    ServerMessage,
    Shutdown,
    Welcome,
)
from dragoman.wire.machine import Table
from dragoman.wire.role import Role


class State(StrEnum):
    OPENED = "opened"
    REGISTERED = "registered"
    READY = "ready"
    BUSY = "busy"
    FINISHING = "finishing"
    LEAVING = "leaving"


class Said(StrEnum):
    REGISTER = "register"
    WELCOME = "welcome"
    MESSAGE = "send_message"
    RESPONSE = "response"
    END = "the end of a request"
    HEARTBEAT = "heartbeat"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"


STREAM: Table[State, Said] = Table(
    {
        State.OPENED: {Said.REGISTER: State.REGISTERED},
        State.REGISTERED: {
            Said.WELCOME: State.READY,
            Said.HEARTBEAT: State.REGISTERED,
        },
        State.READY: {
            Said.MESSAGE: State.BUSY,
            Said.HEARTBEAT: State.READY,
            Said.SHUTDOWN: State.LEAVING,
        },
        State.BUSY: {
            Said.RESPONSE: State.BUSY,
            Said.END: State.READY,
            Said.HEARTBEAT: State.BUSY,
            Said.CANCEL: State.BUSY,
            Said.SHUTDOWN: State.FINISHING,
        },
        State.FINISHING: {
            Said.RESPONSE: State.FINISHING,
            Said.END: State.LEAVING,
            Said.HEARTBEAT: State.FINISHING,
            Said.CANCEL: State.FINISHING,
        },
        State.LEAVING: {Said.HEARTBEAT: State.LEAVING},
    },
    start=State.OPENED,
)

SPEAKER = {
    Said.REGISTER: Role.AGENT,
    Said.RESPONSE: Role.AGENT,
    Said.END: Role.AGENT,
    Said.HEARTBEAT: Role.AGENT,
    Said.WELCOME: Role.HUB,
    Said.MESSAGE: Role.HUB,
    Said.CANCEL: Role.HUB,
    Said.SHUTDOWN: Role.HUB,
}

_WORDS: dict[type[AgentMessage | ServerMessage], Said] = {
    RegisterAgent: Said.REGISTER,
    MessageResponse: Said.RESPONSE,
    Heartbeat: Said.HEARTBEAT,
    Welcome: Said.WELCOME,
    SendMessage: Said.MESSAGE,
    Shutdown: Said.SHUTDOWN,
    Cancel: Said.CANCEL,
}


def said(message: AgentMessage | ServerMessage) -> Said:
    """The word of the table for a message."""
    return Said.END if isinstance(message, MessageResponse) and message.last else _WORDS[type(message)]
