"""What handlers do, as a2acp's capabilities, and what they return, as its payloads.

A payload is a JSON object. A handler that is declared to return one (a dict, a dataclass, a TypedDict, a Struct) gives
it as it is; any other value is `{"result": value}`. The message says so by its field `value_in`, and the schema by its
`$comment`, so that the hub and a client of this SDK give the bare value to the caller.

    -> dict, dataclass, Struct     the object
    -> None                        {}
    -> str, int, list, a union     {"result": value}
    no hint, or Any                the value if it is an object, else {"result": value}
"""

from __future__ import annotations

from typing import Any

from dragoman.protocols.a2acp.contracts import Capability
from dragoman.protocols.a2acp.types import RESERVED, ROUTING_SECONDS

VALUE = "result"
MARGIN = 2.0
"""Seconds that the hub waits longer for a handler than it may take, so that its agent says that it took too long."""
BARE = "the value itself"
"""The `$comment` of a schema around a bare value."""


def capability(described: dict[str, Any]) -> Capability:
    """One intent, from what `Handler.capability` says."""
    return Capability(
        intent=described["work_type"],
        input_schema=described["input_schema"],
        output_schema=output_schema(described["output_schema"]),
        version=described.get("version", "1.0.0"),
        required_capabilities=tuple(described.get("requires", ())),
        pii=described.get("pii", False),
        timeout_seconds=_retries(described.get("timeout_seconds")),
        description=described.get("description", ""),
    )


def output_schema(schema: dict[str, Any]) -> dict[str, Any] | bool:
    """The schema of the payload for the schema of what is returned."""
    if not schema:
        return True
    if schema.get("type") == "null":
        return {"type": "object"}
    if schema.get("type") == "object":
        return schema
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    wrapped: dict[str, Any] = {
        "$comment": BARE,
        "type": "object",
        "properties": {VALUE: inner},
        "required": [VALUE],
    }
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped


def payload(schema: dict[str, Any] | bool, value: Any) -> dict[str, Any]:
    """What was returned, as a payload that fits the capability's output schema."""
    is_bare = isinstance(schema, dict) and schema.get("$comment") == BARE
    if isinstance(value, dict) and not is_bare:
        return value
    return {} if value is None and not is_bare else {VALUE: value}


def value_in(value: Any, payload: dict[str, Any]) -> str | None:
    """Which field of its payload holds a value; nothing where there is none, None where the payload is the value."""
    return None if payload is value else VALUE if payload else ""


def _retries(seconds: float | None) -> float:
    return ROUTING_SECONDS if seconds is None else seconds + MARGIN


def content(schema: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """A payload without what the protocol puts there, unless the schema speaks of that."""
    named = schema.get("properties") if isinstance(schema, dict) else None
    apart = RESERVED - set(named or ())
    return {name: value for name, value in payload.items() if name not in apart}


def value(schema: Any, payload: dict[str, Any], named: object = None) -> Any:
    """What a caller gets of a response's payload; `named` is the field that holds it, where the message says so."""
    found = content(schema, payload)
    if isinstance(named, str):
        return found.get(named)
    if isinstance(schema, dict) and schema.get("$comment") == BARE:
        return found.get(VALUE)
    return found
