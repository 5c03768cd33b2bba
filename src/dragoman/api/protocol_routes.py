"""The endpoints that protocols serve themselves, for the documentation: who asks is the agent, by its own token."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.api.route import ApiRoute
from dragoman.api.schemas import ENVELOPES, MESSAGES
from dragoman.messages.files import FileRef
from dragoman.protocols.a2acp.claims import TokenGrant
from dragoman.protocols.a2acp.types import Message
from dragoman.protocols.agentmsg.records import ErrorReport, SharedState
from dragoman.protocols.agentmsg.types import Entity, EntityType, StateUpdate
from dragoman.protocols.chiffon.types import ErrorPayload, Registered, Registration
from dragoman.protocols.forge.types import Failure
from dragoman.server.a2acp.agents import Declaration, Declared
from dragoman.server.a2acp.auth import TokenWish

STATUSES = (400, 401, 404, 409, 413, 422, 429, 503)

# -- chiffon -----------------------------------------------------------------------------------------------------


class Accepted(msgspec.Struct, frozen=True):
    status: str
    message_id: str


class Ack(msgspec.Struct, frozen=True):
    delivery_ids: tuple[str, ...]


class Inbox(msgspec.Struct, frozen=True):
    """Each message is an envelope, beside the `delivery_id` to acknowledge it by."""

    messages: tuple[InboxItem, ...]


class InboxItem(msgspec.Struct, frozen=True):
    delivery_id: str
    message: dict[str, Any]


class InboxQuery(msgspec.Struct, frozen=True):
    wait: int = 0
    max: int = 1


class FileName(msgspec.Struct, frozen=True):
    name: str = ""


class FileOf(msgspec.Struct, frozen=True):
    task_id: str | None = None


class MissedQuery(InboxQuery, frozen=True):
    answer_to: str | None = None


ERROR = next(envelope for envelope in ENVELOPES if envelope.__args__[0] is ErrorPayload)
CHIFFON_ERRORS = dict.fromkeys(STATUSES, ERROR)

CHIFFON = (
    ApiRoute(
        method="POST", path="/api/agent/register", tag="chiffon", summary="Introduce an agent", auth="agent",
        body=Registration, answers={200: Registered, **CHIFFON_ERRORS},
    ),
    ApiRoute(
        method="POST", path="/api/agent/message", tag="chiffon", summary="Send a message", auth="agent",
        body=ENVELOPES, answers={202: Accepted, **CHIFFON_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/api/agent/messages", tag="chiffon", summary="Wait for messages", auth="agent",
        query=InboxQuery, answers={200: Inbox, **CHIFFON_ERRORS},
    ),
    ApiRoute(
        method="POST", path="/api/agent/ack", tag="chiffon", summary="Acknowledge messages", auth="agent",
        body=Ack, answers={200: dict[str, Any], **CHIFFON_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/api/agent/ws", tag="chiffon", auth="agent",
        summary="WebSocket, subprotocol chiffon.v1: one envelope a text frame",
        answers={101: None, 426: ERROR},
    ),
    *(
        ApiRoute(
            method="POST", path=f"/api/tasks/{{id}}/{verb}", tag="chiffon", auth="agent",
            summary=f"{verb.capitalize()} a task of one's own", answers={200: dict[str, Any], **CHIFFON_ERRORS},
        )
        for verb in ("cancel", "pause", "resume")
    ),
    ApiRoute(
        method="POST", path="/api/agent/files", tag="chiffon", auth="agent", query=FileName,
        summary="Keep a file, to name it in a message; the body is the file", answers={201: FileRef, **CHIFFON_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/api/agent/files/{id}", tag="chiffon", auth="agent", query=FileOf,
        summary="Fetch a file of one's own, or of a task that one asked for or does, or a `Range` of it (206, 416); for"
        " agents of every protocol",
        answers={200: "application/octet-stream", 206: "application/octet-stream", 416: None, **CHIFFON_ERRORS},
    ),
    ApiRoute(
        method="DELETE", path="/api/agent/files/{id}", tag="chiffon", auth="agent",
        summary="Remove a file of one's own that belongs to no task; for agents of every protocol",
        answers={204: None, **CHIFFON_ERRORS},
    ),
)  # fmt: skip

# -- forge -------------------------------------------------------------------------------------------------------

FORGE = (
    ApiRoute(
        method="GET", path="/forge/ws", tag="forge", auth="agent",
        summary="WebSocket, subprotocol forge.v1.json or forge.v1.msgpack: one message a frame",
        answers={101: None, 426: Failure},
    ),
)  # fmt: skip

# -- agentmsg ----------------------------------------------------------------------------------------------------


class Taken(Accepted, frozen=True, omit_defaults=True):
    """`answer` is the hub's own message, for what has one: REGISTER, STATE_UPDATE, STATE_QUERY."""

    answer: dict[str, Any] | None = None


