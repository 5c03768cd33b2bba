"""A task told to a person: the verdict, the road it took, why it is where it is, and what to do next.

✗ task 7f3a  run_playbook  failed after 4 attempts (12.4 s)
  planner ─chiffon→ hub ─coven→ mux-agent-1
  why: agent unavailable; breaker open until 09:15:02
  next: dragoman task retry 7f3a
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from dragoman.cli.escaping import line
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
    return f"{asker} ─{into}→ hub" + (f" ─{line(out)}→ {line(agent)}" if out else f" → {line(agent or 'anybody')}")


def reason(error: Any) -> str | None:
    """A fault as one sentence."""
    if not error:
        return None
    if not isinstance(error, Mapping):
        return line(error)
    said = str(error.get("message") or error.get("kind") or "")
    kind = error.get("kind")
    facts = error.get("facts") or {}
    news = {key: value for key, value in facts.items() if isinstance(value, (str, int, float))}
    extras = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in news.items() if str(value) not in said)
    return line(said + (f" [{kind}]" if kind and kind != said else "") + (f"; {extras}" if extras else ""))


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
