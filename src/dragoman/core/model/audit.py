"""Audit records: who asked for what, and what the hub decided. Each record carries the hash of the one before.

Editing or deleting a row breaks every hash after it, and `verify` names the first record that does not fit. Records
that are missing at the end break no hash: so the number and the hash of the newest record are kept apart, and
`cut_short` compares. A hub node writes one chain; several nodes write several, distinguished by `chain`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dragoman.core.ids import Instant

GENESIS = "0" * 64


class AuditRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    seq: int
    at: Instant
    principal: str
    action: str
    outcome: str  # "accepted" | "refused"
    prev: str
    hash: str = ""
    chain: str = "main"
    protocol: str | None = None
    subject: str | None = None  # the task, agent, question… it is about
    reason: str | None = None
    digest: str | None = None


_encoder = msgspec.json.Encoder()


def sealed(
    seq: int,
    at: Instant,
    prev: str,
    principal: str,
    action: str,
    outcome: str,
    protocol: str | None,
    subject: str | None,
    reason: str | None,
    digest: str | None,
    chain: str = "main",
) -> AuditRecord:
    """A record with its hash: over all its other fields, as JSON, in this order."""
    content = (seq, at, prev, principal, action, outcome, protocol, subject, reason, digest, chain)
    return AuditRecord(
        seq=seq,
        at=at,
        prev=prev,
        principal=principal,
        action=action,
        outcome=outcome,
        protocol=protocol,
        subject=subject,
        reason=reason,
        digest=digest,
        chain=chain,
        hash=hashlib.sha256(_encoder.encode(content)).hexdigest(),
    )


def seal(record: AuditRecord) -> AuditRecord:
    """The same record with the hash that belongs to its content."""
    return sealed(
        record.seq,
        record.at,
        record.prev,
        record.principal,
        record.action,
        record.outcome,
        record.protocol,
        record.subject,
        record.reason,
        record.digest,
        record.chain,
    )


class Newest(NamedTuple):
    """The newest record that was committed."""

    seq: int = 0
    hash: str = GENESIS


class Broken(msgspec.Struct, frozen=True, gc=False):
    """The first record that does not fit, and why."""

    seq: int
    why: str


def verify(records: Iterable[AuditRecord], *, prev: str = GENESIS, seq: int = 0) -> tuple[int, str, Broken | None]:
    """Walk a chain on from (seq, prev); returns how far it is valid, the last hash, and the first break, if any. A
    record that the store knows to be changed has no hash."""
    for record in records:
        if record.seq != seq + 1:
            return seq, prev, Broken(seq + 1, f"record {seq + 1} is missing; the next one is {record.seq}")
        if record.hash and record.prev != prev:
            return seq, prev, Broken(record.seq, f"record {record.seq} does not follow the one before it")
        if seal(record).hash != record.hash:
            return seq, prev, Broken(record.seq, f"record {record.seq} was changed after it was written")
        seq, prev = record.seq, record.hash
    return seq, prev, None


def cut_short(seq: int, prev: str, newest: Newest) -> Broken | None:
    """What is wrong with the end of a chain that is valid up to (seq, prev), although `newest` was written."""
    if seq < newest.seq:
        return Broken(seq + 1, f"record {seq + 1} is missing, and all after it; {newest.seq} were written")
    if seq == newest.seq and prev != newest.hash:
        return Broken(seq, f"record {seq} is not the one that was written")
    return None


def holds(seq: int, hash: str, when: str, *, length: int, found: str) -> Broken | None:
    """What is wrong with a whole chain of `length` records, where a checkpoint of `when` says that record `seq` had
    this hash; `found` is its hash now."""
    if seq > length:
        what = f"record {length + 1} is missing, and all after it; the checkpoint of {when} has {seq}"
        return Broken(length + 1, what)
    if found != hash:
        return Broken(
            seq, f"record {seq} is not the one of the checkpoint of {when}: it or one before it was rewritten"
        )
    return None
