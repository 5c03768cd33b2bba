"""Handlers that are declared, fail or speak in ways nobody meant: refused when they are declared, or the task ends and
says why. An agent and its other tasks go on."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sdk.harness import FakeHub, FakeRuntime, Running

from dragoman import Agent, Misconfigured, RateLimitExceeded, SyncTask, Task


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


ENDS: list[tuple[Callable[[], BaseException], str]] = [
    (lambda: SystemExit(3), "SystemExit: 3"),
    (asyncio.CancelledError, "CancelledError"),
    (lambda: BaseException("odd"), "BaseException: odd"),
    (Wordless, "Wordless"),
    (StopIteration, "RuntimeError: "),
]


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain function"])
@pytest.mark.parametrize(("make", "output"), ENDS, ids=[output for _, output in ENDS])
async def test_whatever_a_handler_raises_ends_its_task_and_not_its_agent(
    agent: Agent, hub: FakeHub, make: Callable[[], BaseException], output: str, plain: bool
) -> None:
    async def fail() -> None:
        raise make()

    def fail_plainly() -> None:
        raise make()

    agent.on("fail")(fail_plainly if plain else fail)
    agent.on("greet")(lambda: "hello")
    async with Running(agent, hub):
        hub.request("fail")
        failed = await hub.next("work_result")
        hub.request("greet")
        greeted = await hub.next("work_result")
    assert (failed.payload.exit_code, greeted.payload.output) == (1, "hello")
    assert failed.payload.output.startswith(output)


def _nested(depth: int) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(depth), None)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"n": [2**64]}, "the result cannot be sent: integer of more than 64 bits at n[0]"),
        (_nested(60), "the result cannot be sent: nested deeper than 56 levels"),
        ({"x": object()}, "the result cannot be sent: object has no JSON form"),
    ],
    ids=["a huge number", "deep nesting", "no JSON"],
)
async def test_a_result_that_no_hub_would_read_is_a_failure_that_says_so(
    agent: Agent, hub: FakeHub, value: Any, why: str
) -> None:
    agent.on("give")(lambda: value)
    async with Running(agent, hub):
        hub.request("give")
        said = await hub.next("work_result")
    assert said.payload.exit_code == 1
    assert why in said.payload.output


async def test_an_error_whose_details_have_no_json_form_is_sent_without_them(agent: Agent, hub: FakeHub) -> None:
    @agent.on("give")
    async def give() -> None:
        raise RateLimitExceeded("slow down", details={"lock": object()})

    async with Running(agent, hub):
        hub.request("give")
        said = await hub.next("work_result")
    assert said.payload.output == "slow down"


async def test_a_coroutine_behind_a_plain_decorator_is_named_as_the_mistake_it_is(agent: Agent, hub: FakeHub) -> None:
    async def work() -> str:
        return "done"

    @agent.on("work")
    def decorated() -> Any:
        return work()

    async with Running(agent, hub):
        hub.request("work")
        said = await hub.next("work_result")
    assert "declare it, and what decorates it, with async def" in said.payload.output


MISSPOKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text": (lambda task: task.text(5), "a piece of the answer is text, not int"),
    "step": (lambda task: task.progress(5, ["a"]), "a step is text, not list"),
    "percent": (lambda task: task.progress("5"), "progress is a percentage from 0 to 100, not '5'"),
    "question": (lambda task: task.ask(KeyError("x")), "a question is text, not KeyError"),
    "options": (lambda task: task.ask("Sure?", options="yes"), "options=['yes']"),
    "an option": (lambda task: task.ask("Sure?", options=[2**64]), "the options of a question cannot be sent"),
    "tool": (lambda task: task.tool_use("ls", {"at": object()}), "the input of ls cannot be sent"),
    "file": (lambda task: task.send_file("a", "text"), "the data of a file is bytes, not str"),
}


@pytest.mark.parametrize(("speak", "why"), MISSPOKEN.values(), ids=MISSPOKEN.keys())
async def test_what_cannot_be_encoded_is_the_handlers_mistake(
    agent: Agent, hub: FakeHub, speak: Callable[[Any], Any], why: str
) -> None:
    @agent.on("speak")
    async def handler(task: Task) -> None:
        await speak(task)

    async with Running(agent, hub):
        hub.request("speak")
        said = await hub.next("work_result")
    assert why in said.payload.output


class Standing(FakeRuntime):
    """Time that passed while nobody had a turn."""

    stood = 0.0

    def monotonic(self) -> float:
        return self.time + self.stood


async def test_the_log_names_a_coroutine_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Standing()
    hub, agent = FakeHub(runtime), Agent("worker", runtime=runtime)

    @agent.on("block")
    async def block() -> None:
        await runtime.sleep(0.5)
        runtime.stood += 20
        await runtime.sleep(0.6)

    async with Running(agent, hub):
        hub.request("block")
        await runtime.advance(2)
        await hub.next("work_result")
    assert [record.message for record in caplog.records if "nothing could run for 20 s" in record.message]


def _declared(function: Callable[..., Any]) -> None:
    Agent("worker").on("work")(function)


def test_declarations_that_cannot_work_are_refused_with_what_to_write_instead() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "a"

    async def late(name: str, task: Task) -> None: ...

    async def blocking(task: SyncTask) -> None: ...

    async def streams(of: asyncio.StreamReader) -> None: ...

    agent = Agent("worker")
    for declare, why in (
        (lambda: _declared(pieces), r"task\.text"),
        (lambda: _declared(late), "the task is the first parameter"),
        (lambda: _declared(blocking), "a coroutine function gets a Task"),
        (lambda: _declared(streams), "the parameter of cannot be described as JSON: StreamReader is not supported"),
        (lambda: agent.on(pieces), r'@agent\.on\("run_playbook"\)'),  # type: ignore[arg-type]
        (lambda: agent.on("work")(5), "by a function, not by 5"),  # type: ignore[type-var]
        (lambda: agent.on("work", timeout=0), "above 0"),
        (lambda: agent.task("work", requires="read"), r"requires=\['read'\]"),
        (lambda: Agent("a b"), "use letters, digits"),
        (lambda: Agent("worker", skills="sql"), r"skills=\['sql'\]"),
        (lambda: Agent("worker", concurrency=0), "at least 1"),
        (lambda: Agent("worker", memory_mb=0), "at least 1, or None"),
        (lambda: Agent("worker", gpu_vram_mb=-1), "the gpu_vram_mb of worker is -1: give a whole number of at least 0"),
        (lambda: Agent("worker", grace=-1), "0 or more"),
    ):
        with pytest.raises(Misconfigured, match=why):
            declare()


class Misfit(ValueError):
    """As pydantic tells what does not fit."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": ("size", 0), "msg": "Input should be a valid integer"}]


