"""Echo: the smallest protocol that can be bridged. JSON objects over one WebSocket, each with an `op`.

caller → hub   request, cancel             hub → caller   progress, done, failed
agent → hub    progress, done, failed      hub → agent    work, cancel
both → hub     ack: deliveries             hub → both     refused
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Progress, Request, Result, Step, ToolResult, ToolUse

NAME = "echo"


class Ask(msgspec.Struct, tag_field="op", tag="request", kw_only=True):
    id: str
    to: str
    type: str
    input: dict[str, Any]


class Work(msgspec.Struct, tag_field="op", tag="work", kw_only=True, omit_defaults=True):
    task: str
    delivery: str
    type: str
    input: Any
    answer: Any = UNSET


class Report(msgspec.Struct, tag_field="op", tag="progress", kw_only=True, omit_defaults=True):
    task: str
    delivery: str | None = None
    percent: int | None = None
    message: str | None = None
    output: str | None = None
    thinking: str | None = None
    step: Step | None = None
    tool_use: ToolUse | None = None
    tool_result: ToolResult | None = None


class Done(msgspec.Struct, tag_field="op", tag="done", kw_only=True, omit_defaults=True):
    task: str
    delivery: str | None = None
    result: Any = UNSET
    text: str | None = None


class Failed(msgspec.Struct, tag_field="op", tag="failed", kw_only=True, omit_defaults=True):
    task: str
    delivery: str | None = None
    kind: str = Kind.WORK_FAILED.value
    message: str = ""
    retryable: bool = False


class Cancel(msgspec.Struct, tag_field="op", tag="cancel", kw_only=True, omit_defaults=True):
    task: str
    delivery: str | None = None
    reason: str = ""


class Ack(msgspec.Struct, tag_field="op", tag="ack"):
    deliveries: tuple[str, ...]


class Refused(msgspec.Struct, tag_field="op", tag="refused"):
    kind: str
    message: str


Inbound: TypeAlias = Ask | Report | Done | Failed | Cancel | Ack
Outbound: TypeAlias = Work | Report | Done | Failed | Cancel | Refused

decode = msgspec.json.Decoder(Inbound).decode
encode = msgspec.json.Encoder().encode

REPORTED = ("percent", "message", "output", "thinking", "tool_use", "tool_result")


def request_in(asked: Ask) -> Request:
    return Request(input=asked.input)


def work_out(task: str, type: str, request: Request, delivery: str) -> Work:
    return Work(task=task, delivery=delivery, type=type, input=request.given, answer=request.answer)


def progress_in(report: Report) -> Progress:
    return Progress(status="running", step=report.step, **{name: getattr(report, name) for name in REPORTED})


def progress_out(task: str, said: Progress, delivery: str) -> Report:
    parts = {name: getattr(said, name) for name in REPORTED}
    return Report(task=task, delivery=delivery, step=said.named_step, **parts)


def result_in(done: Done) -> Result:
    return Result(result=done.result, output=done.text)


def result_out(task: str, result: Result, delivery: str) -> Done:
    return Done(task=task, delivery=delivery, result=result.result, text=result.output)


def fault_in(failed: Failed) -> Fault:
    return Fault(kind=Kind(failed.kind), message=failed.message, retryable=failed.retryable)


def fault_out(task: str, fault: Fault, delivery: str) -> Failed:
    return Failed(task=task, delivery=delivery, kind=fault.kind.value, message=fault.message)
