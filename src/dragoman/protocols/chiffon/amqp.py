"""Chiffon over AMQP, without input or output: names, and the token of a message.

    exchange  chiffon             topic; everybody sends to it, with `hub.<type>` as the routing key
    queue     chiffon.hub         what the hub has not committed yet; one hub consumes it at a time
    queue     chiffon.agent.<id>  what the hub has for an agent, who consumes it
    queue     chiffon.dead        what the hub refused, without its token

All three are quorum queues: a classic queue confirms a message before it is on a disk. No queue has other arguments;
limits are the business of the broker's policies.

The token comes in the header `authorization` ("Bearer …"), else in the field `x_custom_fields.token`. `take_token`
takes it out before anything else looks at the message, so nothing that is stored, logged or passed on has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.wire.guard import Limits

EXCHANGE = "chiffon"
INBOX = "chiffon.hub"
DEAD = "chiffon.dead"
QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum"}
ONE_CONSUMER: Mapping[str, Any] = {**QUORUM, "x-single-active-consumer": True}

REGISTER = "register"
LISTEN = "listen"
LEAVE = "leave"
VERBS = ("cancel", "pause", "resume")
MESSAGES = tuple(codec.DECODERS)
KEYS = tuple(f"hub.{type}" for type in (*MESSAGES, REGISTER, LISTEN, LEAVE, *VERBS))
"""The routing keys that are bound to the hub's queue."""

AUTHORIZATION = "authorization"
INSTANCE = "dragoman-instance"
TRACEPARENT = "traceparent"
REPLIES = "amq.rabbitmq.reply-to"
"""The pseudo-queue of answers (direct reply-to): nobody but the sender can have got its full name from the broker."""

_TOKEN_FORM = re.compile(rb"[0-9a-fA-F]{32,}")
_TOKEN_FIELD = re.compile(rb'("token"\s*:\s*)"(?:[^"\\]|\\.)*"?', re.DOTALL)
BLANK = b"[removed]"


def queue_of(agent_id: str) -> str:
    return f"chiffon.agent.{agent_id}"


def key_of(type: str) -> str:
    return f"hub.{type}"


class Taken(msgspec.Struct, frozen=True):
    """A message without its token. The token is not shown in a repr."""

    credential: str | None
    body: bytes

    def __repr__(self) -> str:
        return f"Taken({len(self.body)} bytes)"


def take_token(authorization: object, body: bytes, limits: Limits) -> Taken:
    """The credential of a message, and its body without it. A body that is no strict JSON object stays as it is: it is
    refused, and `blotted` before it is kept."""
    text = authorization.decode("utf-8", "replace") if isinstance(authorization, bytes) else authorization
    credential = text if isinstance(text, str) and text else None
    if b"token" not in body and b"\\u" not in body:
        return Taken(credential, body)
    try:
        tree = codec.parse(body, limits)
    except ChiffonError:
        return Taken(credential, body)
    custom = tree.get("x_custom_fields")
    if type(custom) is not dict or "token" not in custom:
        return Taken(credential, body)
    if credential is None and type(custom["token"]) is str:
        credential = f"Bearer {custom['token']}"
    return Taken(credential, codec.reissue(body, {}, {"token": None}))


def blotted(body: bytes, credential: str | None, limits: Limits) -> bytes:
    """A refused message as people may keep it. What is no JSON loses everything that looks like a token."""
    secret = (credential or "").rpartition(" ")[2].encode()
    if len(secret) >= 8:
        body = body.replace(secret, BLANK)
    try:
        codec.parse(body, limits)
    except ChiffonError:
        return _TOKEN_FORM.sub(BLANK, _TOKEN_FIELD.sub(rb'\1"%b"' % BLANK, body))
    return body
