"""Agentmsg's payloads ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                              message     read by        written by
    --------------------------------  ----------  -------------  -------------
    TASK_UPDATE                       Progress    hub, caller    agent, hub
    TASK_COMPLETE                     Result      hub, caller    agent
    HELP_REQUEST, `ask: "person"`     Ask         hub            agent

A TASK_UPDATE can say more than the document's fields: `step` {number, name, total?}, `thinking`, `tool_use` {id, name,
input}, `tool_result` {id, output, is_error}. A TASK_COMPLETE may have `output`, the text of the result, beside a
structured one. `payload` is always the JSON object as it came, with the fields that the typed payload has not.
"""

from __future__ import annotations

from typing import Any

from dragoman.messages.tasks import Ask, Json, Progress, Result, Step, ToolResult, ToolUse, fitting
from dragoman.protocols.agentmsg.types import HelpRequest, TaskComplete, TaskUpdate

PERSON = "person"
"""In `ask` of a HELP_REQUEST: no agent can answer it."""


def progress_in(update: TaskUpdate, payload: Json) -> Progress:
    """What an update reports."""
    thinking, usage = payload.get("thinking"), payload.get("usage")
    return Progress(
        status="paused" if update.status == "paused" else "running",
        percent=None if update.progress is None else round(update.progress),
        message=update.message or None,
        output=update.output,
        step=fitting(Step, payload.get("step")),
        thinking=thinking if type(thinking) is str else None,
        tool_use=fitting(ToolUse, payload.get("tool_use")),
        tool_result=fitting(ToolResult, payload.get("tool_result")),
        usage=usage if type(usage) is dict else None,
    )


def asides_out(report: Progress) -> Json:
    """The fields of an update that the document does not have."""
    step: Any = {"number": 0, "name": report.step} if isinstance(report.step, str) else report.step
    said = {"step": step, "thinking": report.thinking, "tool_use": report.tool_use, "tool_result": report.tool_result}
    return {name: value for name, value in said.items() if value is not None}


def result_in(done: TaskComplete, payload: Json) -> Result:
    """What came of the work: a result that is text is also its output, for those who read only text."""
    output = payload.get("output")
    text = output if type(output) is str else done.result if type(done.result) is str else ""
    return Result(result=done.result, output=text or None, usage=None if done.usage is None else payload["usage"])


def ask_in(request: HelpRequest, payload: Json, timeout_seconds: float | None) -> Ask:
    """A question that only a person can answer (ours): with `options` and a `default` if there are any."""
    options = payload.get("options")
    return Ask(
        question=request.description,
        options=tuple(options) if type(options) is list else (),
        timeout_seconds=timeout_seconds,
        default=payload.get("default"),
        has_default="default" in payload,
    )


def ask_out(ask: Ask) -> Json:
    """What stands beside the document's fields of a HELP_REQUEST to a person."""
    beside: Json = {"ask": PERSON}
    if ask.options:
        beside["options"] = ask.options
    if ask.has_default:
        beside["default"] = ask.default
    return beside
