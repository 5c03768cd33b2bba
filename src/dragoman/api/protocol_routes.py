"""The routes of the protocols' own endpoints, for the documentation. The caller is an agent with its own token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.api.context import ApiRoute
from dragoman.api.openapi import ENVELOPES, MESSAGES
from dragoman.messages.files import FileRef
from dragoman.protocols.a2acp.types import Message, TokenGrant
from dragoman.protocols.agentmsg.records import ErrorReport, SharedState
from dragoman.protocols.agentmsg.types import Entity, EntityType, StateUpdate
from dragoman.protocols.chiffon.types import ErrorPayload, Registered, Registration
from dragoman.protocols.forge.types import Failure
from dragoman.server.a2acp.http import Declaration, Declared, TokenWish


def documented(
    call: str, tag: str, summary: str, answers: Mapping[int, Any], *, auth: str | None = "agent", **more: Any
) -> ApiRoute:
    method, path = call.split()
    return ApiRoute(method=method, path=path, tag=tag, summary=summary, answers=answers, auth=auth, **more)


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
    documented("POST /api/agent/register", "chiffon", "Register an agent", {200: Registered, **CHIFFON_ERRORS},
        body=Registration),
    documented("POST /api/agent/message", "chiffon", "Send a message", {202: Accepted, **CHIFFON_ERRORS},
        body=ENVELOPES),
    documented("GET /api/agent/messages", "chiffon", "Wait for messages", {200: Inbox, **CHIFFON_ERRORS},
        query=InboxQuery),
    documented("POST /api/agent/ack", "chiffon", "Acknowledge messages", {200: dict[str, Any], **CHIFFON_ERRORS},
        body=Ack),
    documented("GET /api/agent/ws", "chiffon", "WebSocket, subprotocol chiffon.v1: one envelope a text frame",
        {101: None, 426: ERROR}),
    *(
        documented(f"POST /api/tasks/{{id}}/{verb}", "chiffon", f"{verb.capitalize()} a task of the agent's own",
            {200: dict[str, Any], **CHIFFON_ERRORS})
        for verb in ("cancel", "pause", "resume")
    ),
    documented("POST /api/agent/files", "chiffon", "Upload a file, to name it in a message; the body is the file",
        {201: FileRef, **CHIFFON_ERRORS}, query=FileName),
    documented("GET /api/agent/files/{id}", "chiffon",
        "Download a file of the agent's own, or of a task that it asked for or does, or a `Range` of it (206, 416); for"
        " agents of every protocol",
        {200: "application/octet-stream", 206: "application/octet-stream", 416: None, **CHIFFON_ERRORS}, query=FileOf),
    documented("DELETE /api/agent/files/{id}", "chiffon",
        "Remove a file of the agent's own that belongs to no task; for agents of every protocol",
        {204: None, **CHIFFON_ERRORS}),
)  # fmt: skip

# -- forge -------------------------------------------------------------------------------------------------------

FORGE = (
    documented("GET /forge/ws", "forge",
        "WebSocket, subprotocol forge.v1.json or forge.v1.msgpack: one message a frame", {101: None, 426: Failure}),
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
    documented("POST /agentmsg/messages", "agentmsg", "Send a message", {202: Taken, **AGENTMSG_ERRORS}, body=MESSAGES),
    documented("GET /agentmsg/messages", "agentmsg", "Wait for messages", {200: Inbox, **AGENTMSG_ERRORS},
        query=InboxQuery),
    documented("POST /agentmsg/ack", "agentmsg", "Acknowledge messages", {200: dict[str, Any], **AGENTMSG_ERRORS},
        body=Ack),
    documented("GET /agentmsg/ws", "agentmsg",
        "WebSocket, subprotocol agentmsg.v1: one message a text frame; ?acks=many for ACKs of several",
        {101: None, 426: ErrorReport}),
    documented("GET /agentmsg/state", "agentmsg", "Read the shared state; the admin token is accepted, too",
        {200: State, **AGENTMSG_ERRORS}),
    documented("POST /agentmsg/state", "agentmsg", "Write a shared entity; `version` is what was read, 0 for a new one",
        {200: Entity, **AGENTMSG_ERRORS}, body=StateUpdate),
    documented("GET /agentmsg/state/watch", "agentmsg",
        "Follow the shared state: server-sent events, each a StateUpdate",
        {200: "text/event-stream", **AGENTMSG_ERRORS}, query=WatchQuery, headers=LAST_EVENT),
    documented("GET /agentmsg/state/{entity_type}/{entity_id}", "agentmsg", "Read one shared entity",
        {200: Entity, **AGENTMSG_ERRORS}),
)  # fmt: skip

# -- a2acp -------------------------------------------------------------------------------------------------------

A2ACP_ERRORS = dict.fromkeys((*STATUSES[:2], 403, *STATUSES[2:], 504), Message)

A2ACP = (
    documented("POST /auth/token", "a2acp",
        "Get a token for messages to one agent; the secret by HTTP Basic or as a bearer",
        {200: TokenGrant, **A2ACP_ERRORS}, body=TokenWish),
    documented("GET /.well-known/jwks.json", "a2acp", "The public keys that tokens are signed with",
        {200: dict[str, Any]}, auth=None),
    documented("POST /a2acp/agents", "a2acp", "Declare which intents an agent serves, on which terms",
        {200: Declared, **A2ACP_ERRORS}, body=Declaration),
    documented("POST /a2acp/messages", "a2acp",
        "Send a message; a request waits for its response. The credential is the message's own token",
        {200: Message, 202: Accepted, **A2ACP_ERRORS}, body=Message,
        headers={"Prefer": "`respond-async`: 202 at once, and the response comes to the inbox."}, auth=None),
    documented("GET /a2acp/messages", "a2acp",
        "Wait for messages; `answer_to` redelivers the answer to a request of the agent's own",
        {200: Inbox, **A2ACP_ERRORS}, query=MissedQuery),
    documented("POST /a2acp/ack", "a2acp", "Acknowledge messages", {200: dict[str, Any], **A2ACP_ERRORS}, body=Ack),
    documented("GET /a2acp/ws", "a2acp", "WebSocket, subprotocol a2acp.v1: one message a text frame",
        {101: None, 426: Message}),
)  # fmt: skip
