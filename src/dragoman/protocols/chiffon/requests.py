"""Chiffon's requests ⇄ messages: from a caller to the hub, and from the hub to an agent. The hub and the SDK use the
same functions, in opposite roles. `mapping` has the rest, and the table of the custom fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import attachments_in
from dragoman.messages.tasks import (
    Context,
    Request,
    fitting,
    handoff_in,
)
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon import types as chiffon
from dragoman.protocols.chiffon.mapping import PRIORITIES, Custom, converted, text_in
from dragoman.protocols.chiffon.types import (
    UUID_PATTERN,
    Envelope,
    Hints,
    WorkRequest,
)

MOST_FILES = 100
_uuid = re.compile(UUID_PATTERN).match
_parse = msgspec.json.Decoder(dict[str, Any]).decode


# --- a request, from a caller to the hub ---

_HUB_FIELDS = frozenset({
    "agent_id", "attachments", "attempt", "delivery_id", "dependencies", "files", "parent_task_id", "priority", "token",
    "traceparent",
})  # fmt: skip
"""Custom fields of a request that the hub obeys or writes itself."""

_KNOWN = {
    "envelope": frozenset(Envelope.__struct_fields__),
    "payload": frozenset(WorkRequest.__struct_fields__),
    "custom": _HUB_FIELDS,
}
"""The fields of a request that the hub's language has fields for, by their place."""

_CONTENT_FIELDS = ("dependencies", "files", "parent_task_id", "priority")


def request_in(work: WorkRequest, tree: dict[str, Any], custom: Custom) -> Request:
    """What a caller asks for. `tree` is the JSON of the whole message."""
    payload = tree["payload"]
    return Request(
        input=payload["parameters"],
        hints=None if work.hints is None else payload["hints"],
        beyond=_beyond_in(tree, custom) or None,
    )


def _beyond_in(tree: dict[str, Any], custom: Custom) -> dict[str, Any]:
    """Unknown fields, by their place. The first round of a task leaves in the bytes it came in; later ones are messages
    of the hub, and have the unknown fields from here (all-D6)."""
    beyond: dict[str, Any] = {}
    for part, place in (("envelope", tree), ("payload", tree["payload"]), ("custom", custom)):
        known = _KNOWN[part]
        if not place.keys() <= known:
            beyond[part] = {name: place[name] for name in place if name not in known}
    return beyond


def content_fields(custom: Custom) -> list[tuple[str, Any]]:
    """The custom fields that are part of what a request asks for: with another of these it is another request."""
    return [(name, custom[name]) for name in _CONTENT_FIELDS if name in custom]


def agent_in(custom: Custom) -> str | None:
    """The one agent that shall do it."""
    agent = custom.get("agent_id")
    if agent is not None and type(agent) is not str:
        raise refuse(Kind.INVALID, "expected the id of an agent", field="x_custom_fields.agent_id")
    return agent


def priority_in(custom: Custom) -> str:
    priority = custom.get("priority")
    if priority is None:
        return "normal"
    if priority not in PRIORITIES:
        raise refuse(Kind.INVALID, f"expected one of {', '.join(PRIORITIES)}", field="x_custom_fields.priority")
    return str(priority)


def parent_in(custom: Custom) -> str | None:
    return task_id_in(custom, "parent_task_id")


def dependencies_in(custom: Custom) -> tuple[str, ...]:
    values = custom.get("dependencies")
    if values is None:
        return ()
    if type(values) is not list:
        raise refuse(Kind.INVALID, "expected a list of task ids", field="x_custom_fields.dependencies")
    return tuple(_task_id(value, "dependencies") for value in values)


def task_id_in(custom: Custom, name: str = "task_id") -> str | None:
    """The task that a custom field names."""
    value = custom.get(name)
    return None if value is None else _task_id(value, name)


def _task_id(value: object, name: str) -> str:
    if type(value) is not str or not _uuid(value):
        raise refuse(Kind.INVALID, "expected the UUID of a task", field=f"x_custom_fields.{name}")
    return value.lower()


