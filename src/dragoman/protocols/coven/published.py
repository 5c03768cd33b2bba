"""The JSON Schema of coven's messages in protobuf's JSON form, made from the proto file itself.

The wire carries the binary form; this is for whoever reads messages or writes them down (`dragoman translate`).
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dragoman.protocols.coven import coven_pb2 as pb

STREAM = (pb.AgentMessage.DESCRIPTOR, pb.ServerMessage.DESCRIPTOR)
"""What an agent says, and what the gateway says; each holds exactly one of its payloads."""

F = FieldDescriptor
SCALARS: dict[int, dict[str, Any]] = {
    F.TYPE_STRING: {"type": "string"},
    F.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    F.TYPE_BOOL: {"type": "boolean"},
    F.TYPE_DOUBLE: {"type": "number"},
    F.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    F.TYPE_INT64: {"type": ["string", "integer"], "pattern": "^-?[0-9]+$"},
}


def schema(ref: str = "#/$defs/{name}") -> dict[str, Any]:
    """Any message of an agent's stream, without a dialect; all messages are among the definitions."""
    named: dict[str, Any] = {}
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        named[message.name] = _object(message, ref)
    for message in STREAM:
        named[message.name]["oneOf"] = [{"required": [field.name]} for field in message.fields]
    return {"oneOf": [{"$ref": ref.format(name=message.name)} for message in STREAM], "$defs": named}


def _object(message: Descriptor, ref: str) -> dict[str, Any]:
    return {
        "title": message.name,
        "type": "object",
        "properties": {field.name: _value(field, ref) for field in message.fields},
    }


def _value(field: FieldDescriptor, ref: str) -> dict[str, Any]:
    one = {"$ref": ref.format(name=field.message_type.name)} if field.message_type else SCALARS[field.type]
    return {"type": "array", "items": one} if field.is_repeated else one
