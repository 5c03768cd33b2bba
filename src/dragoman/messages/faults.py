"""Faults: what can go wrong.

A `Fault` is a value: it is stored with tasks, audited, and sent to callers and agents in the terms of their protocol
(`messages.error_table` has the one table). `Refused` carries a fault out of a decision: the decision's changes are
undone, the refusal is audited, and nothing else happens.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.messages.brevity import in_short
from dragoman.wire.errors import with_next

LONGEST = 64 * 1024
"""Bytes of a fault's message, and of its facts, that are stored in rows and sent."""

_encode = msgspec.json.Encoder().encode


class Kind(enum.StrEnum):
    """The closed list of faults. A new one needs a row in the error table; a test checks it."""

    INVALID = "invalid"  # malformed, or a field that makes no sense
    TOO_LARGE = "too_large"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNSUPPORTED_WORK = "unsupported_work"
    UNAUTHENTICATED = "unauthenticated"  # no credential, or an unknown one
    FORBIDDEN = "forbidden"  # known, but not allowed; also a sender that claims another id
    NOT_FOUND = "not_found"  # missing, or another principal's: the same answer
    CONFLICT = "conflict"  # the current state does not allow it
    MISMATCH = "mismatch"  # the same request id with other content
    CONTRACT = "contract"  # outside of the agreed terms
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"  # the hub cannot take it now (backlog full, draining, disk refused)
    UNAVAILABLE = "unavailable"  # no agent is connected that could do it
    TIMEOUT = "timeout"
    RESOURCES = "resources"  # the agent lacks memory, GPU, budget…
    CANCELLED = "cancelled"
    DEPENDENCY = "dependency"  # a task that it depends on failed
    WORK_FAILED = "work_failed"  # the agent did the work and reports that it failed
    INTERNAL = "internal"


class Fault(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What happened, to what, and whether trying again can help."""

    kind: Kind
    message: str
    next: str = ""
    """What to do next, where this is more than the error table says of the kind. `message` ends with it (`new_fault`
    puts them together); it stands here too, so that no code looks for it in a sentence."""
    field: str | None = None
    retryable: bool = False
    facts: dict[str, Any] = {}
    named: Kind | None = None
    """The kind that the reporting agent gave, where the hub treats it as another: other protocols use it."""
    reported: bool = False
    """An agent reported it about its work: its text stays as it is, since the hub's advice is meant for the hub's own
    callers."""

    def in_short(self) -> Fault:
        """The fault as a task's row has it, which is often written and listed, and as it is sent. Agents give reasons
        of any length; the event has the whole."""
        facts, room = {}, LONGEST
        for name, value in self.facts.items():
            room -= len(name) + len(_encode(value))
            if room < 0:
                break
            facts[name] = value
        return msgspec.structs.replace(self, message=in_short(self.message, LONGEST), facts=facts)

    def __str__(self) -> str:
        where = f" ({self.field})" if self.field else ""
        return f"{self.message}{where} [{self.kind.value}]"


class Refused(Exception):
    """A decision refuses. `keep`: its changes so far stand all the same."""

    def __init__(self, fault: Fault, *, keep: bool = False) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.keep = keep


def owned_by(owner: str, claimed: str) -> str:
    """What is wrong with a message or a registration that claims another id than its credential's (all-D1). The holder
    of the token may know whose it is."""
    return f"this token belongs to agent {owner!r}, not to {claimed!r}"


def new_fault(
    kind: Kind,
    message: str,
    /,
    *,
    next: str = "",
    field: str | None = None,
    retryable: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> Fault:
    """A fault of the hub's own, whose message ends with what to do next."""
    text = with_next(message, next)
    return Fault(kind=kind, message=text, next=next, field=field, retryable=retryable, facts=dict(facts or {}))


def refuse(
    kind: Kind, message: str, /, *, next: str = "", field: str | None = None, retryable: bool = False, **facts: Any
) -> Refused:
    """The refusal to raise: `raise refuse(Kind.CONFLICT, "already in use", next="choose a new one", field="id")`."""
    return Refused(new_fault(kind, message, next=next, field=field, retryable=retryable, facts=facts))
