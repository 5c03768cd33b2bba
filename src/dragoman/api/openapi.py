"""OpenAPI 3.1, made from the table of routes and the types they take and give."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from importlib import metadata
from typing import Any

import msgspec

from dragoman.api.context import ApiRoute
from dragoman.api.problems import MEDIA_TYPE, ProblemOut, status_of
from dragoman.api.schemas import components
from dragoman.messages.faults import Kind

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
    operation: dict[str, Any] = {
        "operationId": "_".join((one.method.lower(), *(words or ["page"]))),
        "summary": one.summary,
        "tags": [one.tag],
        "parameters": _parameters(one),
        "responses": _responses(one, schemas),
        "security": [{one.auth: []}] if one.auth else [],
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
    found = {status_of(kind) for kind in one.refusals} | ({401} if one.auth == "admin" else set())
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
