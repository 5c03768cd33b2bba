"""JSON Schemas, made from the types that enforce them: the protocols' own and the components of OpenAPI.

msgspec describes each type; what it cannot know is added here: that a message's `type` decides its payload, and what
chiffon's codec refuses or lets pass beyond its types (`DECODED`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from dragoman.protocols.a2acp import published
from dragoman.protocols.agentmsg.records import Record
from dragoman.protocols.agentmsg.types import BODIES, Message, MessageType
from dragoman.protocols.agentmsg.types import SUBPROTOCOL as AGENTMSG
from dragoman.protocols.chiffon.chunks import LABEL_PATTERN, LARGEST_OUTPUT, RESULT_LABEL_PATTERN
from dragoman.protocols.chiffon.types import (
    PROTOCOL_VERSION,
    SUPPORTED,
    TYPE_OF,
    Envelope,
    ErrorPayload,
    Registered,
    Registration,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.protocols.forge import types as forge_types

DIALECT = "https://json-schema.org/draft/2020-12/schema"

PAYLOADS = (WorkRequest, WorkStatus, WorkResult, ErrorPayload)
ENVELOPES: tuple[Any, ...] = tuple(cast(Any, Envelope)[payload] for payload in PAYLOADS)

TIME_PATTERN = (
    "^(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    "(\\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):?[0-5][0-9])$"
)
"""All that a pattern can say of a time with an offset (all-D2): that February is short it cannot."""


def _label(pattern: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "null"}]}


ENVELOPE: Mapping[str, dict[str, Any]] = {
    "protocol_version": {"enum": list(SUPPORTED)},
    "timestamp": {"pattern": TIME_PATTERN},
    "x_custom_fields": {"type": ["object", "null"]},
}
DECODED: Mapping[Any, Mapping[str, dict[str, Any]]] = {
    Step: {
        "output": {"type": ["string", "null"], "maxLength": LARGEST_OUTPUT},
        "output_chunk": _label(LABEL_PATTERN),
    },
    WorkResult: {"output": {"maxLength": LARGEST_OUTPUT}, "output_chunk": _label(RESULT_LABEL_PATTERN)},
    ErrorPayload: {"error_context": {"type": ["object", "null"]}},
    Registration: {"work_types": {"type": ["array", "null"]}, "limits": {"type": ["object", "null"]}},
}
"""What the codec lets pass or refuses beyond the types: null where it says nothing, versions, labels, times."""
AGREES: dict[str, Any] = {
    "if": {"properties": {"status": {"const": "success"}}},
    "then": {"properties": {"exit_code": {"const": 0}}},
    "else": {"properties": {"exit_code": {"not": {"const": 0}}}},
}
"""How a result's status and exit code go together (D12)."""


def _message(kind: MessageType, payload: type[Record]) -> type[msgspec.Struct]:
    """The message that carries this payload."""
    name = f"{payload.__name__}Message"
    return msgspec.defstruct(name, [("payload", payload)], bases=(Message,), frozen=True, kw_only=True)


def _notice(kind: str, payload: type[forge_types.Payload]) -> type[msgspec.Struct]:
    """Forge's message of this type."""
    name = f"{payload.__name__}Message"
    bases = (forge_types.Message,)
    return msgspec.defstruct(name, [("payload", payload)], bases=bases, frozen=True, kw_only=True, rename="camel")


SPOKEN = {_notice(kind, body): kind for kind, body in forge_types.BODIES.items()}
RESPONSES = (forge_types.Success, forge_types.Failure)

CARRIES = {_message(kind, body): kind for kind, bodies in BODIES.items() for body in bodies}
MESSAGES: tuple[Any, ...] = tuple(CARRIES)


def components(types: Iterable[Any], template: str) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type, and the named ones they refer to under `template`."""
    wanted = list(dict.fromkeys(types))
    if ENVELOPES[0] in wanted:
        wanted = list(dict.fromkeys((*wanted, *DECODED)))
    found, named = msgspec.json.schema_components(wanted, ref_template=template)
    schemas = dict(zip(wanted, found, strict=True))
    for envelope, payload in zip(ENVELOPES, PAYLOADS, strict=True):
        if envelope in schemas:
            name = schemas[envelope]["$ref"].rpartition("/")[2]
            named[name] = _refined(_with_type(named[name], TYPE_OF[payload]), ENVELOPE)
    for type_, more in DECODED.items():
        if type_ in schemas:
            name = schemas[type_]["$ref"].rpartition("/")[2]
            named[name] = _refined(named[name], more) | (AGREES if type_ is WorkResult else {})
    for message, kind in (*CARRIES.items(), *SPOKEN.items()):
        if message in schemas:
            name = schemas[message]["$ref"].rpartition("/")[2]
            named[name] = _with_type(named[name], str(kind))
    return schemas, named


def _with_type(schema: Mapping[str, Any], type: str) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], "type": {"const": type}}}


def _refined(schema: Mapping[str, Any], more: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    properties = {name: {**shape, **more.get(name, {})} for name, shape in schema["properties"].items()}
    return {**schema, "properties": properties}


def chiffon() -> dict[str, Any]:
    """Any message of chiffon; registration and its answer are among the definitions."""
    schemas, named = components((*ENVELOPES, Registration, Registered), "#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "title": f"chiffon {PROTOCOL_VERSION}",
        "description": "A message envelope. Fields that are not named here are accepted and kept. What no schema can "
        "say: integers are written without a fraction and have 64 bits, an output of more than a mebibyte in UTF-8 is "
        "split, and a chunk is as long as its label says.",
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


def forge() -> dict[str, Any]:
    """Any message of forge, as JSON."""
    schemas, named = components((*SPOKEN, *RESPONSES), "#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "title": forge_types.Encoding.JSON.value,
        "description": "A message. Fields that are not named here are accepted and kept.",
        "oneOf": [schemas[message] for message in (*SPOKEN, *RESPONSES)],
        "$defs": named,
    }


def coven() -> dict[str, Any]:
    """Any message of coven's stream, in protobuf's JSON form."""
    from dragoman.protocols.coven import json_form  # it needs protobuf

    return {
        "$schema": DIALECT,
        "title": "coven",
        "description": "A message of an agent's stream, in protobuf's JSON form with the names of the proto file.",
        **json_form.schema(),
    }


def a2acp() -> dict[str, Any]:
    """Any message of a2acp: the document's own schema."""
    return published.MESSAGE


PROTOCOLS = {"chiffon": chiffon, "coven": coven, "forge": forge, "agentmsg": agentmsg, "a2acp": a2acp}