class State(SharedState, frozen=True, kw_only=True):
    """Everything that agents share. A watch goes on from `cursor` without a gap."""

    cursor: int


class WatchQuery(msgspec.Struct, frozen=True):
    cursor: int | None = None
    entity_type: EntityType | None = None
    entity_id: str | None = None


AGENTMSG_ERRORS = dict.fromkeys((*STATUSES[:2], 403, *STATUSES[2:]), ErrorReport)
LAST_EVENT = {"Last-Event-ID": "The cursor of the last change that arrived; it counts more than ?cursor."}

AGENTMSG = (
    ApiRoute(
        method="POST", path="/agentmsg/messages", tag="agentmsg", summary="Send a message", auth="agent",
        body=MESSAGES, answers={202: Taken, **AGENTMSG_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/agentmsg/messages", tag="agentmsg", summary="Wait for messages", auth="agent",
        query=InboxQuery, answers={200: Inbox, **AGENTMSG_ERRORS},
    ),
    ApiRoute(
        method="POST", path="/agentmsg/ack", tag="agentmsg", summary="Acknowledge messages", auth="agent",
        body=Ack, answers={200: dict[str, Any], **AGENTMSG_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/agentmsg/ws", tag="agentmsg", auth="agent",
        summary="WebSocket, subprotocol agentmsg.v1: one message a text frame; ?acks=many for ACKs of several",
        answers={101: None, 426: ErrorReport},
    ),
    ApiRoute(
        method="GET", path="/agentmsg/state", tag="agentmsg", auth="agent",
        summary="Read the shared state; the admin token may, too", answers={200: State, **AGENTMSG_ERRORS},
    ),
    ApiRoute(
        method="POST", path="/agentmsg/state", tag="agentmsg", auth="agent", body=StateUpdate,
        summary="Write a shared entity; `version` is what was read, 0 for a new one",
        answers={200: Entity, **AGENTMSG_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/agentmsg/state/watch", tag="agentmsg", auth="agent", query=WatchQuery,
        summary="Follow the shared state: server-sent events, each a StateUpdate", headers=LAST_EVENT,
        answers={200: "text/event-stream", **AGENTMSG_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/agentmsg/state/{entity_type}/{entity_id}", tag="agentmsg", auth="agent",
        summary="Look at one shared entity", answers={200: Entity, **AGENTMSG_ERRORS},
    ),
)  # fmt: skip

# -- a2acp -------------------------------------------------------------------------------------------------------

A2ACP_ERRORS = dict.fromkeys((*STATUSES[:2], 403, *STATUSES[2:], 504), Message)

A2ACP = (
    ApiRoute(
        method="POST", path="/auth/token", tag="a2acp", auth="agent", body=TokenWish,
        summary="Get a token for messages to one agent; the secret by HTTP Basic or as a bearer",
        answers={200: TokenGrant, **A2ACP_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/.well-known/jwks.json", tag="a2acp", auth=None,
        summary="The public keys that tokens are signed with", answers={200: dict[str, Any]},
    ),
    ApiRoute(
        method="POST", path="/a2acp/agents", tag="a2acp", auth="agent", body=Declaration,
        summary="Say which intents an agent serves, on which terms", answers={200: Declared, **A2ACP_ERRORS},
    ),
    ApiRoute(
        method="POST", path="/a2acp/messages", tag="a2acp", auth=None, body=Message,
        summary="Send a message; a request waits for its response. The credential is the message's own token",
        headers={"Prefer": "`respond-async`: 202 at once, and the response comes to the inbox."},
        answers={200: Message, 202: Accepted, **A2ACP_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/a2acp/messages", tag="a2acp", auth="agent",
        summary="Wait for messages; `answer_to` has the answer to a request of one's own delivered once more",
        query=MissedQuery, answers={200: Inbox, **A2ACP_ERRORS},
    ),
    ApiRoute(
        method="POST", path="/a2acp/ack", tag="a2acp", summary="Acknowledge messages", auth="agent",
        body=Ack, answers={200: dict[str, Any], **A2ACP_ERRORS},
    ),
    ApiRoute(
        method="GET", path="/a2acp/ws", tag="a2acp", auth="agent",
        summary="WebSocket, subprotocol a2acp.v1: one message a text frame",
        answers={101: None, 426: Message},
    ),
)  # fmt: skip
