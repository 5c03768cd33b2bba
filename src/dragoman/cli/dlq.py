"""`dragoman dlq`: what could not be delivered or done, kept until a person decides."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from dragoman.cli import arguments, lists, printing, task_view
from dragoman.cli.arguments import LOCAL, Cursor, HubLocation, Limit, Output
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.lists import Since, cut
from dragoman.cli.printing import Column, col

app = App(name="dlq", help="Dead letters: ls, show, redrive, discard.")

DeadLetterName = Annotated[str, Parameter(name="ID", help="The dead letter's id, or enough of its beginning or end.")]

KIND = "cargo"
"""The API's field for what kind of message it is. It keeps the name that clients know it by."""
PLAIN = {"letter": "direct message", "yours": "handoff"}
"""Kinds whose value in the API is not the word for them."""


def _kind(entry: Mapping[str, Any]) -> str:
    return PLAIN.get(str(entry.get(KIND)), str(entry.get(KIND)))


COLUMNS = (
    col("id"),
    col("task", "task_id", spare=True),
    col("for", "receiver"),
    Column("what", _kind),
    col("tries", "attempts", right=True, spare=True),
    Column("age", lambda entry: printing.age(entry.get("at")), right=True),
    Column("why", lambda entry: task_view.reason(entry.get("error"))),
)


@app.command
def ls(
    *,
    task: Annotated[str | None, Parameter(help="Only those of this task.")] = None,
    since: Since = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """List the dead letters, the newest first."""
    hub = Hub.find(location)

    def listed(of: str | None) -> dict[str, Any]:
        answer: dict[str, Any] = hub.get("deadletters", task=of, limit=limit, cursor=cursor)
        return answer

    answer = listed(None) if task is None else lists.meant(hub, "tasks", task, listed)
    answer = cut(answer, "deadletters", "at", since)
    page = printing.Listing(answer, "deadletters", COLUMNS, output, "dragoman dlq ls", task=task, since=since)
    first = [f"dragoman dlq {verb} {line(one['id'])}" for one in page.items[:1] for verb in ("show", "redrive")]
    page.end(not page.items, page.count("dead letter"), *(first or ["dragoman task ls --status failed"]))


@app.command
def show(id: DeadLetterName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Show one dead letter: what it holds and why it died."""
    entry = lists.found(Hub.find(location), "deadletters", id)
    if printing.as_data(entry, output):
        return
    print(f"{printing.mark(False, sys.stdout)} dead letter {line(entry.get('id'))}  {line(_kind(entry))}")
    printing.facts(
        [
            ("why", task_view.reason(entry.get("error"))),
            ("task", entry.get("task_id")),
            ("for", entry.get("receiver")),
            ("attempts", entry.get("attempts")),
            ("since", f"{entry.get('at')}  ({printing.age(entry.get('at'))} ago)"),
            ("holds", entry.get("body")),
        ]
    )
    printing.suggest(f"dragoman dlq redrive {line(id)}", f"dragoman dlq discard {line(id)}")


@app.command(usage="Usage: dragoman dlq redrive [OPTIONS] ID [INPUT...]")
def redrive(
    id: DeadLetterName,
    /,
    *input: Annotated[str, Parameter(help="A corrected input: key=value, @file.json, or -.")],
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Send a dead letter again, with a corrected input if one is given."""
    body = {"input": arguments.read(input)} if input else {}
    task = lists.post(Hub.find(location), "deadletters", id, "redrive", body)
    if printing.as_data(task, output):
        return
    if KIND in task:  # a direct message, which has no task
        printing.verdict(True, f"sent again to {line(task.get('receiver'))}")
        printing.suggest("dragoman dlq ls")
        return
    printing.verdict(True, f"sent again: {task_view.headline(task)}")
    printing.suggest(*task_view.next_commands(task))


@app.command
def discard(id: DeadLetterName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Forget a dead letter. Its task stays as it is."""
    entry = lists.post(Hub.find(location), "deadletters", id, "discard")
    printing.done(entry, output, f"dead letter {line(id)} is discarded", "dragoman dlq ls")
