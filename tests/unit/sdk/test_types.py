"""What mypy --strict says of programs that use the SDK: right ones pass, and misspelt or mistyped ones do not.

All snippets are one module, so that mypy runs once; a line that must be refused ends with `# wrong`. It shares the
cache of `make check`, whose settings are strict.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
from dataclasses import dataclass
from typing import TypedDict, assert_never, assert_type, Any

import msgspec

from dragoman import (
    Agent, Assigned, AttemptFailed, Cancelled, Client, Completed, Event, Failed, FileSent, HandedOver, LogWritten,
    OtherEvent, Output, Paused, Progress, QuestionAnswered, QuestionAsked, Resumed, RetryPolicy, Submitted, SyncClient,
    SyncTask, SyncTaskHandle, Task, TaskHandle, Thinking, ToolReturned, ToolUsed,
)

agent = Agent("writer", give_up_after=60)


class Report(msgspec.Struct):
    title: str


@dataclass
class Topic:
    topic: str


class Row(TypedDict):
    n: int


@agent.on("write", retry=RetryPolicy(attempts=3))
async def write(task: Task, topic: str) -> Report:
    return Report(topic)


@agent.on("count", retry=2)
def count(task: SyncTask, n: int) -> int:
    return n


@agent.on("spell", retrys=2)  # wrong
async def spell() -> None: ...


async def results(hub: Client) -> None:
    assert_type(await hub.call("write", {"topic": "x"}), Any)
    assert_type(await hub.call("write", Topic("x"), returns=Report, agent="writer", priority="high"), Report)
    assert_type(await hub.call("rows", returns=list[Row]), list[Row])
    assert_type(await hub.call(write, {"topic": "x"}, priority="low"), Report)
    assert_type(await hub.call(count, {"n": 1}), int)
    assert_type(await hub.call("writer", "write", topic="x"), Any)
    assert_type(await hub.submit("write", returns=Report), TaskHandle[Report])
    assert_type(await hub.submit(write), TaskHandle[Report])
    assert_type(await hub.submit("writer", "write", {"topic": "x"}, thread="t"), TaskHandle[Any])
    handle = await hub.submit(write, {"topic": "x"})
    assert_type(await handle.result(timeout=5), Report)
    await hub.submit("print", dependencies=[handle, "t-1"], parent=handle)


def synchronous(hub: SyncClient) -> None:
    assert_type(hub.call("write", returns=Report), Report)
    assert_type(hub.call(count, {"n": 1}), int)
    assert_type(hub.submit(write), SyncTaskHandle[Report])
    assert_type(hub.submit(write).result(), Report)
    hub.call("write", {"topic": "x"}, priorty="high")  # wrong
    hub.submit(write, {"topic": "x"}, priority="urgent")  # wrong


async def options(hub: Client) -> None:
    await hub.call("write", {"topic": "x"}, priorty="high")  # wrong
    await hub.call("write", {"topic": "x"}, priority="urgent")  # wrong
    await hub.call(write, {"topic": "x"}, priorty="high")  # wrong
    await hub.submit("write", {"topic": "x"}, dependancies=["t"])  # wrong
    await hub.submit("writer", "write", {"topic": "x"}, priorty="high")  # wrong
    await hub.call("write", 3)  # wrong
    await hub.submit("write", hints={"max_duration": 3})  # wrong
    hub.stream("write", {"topic": "x"}, priorty="high")  # wrong
    result: int = await hub.call(write)  # wrong


def exhaustive(event: Event) -> str:
    match event:
        case Output(output=text) | Thinking(text=text):
            return text
        case ToolUsed(name=name) | FileSent(name=name):
            return name
        case ToolReturned(result=text):
            return text
        case Progress(percent=percent, step=step):
            return f"{percent} {step.name if step else ''}"
        case QuestionAsked(question=question) | QuestionAnswered(question=question):
            return question
        case Failed(message=message) | Cancelled(message=message) | AttemptFailed(message=message):
            return message
        case Completed(result=result):
            return str(result)
        case Paused() | Resumed() | LogWritten() | HandedOver() | Submitted() | Assigned() | OtherEvent():
            return event.kind
        case _:
            assert_never(event)


def forgets_some(event: Event) -> str:
    match event:
        case Progress():
            return "on its way"
        case _:
            assert_never(event)  # wrong
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The lines of the program that mypy refuses."""
    from mypy import api

    program = tmp_path_factory.mktemp("typed") / "program.py"
    program.write_text(PROGRAM)
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    said, problems, _ = api.run([*settings, "--no-error-summary", "--hide-error-context", str(program)])
    assert not problems
    found = re.findall(r"program\.py:(\d+): error: (.*)", said)
    assert found, said
    return {int(line): what for line, what in found}


def test_right_programs_pass_and_wrong_ones_do_not(complaints: dict[int, str]) -> None:
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert complaints.keys() == wrong, {line: complaints.get(line) for line in complaints.keys() ^ wrong}
