"""JSON Schemas, made from the types that enforce them: the protocols' own and the components of OpenAPI.

msgspec describes each type; what it cannot know is added here: that a message's `type` decides its payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from dragoman.protocols.a2acp import published
from dragoman.protocols.agentmsg.records import Record
from dragoman.protocols.agentmsg.types import BODIES, Message, MessageType
from dragoman.protocols.agentmsg.types import SUBPROTOCOL as AGENTMSG
from dragoman.protocols.chiffon.types import (
    PROTOCOL_VERSION,
    TYPE_OF,
    Envelope,
    ErrorPayload,
    Registered,
    Registration,
    WorkRequest,
    WorkResult,
    WorkStatus,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"

PAYLOADS = (WorkRequest, WorkStatus, WorkResult, ErrorPayload)
ENVELOPES: tuple[Any, ...] = tuple(cast(Any, Envelope)[payload] for payload in PAYLOADS)


def _message(kind: MessageType, payload: type[Record]) -> type[msgspec.Struct]:
    """The message that carries this payload."""
    name = f"{payload.__name__}Message"
    return msgspec.defstruct(name, [("payload", payload)], bases=(Message,), frozen=True, kw_only=True)


CARRIES = {_message(kind, body): kind for kind, bodies in BODIES.items() for body in bodies}
MESSAGES: tuple[Any, ...] = tuple(CARRIES)


def components(types: Iterable[Any], template: str) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type, and the named ones they refer to under `template`."""
    wanted = list(dict.fromkeys(types))
    found, named = msgspec.json.schema_components(wanted, ref_template=template)
    schemas = dict(zip(wanted, found, strict=True))
    for envelope, payload in zip(ENVELOPES, PAYLOADS, strict=True):
        if envelope in schemas:
            name = schemas[envelope]["$ref"].rpartition("/")[2]
            named[name] = _with_type(named[name], TYPE_OF[payload])
    for message, kind in CARRIES.items():
        if message in schemas:
            name = schemas[message]["$ref"].rpartition("/")[2]
            named[name] = _with_type(named[name], kind.value)
    return schemas, named


def _with_type(schema: Mapping[str, Any], type: str) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], "type": {"const": type}}}


def chiffon() -> dict[str, Any]:
    """Any message of chiffon; registration and its answer are among the definitions."""
    schemas, named = components((*ENVELOPES, Registration, Registered), "#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "title": f"chiffon {PROTOCOL_VERSION}",
        "description": "A message envelope. Fields that are not named here are accepted and kept.",
        "oneOf": [schemas[envelope] for envelope in ENVELOPES],
        "$defs": named,
    }


def agentmsg() -> dict[str, Any]:
    """Any message of agentmsg."""
    schemas, named = components(MESSAGES, "#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "title": AGENTMSG,
        "description": "A message. Fields that are not named here are accepted and kept.",
        "oneOf": [schemas[message] for message in MESSAGES],
        "$defs": named,
    }


def a2acp() -> dict[str, Any]:
    """Any message of a2acp: the document's own schema."""
    return published.MESSAGE


PROTOCOLS = {"chiffon": chiffon, "agentmsg": agentmsg, "a2acp": a2acp}
