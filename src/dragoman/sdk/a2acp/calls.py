"""One call in a2acp, and what has been heard of it: values only, no link.

Tried again it is the same call for who waits, and another request for the broker: `thread` is the correlation id of the
last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.protocols.a2acp import codec, mapping
from dragoman.protocols.a2acp.contracts import Contract
from dragoman.protocols.a2acp.errors import KINDS
from dragoman.protocols.a2acp.types import BROKER_ID, Message
from dragoman.sdk.a2acp import payloads
from dragoman.sdk.a2acp.channel import Write
from dragoman.sdk.a2acp.relations import Terms
from dragoman.sdk.calling.calls import PendingCall
from dragoman.sdk.events import value_of
from dragoman.sdk.failures import (
    CallFailed,
    RateLimitExceeded,
    SchemaMismatch,
    SecurityPolicyViolation,
    TimedOut,
    failed,
    failure,
)

CANCELLED = "cancelled"
OVER = ("expired", "superseded")
"""How a contract may stand that was good when we looked."""
OF_AGENTS = (RateLimitExceeded, TimedOut)
"""What is tried again if an agent says it. An agent's own INTERNAL_ERROR is its work, which failed."""


def kind_of(error: CallFailed) -> str:
    """The hub's word for what a2acp says by a code. An agent that says INTERNAL_ERROR or TIMEOUT tells that its work
    failed; and input that does not fit is that, also where a contract says so."""
    kind = error.details.get("kind")
    if kind is None:
        return KINDS[error.CODE][1].value
    is_misfit = kind == "contract" and error.details.get("schema") == "input"
    return SchemaMismatch.KIND if is_misfit else str(kind)


class Call(PendingCall):
    def __init__(self, task_id: str, terms: Terms, given: Mapping[str, Any], traceparent: str | None, retries: int):
        super().__init__(task_id, "")
        self.thread = task_id
        self.terms = terms
        self.given = dict(given)
        self.traceparent = traceparent
        self.retries = retries
        self.write: Write | None = None
        self.contract: Contract | None = None
        self.is_cancelled = False
        self.has_new_contract = False

    @property
    def is_sealed(self) -> bool:
        return self.contract is not None and self.contract.security.encryption == "aes256"

    def completed(self, message: Message) -> None:
        payload = message.payload or {}
        schema = True if self.contract is None else self.contract.output_schema
        value = payloads.value(schema, payload, message.value_in)
        data = {"result": value}
        if isinstance(message.usage, dict):
            data["usage"] = message.usage
        self._tell("completed", message, data)
        self.finish(value_of(value, self.heard))

    def failed(self, message: Message) -> CallFailed:
        """What an error about this call says."""
        by = message.source_agent.agent_id
        return failure(codec.error(message), task_id=self.task_id, by=by)

    def pause(self, error: CallFailed) -> float | None:
        """After how many seconds to try again, or None if that is no use."""
        if self.is_cancelled or self.done.done():
            return None
        stale = error.details.get("standing") in OVER or error.details.get("field") == "payload.kid"
        # An agent that cannot open what it gets has lost its keys; of sealed work no more than the code is told.
        is_shut = isinstance(error, SecurityPolicyViolation) and error.by not in (None, BROKER_ID)
        if (stale or (is_shut and self.is_sealed)) and not self.has_new_contract:
            self.has_new_contract = True
            return 0.0
        kind = error.details.get("kind")
        ours = isinstance(error, OF_AGENTS) if kind is None else kind not in (CANCELLED, "work_failed")
        if not (error.retryable and ours and self.retries > 0):
            return None
        self.retries -= 1
        return error.retry_after

    def fail(self, error: Exception, message: Message | None = None) -> None:
        if isinstance(error, CallFailed):
            fault = error.details.get("fault")
            words = str((fault if isinstance(fault, dict) else {}).get("message") or error.message)
            status = CANCELLED if error.details.get("kind") == CANCELLED or self.is_cancelled else "failed"
            facts = {"code": error.code, "message": words, **error.details}
            self._tell(status, message, {"fault": facts})
            ended = failed(
                words,
                task_id=self.task_id,
                status=status,
                kind=kind_of(error),
                code=error.code,
                exit_code=error.details.get("exit_code"),
                facts=error.details,
            )
            if isinstance(ended, CallFailed):
                ended.retry_after, ended.by = error.retry_after, error.by
            error = ended
        super().fail(error)

    def progress(self, message: Message) -> None:
        payload = message.payload or {}
        report = mapping.progress_in(payload)
        data: dict[str, Any] = {"status": "running"} | msgspec.to_builtins(mapping.progress_out(report))
        if report.message:
            data.setdefault("step", {"name": report.message})
        if payload.get("file"):
            data["file"] = payload["file"]
        self._tell("progress", message, data)

    def _tell(self, kind: str, message: Message | None, data: dict[str, Any]) -> None:
        at = None if message is None else message.timestamp.isoformat()
        agent = None if message is None else message.source_agent.agent_id
        self.tell(kind, data, at=at, agent=agent)
