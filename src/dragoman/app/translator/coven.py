"""The translator's adapter for coven: what its proto file says, in protobuf's JSON form."""

from __future__ import annotations

from typing import Any
from uuid import uuid5

from dragoman.app.translator.adapter import SENDER, TASKS, Adapter, Decoded, Files, agent, file_ref, tree_of
from dragoman.core.ids import Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.model.tasks import Event, Task
from dragoman.messages.files import FileRef
from dragoman.protocols.coven import json_form
from dragoman.protocols.coven.connection import Completed
from dragoman.protocols.coven.types import Cancel, Done, FileData, SendMessage
from dragoman.server.coven import inbound, outbound


def decode(data: bytes, now: Instant) -> Decoded:
    message = json_form.read(tree_of(data))
    request = message.request_id or str(uuid5(TASKS, "request"))
    if isinstance(message, SendMessage):
        sender = agent(message.sender or SENDER, "coven", now)
        files = [_file_ref(file) for file in message.attachments]
        command = inbound.submit_of(sender.id, message, files, find=lambda one: None, request_id=request)
        contents = {ref.id: file.data for ref, file in zip(files, message.attachments, strict=True)}
        return Decoded("SendMessage", sender, (command,), files=contents)
    sender = agent(SENDER, "coven", now)
    task = TaskId(message.task_id or str(uuid5(TASKS, request)))
    if message.last:
        text = message.event.full_response if isinstance(message.event, Done) else None
        return Decoded(
            "MessageResponse", sender, (inbound.end_of(sender.id, task, Completed(message, text or None, False)),)
        )
    if isinstance(message.event, FileData):
        file = _file_ref(message.event)
        answers = inbound.progress_of(sender.id, task, message, file)
        return Decoded("MessageResponse", sender, (answers,), files={file.id: message.event.data})
    return Decoded("MessageResponse", sender, (inbound.progress_of(sender.id, task, message),))


def _file_ref(file: FileData) -> FileRef:
    return file_ref(file.filename, file.mime_type, file.data)


def encode(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    if outgoing.delivery.kind is MessageKind.WORK:
        attached = tuple(
            outbound.attached(file, files.get(file.id, b"")) for file in outbound.attachments_in(outgoing.event)
        )
        return [json_form.written(outbound.message_of(outgoing, attached))]
    if outgoing.delivery.kind is MessageKind.CANCEL:  # to agents that declare the extension
        return [json_form.written(Cancel(request_id=outgoing.task.request_id, reason=outbound.reason_of(outgoing)))]
    return []


def encode_event(event: Event, task: Task, files: Files) -> list[Any]:
    file = outbound.file_in(event)
    data = None if file is None else files.get(file.id, b"")
    answers = outbound.responses_of(event, task, request_id=task.origin.request_id, data=data)
    return [json_form.written(one) for one in answers]


ADAPTER = Adapter(decode, encode, encode_event)
