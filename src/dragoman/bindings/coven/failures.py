"""Faults in coven's words, and the way back: an `error` is text, our `fault` beside it is for programs."""

from __future__ import annotations

from typing import Any

from dragoman.bindings import errormap
from dragoman.bindings.coven.exchange import as_json, from_json
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.coven import types
from dragoman.wire.errors import RemoteProtocolError, Stage

_KINDS = {kind.value: kind for kind in Kind}
DEFAULT = "the agent reported an error without words"


def fault_in(message: types.MessageResponse) -> Fault:
    """What an agent's `error` means: a failure of the work, unless the fault beside it says more."""
    assert isinstance(message.event, types.Error)
    words = message.event.message
    told = message.fault
    if told is None:
        return Fault(kind=Kind.WORK_FAILED, message=words or DEFAULT)
    facts: Any = from_json(told.facts_json) if told.facts_json else {}
    return Fault(
        kind=_KINDS.get(told.kind, Kind.WORK_FAILED),
        message=told.message or words or DEFAULT,
        retryable=told.retryable,
        facts=facts if isinstance(facts, dict) else {"facts": facts},
    )


def fault_out(fault: Fault) -> types.Fault:
    return types.Fault(
        kind=fault.kind.value,
        message=fault.message,
        retryable=errormap.retryable(fault),
        facts_json=as_json(fault.facts) if fault.facts else "",
    )


def status_of(fault: Fault) -> tuple[str, str]:
    """The name of the gRPC status that goes with a fault, and its words: they are all there is to name a field."""
    words = errormap.sentence(fault)
    named = fault.field is None or fault.field in words or errormap.over_budget(fault)
    return errormap.TABLE[fault.kind].grpc, words if named else f"{fault.field}: {words}"


def fault_of(error: RemoteProtocolError) -> Fault:
    """What the codec or the connection refused, as a fault."""
    kind = Kind.TOO_LARGE if error.stage is Stage.SIZE else Kind.INVALID
    return Fault(kind=kind, message=error.what, field=error.field, facts={"stage": error.stage.value})
