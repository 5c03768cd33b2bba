"""`dragoman audit`: who asked for what and what the hub decided, and whether that record is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman import durable
from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, HubLocation, Limit, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.lists import Since, begin
from dragoman.cli.printing import Column, col, moment

if TYPE_CHECKING:
    from dragoman.security.checkpoints import Checkpoint

app = App(name="audit", help="The audit record: query, verify, checkpoint.")

COLUMNS = (
    col("seq", right=True),
    col("at"),
    Column("who", lambda record: record.get("principal")),
    col("action"),
    col("outcome"),
    col("about", "subject", spare=True),
    Column("why", lambda record: record.get("reason") or ""),
)
FAR = "9" * 18
"""Behind every record."""
WINDOW, WINDOWS = 500, 200
"""How many records are read at once, and how often, to find those that match."""
STRIDE = 1000
BEFORE = "0" * 64
"""The hash before the first record (`core.model.audit.GENESIS`, which is not imported for every command)."""
LONG_WALK = 600.0
"""Seconds for verifying: the hub reads every record there is."""


@app.command
def query(
    *,
    principal: Annotated[str | None, Parameter(help="Only requests of this agent (or admin).")] = None,
    subject: Annotated[str | None, Parameter(help="Only records about this task, agent or question.")] = None,
    outcome: Annotated[Literal["accepted", "refused"] | None, Parameter(help="Only records with this outcome.")] = None,
    since: Since = None,
    limit: Limit = 50,
    before: Annotated[int | None, Parameter(help="Only records with smaller numbers.")] = None,
    cursor: Annotated[str | None, Parameter(help="List from the oldest on, after the record of this number.")] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """List audit records, the newest first; from a cursor on, the oldest first."""
    filters = {"principal": principal, "subject": subject, "outcome": outcome}
    hub, start = Hub.find(location), begin(since)
    if cursor is not None:
        answer = hub.get("audit", **filters, limit=limit, cursor=cursor)
    else:
        answer = _back(hub, filters, limit, before, start)
    option = "--before" if cursor is None else "--cursor"
    page = printing.Listing(
        answer, "records", COLUMNS, output, "dragoman audit query", option=option, **filters, since=since
    )
    found = page.items
    refused = sum(record.get("outcome") == "refused" for record in found)
    counted = f"{printing.count(len(found), 'record')}, {printing.count(refused, 'refusal')}"
    wider = "dragoman audit query" if any(filters.values()) and not found else "dragoman audit verify"
    counted += ", and there are more" if page.more else ""
    page.end(None, counted, wider, with_more=["the newest: dragoman tail audit"])


def _back(hub: Hub, filters: dict[str, Any], limit: int, before: int | None, start: datetime | None) -> dict[str, Any]:
    """Records from the newest on, read in windows of numbers; `next` is the number of the last one."""
    if not 1 <= limit <= WINDOW:
        raise CommandError(Exit.USAGE, f"--limit: expected 1 to {WINDOW}, got {limit}")
    if before is None:
        newest = hub.get("audit", limit=1, cursor=FAR).get("newest")
        if newest is None:  # a hub of before this command
            oldest: dict[str, Any] = hub.get("audit", **filters, limit=limit)
            return oldest
        before = int(newest) + 1
    top = before - 1
    found: list[dict[str, Any]] = []
    wide = WINDOW if any(filters.values()) else limit
    for _ in range(WINDOWS):
        if top <= 0:
            break
        low = max(0, top - wide)
        page = hub.get("audit", **filters, limit=wide, cursor=low).get("records") or []
        for record in reversed([record for record in page if record["seq"] <= top]):
            at = moment(record.get("at"))
            if start is not None and at is not None and at < start:
                return {"records": found, "next": None}
            if len(found) == limit:
                return {"records": found, "next": str(found[-1]["seq"])}
            found.append(record)
        top = low
    return {"records": found, "next": str(top + 1) if top > 0 else None}


@app.command
def checkpoint(
    file: Annotated[Path | None, Parameter(name="FILE", help="The file to write; it must not exist.")] = None,
    /,
    *,
    location: HubLocation = LOCAL,
) -> None:
    """Print, or keep in a file, the number and the hash of the newest record, signed by the hub.

    Keep it where the hub's user cannot write. `dragoman audit verify --checkpoint FILE` holds the chain against it.
    """
    made = Hub.find(location).get("audit", "checkpoint")
    if file is None:
        print(json.dumps(made))
        return
    try:
        durable.write(file, json.dumps(made).encode() + b"\n", replace=False)
    except OSError as error:
        raise CommandError(
            Exit.USAGE, f"{line(file)}: {line(error.strerror or error)}", next="name a new file"
        ) from error
    printing.verdict(True, f"record {made['seq']} as of {line(made['at'])} is in {line(file)}, signed by {made['kid']}")
    printing.suggest(f"dragoman audit verify --checkpoint {line(file)}")


@app.command
def verify(
    *,
    checkpoint: Annotated[
        list[Path] | None,
        Parameter(negative=(), help="Also compare the chain with this checkpoint; may be repeated."),
    ] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Walk the whole chain and name the first record that was changed or is missing.

    Without a running hub the store in the data directory is read, and nothing in it changed.
    """
    kept, alone = [_read(path) for path in checkpoint or ()], False
    try:
        hub = Hub.find(location)
        answer = hub.ask("GET", "audit", "verify", patience=LONG_WALK)
        hash_of: Callable[[int], str] = partial(_asked, hub)
    except CommandError as failure:
        if failure.code is not Exit.UNREACHABLE or location.hub:
            raise
        alone = True
        answer, hashes = _offline(location.directory, {one.seq for one in kept}, failure)
        hash_of = partial(_among, hashes)
    if answer.get("ok") and kept:
        from dragoman.core.model.audit import holds

        length = int(answer.get("verified") or 0)
        for one in kept:
            found = hash_of(one.seq) if one.seq <= length else ""
            broken = holds(one.seq, one.hash, one.at, length=length, found=found)
            if broken is not None:
                answer |= {"ok": False, "broken": {"seq": broken.seq, "why": broken.why}}
                break
    return _summary(answer, len(kept), output, alone=alone)


