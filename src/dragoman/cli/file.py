"""`dragoman file`: what the hub keeps beside its store."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, Cursor, HubLocation, Limit, Output
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import Column, col

app = App(name="file", help="Files that agents and people uploaded: ls, rm.")

COLUMNS = (
    col("id"),
    col("owner"),
    Column("bytes", lambda file: file.get("size"), right=True),
    col("type", "mime_type"),
    col("name", spare=True),
    Column("of a task", lambda file: file.get("attached")),
)


@app.command
def ls(
    *,
    owner: Annotated[
        str | None, Parameter(help="Only files that this agent uploaded; admin stands for people.")
    ] = None,
    unattached: Annotated[bool, Parameter(negative=(), help="Only those that belong to no task.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """List the files that the hub keeps, oldest first."""
    asked = {"owner": owner, "attached": "0" if unattached else None}
    answer = Hub.find(location).get("files", limit=limit, cursor=cursor, **asked)
    page = printing.Listing(answer, "files", COLUMNS, output, "dragoman file ls", owner=owner)
    size = sum(int(file.get("size") or 0) for file in page.items)
    counted = f"{printing.count(len(page.items), 'file')}, {size:,} bytes" + (", and more" if page.more else "")
    first = [f"dragoman file rm {line(file['id'])}" for file in page.items[:1]]
    page.end(True if page.items else None, counted, *first)


@app.command
def rm(
    ids: Annotated[list[str], Parameter(name="ID", help="The files' ids.")],
    /,
    *,
    attached: Annotated[bool, Parameter(negative=(), help="Also remove files that belong to a task.")] = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Remove files."""
    hub = Hub.find(location)
    for id in ids:
        hub.ask("DELETE", "files", id, query={"attached": "1"} if attached else None)
    printing.done({"removed": ids}, output, f"removed: {', '.join(line(id) for id in ids)}", "dragoman file ls")
