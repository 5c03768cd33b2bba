"""What the hub's events tell, as every binding reads it before it says it in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.core.model.resources import RESOURCES
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.messages.brevity import in_short
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef, shown_name

ASIDES = ("name", "thread", "parent_task_id")
"""What a task's metadata may say and the hub knows by itself: there is another place for it."""


BESIDE = ("thinking", "message", "question", "step", "tool_use", "tool_result")
"""What is said on the way beside output and files, which have ways of their own."""
LONGEST = 4 * 1024 * 1024
"""Bytes of each: half of a message of most protocols, for JSON may need more bytes than the text has."""

_parse = msgspec.json.Decoder(dict[str, Any]).decode
_write = msgspec.json.Encoder().encode


def progress_told(event: Event) -> dict[str, Any]:
    """What an event says on the way, within what a message holds: agents may say more at once than others can hear."""
    data = bytes(event.body)
    body = _parse(data)
    if len(data) > LONGEST:
        body |= {name: _shortened(body[name]) for name in BESIDE if name in body}
    return body


def output_told(body: Mapping[str, Any]) -> str:
    """An output where it has to be in one message: all of it, or its beginning."""
    return in_short(str(body.get("output") or ""), LONGEST)


def _shortened(value: Any) -> Any:
    if type(value) is dict:
        return {name: _cut(part) for name, part in value.items()}
    return _cut(value)


def _cut(value: Any) -> Any:
    """A part as it is, or the beginning of its text."""
    text = value if type(value) is str else _write(value).decode()
    short = in_short(text, LONGEST)
    return value if short == text else short


def context_told(task: Task, body: Mapping[str, Any]) -> dict[str, Any]:
    """What is known around a task, as its caller told it: `metadata` and `history`, where there are any."""
    return surroundings(body, task.metadata)


def surroundings(body: Mapping[str, Any], metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same of an order, where there is no task yet. `metadata` is what agents made of it since."""
    said = body.get("context") or {}
    given = (said.get("metadata") if metadata is None else metadata) or {}
    known = {name: value for name, value in given.items() if name not in ASIDES}
    return {name: value for name, value in (("metadata", known), ("history", said.get("history"))) if value}


def limits_told(task: Task, body: Mapping[str, Any]) -> dict[str, Any]:
    """With how much memory and how well it is to be done, where its caller said so."""
    quality = task.constraints.get("quality_threshold")
    return needs_told(body.get("hints") or {}) | ({} if quality is None else {"quality_threshold": quality})


def needs_told(hints: Mapping[str, Any]) -> dict[str, Any]:
    """What hints say of each resource that the work may need, by the constraint's name."""
    said = {
        resource.constraint: next((value for name in resource.names if (value := hints.get(name)) is not None), None)
        for resource in RESOURCES
    }
    return {name: value for name, value in said.items() if value is not None}


def fault_told(body: dict[str, Any], task: Task, event: Event) -> Fault:
    """The fault that an event tells of, within what a message of any protocol holds."""
    said = body.get("fault")
    if said is not None:
        return msgspec.convert(said, Fault).in_short()
    if event.kind is EventKind.CANCELLED:
        return Fault(kind=Kind.CANCELLED, message=str(body.get("reason") or "cancelled on request"))
    return task.fault or Fault(kind=Kind.WORK_FAILED, message=str(body.get("reason") or "the work failed"))


def fault_beside(fault: Fault) -> dict[str, Any]:
    """A fault for programs, in a field of ours beside a protocol's own words, which may add a name or advice."""
    told: dict[str, Any] = {"kind": fault.kind.value, "message": fault.message}
    code = fault.facts.get("exit_code")
    return told | ({"exit_code": code} if type(code) is int else {})


def file_told(file: Any, task: Task) -> dict[str, Any]:
    """A file by reference: its address says of which task it is, by the id that the hub knows it by."""
    ref = msgspec.convert(file, FileRef)
    return {
        "url": f"/api/agent/files/{ref.id}?task_id={task.id}",
        "id": ref.id,
        "name": shown_name(ref.name),
        "mime_type": ref.mime_type,
        "size": ref.size,
        "sha256": ref.sha256,
    }


def fitting(value: object, form: type[Any]) -> Any:
    """A part in a protocol's form, if it fits: what was said in another one may not."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError:
        return None