def files_in(message: Envelope[chiffon.Payload]) -> Sequence[str]:
    """The ids of the files that a message brings."""
    custom = message.x_custom_fields
    if message.type == "work_request" and (many := custom.get("files")) is not None:
        if type(many) is not list or len(many) > MOST_FILES or not all(type(id) is str for id in many):
            raise refuse(Kind.INVALID, f"expected a list of {MOST_FILES} ids at most", field="x_custom_fields.files")
        return many
    if message.type == "work_status" and (one := custom.get("file")) is not None:
        if type(one) is not str:
            raise refuse(Kind.INVALID, "expected the id of a file", field="x_custom_fields.file")
        return (one,)
    return ()


def request_fields_out(
    *,
    agent_id: str | None = None,
    priority: str | None = None,
    dependencies: Sequence[str] = (),
    parent_task_id: str | None = None,
    traceparent: str | None = None,
) -> Custom:
    """The custom fields of a caller's request."""
    fields = {
        "priority": priority,
        "dependencies": dependencies,
        "agent_id": agent_id,
        "traceparent": traceparent,
        "parent_task_id": parent_task_id,
    }
    return {name: value for name, value in fields.items() if value}


# --- work, from the hub to an agent ---


def work_in(work: WorkRequest, custom: Custom) -> Request:
    """What the hub asks an agent to do."""
    return Request(
        input=work.parameters,
        answer=work.parameters.get("answer", UNSET),
        question=text_in(custom, "answered_question"),
        context=fitting(Context, custom.get("context")),
        handover=handoff_in(work.parameters.get("handover")),
        attachments=attachments_in(custom.get("attachments") or ()) or None,
    )


def attempt_in(custom: Custom) -> int | None:
    attempt = custom.get("attempt")
    return attempt if type(attempt) is int else None


def work_out(task_id: str, work_type: str, request: Request, seconds: int | None) -> WorkRequest:
    """Work for an agent. `seconds` are left until the task's time limit, if it has one."""
    parameters = request.given
    if type(parameters) is not dict:
        parameters = {} if parameters is None else {"input": parameters}
    if request.is_answered:  # B3: the same task again, with the person's answer
        parameters = {**parameters, "answer": request.answer}
    if request.handover is not None:
        parameters = {**parameters, "handover": msgspec.to_builtins(request.handover)}
    hints = _hints_out(request.hints or {})
    if seconds is not None:
        hints = msgspec.structs.replace(hints, max_duration_seconds=seconds)
    return WorkRequest(task_id=task_id, work_type=work_type, parameters=parameters, hints=hints)


def _hints_out(hints: dict[str, Any]) -> Hints:
    """Hints in chiffon's form: each by itself, since one that does not fit says nothing of the others."""
    fit = {
        name: getattr(hint, name)
        for name in Hints.__struct_fields__
        if (hint := converted({name: hints.get(name)}, Hints)) is not None
    }
    return Hints(**fit)


def work_fields_out(request: Request, attempt: int, fields: Custom) -> Custom:
    """The custom fields of work: the caller's unknown ones, and `fields` as far as they are not empty."""
    unknown = (request.beyond or {}).get("custom", {})
    return {**unknown, **attempt_out(attempt), **{name: value for name, value in fields.items() if value}}


def attempt_out(attempt: int) -> Custom:
    """Which attempt it is, where it is not the first: an agent may want to look whether it did half of the work."""
    return {"attempt": attempt} if attempt > 1 else {}


def with_unknown_fields(frame: bytes, request: Request) -> bytes:
    """The frame of work with the unknown fields of the caller's request at their places."""
    beyond = request.beyond or {}
    hints = {name: value for name, value in (request.hints or {}).items() if name not in Hints.__struct_fields__}
    if not beyond and not hints:
        return frame
    payload = {**beyond.get("payload", {}), **_parse(frame)["payload"]}
    payload["hints"] |= hints
    return codec.reissue(frame, {**beyond.get("envelope", {}), "payload": payload})
