"""`dragoman tail`: what happens, as it happens. Asks the hub again and again; nothing is held open."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dragoman.cli import printing, task_view
from dragoman.cli.arguments import LOCAL, LOOK, For, HubLocation, Interval, Lines, OutputLines
from dragoman.cli.deadline import SHORTEST_PAUSE, Deadline, Outage, repeat
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub

PAGE = 100


def tail(
    what: Annotated[Literal["tasks", "audit"], Parameter(help="Changes of tasks, or the audit record.")] = "tasks",
    /,
    *,
    lines: Annotated[Lines, Parameter(help="How many past entries to begin with.")] = 10,
    interval: Interval = 1.0,
    seconds: For = None,
    output: OutputLines = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Follow what happens."""
    deadline = Deadline(seconds)
    hub = Hub.find(location, Deadline(None if seconds is None else max(seconds, LOOK)))
    watch = Tasks() if what == "tasks" else Audit()

    def show(items: Sequence[Mapping[str, Any]]) -> None:
        for item in items:
            if output == "table":
                print(watch.say(item), flush=True)
            else:
                printing.document(item, "jsonl")

    past = watch.look(hub)
    show(past[len(past) - min(lines, len(past)) :])
    deadline.pause(max(SHORTEST_PAUSE, interval))
    if not deadline.over():
        repeat(lambda: show(watch.look(hub)), deadline, interval, Outage(deadline=deadline))


class Tasks:
    """Tasks that changed since the last look, in the order of their change.

    The list is by birth, so what changes about tasks older than a page of newer ones is seen while they run.
    """

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def look(self, hub: Hub) -> list[Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for filters in ({}, {"status": "running"}, {"status": "waiting"}):
            for task in hub.get("tasks", limit=PAGE, **filters).get("tasks") or ():
                found[task["id"]] = task
        changed = [task for id, task in found.items() if self._seen.get(id) != task.get("updated_at")]
        self._seen = {id: str(task.get("updated_at")) for id, task in found.items()}
        return sorted(changed, key=lambda task: str(task.get("updated_at")))

    def say(self, task: Mapping[str, Any]) -> str:
        why = task_view.reason(task.get("error")) if task.get("status") == "failed" else None
        route_of = task_view.route_of(task)
        return f"{line(task.get('updated_at'))}  {task_view.headline(task, sys.stdout)}  {route_of}" + (
            f"  why: {why}" if why else ""
        )


class Audit:
    """Records after the last one seen."""

    def __init__(self) -> None:
        self._cursor: str | None = None

    def look(self, hub: Hub) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        cursor = self._cursor
        while True:
            page = hub.get("audit", limit=PAGE, cursor=cursor).get("records") or []
            found += page
            if page:
                cursor = str(page[-1]["seq"])
            if len(page) < PAGE:
                self._cursor = cursor  # now that everything was read
                return found

    def say(self, record: Mapping[str, Any]) -> str:
        parts: Iterable[Any] = (record.get(key) for key in ("at", "seq", "principal", "action", "outcome", "subject"))
        text = "  ".join(line(part) for part in parts if part is not None)
        return text + (f"  why: {line(record['reason'])}" if record.get("reason") else "")
