"""Following a task: its events as they come, over broken connections and a restarted hub.

Every event has a number, and the hub sends again what came after the last one we saw: so nothing is missed and
nothing is shown twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.cli.deadline import NEVER, Deadline
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import as_json, line
from dragoman.cli.hubclient import Event, Hub, StreamSilent
from dragoman.cli.outage import PAUSE, Outage
from dragoman.cli.task_text import reason

SILENCE = 30.0
"""Seconds without a byte after which the connection is made anew."""


def follow(hub: Hub, task: str, *, deadline: Deadline = NEVER) -> Iterator[Event]:
    """The events of a task from its first to its last. Raises `CommandError` TIMEOUT when the time is up, by the
    deadline that the hub was given, too."""
    last: str | None = None
    outage = Outage(f"task {line(task)} is kept", deadline=deadline)
    while True:
        if deadline.over():
            raise CommandError(
                Exit.TIMEOUT,
                f"task {line(task)} did not end within {deadline.seconds:g} s; it goes on",
                next=f"dragoman task why {line(task)}   ·   dragoman task logs {line(task)} --follow   ·   "
                f"dragoman task cancel {line(task)}",
            )
        try:
            for event in hub.stream("tasks", task, "events", after=last, patience=SILENCE):
                outage.over()
                if event.kind == "end":
                    return
                last = event.id or last
                yield event
                if deadline.over():
                    break
            else:  # the hub ended the stream, but not the task: it stops, or a proxy lost patience
                deadline.pause(PAUSE)
        except StreamSilent:
            continue
        except CommandError as failure:
            if not deadline.over():
                outage.wait(failure)


def body_of(event: Event) -> Mapping[str, Any]:
    body = event.data.get("body") if isinstance(event.data, Mapping) else None
    return body if isinstance(body, Mapping) else {}


def event_line(event: Event) -> str:
    """What an event says, in a line; its output is not in it."""
    body = body_of(event)
    said = body.get("step")
    step: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
    place = f"step {step['number']}" + (f"/{step['total']}" if step.get("total") else "") if step.get("number") else ""
    percent = body.get("percent")
    parts = [
        event.kind.replace("_", " "),
        f"to {body['agent']}" if body.get("agent") else "",
        f"attempt {body['attempt']}" if body.get("attempt") else "",
        f"in a sandbox: {body['sandbox']}" if body.get("sandbox") else "",
        "" if percent is None else f"{percent} %",
        " ".join(part for part in (place, str(step.get("name") or "")) if part),
        str(body.get("message") or "") if body.get("message") != step.get("name") else "",
        f"thinking: {body['thinking']}" if body.get("thinking") else "",
        _tool(body),
        f"file {_part(body, 'file').get('name')}" if body.get("file") else "",
        _handed(body),
        f"of {body['asked_of']}" if body.get("asked_of") else "",
        str(body.get("question") or ""),
        _answer(body.get("answer")),
        f"exit code {body['exit_code']}" if body.get("exit_code") is not None else "",
        reason(body.get("fault")) or "",
    ]
    return line(" · ".join(part for part in parts if part))


def log_line(stream: object, level: object, text: object) -> str:
    """A line of a log, marked by where it came from."""
    mark = {"stderr": "!", "hub": "•", "event": "›"}.get(str(stream), " ")
    grave = f"{line(level)}: " if level in ("warn", "error") and stream == "event" else ""
    return f"{mark} {grave}{line(text or '')}"


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = body.get(name)
    return part if isinstance(part, Mapping) else {}


def _answer(answer: object) -> str:
    """An answer in its own words, a helping agent's too."""
    said = answer.get("content", answer) if isinstance(answer, Mapping) else answer
    return "" if said is None else f"answer {said if isinstance(said, str) else as_json(said)}"


def _handed(body: Mapping[str, Any]) -> str:
    """Whose hands a task leaves, and into whose it goes."""
    hands = _part(body, "handover") or body
    if not hands.get("from"):
        return ""
    why = f" ({str(hands['reason']).replace('_', ' ')})" if hands.get("reason") else ""
    return f"from {hands['from']} to {hands.get('to') or 'whoever can'}{why}"


def _tool(body: Mapping[str, Any]) -> str:
    """A tool that is used, or what it gave; its input is often long, so only the beginning."""
    used, gave = _part(body, "tool_use"), _part(body, "tool_result")
    if used:
        return f"uses {used.get('name')} {str(used.get('input') or '')[:200]}".rstrip()
    if gave:
        return f"{'tool failed' if gave.get('is_error') else 'tool gave'}: {str(gave.get('output') or '')[:200]}"
    return ""
