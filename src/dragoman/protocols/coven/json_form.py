"""Coven's messages as JSON, in protobuf's own mapping with the names of the proto file, and the schema of that form.

The wire carries the binary form; this one is for people who read or write messages (`dragoman translate`).
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dragoman.protocols.coven import codec
from dragoman.protocols.coven import coven_pb2 as pb
from dragoman.protocols.coven.errors import Malformed
from dragoman.protocols.coven.types import Cancel, MessageResponse, SendMessage

_OF_AN_AGENT = frozenset(field.name for field in pb.MessageResponse.DESCRIPTOR.oneofs_by_name["event"].fields)


def read(tree: dict[str, Any]) -> SendMessage | MessageResponse:
    """A message: an agent's event if it has one, or progress; else a caller's. Raises `Malformed`."""
    of_an_agent = not _OF_AN_AGENT.isdisjoint(tree) or "progress" in tree
    form = pb.MessageResponse() if of_an_agent else pb.SendMessage()
    try:
        json_format.ParseDict(tree, form)
    except json_format.ParseError as error:
        raise Malformed(f"no {form.DESCRIPTOR.name}: {str(error).partition(chr(10))[0]}") from None
    data = form.SerializeToString()
    return codec.decode_response(data) if of_an_agent else codec.decode_send(data)


def written(message: SendMessage | MessageResponse | Cancel) -> dict[str, Any]:
    """The same message, to be read."""
    form: Any
    if isinstance(message, SendMessage):
        form = pb.SendMessage.FromString(codec.encode_send(message))
    elif isinstance(message, MessageResponse):
        form = pb.MessageResponse.FromString(codec.encode_response(message))
    else:
        form = pb.ServerMessage.FromString(codec.encode_server(message))
    tree: dict[str, Any] = json_format.MessageToDict(form, preserving_proto_field_name=True)
    return tree


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