class Model:
    """What pydantic's models have, as far as the SDK uses it."""

    def __init__(self, size: list[int]) -> None:
        self.size = size

    @classmethod
    def model_json_schema(cls, *, ref_template: str) -> dict[str, Any]:
        reference = {"$ref": ref_template.format(model="Size")}
        return {"type": "object", "properties": {"size": reference}, "$defs": {"Size": {"type": "array"}}}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not all(isinstance(each, int) for each in value["size"]):
            raise Misfit("does not fit")
        return cls(value["size"])

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        return {"size": self.size, "mode": mode}


async def test_models_of_pydantic_and_paths_may_be_parameters_and_results(runtime: FakeRuntime, hub: FakeHub) -> None:
    agent = Agent("worker", runtime=runtime)

    @agent.on("measure")
    async def measure(model: Model, where: Path) -> Model:
        assert isinstance(where, Path)
        return Model([*model.size, len(where.parts)])

    (capability,) = agent.capabilities()
    schema = capability["input_schema"]
    assert schema["properties"]["model"]["properties"]["size"] == {"$ref": "#/$defs/Model_Size"}
    assert schema["$defs"] == {"Model_Size": {"type": "array"}}
    assert schema["properties"]["where"] == {"type": "string"}
    async with Running(agent, hub):
        hub.request("measure", {"model": {"size": [1]}, "where": "a/b"})
        result = await hub.next("work_result")
        hub.request("measure", {"model": {"size": ["x"]}, "where": "a/b"})
        declined = await hub.next("error")
    assert json.loads(result.payload.output) == {"size": [1, 2], "mode": "json"}
    assert "size.0: Input should be a valid integer" in str(declined.payload)
