"""What a2acp's requests mean to an agent: work, and proposals to come to terms."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.messages import tasks
from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.contracts import Capability
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import Message
from dragoman.sdk import trace
from dragoman.sdk.a2acp import payloads
from dragoman.sdk.messages import Assignment, Correlation, Decline, Proposal, attachments_in
from dragoman.sdk.peers import HandshakeRequest
from dragoman.sdk.work.outcome import TIMED_OUT

SEALED, PERSONAL, THREAD = "sealed", "personal", "thread"
"""In `Correlation.about`: the answer is to be sealed, errors are not to be told in clear, and which
message it answers."""


class _Task(msgspec.Struct):
    id: str | None = None
    thread: str | None = None
    context: dict[str, Any] | None = None


class _Beside(msgspec.Struct):
    """What the hub says of a task beside the payload."""

    task: _Task | None = None


_beside = msgspec.json.Decoder(_Beside).decode


def task_in(frame: bytes) -> str | None:
    """The hub's own id of the task that a message is about; its correlation id is its caller's affair."""
    return _task(frame).id


def _task(frame: bytes) -> _Task:
    try:
        return _beside(frame).task or _Task()
    except msgspec.MsgspecError:
        return _Task()


def work_of(
    message: Message, frame: bytes, task_id: str, capability: Capability | None, receipt: str | None, fresh: str
) -> Assignment:
    """A request whose payload is open; `frame` is as it came. `fresh` is a UUID, for a trace if there is none yet.

    What the answer needs travels with the correlation, so that it can be given after a restart, too.
    """
    payload, source = message.payload or {}, message.source_agent
    span, told = trace.parse(payload.get("traceparent")), _task(frame)
    handover = tasks.handoff_in(payload.get("handover"))
    about = {"intent": message.intent or "", "domain": source.domain, "version": source.version}
    about[THREAD] = message.thread
    if message.contract_id is not None:
        about["contract_id"] = message.contract_id
    if message.security.encryption == "aes256":
        about[SEALED] = "yes"
    if capability is not None and capability.pii:
        about[PERSONAL] = "yes"
    files = attachments_in(payload.get("attachments") or ())
    if files:
        payload = {name: value for name, value in payload.items() if name != "attachments"}
    given = payloads.content(None if capability is None else capability.input_schema, payload)
    if handover is not None:
        given.pop("handover", None)
    return Assignment(
        correlation=Correlation(
            task_id=task_id,
            request_id=f"{source.agent_id}/{message.message_id}",
            trace_id=fresh.replace("-", "") if span is None else span.trace_id,
            sender=source.agent_id,
            about=about,
        ),
        type=message.intent or "",
        request=tasks.Request(
            input=given,
            context=tasks.fitting(tasks.Context, told.context),
            handover=handover,
            attachments=files or None,
        ),
        receipt=receipt,
        traceparent=None if span is None else payload["traceparent"],
        thread=told.thread,
        is_new_round=False,
    )


def proposal_of(message: Message, receipt: str | None) -> Proposal:
    """A request accept_handshake."""
    offer = msgspec.convert(message.payload, intents.Offer)
    request = HandshakeRequest(
        id=message.thread,
        source=offer.source_agent.agent_id,
        domain=offer.source_agent.domain,
        version=offer.source_agent.version,
        intent=offer.requested_intent,
        contract=msgspec.to_builtins(offer.contract),
    )
    return Proposal(id=message.thread, request=request, receipt=receipt)


def failed(failure: tasks.Failure, *, is_personal: bool) -> Refusal:
    """What an end without success is told as."""
    known, output = failure.report or {}, failure.output or ""
    details: dict[str, Any] = {**(known.get("details") or {})}
    if "code" in known:  # the handler's own words
        return Refusal(code=Code(known["code"]), message=output, details=details, after=known.get("retry_after"))
    words = output.rstrip().rpartition("\n")[2] or "the work failed"
    if is_personal and known.get("type") != "Rejected" and failure.exit_code != TIMED_OUT:
        words = f"the work failed ({known.get('type', 'Error')}); what it said may be personal"
    code = Code.TIMEOUT if failure.exit_code == TIMED_OUT else Code.INTERNAL_ERROR
    return Refusal(
        code=code,
        message=words,
        details={"retryable": False, "type": known.get("type"), "exit_code": failure.exit_code},
    )


def declined(decline: Decline) -> Refusal:
    """Why work was not begun."""
    fault = decline.fault
    if fault.kind is Kind.UNSUPPORTED_WORK:
        facts = fault.facts
        details: dict[str, Any] = {"intent": facts["work_type_requested"], "supported": list(facts["supported_types"])}
        return Refusal(code=Code.CAPABILITY_NOT_FOUND, message=fault.message, details=details)
    field = fault.field and fault.field.replace("parameters", "payload", 1)
    details = {"field": field} if field else {}
    words = decline.sentence
    return Refusal(code=Code.SCHEMA_MISMATCH, message=words, details=details)
