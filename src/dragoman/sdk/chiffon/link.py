"""An agent's link in chiffon, over any pipe that carries the frames.

    the engine sends  as                                              the hub sends           the engine receives
    ----------------  ----------------------------------------------  ----------------------  -------------------
    Report            work_status; above 1 MiB several (D4)           work_request            Assignment
    Question          work_status `paused` with a question            error 5900              Cancel
    Outcome           work_result                                     error, any other code   Refused
    Decline           error 5003 or 5006                              work_status `paused`    Pause
                                                                      work_status `running`   Resume
                                                                      {"accepted": […]}       Accepted

A message that is sent again has the same bytes and the same id. Only the blocks of a split output get fresh ids: the
hub begins such a set again at byte 0, and must not take the first block for one that it has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dragoman.messages.faults import Kind
from dragoman.messages.tasks import Step
from dragoman.protocols.chiffon import codec, errors, mapping, requests
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.protocols.chiffon.types import (
    PROTOCOL_VERSION,
    TYPE_OF,
    Envelope,
    ErrorPayload,
    Payload,
    Registered,
    ResourcesUsed,
    Stamp,
    WorkRequest,
    WorkStatus,
)
from dragoman.protocols.chiffon.types import Correlation as Ids
from dragoman.sdk import trace
from dragoman.sdk.links import Frame, Introduction, LinkDown, Pipe, ProtocolCapabilities
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
from dragoman.sdk.runtime import Runtime

Part = tuple[str, Payload, dict[str, Any]]
"""The id, the payload and the custom fields of one envelope."""

log = logging.getLogger("dragoman.sdk")

PROTOCOL_CAPABILITIES = ProtocolCapabilities(name="chiffon", refuses_each=True)


class ChiffonLink:
    """`links.Link` in chiffon."""

    def __init__(self, pipe: Pipe, runtime: Runtime, *, words_are_receipts: bool = True) -> None:
        self._pipe = pipe
        self._protocol_capabilities = msgspec.structs.replace(
            PROTOCOL_CAPABILITIES, words_are_receipts=words_are_receipts
        )
        self._runtime = runtime
        self._name = ""
        self._version = PROTOCOL_VERSION
        self._parts: dict[str, str] = {}
        self._missing: dict[str, int] = {}

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return self._protocol_capabilities

    async def open(self, who: Introduction) -> None:
        self._name = who.kind or who.agent_id
        limits = {
            "max_concurrent_tasks": who.concurrency,
            "max_memory_mb": who.memory_mb,
            "max_gpu_vram_mb": who.gpu_vram_mb,
        }
        registration = mapping.registration_out(
            agent_id=who.agent_id,
            kind=who.kind,
            work_types=who.work_types,
            limits=limits,
            capabilities=who.capabilities,
            version=who.version,
        )
        answer = await self._pipe.open(registration)
        try:
            registered = msgspec.json.decode(answer, type=Registered)
        except msgspec.DecodeError as error:
            raise LinkDown(f"the hub's answer to the registration makes no sense: {error}") from None
        self._name, self._version = registered.agent_type, registered.protocol_version

    async def receive(self) -> Sequence[Inbound]:
        while True:
            received: list[Inbound] = []
            for arrival in await self._pipe.receive():
                if type(arrival) is Accepted:
                    message: Inbound | None = self._accepted(arrival)
                else:
                    message = self._decode(arrival)  # type: ignore[arg-type]
                if message is not None:
                    received.append(message)
            if received:
                return received

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

    def _decode(self, frame: Frame) -> Inbound | None:
        try:
            message = codec.decode(frame.data)
        except ChiffonError as error:
            log.warning("the hub sent a message that is not valid chiffon: %s", error)
            self._complain(error)
            return None
        payload, custom = message.payload, message.x_custom_fields
        receipt = frame.receipt or mapping.text_in(custom, "delivery_id")
        if type(payload) is WorkRequest:
            return _assignment(message, payload, receipt)
        if type(payload) is ErrorPayload:
            if (cancel := mapping.cancel_in(payload, custom)) is not None:
                return Cancel(task_id=cancel[0], reason=cancel[1], receipt=receipt)
            retryable = errors.is_retryable(payload.error_code)
            reason = payload.error_message
            return Refused(request_id=message.request_id, reason=reason, retryable=retryable, receipt=receipt)
        if type(payload) is WorkStatus:
            control = Pause if payload.status == "paused" else Resume
            return control(task_id=payload.task_id, receipt=receipt)
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
            to_agent=mapping.HUB_NAME,
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
            type=TYPE_OF[type(payload)],
            payload=payload,
            x_custom_fields=custom,
        )
        return codec.encode(envelope)

    def _payloads(self, message: Outbound) -> Iterator[Part]:
        """The envelopes that carry a message; nearly always one."""
        task_id = message.correlation.task_id
        match message:
            case Outcome():
                yield from self._results(message)
            case Report():
                yield from self._statuses(message)
            case Question():
                (status,) = mapping.statuses_out(task_id, "paused", message.percent)
                yield message.id, status, mapping.ask_out(message.ask)
            case Decline():
                yield message.id, _error(message), {"task_id": task_id}
            case _:
                raise AssertionError(f"chiffon has no message for {type(message).__name__}")

    def _results(self, outcome: Outcome) -> Iterator[Part]:
        content, failure = outcome.content, outcome.failure
        fields = mapping.result_fields_out(
            result=content.result, usage=content.usage or None, error=None if failure is None else failure.report
        )
        used = ResourcesUsed(duration_seconds=outcome.seconds)
        results = mapping.results_out(outcome.correlation.task_id, content.exit_code or 0, outcome.output, used)
        for id, result in zip(self._ids(outcome.id, len(results)), results, strict=True):
            yield id, result, fields if result is results[-1] else {}

    def _statuses(self, report: Report) -> Iterator[Part]:
        content = report.content
        fields = mapping.progress_fields_out(content)
        if content.file is not None:
            fields["file"] = content.file.id
        step = content.named_step or (Step(number=report.number) if content.output else None)
        statuses = mapping.statuses_out(
            report.correlation.task_id, "running", content.percent or 0, step, output=content.output or ""
        )
        for id, status in zip(self._ids(report.id, len(statuses)), statuses, strict=True):
            yield id, status, fields
            fields = {}

    def _ids(self, message_id: str, count: int) -> list[str]:
        """The id of each part of a message."""
        if count == 1:
            return [message_id]
        ids = [self._runtime.mint() for _ in range(count)]
        self._parts.update(dict.fromkeys(ids, message_id))
        self._missing[message_id] = count
        return ids


def _assignment(message: Envelope[Any], work: WorkRequest, receipt: str | None) -> Assignment:
    custom = message.x_custom_fields
    return Assignment(
        correlation=Correlation(
            task_id=work.task_id,
            request_id=message.request_id,
            trace_id=message.trace_id,
            sender=message.from_agent,
        ),
        type=work.work_type,
        request=requests.work_in(work, custom),
        receipt=receipt,
        attempt=requests.attempt_in(custom),
        traceparent=mapping.text_in(custom, "traceparent"),
        thread=mapping.text_in(custom, "thread"),
    )


def _error(decline: Decline) -> ErrorPayload:
    fault, field = decline.fault, decline.fault.field
    if fault.kind is Kind.UNSUPPORTED_WORK:
        return errors.error(5006, **fault.facts)
    field = f"payload.{field}" if field and field.startswith("parameters") else field
    return errors.error(5003, decline.sentence, validation_error=fault.message, field_name=field)
