"""A task shown to a person: the verdict, the way it took, why it is where it is, what to do next, and its events.

✗ task 7f3a  run_playbook  failed after 4 attempts (12.4 s)
  planner ─chiffon→ hub ─coven→ mux-agent-1
  why: agent unavailable; breaker open until 09:15:02
  next: dragoman task retry 7f3a
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from dragoman.cli.deadline import NEVER, PAUSE, Deadline, Outage
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import as_json, line
from dragoman.cli.hubclient import Event, Hub, StreamSilent
from dragoman.cli.printing import colored, duration, moment

FINAL = frozenset({"completed", "failed", "cancelled"})
GOOD = {"completed": True, "failed": False, "cancelled": False}


def headline(task: Mapping[str, Any], stream: TextIO | None = None) -> str:
    """The verdict, without its mark; on stderr, unless it is for another stream."""
    parts = [f"task {line(task.get('id'))}", line(task.get("type"))]
    if task.get("name") and task["name"] != task.get("type"):
        parts.append(f"“{line(task['name'])}”")
    return "  ".join([*parts, colored(_state(task), stream or sys.stderr)])


def _state(task: Mapping[str, Any]) -> str:
    status = line(task.get("status"))
    attempts = task.get("attempts")
    if status == "failed" and isinstance(attempts, int) and attempts > 1:
        status += f" after {attempts} attempts"
    elif status == "waiting" and task.get("waiting"):
        status += f" ({line(task['waiting'])})"
    elif status == "running" and task.get("progress") is not None:
        status += f" {line(task['progress'])} %"
        status += f", {line(task['step'])}" if task.get("step") else ""
    begun = moment(task.get("created_at"))
    ended = moment(task.get("finished_at") or task.get("updated_at"))
    if begun and ended and task.get("status") in FINAL:
        status += f" ({duration((ended - begun).total_seconds())})"
    return status


def route_of(task: Mapping[str, Any]) -> str:
    """Who asked in which protocol, and who works in which."""
    asker = line(task.get("requested_by") or task.get("principal") or "?")
    into = line(task.get("protocol_in") or "api")
    agent = task.get("agent") or (f"any {task['kind']}" if task.get("kind") else None)
    out = task.get("protocol_out")
    return f"{asker} ─{into}→ hub" + (f" ─{line(out)}→ {line(agent)}" if out else f" → {line(agent or 'any agent')}")


def reason(error: Any) -> str | None:
    """A fault as one sentence."""
    if not error:
        return None
    if not isinstance(error, Mapping):
        return line(error)
    text = str(error.get("message") or error.get("kind") or "")
    kind = error.get("kind")
    facts = error.get("facts") or {}
    news = {key: value for key, value in facts.items() if isinstance(value, (str, int, float))}
    extras = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in news.items() if str(value) not in text)
    return line(text + (f" [{kind}]" if kind and kind != text else "") + (f"; {extras}" if extras else ""))


def next_commands(task: Mapping[str, Any]) -> list[str]:
    id = line(task.get("id"))
    match task.get("status"):
        case "failed" if (task.get("error") or {}).get("kind") == "invalid":  # the same again would fail again
            return [f"dragoman task retry {id} key=value", f"dragoman trace {id} --sequence"]
        case "failed" | "cancelled":
            return [f"dragoman task retry {id}", f"dragoman trace {id} --sequence"]
        case "completed":
            return [f"dragoman task logs {id}"]
        case "waiting" if task.get("waiting") == "person":
            return ["dragoman ask ls"]
        case "waiting" if task.get("waiting") == "held":
            return [f"dragoman task resume {id}"]
        case _:
            return [f"dragoman task logs {id} --follow", f"dragoman task why {id}"]


SILENCE = 30.0
"""Seconds without a byte after which the client connects again."""


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
                outage.ended()
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
    """An event in a line: its kind, and what it says."""
    return " · ".join(part for part in (line(event.kind.replace("_", " ")), event_text(event)) if part)


def event_text(event: Event, *, with_percent: bool = True) -> str:
    """What an event says, in a line; its output is not in it."""
    body = body_of(event)
    text = body.get("step")
    step: Mapping[str, Any] = text if isinstance(text, Mapping) else {}
    place = f"step {step['number']}" + (f"/{step['total']}" if step.get("total") else "") if step.get("number") else ""
    percent = body.get("percent") if with_percent else None
    parts = [
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
    """The text of an answer, also of a helping agent's."""
    text = answer.get("content", answer) if isinstance(answer, Mapping) else answer
    return "" if text is None else f"answer {text if isinstance(text, str) else as_json(text)}"


def _handed(body: Mapping[str, Any]) -> str:
    """Whose hands a task leaves, and into whose it goes."""
    hands = _part(body, "handover") or body
    if not hands.get("from"):
        return ""
    why = f" ({str(hands['reason']).replace('_', ' ')})" if hands.get("reason") else ""
    return f"from {hands['from']} to {hands.get('to') or 'any agent that can'}{why}"


def _tool(body: Mapping[str, Any]) -> str:
    """A tool that is used, or what it gave; its input is often long, so only the beginning."""
    used, gave = _part(body, "tool_use"), _part(body, "tool_result")
    if used:
        return f"uses {used.get('name')} {str(used.get('input') or '')[:200]}".rstrip()
    if gave:
        return f"{'tool failed' if gave.get('is_error') else 'tool gave'}: {str(gave.get('output') or '')[:200]}"
    return ""
