"""What both directions of coven agree on: names, and how the hub's JSON becomes text for an agent and back."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dragoman.core.model.tasks import Task
from dragoman.messages.tasks import Request
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError

PROTOCOL = "coven"
CHAT = "chat"
"""The work type of a message that names none."""

WORDS = ("content", "prompt", "message", "text")
"""Fields of an input that are words for an agent, best first."""

_JSON = guard.Limits(bytes=16 * 1024 * 1024)
_trace = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}").fullmatch
_write = msgspec.json.Encoder().encode


def answer_of(request: Request) -> str:
    """What the agent that asked reads: nothing but the answer (B3)."""
    return "(nobody answered)" if request.expired else as_text(request.answer)


def content_of(task: Task, request: Request) -> str:
    """What an agent reads of work. Programs take the input from `input_json` instead."""
    given = request.given
    if isinstance(given, dict):
        for name in WORDS:
            words = given.get(name)
            if isinstance(words, str):
                rest = {key: value for key, value in given.items() if key != name}
                return f"{words}\n\n{as_text(rest)}" if rest else words
    called = None if task.name == task.type else task.name
    head = ": ".join(part for part in (task.type, called, task.description) if part)
    return f"{head}\n\n{as_text({} if given is None else given)}"


def as_text(value: object) -> str:
    """A value in words: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else _write(value).decode()


def as_json(value: object) -> str:
    return _write(value).decode()


def from_json(text: str) -> Any:
    """The value in a field of JSON text; an agent that wrote something else there is taken at its word."""
    try:
        return guard.check(text.encode(), _JSON)
    except (RemoteProtocolError, UnicodeEncodeError):
        return text


def strict_json(text: str) -> Any:
    """The value in a field of JSON text; raises `RemoteProtocolError`."""
    return guard.check(text.encode(), _JSON)


def trace_in(*candidates: str | None) -> str | None:
    """The trace id of the first good traceparent (all-D7)."""
    for text in candidates:
        found = _trace(text) if text else None
        if found is not None and int(found[1], 16):
            return found[1]
    return None


def traceparent(task: Task, span: str) -> str:
    return f"00-{task.trace_id}-{span.replace('-', '')[16:]}-01"
