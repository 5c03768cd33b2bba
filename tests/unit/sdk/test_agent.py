"""An agent and a scripted hub: what its handlers get, and what becomes of what they return."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import msgspec
import pytest
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeRuntime, Running

from dragoman import Agent, Misconfigured, SyncTask, Task


async def test_a_handler_gets_its_input_by_name_and_its_return_value_is_the_result(agent: Agent, hub: FakeHub) -> None:
    @agent.on("add")
    async def add(a: int, b: int = 1) -> dict:
        return {"sum": a + b}

    async with Running(agent, hub):
        request = hub.request("add", {"a": 2})
        result = await hub.next("work_result")
    assert (result.request_id, result.trace_id) == (request.request_id, request.trace_id)
    assert (result.from_agent, result.to_agent) == ("worker", "orchestrator")
    assert result.payload.task_id == request.payload.task_id
    assert (result.payload.status, result.payload.exit_code) == ("success", 0)
    assert result.payload.output == '{"sum":3}'
    assert result.x_custom_fields["result"] == {"sum": 3}


class Point(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Size:
    width: int


@pytest.mark.parametrize(
    ("value", "output", "result"),
    [
        ("text", "text", None),
        (None, "", None),
        (Point(1), '{"x":1}', {"x": 1}),
        (Size(2), '{"width":2}', {"width": 2}),
        ([1, 2], "[1,2]", [1, 2]),
        (7, "7", 7),
    ],
)
async def test_what_a_handler_returns(agent: Agent, hub: FakeHub, value: Any, output: str, result: Any) -> None:
    agent.on("give")(lambda: value)
    async with Running(agent, hub):
        hub.request("give")
        said = await hub.next("work_result")
    assert said.payload.output == output
    assert said.x_custom_fields.get("result") == result


async def test_a_return_value_without_a_json_form_is_a_failure(agent: Agent, hub: FakeHub) -> None:
    agent.on("give")(lambda: object())
    async with Running(agent, hub):
        hub.request("give")
        said = await hub.next("work_result")
    assert said.payload.exit_code == 1
    assert "object" in said.payload.output


async def test_an_exception_becomes_a_failed_result_with_only_its_last_line(
    agent: Agent, hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    @agent.on("break")
    async def fail() -> None:
        secret = "a local"  # noqa: F841 - must not reach the hub
        raise ValueError("no such playbook")

    async with Running(agent, hub):
        hub.request("break")
        result = await hub.next("work_result")
    assert (result.payload.status, result.payload.exit_code) == ("failed", 1)
    assert result.payload.output == "ValueError: no such playbook"
    assert result.x_custom_fields["error"] == {"type": "ValueError", "message": "no such playbook"}
    assert "Traceback" in caplog.text


async def test_a_rejection_is_a_failed_result_with_its_reason(agent: Agent, hub: FakeHub) -> None:
    @agent.on("deploy")
    async def deploy(task: Task) -> None:
        raise task.reject("declined by a person")

    async with Running(agent, hub):
        hub.request("deploy")
        result = await hub.next("work_result")
    assert (result.payload.exit_code, result.payload.output) == (1, "declined by a person")


@pytest.mark.parametrize(
    ("given", "field", "why"),
    [
        ({}, "payload.parameters.playbook", "missing"),
        ({"playbook": "x", "playbok": "y"}, "payload.parameters.playbok", "not a parameter of this work"),
        ({"playbook": 3}, "payload.parameters.playbook", "expected `str`, got `int`"),
        ({"playbook": "x", "hosts": ["a", 1]}, "payload.parameters.hosts[1]", "expected `str`, got `int`"),
    ],
)
async def test_unfit_input_is_declined_with_5003_naming_the_field(
    agent: Agent, hub: FakeHub, given: dict[str, Any], field: str, why: str
) -> None:
    @agent.on("run_playbook")
    async def run(playbook: str, hosts: list[str] | None = None) -> None: ...

    async with Running(agent, hub):
        request = hub.request("run_playbook", given)
        error = await hub.next()
    assert (error.type, error.request_id) == ("error", request.request_id)
    assert error.payload.error_code == 5003
    assert error.payload.error_context == {"validation_error": why, "field_name": field}


async def test_unknown_work_is_declined_with_5006_naming_what_is_done(agent: Agent, hub: FakeHub) -> None:
    agent.on("a")(lambda: None)
    agent.on("b")(lambda: None)
    async with Running(agent, hub):
        hub.request("c")
        error = await hub.next()
    assert error.payload.error_code == 5006
    assert error.payload.error_context == {"work_type_requested": "c", "supported_types": ["a", "b"]}


async def test_a_health_check_is_answered_without_a_handler(agent: Agent, hub: FakeHub) -> None:
    agent.on("a")(lambda: None)
    async with Running(agent, hub):
        hub.request("health_check")
        result = await hub.next()
    assert (result.type, result.payload.exit_code) == ("work_result", 0)


async def test_a_plain_function_runs_in_a_thread_with_a_task_of_its_own_kind(agent: Agent, hub: FakeHub) -> None:
    threads: list[int] = []

    @agent.on("crunch")
    def crunch(task: SyncTask, n: int) -> int:
        threads.append(threading.get_ident())
        task.progress(50, "half", output="halfway\n")
        return n * 2

    async with Running(agent, hub):
        hub.request("crunch", {"n": 4})
        status = await hub.next("work_status")
        result = await hub.next("work_result")
    assert threads != [threading.get_ident()]
    assert (status.payload.progress_percent, status.payload.step.name, status.payload.step.output) == (
        50,
        "half",
        "halfway\n",
    )
    assert result.x_custom_fields["result"] == 8


async def test_plain_functions_run_side_by_side(runtime: FakeRuntime, hub: FakeHub) -> None:
    agent = Agent("worker", runtime=runtime, concurrency=3)
    together = threading.Barrier(3, timeout=PATIENCE)
    agent.on("meet")(lambda: together.wait() is None)
    async with Running(agent, hub):
        for _ in range(3):
            hub.request("meet")
        results = [await hub.next("work_result") for _ in range(3)]
    assert [result.payload.exit_code for result in results] == [0, 0, 0]


async def test_the_agent_introduces_itself(runtime: FakeRuntime, hub: FakeHub) -> None:
    agent = Agent(
        "worker", kind="infra", version="1.2.3", concurrency=5, memory_mb=4096, gpu_vram_mb=0, runtime=runtime
    )
    agent.on("a")(lambda: None)
    async with Running(agent, hub):
        (said,) = hub.registrations
    assert (said.agent_id, said.agent_type, said.supported_versions) == ("worker", "infra", ("1.0",))
    assert said.work_types == ("a",)
    assert said.limits == {"max_concurrent_tasks": 5, "max_memory_mb": 4096, "max_gpu_vram_mb": 0}


def test_type_hints_become_json_schema(agent: Agent) -> None:
    @agent.on("run_playbook", timeout=300)
    async def run(task: Task, playbook: str, hosts: list[str] | None = None) -> dict[str, int]:
        """Run a playbook.

        More about it.
        """
        return {}

    (capability,) = agent.capabilities()
    assert capability["work_type"] == "run_playbook"
    assert capability["description"] == "Run a playbook."
    assert capability["timeout_seconds"] == 300
    assert capability["input_schema"]["required"] == ["playbook"]
    assert capability["input_schema"]["additionalProperties"] is False
    assert set(capability["input_schema"]["properties"]) == {"playbook", "hosts"}
    assert capability["output_schema"] == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_a_handler_that_no_input_can_fill_is_refused_when_it_is_declared(agent: Agent) -> None:
    with pytest.raises(Misconfigured, match="name each parameter"):
        agent.on("a")(lambda *args: None)
    agent.on("b")(lambda: None)
    with pytest.raises(Misconfigured, match="already does b"):
        agent.on("b")(lambda: None)

    async def strange(thing: threading.Lock) -> None: ...

    with pytest.raises(Misconfigured, match="cannot be described as JSON"):
        agent.on("c")(strange)


async def test_a_handler_may_take_whatever_else_there_is(agent: Agent, hub: FakeHub) -> None:
    @agent.on("any")
    async def anything(name: str, **rest: Any) -> dict[str, Any]:
        return {"name": name, "rest": rest}

    async with Running(agent, hub):
        hub.request("any", {"name": "n", "x": 1})
        result = await hub.next("work_result")
    assert result.x_custom_fields["result"] == {"name": "n", "rest": {"x": 1}}


async def test_a_task_that_another_agent_began_says_so_and_its_input_is_as_it_was(agent: Agent, hub: FakeHub) -> None:
    @agent.on("write")
    async def write(task: Task, title: str) -> list[Any]:
        assert task.handover is not None
        return [title, task.handover.from_agent, task.handover.reason, task.context, len(task.history)]

    handover = {"from": "junior", "to": "worker", "reason": "escalation", "metadata": {"chapter": 3}, "story": [{}]}
    async with Running(agent, hub):
        hub.request("write", {"title": "X", "handover": handover})
        result = await hub.next("work_result")
    assert result.x_custom_fields["result"] == ["X", "junior", "ESCALATION", {"chapter": 3}, 1]
