"""A2acp's payloads ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                message     read by        written by
    ------------------  ----------  -------------  -------------
    event `progress`    Progress    hub, caller    agent, hub
    event `question`    Ask         hub            agent

Both events are ours: the document has no word for progress, nor for a question to a person (B3). A payload may say
more: that is for agents of this protocol (`extra`), and must not be taken for a field of the hub's own, such as where a
piece of a longer output belongs.
"""

from __future__ import annotations

from typing import Any

from dragoman.messages.tasks import Ask, Json, Progress, Step, ToolResult, ToolUse, fitting
from dragoman.protocols.a2acp.types import RESERVED

PROGRESS = "progress"
QUESTION = "question"
PROGRESS_FORMS: dict[str, tuple[type, ...]] = {
    "message": (str,), "output": (str,), "thinking": (str,), "step": (str, dict), "tool_use": (dict,),
    "tool_result": (dict,),
}  # fmt: skip
"""The fields of a progress event that every protocol can be told, by their JSON types."""


def progress_in(payload: Json, envelope: Json | None = None) -> Progress:
    """What an event reports. `envelope` is what a ciphertext in it is bound to."""
    said = {name: value for name, value in payload.items() if name not in RESERVED and value is not None}
    known = {name: value for name, value in said.items() if type(value) in PROGRESS_FORMS.get(name, ())}
    percent = said.get("percent")
    if type(percent) in (int, float):
        known["percent"] = int(percent)  # type: ignore[arg-type]
    step = known.get("step")
    return Progress(
        percent=known.get("percent"),
        message=known.get("message"),
        output=known.get("output"),
        thinking=known.get("thinking"),
        step=step if type(step) is str else fitting(Step, step),
        tool_use=fitting(ToolUse, known.get("tool_use")),
        tool_result=fitting(ToolResult, known.get("tool_result")),
        extra={name: value for name, value in said.items() if name not in known or known[name] != value} or None,
        envelope=envelope,
    )


def progress_out(report: Progress) -> Json:
    """The payload of a progress event, without its file."""
    fields = ("percent", "message", "output", "step", "thinking", "tool_use", "tool_result")
    return {name: value for name in fields if (value := getattr(report, name)) is not None}


def ask_in(payload: Json) -> Ask:
    """The question of an event that was found to have one."""
    return Ask(
        question=str(payload.get("question")),
        options=tuple(payload.get("options") or ()),
        timeout_seconds=payload.get("timeout_seconds"),
        default=payload.get("default"),
        has_default="default" in payload,
    )


def ask_out(ask: Ask) -> Json:
    asked: dict[str, Any] = {"question": ask.question}
    if ask.options:
        asked["options"] = list(ask.options)
    if ask.timeout_seconds is not None:
        asked["timeout_seconds"] = ask.timeout_seconds
    if ask.has_default:
        asked["default"] = ask.default
    return asked
