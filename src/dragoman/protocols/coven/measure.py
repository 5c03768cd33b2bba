"""What no message of coven holds (D9), told to a caller otherwise: agents of other protocols say more at once, and what
they said in one form may be longer in another.

    text             in several pieces
    done             a text that is its own result is told once; a text that is too long beside the result as `text`
                     before it, as far as it was not (D8); a result that is too long as its beginning, which is no JSON
    file             only that it is there
    the rest         its beginning

Whatever is cut says so, and is kept whole with the task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.messages.brevity import in_short
from dragoman.protocols.coven.mapping import as_json
from dragoman.protocols.coven.types import (
    Done,
    FileData,
    MessageResponse,
    Progress,
    ResponseEvent,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)

ASIDE = 32 * 1024
"""Bytes for what stands beside an event, and for each of the words in it."""


def in_measure(response: MessageResponse, most: int, told: str) -> tuple[MessageResponse, ...]:
    """A response that is longer than `most` bytes, as such that are not; only the last has its cursor. `told` is what
    was told as text before. Fields that nobody knows are not among what is told."""
    event = response.event
    tell = _OTHERWISE.get(type(event))
    events = (event,) if tell is None else tell(event, most - 8 * ASIDE, told)
    beside = msgspec.structs.replace(response, progress=_shortened(response.progress), unknown=b"")
    before = (MessageResponse(request_id=beside.request_id, event=one, task_id=beside.task_id) for one in events[:-1])
    return (*before, msgspec.structs.replace(beside, event=events[-1]))


def _shortened(progress: Progress | None) -> Progress | None:
    if progress is None:
        return None
    words = {name: in_short(getattr(progress, name), ASIDE) for name in ("step", "message")}
    return msgspec.structs.replace(progress, **words)


def _text(event: Text, most: int, told: str) -> tuple[ResponseEvent, ...]:
    size = most // 4  # characters: one of them has four bytes at most
    return tuple(Text(event.text[start : start + size]) for start in range(0, len(event.text), size))


def _thinking(event: Thinking, most: int, told: str) -> tuple[ResponseEvent, ...]:
    return (Thinking(in_short(event.text, most)),)


def _tool_use(event: ToolUse, most: int, told: str) -> tuple[ResponseEvent, ...]:
    return (ToolUse(in_short(event.id, ASIDE), in_short(event.name, ASIDE), _json(event.input_json, most)),)


def _tool_result(event: ToolResult, most: int, told: str) -> tuple[ResponseEvent, ...]:
    return (ToolResult(in_short(event.id, ASIDE), in_short(event.output, most), event.is_error),)


def _file(event: FileData, most: int, told: str) -> tuple[ResponseEvent, ...]:
    what = f"The file {event.filename!r} has {len(event.data)} bytes, which no message holds; it is kept with the task."
    return (Thinking(what),)


def _done(event: Done, most: int, told: str) -> tuple[ResponseEvent, ...]:
    text, result = event.full_response, event.result_json
    result = "" if text and result == as_json(text) else _json(result, most)
    room = most - len(result.encode())
    if len(text.encode()) <= room:
        return (Done(full_response=text, result_json=result, is_json=event.is_json),)
    if not text.startswith(told):
        return (Done(full_response=in_short(text, room), result_json=result),)
    rest = Text(text.removeprefix(told))
    return (*_text(rest, most, told), Done(result_json=result, is_json=event.is_json))


def _json(text: str, most: int) -> str:
    """JSON as it is, or its beginning as JSON of words, which may have twice its bytes."""
    return text if len(text.encode()) <= most else as_json(in_short(text, most // 2))


_OTHERWISE: dict[Any, Callable[[Any, int, str], tuple[ResponseEvent, ...]]] = {
    Text: _text,
    Thinking: _thinking,
    ToolUse: _tool_use,
    ToolResult: _tool_result,
    FileData: _file,
    Done: _done,
}
