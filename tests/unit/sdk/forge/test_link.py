"""An agent over forge, and a scripted orchestrator: work, results, outputs, files."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.unit.sdk.forge.harness import PROGRESS, UPDATE, FakeForge, Serving, plain
from tests.unit.sdk.harness import FakeRuntime

from dragoman import Agent, Task
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.types import Attachment, Encoding
from dragoman.sdk import trace
from dragoman.sdk.forge.link import PIECE


@pytest.mark.parametrize(
    ("is_lines", "encoding"), [(True, Encoding.JSON), (False, Encoding.JSON), (False, Encoding.MSGPACK)]
)
async def test_work_is_done_and_its_result_sent(
    agent: Agent, runtime: FakeRuntime, is_lines: bool, encoding: Encoding
) -> None:
    hub = FakeForge(runtime, is_lines=is_lines, encoding=encoding)

    @agent.on("add")
    async def add(a: int, b: int = 1) -> dict:
        return {"sum": a + b}

    async with Serving(agent, hub):
        register = await hub.next("request:register")
        task_id = hub.assign("add", {"a": 2})
        update = await hub.next(UPDATE)
    assert plain(register.payload) == {"agentId": "worker", "name": "worker", "workTypes": ["add"], "maxConcurrent": 8}
    assert plain(update.payload) == {"taskId": task_id, "status": "completed", "result": {"sum": 3}}
    assert trace.parse(update.meta["traceparent"]) is not None


async def test_a_text_is_the_output_and_a_failure_has_its_message(agent: Agent, forge_hub: FakeForge) -> None:
    @agent.on("say")
    async def say() -> str:
        return "hello"

    @agent.on("break")
    async def fail() -> None:
        raise ValueError("no such file")

    async with Serving(agent, forge_hub):
        said = forge_hub.assign("say")
        done = await forge_hub.next(UPDATE)
        broken = forge_hub.assign("break")
        failed = await forge_hub.next(UPDATE)
    assert plain(done.payload) == {"taskId": said, "status": "completed", "output": "hello"}
    error = {"message": "ValueError: no such file", "details": {"type": "ValueError", "exit_code": 1}}
    assert plain(failed.payload) == {"taskId": broken, "status": "failed", "error": error}


async def test_what_cannot_be_begun_fails_and_names_the_field(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("add")(lambda a: None)
    async with Serving(agent, forge_hub):
        forge_hub.assign("add", {"b": 1})
        unfit = await forge_hub.next(UPDATE)
        forge_hub.assign("subtract")
        unknown = await forge_hub.next(UPDATE)
    assert unfit.payload.status == unknown.payload.status == "failed"
    assert unfit.payload.error["details"]["field"].startswith("payload.")
    assert unknown.payload.error["details"]["supported_types"] == ["add"]


async def test_a_task_that_is_not_in_its_assignment_is_asked_for(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("say")(lambda word: word)
    forge_hub.answers["request:get-task"] = lambda asked: {
        "task": {"id": asked.payload.task_id, "type": "say", "payload": {"word": "late"}}
    }
    async with Serving(agent, forge_hub):
        forge_hub.notify(forge.TaskAssigned(task_id="t1", message="Task assigned. Use TaskGet to view details."))
        update = await forge_hub.next(UPDATE)
    assert plain(update.payload) == {"taskId": "t1", "status": "completed", "output": "late"}


async def test_files_are_fetched_in_pieces_before_the_work_begins(agent: Agent, forge_hub: FakeForge) -> None:
    data = b"0123456789"

    def piece(asked: Any) -> dict[str, Any]:
        offset = asked.payload.offset
        part = data[offset : offset + 4]
        return {"data": base64.b64encode(part).decode(), "size": len(data), "offset": offset}

    forge_hub.answers["request:get-file"] = piece

    @agent.on("read")
    async def read(task: Task) -> str:
        return f"{task.files[0].name} {task.files[0].mime_type} {task.files[0].data!r}"

    async with Serving(agent, forge_hub):
        forge_hub.assign("read", files=[{"id": "f1", "name": "a.txt", "mimeType": "text/plain"}])
        update = await forge_hub.next(UPDATE)
    assert update.payload.output == "a.txt text/plain b'0123456789'"
    assert forge_hub.count("request:get-file") == 3


async def test_output_is_a_request_and_progress_an_event(agent: Agent, forge_hub: FakeForge) -> None:
    @agent.on("run")
    async def run(task: Task) -> None:
        await task.progress(25, "fetch")
        await task.progress(50, "build", output="one\n")
        await task.text("two")
        await task.think("hm")
        id = await task.tool_use("grep", {"for": "x"}, id="u1")
        await task.tool_result(id, "found", is_error=True)

    async with Serving(agent, forge_hub):
        id = forge_hub.assign("run")
        while (await forge_hub.next(UPDATE)).payload.status == "running":
            pass
    said = [plain(message.payload) for message in forge_hub.said if message.type in (UPDATE, PROGRESS)]
    build = {"number": 2, "name": "build"}
    assert said == [
        {"taskId": id, "progress": 0.25, "step": {"number": 1, "name": "fetch"}},
        {"taskId": id, "progress": 0.5, "step": build},
        {"taskId": id, "status": "running", "output": "one\n", "progress": 0.5},
        {"taskId": id, "status": "running", "output": "two", "progress": 0.5},
        {"taskId": id, "progress": 0.5, "step": build, "thinking": "hm"},
        {"taskId": id, "progress": 0.5, "step": build, "toolUse": {"id": "u1", "name": "grep", "input": {"for": "x"}}},
        {"taskId": id, "progress": 0.5, "step": build, "toolResult": {"id": "u1", "output": "found", "isError": True}},
        {"taskId": id, "status": "completed"},
    ]


async def test_fields_beside_a_result_are_delivered_with_it(agent: Agent, forge_hub: FakeForge) -> None:
    """If its pieces were lost with the process that said them, it was lost."""

    @agent.on("run")
    async def run(task: Task) -> dict[str, int]:
        await task.text("all ")
        await task.text("well")
        return {"a": 1}

    async with Serving(agent, forge_hub):
        id = forge_hub.assign("run")
        while (update := await forge_hub.next(UPDATE)).payload.status == "running":
            pass
    assert plain(update.payload) == {"taskId": id, "status": "completed", "result": {"a": 1}, "output": "all well"}


async def test_a_long_text_travels_in_pieces(agent: Agent, forge_hub: FakeForge) -> None:
    text = "".join(chr(0x4E00 + n % 1000) for n in range(2 * PIECE + 5))
    agent.on("say")(lambda: text)
    async with Serving(agent, forge_hub):
        forge_hub.assign("say")
        updates = [await forge_hub.next(UPDATE) for _ in range(4)]
    assert [update.payload.status for update in updates] == ["running"] * 3 + ["completed"]
    assert "".join(update.payload.output or "" for update in updates) == text


async def test_a_result_that_fits_no_message_is_a_failure_that_says_so(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("big")(lambda: {"data": "x" * (1024 * 1024)})
    async with Serving(agent, forge_hub):
        forge_hub.assign("big")
        update = await forge_hub.next(UPDATE)
    assert update.payload.status == "failed"
    assert "return text" in update.payload.error["message"]


async def test_a_file_is_sent_and_one_too_large_fails_in_the_handler(agent: Agent, forge_hub: FakeForge) -> None:
    caught: list[Exception] = []

    @agent.on("draw")
    async def draw(task: Task) -> None:
        await task.send_file("a.png", b"...", "image/png")
        try:
            await task.send_file("b.png", b"." * 1024 * 1024)
        except ValueError as error:
            caught.append(error)

    async with Serving(agent, forge_hub):
        forge_hub.assign("draw")
        update = await forge_hub.next(UPDATE)
        assert update.payload.file == Attachment(filename="a.png", mime_type="image/png", data="Li4u")
        assert (await forge_hub.next(UPDATE)).payload.status == "completed"
    assert "'b.png' has 1048576 bytes; forge carries 737280" in str(caught[0])
