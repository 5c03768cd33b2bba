"""What happened to a task, in short: for whoever takes it over, and whoever looks at it in the shared state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.core.ids import rfc3339
from dragoman.core.model.tasks import Event, EventKind
from dragoman.messages.tasks import Handoff, read_request

MOST_EVENTS = 200
"""So many of the last events of a task are told."""

BRIEF = {EventKind.LOG: (), EventKind.HELD_PIECE: (), EventKind.PROGRESS: ("status", "percent", "message", "step")}
"""What is told of events that may be long and many, beside their place in the story."""

LONGEST = 4096
"""Bytes of what an event says that are told; of a longer one, none."""


def in_short(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        {"at": rfc3339(event.at), "kind": event.kind.value, "agent": event.agent, "details": _details(event)}
        for event in events
    ]


def _details(event: Event) -> Any:
    if event.kind is EventKind.HANDED_OVER:  # it has the whole story until then, which the others tell
        handoff = read_request(event.body).handover or Handoff()
        return {"from": handoff.source, "to": handoff.to, "reason": handoff.reason}
    if len(memoryview(event.body)) > LONGEST:
        return {}
    said = msgspec.json.decode(event.body)
    parts = BRIEF.get(event.kind)
    return said if parts is None else {name: said[name] for name in parts if name in said}
