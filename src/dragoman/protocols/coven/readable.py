"""Coven's messages as JSON, for people: protobuf's own mapping, with the names of the proto file."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

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
    told: dict[str, Any] = json_format.MessageToDict(form, preserving_proto_field_name=True)
    return told
