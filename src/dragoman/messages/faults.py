"""What can go wrong, in the hub's own words.

A `Fault` is a value: it is stored with tasks, audited, and told to whoever must know, in the words of their
protocol (`messages.error_table` has the one table). `Refused` carries a fault out of a decision: whatever that
decision had written is dropped, the refusal is audited, nothing else happens.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from dragoman.messages.brevity import in_short

LONGEST = 64 * 1024
"""Bytes of a fault's words, and of its facts, that stand in rows and are told."""

_encode = msgspec.json.Encoder().encode


class Kind(enum.StrEnum):
    """The closed list of faults. Adding one means adding a row to the error table; a test insists."""

    INVALID = "invalid"  # malformed, or a field that makes no sense
    TOO_LARGE = "too_large"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNSUPPORTED_WORK = "unsupported_work"
    UNAUTHENTICATED = "unauthenticated"  # no credential, or one nobody knows
    FORBIDDEN = "forbidden"  # known, but not allowed; also a sender that is not who it says
    NOT_FOUND = "not_found"  # not there, or not yours: the same answer
    CONFLICT = "conflict"  # the state of things does not allow it
    MISMATCH = "mismatch"  # the same request id with other content
    CONTRACT = "contract"  # outside of the terms that were agreed
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"  # the hub cannot take it now (backlog full, draining, disk refused)
    UNAVAILABLE = "unavailable"  # nobody there to do it
    TIMEOUT = "timeout"
    RESOURCES = "resources"  # the agent lacks memory, GPU, budget…
    CANCELLED = "cancelled"
    DEPENDENCY = "dependency"  # what it waited for failed
    WORK_FAILED = "work_failed"  # the agent did the work and says it failed
    INTERNAL = "internal"


class Fault(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What happened, to what, and whether trying again can help."""

    kind: Kind
    message: str
    field: str | None = None
    retryable: bool = False
    facts: dict[str, Any] = {}
    named: Kind | None = None
    """What whoever reported it called it, where the hub treats it as another kind: its word in other protocols."""
    reported: bool = False
    """An agent said so, of its work: its words stay as they are, and advice of the hub's to its own callers would be
    advice to the wrong one."""

    def in_short(self) -> Fault:
        """As it stands in a task's row, which is written again and again and listed by the hundred, and as it is told.
        Agents give reasons of any length; the event has the whole."""
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
    """A decision says no. `keep`: what it wrote before saying so stands all the same."""

    def __init__(self, fault: Fault, *, keep: bool = False) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.keep = keep


def owned_by(owner: str, claimed: str) -> str:
    """What is wrong with a message or a registration that claims another id than its credential's (all-D1). Who holds
    the token may know whose it is."""
    return f"this token belongs to agent {owner!r}, not to {claimed!r}"


def refuse(kind: Kind, message: str, /, *, field: str | None = None, retryable: bool = False, **facts: Any) -> Refused:
    """The refusal to raise: `raise refuse(Kind.NOT_FOUND, "no such task", task_id=…)`."""
    return Refused(Fault(kind=kind, message=message, field=field, retryable=retryable, facts=facts))
