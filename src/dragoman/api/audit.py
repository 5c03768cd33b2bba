"""The audit record: read it, and verify its chain of hashes."""

from __future__ import annotations

import msgspec

from dragoman.api.bodies import AuditQuery
from dragoman.api.context import Call, Context, Plain, page_of
from dragoman.api.keys import service
from dragoman.api.problems import USE_NEXT, Problem
from dragoman.core.ids import rfc3339
from dragoman.core.model.audit import GENESIS, Broken, cut_short, verify
from dragoman.core.queries import AuditOut, audit_out
from dragoman.messages.faults import Kind

STRIDE = 1000


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first. `newest` is the number of the last record, so that the list can be read from its end."""

    records: tuple[AuditOut, ...]
    next: str | None
    newest: int


class CheckpointOut(msgspec.Struct, frozen=True, kw_only=True):
    """`dragoman.security.checkpoints` says what is signed; `public_key` is the `x` of the JWK called `kid`."""

    kind: str
    version: int
    chain: str
    seq: int
    hash: str
    at: str
    kid: str
    public_key: str
    signature: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`broken` names the first record whose hash is wrong."""

    ok: bool
    verified: int
    last_hash: str
    broken: Broken | None


async def list_records(context: Context, call: Call[AuditQuery, None]) -> AuditList:
    query = call.query
    cursor = query.cursor or "0"
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise Problem(Kind.INVALID, "this is not a cursor of this list", field="cursor", next=USE_NEXT)
    found = await context.store.audit(
        after=int(cursor),
        limit=query.limit + 1,
        principal=query.principal,
        subject=query.subject,
        outcome=query.outcome,
    )
    page, on = page_of(found, query.limit, lambda record: str(record.seq))
    newest = context.intake.newest_audit.seq
    return AuditList(records=tuple(map(audit_out, page)), next=on, newest=newest)


async def checkpoint(context: Context, call: Plain) -> CheckpointOut:
    """The newest record as it stands, signed: to be kept elsewhere."""
    newest = context.intake.newest_audit
    made = service(context).checkpoint(newest.seq, newest.hash, rfc3339(context.intake.now()))
    return CheckpointOut(**msgspec.structs.asdict(made))


async def verify_chain(context: Context, call: Plain) -> Verdict:
    newest = context.intake.newest_audit
    seq, prev, broken = 0, GENESIS, None
    while broken is None:
        records = await context.store.audit(after=seq, limit=STRIDE)
        if not records:
            break
        seq, prev, broken = verify(records, prev=prev, seq=seq)
    broken = broken or cut_short(seq, prev, newest)
    return Verdict(ok=broken is None, verified=seq, last_hash=prev, broken=broken)
