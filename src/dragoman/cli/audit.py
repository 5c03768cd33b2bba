"""`dragoman audit`: who asked for what and what the hub said, and whether that record is whole."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.escaping import line
from dragoman.cli.exits import Exit
from dragoman.cli.hubclient import Hub
from dragoman.cli.options import HERE, Limit, Output, Reach
from dragoman.cli.printing import Column, col

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
LONG_WALK = 600.0
"""Seconds for verifying: the hub reads every record there is."""


@app.command
def query(
    *,
    principal: Annotated[str | None, Parameter(help="Only what this agent (or admin) asked for.")] = None,
    subject: Annotated[str | None, Parameter(help="Only what is about this task, agent or question.")] = None,
    outcome: Annotated[Literal["accepted", "refused"] | None, Parameter(help="Only what came to this.")] = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, Parameter(help="The number of the last record seen.")] = None,
    output: Output = "table",
    reach: Reach = HERE,
) -> None:
    """List audit records, the oldest first."""
    filters = {"principal": principal, "subject": subject, "outcome": outcome}
    answer = Hub.find(reach).get("audit", **filters, limit=limit, cursor=cursor)
    found = printing.listing(answer, "records", COLUMNS, output)
    if output != "table":
        return
    more = printing.next_page("dragoman audit query", answer, **filters)
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
