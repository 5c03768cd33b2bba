"""The audit record: read it, and verify its chain of hashes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response, StreamingResponse

from dragoman.api.bodies import AuditQuery, AuditViewQuery
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
    return await _verified(context, 0, GENESIS)


async def _verified(context: Context, seq: int, prev: str) -> Verdict:
    """The chain from a record on that is known to hold."""
    newest = context.intake.newest_audit
    broken: Broken | None = None
    while broken is None:
        records = await context.store.audit(after=seq, limit=STRIDE)
        if not records:
            break
        seq, prev, broken = verify(records, prev=prev, seq=seq)
    broken = broken or cut_short(seq, prev, newest)
    return Verdict(ok=broken is None, verified=seq, last_hash=prev, broken=broken)


# -- the page ----------------------------------------------------------------------------------------------------------

SHOWN = 200
SEARCHED = 20_000
"""Records from the newest on that are searched for those of a filter."""


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first, and whether the chain holds. `searched` records were looked at."""

    records: tuple[AuditOut, ...]
    verdict: Verdict
    searched: int


async def show_view(context: Context, call: Call[AuditViewQuery, None]) -> AuditView:
    found: list[AuditOut] = []
    searched = 0
    async for record in _backwards(context):
        searched += 1
        if _fits(record, call.query):
            found.append(record)
        if len(found) == SHOWN or searched == SEARCHED:
            break
    return AuditView(records=tuple(found), verdict=await _verdict(context), searched=searched)


async def _verdict(context: Context) -> Verdict:
    """What held a moment ago need not be verified again, save for the last record: only what came since."""
    known = context.audit_verdict
    seq, prev = (0, GENESIS) if known is None or not known.ok else (known.verified, known.last_hash)
    verdict = await _verified(context, seq, prev)
    context.audit_verdict = verdict
    return verdict


async def _backwards(context: Context) -> AsyncIterator[AuditOut]:
    end = context.intake.newest_audit.seq
    while end > 0:
        first = max(0, end - STRIDE)
        page = await context.store.audit(after=first, limit=STRIDE)
        for record in reversed([record for record in page if record.seq <= end]):
            yield audit_out(record)
        end = first


def _fits(record: AuditOut, query: AuditViewQuery) -> bool:
    return (
        (query.principal is None or record.principal == query.principal)
        and (query.action is None or record.action.startswith(query.action))
        and (query.outcome is None or record.outcome == query.outcome)
    )


async def export(context: Context, call: Call[AuditViewQuery, None]) -> Response:
    """Every record that fits, the oldest first, as JSON lines."""

    async def lines() -> AsyncIterator[bytes]:
        seq = 0
        while records := await context.store.audit(after=seq, limit=STRIDE):
            for record in map(audit_out, records):
                if _fits(record, call.query):
                    yield msgspec.json.encode(record) + b"\n"
            seq = records[-1].seq

    headers = {"Content-Disposition": "attachment; filename=audit.jsonl", "Cache-Control": "no-store"}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)
