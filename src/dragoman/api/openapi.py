"""OpenAPI 3.1, made from the table of routes; and the JSON Schemas of the protocols, made from the types that enforce
them.

msgspec describes each type; what it cannot know is added here: that a message's `type` decides its payload, and what
chiffon's codec refuses or lets pass beyond its types (`DECODED`). `Any` is what stands in a JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib import metadata
from typing import Any, cast

import msgspec

from dragoman.api.context import ApiRoute
from dragoman.api.problems import MEDIA_TYPE, ProblemOut, status_of
from dragoman.core.model.people import Role
from dragoman.messages.faults import Kind
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


# -- OpenAPI --------------------------------------------------------------------------------------------------------

REF = "#/components/schemas/{name}"
SECURITY = {
    "admin": "The admin token, which `dragoman dev` prints and keeps in its data directory.",
    "agent": "The agent's own token, from `POST /api/v1/agents`.",
}

WITH_A_BODY = frozenset({400, 408, 413, 415, status_of(Kind.INVALID)})
"""No JSON, too slow, too large, compressed, of another shape (`bodies.read_json`)."""


def document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    routes = tuple(routes)
    schemas, named = components([ProblemOut, *(type for one in routes for type in _types(one))], REF)
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dragoman",
            "version": metadata.version("dragoman"),
            "description": "A hub between agents of different protocols. Errors are problem details (RFC 9457).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": text} for name, text in SECURITY.items()
            },
        },
    }


def _types(one: ApiRoute) -> list[Any]:
    bodies = one.body if isinstance(one.body, tuple) else (one.body,)
    answers = (answer for answer in one.answers.values() if not isinstance(answer, str))
    return [type for type in (*bodies, one.query, *answers) if type is not None]


def _operation(one: ApiRoute, schemas: dict[Any, Any]) -> dict[str, Any]:
    words = re.findall(r"[a-z0-9]+", one.path.removeprefix("/api/v1"))
    if "text/html" in one.answers.values():  # a page may have the name of a list of the API
        words = ["page", *words]
    operation: dict[str, Any] = {
        "operationId": "_".join((one.method.lower(), *words)),
        "summary": one.summary,
        "tags": [one.tag],
        "parameters": _parameters(one),
        "responses": _responses(one, schemas),
        "security": [{"admin" if isinstance(one.auth, Role) else one.auth: []}] if one.auth else [],
    }
    if one.body is not None:
        schema = {"oneOf": [schemas[type] for type in one.body]} if isinstance(one.body, tuple) else schemas[one.body]
        operation["requestBody"] = {
            "required": not one.body_optional,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _parameters(one: ApiRoute) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", one.path)
    ]
    if one.query is not None:
        # Written out in place: a parameter is a parameter, not a body to refer to.
        shape, named = msgspec.json.schema_components([one.query], ref_template=REF)
        properties = named[shape[0]["$ref"].rpartition("/")[2]]["properties"]
        for name, schema in properties.items():
            found.append({"name": name, "in": "query", "required": False, "schema": schema})
    found += [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in one.headers.items()
    ]
    return found


def _refusals(one: ApiRoute) -> set[int]:
    """The statuses of problems: what the route itself refuses, and what the way to its handler does."""
    found = {status_of(kind) for kind in one.refusals} | ({401, 403} if isinstance(one.auth, Role) else set())
    if one.handler is not None and one.body is not None:
        found |= WITH_A_BODY
    if one.handler is not None and (one.query is not None or "{id}" in one.path):  # the beginning of several ids
        found.add(status_of(Kind.INVALID))
    return found


def _responses(one: ApiRoute, schemas: dict[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, answer in one.answers.items():
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if isinstance(answer, str):
            response["content"] = {answer: {"schema": {"type": "string"}}}
        elif answer is not None:
            response["content"] = {"application/json": {"schema": schemas[answer]}}
        responses[str(status)] = response
    for status in sorted(_refusals(one) - one.answers.keys()):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schemas[ProblemOut]}},
        }
    return responses
