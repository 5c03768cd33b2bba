"""The audit record: who asked for what, and what we said. Each carries the hash of the one before.

Whoever edits or deletes a row breaks every hash after it, and `verify` names the first that does not fit. A hub
node writes one chain; several nodes write several, told apart by `chain`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from dragoman.core.ids import Instant

GENESIS = "0" * 64


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


def hash_of(record: AuditRecord) -> str:
    """The hash over everything a record says (but its hash): its fields as JSON, in the order of their definition."""
    said = _encoder.encode(
        (
            record.seq,
            record.at,
            record.principal,
            record.action,
            record.outcome,
            record.prev,
            record.chain,
            record.protocol,
            record.subject,
            record.reason,
            record.digest,
        )
    )
    return hashlib.sha256(said).hexdigest()


def seal(record: AuditRecord) -> AuditRecord:
    return msgspec.structs.replace(record, hash=hash_of(record))


class Broken(msgspec.Struct, frozen=True):
    """The first record that does not fit, and why."""

    seq: int
    why: str


def verify(records: Iterable[AuditRecord], *, prev: str = GENESIS, seq: int = 0) -> tuple[int, str, Broken | None]:
    """Walk a chain on from (seq, prev); returns how far it holds, the last hash, and the first break, if any."""
    for record in records:
        if record.seq != seq + 1:
            return seq, prev, Broken(seq + 1, f"record {seq + 1} is missing; the next one is {record.seq}")
        if record.prev != prev:
            return seq, prev, Broken(record.seq, f"record {record.seq} does not follow the one before it")
        if hash_of(record) != record.hash:
            return seq, prev, Broken(record.seq, f"record {record.seq} was changed after it was written")
        seq, prev = record.seq, record.hash
    return seq, prev, None