def _summary(answer: dict[str, Any], checkpoints: int, output: Output, *, alone: bool) -> int:
    """`alone`: there is no hub that could be asked next."""
    good = bool(answer.get("ok"))
    if output != "table":
        printing.document(answer, output)
    elif good:
        count = printing.count(int(answer.get("verified") or 0), "record")
        beside = f", and fits {printing.count(checkpoints, 'checkpoint')}" if checkpoints else ""
        printing.verdict(True, f"the audit record is whole: {count}{beside}")
        if not alone:
            printing.suggest("dragoman audit query")
    else:
        broken = answer.get("broken") or {}
        printing.verdict(False, f"the audit record is broken at {line(broken.get('seq'))}: {line(broken.get('why'))}")
        if alone:
            printing.suggest("verify a backup in a directory of its own: dragoman audit verify --data BACKUP")
        else:
            before = max(0, int(broken.get("seq") or 0) - 1)
            printing.suggest(f"compare with a backup: dragoman audit query --cursor {before}")
    return Exit.OK if good else Exit.FAILED


def _read(path: Path) -> Checkpoint:
    from dragoman.security.checkpoints import CheckpointProblem, read

    try:
        return read(path.read_bytes(), str(path))
    except OSError as error:
        raise CommandError(Exit.USAGE, f"{line(path)} cannot be read: {line(error.strerror or error)}") from error
    except CheckpointProblem as problem:
        raise CommandError(Exit.FAILED, line(problem)) from problem


def _asked(hub: Hub, seq: int) -> str:
    if seq == 0:
        return BEFORE
    found = hub.get("audit", cursor=seq - 1, limit=1)["records"]
    return str(found[0]["hash"]) if found and found[0]["seq"] == seq else ""


def _among(hashes: Mapping[int, str], seq: int) -> str:
    return hashes.get(seq, "")


def _is_archived(file: Path) -> bool:
    """Whether no program can be writing this store: its directory is read-only, as a backup's may be, and holds no
    log. SQLite would want to make files there."""
    log = file.with_name(f"{file.name}-wal")
    return not os.access(file.parent, os.W_OK) and not (log.exists() and log.stat().st_size)


def _offline(
    directory: Path, wanted: Collection[int], unreachable: CommandError
) -> tuple[dict[str, Any], dict[int, str]]:
    """The chain in a data directory, read by ourselves; and the hashes of the records that are wanted."""
    import apsw

    from dragoman.core.model import audit as chain
    from dragoman.stores.sqlite import lists, queries, recovery, schema
    from dragoman.stores.sqlite.schema import StoreRefused

    file = directory / "hub.sqlite"
    if not file.exists():
        raise unreachable
    seq, prev, broken, hashes = 0, chain.GENESIS, None, {0: BEFORE}
    try:
        with closing(queries.connect(str(file), unchanging=_is_archived(file))) as connection:
            schema.known_version(connection, str(file))
            newest = recovery.newest_audit(connection)
            while broken is None and (records := lists.audit(connection, seq, STRIDE, None, None, None)):
                hashes |= {one.seq: one.hash for one in records if one.seq in wanted}
                seq, prev, broken = chain.verify(records, prev=prev, seq=seq)
    except StoreRefused as error:
        raise CommandError(Exit.NOT_ALLOWED, str(error)) from error
    except apsw.Error as error:
        raise CommandError(
            Exit.FAILED,
            f"{line(file)} cannot be read ({line(error)})",
            next="dragoman doctor",
        ) from error
    broken = broken or chain.cut_short(seq, prev, newest)
    shown = None if broken is None else {"seq": broken.seq, "why": broken.why}
    return {"ok": broken is None, "verified": seq, "last_hash": prev, "broken": shown}, hashes
