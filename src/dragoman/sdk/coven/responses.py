"""The engine's messages ⇄ coven's: values only, no call.

    the engine sends    as                                  the hub sends    the engine gets
    ------------------  ----------------------------------  ---------------  -----------------------------
    Report, figures     thinking + progress                 send_message     Work; with answer_json: the answer
    Report, output      text, in pieces of up to 1 MiB      cancel           Cancel
    - thinking, tools   thinking, tool_use, tool_result     shutdown         nothing: the link sees to it
    - file              file
    Report, only alive  progress alone; else a heartbeat
    Query               done + question (B3)
    Outcome             done + result_json; error + fault
    Decline             error + fault

A gateway that is not Dragoman has neither task ids nor work types: then a request is its own task, its work is `chat`
(or the only work type of the agent), and an answer is the next message in the thread of the question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.messages import tasks
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.coven import mapping
from dragoman.protocols.coven.codec import LIMITS
from dragoman.protocols.coven.mapping import CHAT
from dragoman.protocols.coven.types import (
    Done,
    Error,
    MessageResponse,
    Progress,
    ResponseEvent,
    SendMessage,
    Text,
    Thinking,
)
from dragoman.sdk import messages, trace
from dragoman.sdk.links import ProtocolCapabilities
from dragoman.sdk.work.outcome import clean

PIECE = 1024 * 1024
"""Characters of text in one message, at most."""
LONGEST_END = 2 * PIECE
"""A longer answer comes in pieces before the end, and the end is empty (coven-D8)."""
PROTOCOL_CAPABILITIES = ProtocolCapabilities(
    name="coven", largest_file=LIMITS.message_bytes - 64 * 1024, has_receipts=False
)

_encode = msgspec.json.Encoder().encode


class Turn(msgspec.Struct, kw_only=True):
    """The request that is open on a stream."""

    request_id: str
    task_id: str
    thread_id: str
    print: str
    is_plain: bool
    """From a gateway that is not Dragoman: it has only the document's fields."""
    reported: tuple[int, str | None] = (0, None)
    """Percent and step of the last report."""
    streamed: list[str] = []


# --- in ---


def turn_of(message: SendMessage, asked: Mapping[str, str]) -> Turn:
    """`asked`: which task asked a question in which thread, for gateways that do not name the task."""
    task_id = message.task_id or asked.get(message.thread_id) or message.request_id
    content = (message.work_type, message.content, message.input_json, message.answer_json)
    return Turn(
        request_id=message.request_id,
        task_id=task_id,
        thread_id=message.thread_id,
        print=hashlib.blake2b(_encode(content), digest_size=16).hexdigest(),
        is_plain=not message.task_id,
    )


def work_of(message: SendMessage, turn: Turn, mint: str, does: tuple[str, ...]) -> messages.Assignment:
    """`mint` is a fresh UUID, for the trace of a message that names none; `does` are the agent's work types."""
    span = trace.parse(message.traceparent)
    request = mapping.request_in(message)
    if request.answer is UNSET and turn.is_plain and turn.task_id != message.request_id:
        request = msgspec.structs.replace(request, answer=message.content)
    around = mapping.context_in(message)
    thread = around.get("thread")
    return messages.Assignment(
        correlation=messages.Correlation(
            task_id=turn.task_id,
            request_id=message.request_id,
            trace_id=span.trace_id if span is not None else mint.replace("-", ""),
            sender=message.sender,
        ),
        type=message.work_type or (does[0] if len(does) == 1 else CHAT),
        request=msgspec.structs.replace(
            request,
            context=tasks.fitting(tasks.Context, around) if around else None,
            handover=tasks.handoff_in(around.get("handover")),
        ),
        attempt=message.attempt or None,
        traceparent=message.traceparent or None,
        thread=thread if isinstance(thread, str) else None,
        files=tuple(messages.File(one.filename, one.mime_type, one.data) for one in message.attachments),
    )


# --- out ---


def responses_of(message: messages.Outbound, turn: Turn) -> Iterator[MessageResponse]:
    """The responses of a message; none for a sign of life that this gateway would not understand."""
    if isinstance(message, messages.Report):
        yield from _report(message, turn)
    elif isinstance(message, messages.Question):
        asked = mapping.ask_out(message.ask)
        yield _response(turn, Done(question=msgspec.structs.replace(asked, question=clean(asked.question))))
    elif isinstance(message, messages.Decline):
        facts = {name: value for name, value in message.fault.facts.items() if name == "supported_types" and value}
        if message.fault.field:
            facts["field"] = message.fault.field
        yield _failure(turn, message.fault.kind, message.sentence, facts)
    elif isinstance(message, messages.OutgoingMessage | messages.ProposalAnswer):
        raise TypeError("coven's agents do not converse")
    elif message.failure is not None and (fault := message.failure.fault) is not None:
        yield _failure(turn, fault.kind, fault.message, fault.facts)
    else:
        yield from _success(message, turn)


def cancelled(turn: Turn, reason: str) -> MessageResponse:
    """The end of a cancelled request: every request ends, even if no caller waits for it."""
    return _failure(turn, Kind.CANCELLED, reason or "cancelled", {})


def too_large(turn: Turn, why: str) -> MessageResponse:
    """The end of a request whose real end does not fit into a message."""
    return _failure(turn, Kind.INTERNAL, f"the agent's answer does not fit into coven: {why}", {})


def _report(report: messages.Report, turn: Turn) -> Iterator[MessageResponse]:
    content = report.content
    percent, step = content.percent or 0, content.named_step
    figures = percent, None if step is None else step.name
    asides = mapping.events_out(msgspec.structs.replace(content, output=None), report.data)
    events = [_cleaned(event) for event in asides]
    output = clean(content.output or "")
    if output:
        turn.streamed.append(output)
        events += [Text(output[start : start + PIECE]) for start in range(0, len(output), PIECE)]
    progress = None
    if figures != turn.reported or not events:
        progress = Progress(percent=percent, step=clean(figures[1] or ""), number=report.number)
        if figures != turn.reported and not events:
            events.append(Thinking(progress.step or f"{percent} %"))
        turn.reported = figures
    if not events:
        if not turn.is_plain:
            yield _response(turn, None, progress=progress)
        return
    for event in events[:-1]:
        yield _response(turn, event)
    yield _response(turn, events[-1], progress=progress)


def _success(outcome: messages.Outcome, turn: Turn) -> Iterator[MessageResponse]:
    whole, result = clean(outcome.output), outcome.result_json.decode()
    if len(whole) > LONGEST_END:
        if whole != "".join(turn.streamed):
            for start in range(0, len(whole), PIECE):
                yield _response(turn, Text(whole[start : start + PIECE]))
        whole = ""
    yield _response(turn, mapping.result_out(whole, result))


def _cleaned(event: ResponseEvent) -> ResponseEvent:
    """An event whose texts can be sent (`clean`)."""
    texts = {name: clean(text) for name, text in msgspec.structs.asdict(event).items() if isinstance(text, str)}
    return msgspec.structs.replace(event, **texts)


def _failure(turn: Turn, kind: Kind, message: str, facts: dict[str, Any]) -> MessageResponse:
    message = clean(message)[-PIECE:]
    return _response(turn, Error(message), fault=mapping.fault_out(Fault(kind=kind, message=message, facts=facts)))


def _response(turn: Turn, event: ResponseEvent | None, **beside: Any) -> MessageResponse:
    return MessageResponse(request_id=turn.request_id, event=event, **beside)
