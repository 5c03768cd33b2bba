"""Forge's payloads ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                                     message     read by    written by
    ---------------------------------------  ----------  ---------  ----------
    event:progress, update-task `running`    Progress    hub        agent
    notify:task-updated                      Progress    caller     hub
    update-task `completed` or `failed`      Result      hub        agent

Progress is a fraction on this wire and per cent in the hub: less than everything never rounds to 100.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Progress, Result, Step, ToolResult, ToolUse
from dragoman.protocols.forge import types as forge

_T = TypeVar("_T")


def progress_in(said: forge.Progress, file: FileRef | None = None) -> Progress:
    """What an agent reports. A file was kept before; where it lay in the message, `file` stands for it."""
    return Progress(
        status="running",
        percent=percent_in(said.progress),
        output=said.output,
        message=said.message,
        thinking=said.thinking,
        step=_step_in(said.step),
        tool_use=_tool_use_in(said.tool_use),
        tool_result=_tool_result_in(said.tool_result),
        file=file,
    )


def progress_out(task_id: str, report: Progress) -> forge.Progress:
    """What an agent reports, without its output and its file, which go in requests."""
    return forge.Progress(
        task_id=task_id,
        progress=fraction_out(report.percent),
        thinking=report.thinking,
        step=_step_out(report.named_step),
        tool_use=_tool_use_out(report.tool_use),
        tool_result=_tool_result_out(report.tool_result),
    )


def update_in(said: forge.TaskUpdated) -> Progress:
    """What the hub tells a caller on the way."""
    return Progress(
        status=said.status,
        percent=None if said.progress is None else round(said.progress * 100),
        output=said.output,
        message=said.message,
        thinking=said.thinking,
        step=_step_in(said.step),
        tool_use=_tool_use_in(said.tool_use),
        tool_result=_tool_result_in(said.tool_result),
    )


def update_out(
    task_id: str, status: forge.TaskStatus, report: Progress, *, message: str | None = None, file: Any = None
) -> forge.TaskUpdated:
    """What a caller is told of a report, without its output. `file` is the reference as forge shows it (Any: an object
    of the management view)."""
    return forge.TaskUpdated(
        task_id=task_id,
        status=status,
        final=False,
        progress=fraction_out(report.percent),
        message=report.message or message,
        thinking=report.thinking,
        tool_use=_tool_use_out(report.tool_use),
        tool_result=_tool_result_out(report.tool_result),
        step=_step_out(report.named_step),
        file=file,
    )


def result_in(said: forge.UpdateTask | forge.Progress) -> Result:
    return Result(result=said.result, output=said.output)


def percent_in(fraction: float | None) -> int | None:
    return None if fraction is None else min(round(fraction * 100), 100 if fraction >= 1 else 99)


def fraction_out(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _step_in(step: forge.Step | None) -> Step | None:
    return None if step is None else Step(number=step.number, name=step.name, total=step.total)


def _tool_use_in(use: forge.ToolUse | None) -> ToolUse | None:
    return None if use is None else ToolUse(id=use.id, name=use.name, input=use.input)


def _tool_result_in(gave: forge.ToolResult | None) -> ToolResult | None:
    return None if gave is None else ToolResult(id=gave.id, output=gave.output, is_error=gave.is_error)


def _step_out(step: Step | None) -> forge.Step | None:
    return _fitting(step, forge.Step)


def _tool_use_out(use: ToolUse | None) -> forge.ToolUse | None:
    return _fitting(use, forge.ToolUse)


def _tool_result_out(gave: ToolResult | None) -> forge.ToolResult | None:
    if gave is None or gave.id is None:
        return None
    return forge.ToolResult(id=gave.id, output=str(gave.output or ""), is_error=gave.is_error is True)


def _fitting(value: msgspec.Struct | None, form: type[_T]) -> _T | None:
    """A part in forge's form, if it fits: an agent of another protocol may have said less, or something else."""
    if value is None:
        return None
    try:
        return msgspec.convert(msgspec.to_builtins(value), form)
    except msgspec.ValidationError:
        return None
