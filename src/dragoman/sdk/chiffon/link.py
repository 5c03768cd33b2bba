"""An agent's words in chiffon, over whatever pipe carries the frames.

    the engine says   chiffon says                                    the hub says            the engine hears
    ----------------  ----------------------------------------------  ----------------------  ----------------
    Report            work_status; above 1 MiB several (D4)           work_request            Work
    - thinking, tool  + x_custom_fields of the same names
    - brought         + x_custom_fields.file, the id of a file that the hub has
    Query             work_status `paused` + x_custom_fields.question error 5900              Cancel
    Outcome           work_result + x_custom_fields.result            error, any other code   Refused
    Decline           error 5003 or 5006                              work_status `paused`    Hold
                                                                      work_status `running`   Release
                                                                      {"accepted": […]}       Accepted

MessageBuilder a message again says the same bytes under the same id. Only a split output gets fresh ids for its blocks:
the hub begins such a set anew at byte 0, and must not take the first block for one it has heard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.messages import tasks
from dragoman.messages.faults import Kind
from dragoman.messages.files import attachments_in
from dragoman.protocols.chiffon import chunks, codec, errors, mapping
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.protocols.chiffon.types import (
    PROTOCOL_VERSION,
    SUPPORTED,
    Envelope,
    ErrorPayload,
    Payload,
    Registered,
    ResourcesUsed,
    Stamp,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.protocols.chiffon.types import Correlation as Ids
from dragoman.sdk import trace
from dragoman.sdk.links import Introduction, LinkDown, ProtocolCapabilities
from dragoman.sdk.messages import (
    Accepted,
    Assignment,
    Cancel,
    Correlation,
    Decline,
    Inbound,
    Outbound,
    Outcome,
    Pause,
    Question,
    Refused,
    Report,
    Resume,
)
from dragoman.sdk.network.pipe import Frame, Pipe
from dragoman.sdk.runtime import Runtime

log = logging.getLogger("dragoman.sdk")

CANCELLED = 5900
PROTOCOL_CAPABILITIES = ProtocolCapabilities(name="chiffon", refuses_each=True)

_encode = msgspec.json.Encoder().encode


class ChiffonLink:
    """`links.Link` in chiffon."""

    def __init__(self, pipe: Pipe, runtime: Runtime) -> None:
        self._pipe = pipe
        self._runtime = runtime
        self._name = ""
        self._version = PROTOCOL_VERSION
        self._parts: dict[str, str] = {}
        self._missing: dict[str, int] = {}

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return PROTOCOL_CAPABILITIES

    async def open(self, who: Introduction) -> None:
        self._name = who.kind or who.agent_id
        answer = await self._pipe.open(_registration(who))
        try:
            registered = msgspec.json.decode(answer, type=Registered)
        except msgspec.DecodeError as error:
            raise LinkDown(f"the hub's answer to the registration makes no sense: {error}") from None
        self._name, self._version = registered.agent_type, registered.protocol_version

    async def receive(self) -> Sequence[Inbound]:
        while True:
            heard: list[Inbound] = []
            for arrival in await self._pipe.receive():
                if type(arrival) is Accepted:
                    said: Inbound | None = self._accepted(arrival)
                else:
                    said = self._understand(arrival)  # type: ignore[arg-type]
                if said is not None:
                    heard.append(said)
            if heard:
                return heard

    def acknowledge(self, receipt: str) -> None:
        self._pipe.acknowledge(receipt)

    def send(self, message: Outbound) -> None:
        lane = message.correlation.task_id
        for id, payload, custom in self._payloads(message):
            self._pipe.send(self._wrap(message, id, payload, custom), id, lane)

    async def drain(self) -> None:
        await self._pipe.drain()

    def quiesce(self) -> None:
        self._pipe.quiesce()

    async def close(self) -> None:
        await self._pipe.close()

    # --- in ---

    def _accepted(self, accepted: Accepted) -> Accepted | None:
        """Receipts for whole messages; one in parts is accepted with its last part."""
        if not self._parts:
            return accepted
        whole = []
        for id in accepted.ids:
            message_id = self._parts.pop(id, None)
            if message_id is None:
                whole.append(id)
            else:
                self._missing[message_id] -= 1
                if not self._missing[message_id]:
                    del self._missing[message_id]
                    whole.append(message_id)
        return Accepted(tuple(whole)) if whole else None

    def _understand(self, frame: Frame) -> Inbound | None:
        try:
            message = codec.decode(frame.data)
        except ChiffonError as error:
            log.warning("the hub said something that makes no sense: %s", error)
            self._complain(error)
            return None
        payload, custom = message.payload, message.x_custom_fields
        receipt = frame.receipt or _text(custom.get("delivery_id"))
        if type(payload) is WorkRequest:
            return _work(message, payload, receipt)
        if type(payload) is ErrorPayload:
            task_id = _text(payload.error_context.get("task_id")) or _text(custom.get("task_id"))
            reason = payload.error_message
            if payload.error_code == CANCELLED and task_id is not None:
                reason = _text(payload.error_context.get("reason")) or reason
                return Cancel(task_id=task_id, reason=reason, receipt=receipt)
            retryable = errors.is_retryable(payload.error_code)
            return Refused(request_id=message.request_id, reason=reason, retryable=retryable, receipt=receipt)
        if type(payload) is WorkStatus:
            word = Pause if payload.status == "paused" else Resume
            return word(task_id=payload.task_id, receipt=receipt)
        if receipt is not None:
            self._pipe.acknowledge(receipt)
        log.warning("the hub sent a result to an agent that asked for nothing")
        return None

    def _complain(self, error: ChiffonError) -> None:
        id = self._runtime.mint()
        envelope = codec.envelope(
            error.answer,
            Stamp(id, self._runtime.now()),
            error.about or Ids(id, id),
            from_agent=self._name,
            to_agent="orchestrator",
            protocol_version=self._version,
        )
        self._pipe.send(codec.encode(envelope), id, id)

    # --- out ---

    def _wrap(self, message: Outbound, id: str, payload: Payload, custom: dict[str, Any]) -> bytes:
        correlation = message.correlation
        custom["traceparent"] = f"00-{correlation.trace_id.replace('-', '')}-{trace.span_id(id)}-01"
        envelope: Envelope[Payload] = Envelope(
            protocol_version=self._version,
            message_id=id,
            from_agent=self._name,
            to_agent=correlation.sender,
            timestamp=message.at,
            trace_id=correlation.trace_id,
            request_id=correlation.request_id,
            type=_TYPES[type(payload)],
            payload=payload,
            x_custom_fields=custom,
        )
        return _encode(envelope)

    def _payloads(self, message: Outbound) -> Iterator[tuple[str, Payload, dict[str, Any]]]:
        """The one message, or the several, that say it: id, payload, custom fields."""
        if type(message) is Outcome:
            yield from self._result(message)
        elif type(message) is Report:
            yield from self._status(message)
        elif type(message) is Question:
            status = WorkStatus(task_id=message.correlation.task_id, status="paused", progress_percent=message.percent)
            yield message.id, status, mapping.ask_out(message.ask)
        else:
            assert type(message) is Decline
            yield message.id, _error(message), {"task_id": message.correlation.task_id}

    def _result(self, outcome: Outcome) -> Iterator[tuple[str, Payload, dict[str, Any]]]:
        content, failure = outcome.content, outcome.failure
        whole = WorkResult(
            task_id=outcome.correlation.task_id,
            status="success" if failure is None else "failed",
            exit_code=content.exit_code or 0,
            output=outcome.output,
            resources_used=ResourcesUsed(duration_seconds=outcome.seconds),
        )
        custom: dict[str, Any] = {}
        if content.result is not UNSET:
            custom["result"] = content.result
        if failure is not None and failure.report is not None:
            custom["error"] = failure.report
        if content.usage:
            custom["usage"] = content.usage
        if not chunks.must_split(outcome.output):
            yield outcome.id, whole, custom
            return
        parts = list(chunks.split_result(whole))
        for id, part in zip(self._part_ids(outcome.id, len(parts)), parts, strict=True):
            yield id, part, custom if part is parts[-1] else {}

    def _status(self, report: Report) -> Iterator[tuple[str, Payload, dict[str, Any]]]:
        content, task_id = report.content, report.correlation.task_id
        asides = mapping.progress_fields_out(content)
        if content.file is not None:
            asides["file"] = content.file.id
        step = content.named_step
        if step is None and content.output:
            step = tasks.Step(number=report.number)
        statuses = mapping.statuses_out(task_id, "running", content.percent or 0, step, output=content.output or "")
        ids = [report.id] if len(statuses) == 1 else self._part_ids(report.id, len(statuses))
        for id, status in zip(ids, statuses, strict=True):
            yield id, status, dict(asides)
            asides.clear()

    def _part_ids(self, message_id: str, count: int) -> list[str]:
        ids = [self._runtime.mint() for _ in range(count)]
        self._parts.update(dict.fromkeys(ids, message_id))
        self._missing[message_id] = count
        return ids


_TYPES: dict[type, Any] = {
    WorkRequest: "work_request",
    WorkStatus: "work_status",
    WorkResult: "work_result",
    ErrorPayload: "error",
}


def _work(message: Envelope[Any], request: WorkRequest, receipt: str | None) -> Assignment:
    custom = message.x_custom_fields
    attempt = custom.get("attempt")
    return Assignment(
        correlation=Correlation(
            task_id=request.task_id,
            request_id=message.request_id,
            trace_id=message.trace_id,
            sender=message.from_agent,
        ),
        type=request.work_type,
        request=tasks.Request(
            input=request.parameters,
            answer=request.parameters.get("answer", UNSET),
            question=_text(custom.get("answered_question")),
            context=tasks.fitting(tasks.Context, custom.get("context")),
            handover=tasks.handoff_in(request.parameters.get("handover")),
            attachments=attachments_in(custom.get("attachments") or ()) or None,
        ),
        receipt=receipt,
        attempt=attempt if type(attempt) is int else None,
        traceparent=_text(custom.get("traceparent")),
        thread=_text(custom.get("thread")),
    )


def _registration(who: Introduction) -> bytes:
    """D9, and beside it what the document has no place for: the agent's version, and the schema of each work."""
    resources = {"max_memory_mb": who.memory_mb, "max_gpu_vram_mb": who.gpu_vram_mb}
    said: dict[str, Any] = {
        "agent_id": who.agent_id,
        "agent_type": who.kind or who.agent_id,
        "supported_versions": SUPPORTED,
        "work_types": who.work_types,
        "limits": {"max_concurrent_tasks": who.concurrency}
        | {name: limit for name, limit in resources.items() if limit is not None},
        "capabilities": who.capabilities,
    }
    if who.version is not None:
        said["version"] = who.version
    return _encode(said)


def _error(decline: Decline) -> ErrorPayload:
    fault, field = decline.fault, decline.fault.field
    if fault.kind is Kind.UNSUPPORTED_WORK:
        return errors.unsupported_work(**fault.facts)
    field = f"payload.{field}" if field and field.startswith("parameters") else field
    return errors.invalid_message(validation_error=fault.message, field_name=field, message=decline.sentence)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
