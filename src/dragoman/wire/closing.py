"""Why the hub closes a connection that was open: one table for every transport, and for both ends.

The hub's core names the reason. A WebSocket closes with its code, a gRPC stream ends with its status, and both say its
sentence, which is for people: the SDK reads the code or the status.
"""

from __future__ import annotations

import enum


class CloseReason(enum.Enum):
    """The close code of a WebSocket, the name of gRPC's status, the sentence."""

    NEWER_CONNECTION = 4009, "ABORTED", "replaced by a newer connection of the same agent"
    OTHER_PROCESS = 1000, "UNAVAILABLE", "another process of the agent is here"
    AGENT_REMOVED = 4001, "UNAUTHENTICATED", "this agent was removed from the hub"
    TOKEN_REPLACED = 4001, "UNAUTHENTICATED", "the agent's token was replaced; connect again with the new one"
    HUB_STOPS = 1012, "UNAVAILABLE", "the hub stops; connect again"

    def __init__(self, websocket: int, grpc: str, sentence: str) -> None:
        self.websocket = websocket
        self.grpc = grpc
        self.sentence = sentence
