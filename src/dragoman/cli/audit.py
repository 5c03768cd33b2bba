"""`dragoman audit`: who asked for what and what the hub said, and whether that record is whole."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.escaping import line
from dragoman.cli.exits import Exit, Stop
from dragoman.cli.hubclient import Hub
from dragoman.cli.options import HERE, Limit, Output, Reach
from dragoman.cli.printing import Column, col, moment
from dragoman.cli.since import Since, begin

app = App(name="audit", help="The audit record: query, verify.")

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
"""So many records are looked at in one go, and so often, for those that are wanted."""
LONG_WALK = 600.0
"""Seconds for verifying: the hub reads every record there is."""


@app.command
def query(
    *,
    principal: Annotated[str | None, Parameter(help="Only what this agent (or admin) asked for.")] = None,
    subject: Annotated[str | None, Parameter(help="Only what is about this task, agent or question.")] = None,
    outcome: Annotated[Literal["accepted", "refused"] | None, Parameter(help="Only what came to this.")] = None,
    since: Since = None,
    limit: Limit = 50,
    before: Annotated[int | None, Parameter(help="Only records with smaller numbers.")] = None,
    cursor: Annotated[str | None, Parameter(help="From the oldest on, behind the record of this number.")] = None,
    output: Output = "table",
    reach: Reach = HERE,
) -> None:
    """List audit records, the newest first; from a cursor on, the oldest first."""
    filters = {"principal": principal, "subject": subject, "outcome": outcome}
    hub, start = Hub.find(reach), begin(since)
    if cursor is not None:
        answer = hub.get("audit", **filters, limit=limit, cursor=cursor)
    else:
        answer = _back(hub, filters, limit, before, start)
    found = printing.listing(answer, "records", COLUMNS, output)
    if output != "table":
        return
    told = {**filters, "since": since}
    more = printing.next_page(
        "dragoman audit query", answer, option="--before" if cursor is None else "--cursor", **told
    )
    refused = sum(record.get("outcome") == "refused" for record in found)
    printing.verdict(
        None,
        f"{printing.count(len(found), 'record')}, {printing.count(refused, 'refusal')}"
        + (", and there are more" if more else ""),
    )
    if more:
        printing.following(more, "the newest: dragoman tail audit")
    else:
        printing.following("dragoman audit query" if any(filters.values()) and not found else "dragoman audit verify")


def _back(hub: Hub, filters: dict[str, Any], limit: int, before: int | None, start: datetime | None) -> dict[str, Any]:
    """Records from the newest on, read in windows of numbers; `next` is the number of the last one."""
    if not 1 <= limit <= WINDOW:
        raise Stop(Exit.USAGE, f"--limit: expected 1 to {WINDOW}, got {limit}")
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
def verify(*, output: Output = "table", reach: Reach = HERE) -> int:
    """Walk the whole chain and name the first record that was changed or is missing."""
    answer = Hub.find(reach).ask("GET", "audit", "verify", patience=LONG_WALK)
    good = bool(answer.get("ok"))
    if output != "table":
        printing.document(answer, output)
    elif good:
        printing.verdict(
            True, f"the audit record is whole: {printing.count(int(answer.get('verified') or 0), 'record')}"
        )
        printing.following("dragoman audit query")
    else:
        broken = answer.get("broken") or {}
        printing.verdict(False, f"the audit record is broken at {line(broken.get('seq'))}: {line(broken.get('why'))}")
        printing.following(
            f"compare with a backup: dragoman audit query --cursor {max(0, int(broken.get('seq') or 0) - 1)}"
        )
    return Exit.OK if good else Exit.FAILED
