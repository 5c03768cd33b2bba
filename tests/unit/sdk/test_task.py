"""What a handler says beside progress and its result: pieces, thoughts, tools, files."""

from __future__ import annotations

import pytest
from tests.unit.sdk.harness import FakeHub, FakeRuntime, Running

from dragoman import Agent, SyncTask, Task
from dragoman.messages.tasks import Progress
from dragoman.sdk.links import LinkDown
from dragoman.sdk.messages import File, Report


async def test_in_chiffon_thoughts_and_tools_are_custom_fields_and_text_is_output(agent: Agent, hub: FakeHub) -> None:
    @agent.on("chat")
    async def chat(task: Task) -> None:
        await task.think("which disk?")
        use = await task.tool_use("df", {"path": "/"}, id="t1")
        await task.tool_result(use, "90 %")
        await task.tool_result("t2", "no such tool", is_error=True)
        await task.text("Nearly ")
        await task.text("full.")

    async with Running(agent, hub):
        hub.request("chat")
        said = [await hub.next("work_status") for _ in range(6)]
        result = await hub.next("work_result")
    custom = [{k: v for k, v in message.x_custom_fields.items() if k != "traceparent"} for message in said]
    assert custom == [
        {"thinking": "which disk?"},
        {"tool_use": {"id": "t1", "name": "df", "input": {"path": "/"}}},
        {"tool_result": {"id": "t1", "output": "90 %", "is_error": False}},
        {"tool_result": {"id": "t2", "output": "no such tool", "is_error": True}},
        {},
        {},
    ]
    assert [message.payload.step.output for message in said[4:]] == ["Nearly ", "full."]
    assert result.payload.output == ""


async def test_a_plain_function_has_the_same_methods(agent: Agent, hub: FakeHub) -> None:
    @agent.on("chat")
    def chat(task: SyncTask) -> int:
        task.think("hm")
        task.tool_result(task.tool_use("ls"), "a b")
        task.text("so")
        return len(task.files)

    async with Running(agent, hub):
        hub.request("chat")
        said = [await hub.next("work_status") for _ in range(4)]
        result = await hub.next("work_result")
    used, gave = said[1].x_custom_fields["tool_use"], said[2].x_custom_fields["tool_result"]
    assert (used["name"], used["id"]) == ("ls", gave["id"])
    assert result.x_custom_fields["result"] == 0


async def test_a_connection_without_files_refuses_one_in_the_handler_and_says_what_to_do(
    agent: Agent, hub: FakeHub
) -> None:
    @agent.on("draw")
    async def draw(task: Task) -> None:
        await task.send_file("a.png", b"...", "image/png")

    async with Running(agent, hub):
        hub.request("draw")
        result = await hub.next("work_result")
    assert result.payload.status == "failed"
    assert "chiffon carries no files: put 'a.png' where others can fetch it" in result.payload.output


async def test_a_file_is_brought_again_until_the_hub_has_it_and_then_named(
    agent: Agent, hub: FakeHub, runtime: FakeRuntime
) -> None:
    brought: list[File] = []

    async def bring(file: File) -> str:
        brought.append(file)
        if len(brought) == 1:
            raise LinkDown("gone")
        return "f-1"

    @agent.on("draw")
    async def draw(task: Task) -> str:
        await task.send_file("a.png", b"...", "image/png")
        return "drawn"

    async with Running(agent, hub, bring):
        hub.request("draw")
        await runtime.advance(1)
        said = await hub.next("work_status")
        result = await hub.next("work_result")
    assert brought == [File("a.png", "image/png", b"...")] * 2
    assert (said.x_custom_fields["file"], result.payload.output) == ("f-1", "drawn")


async def test_thoughts_lost_on_the_wire_are_sent_again(agent: Agent, hub: FakeHub, runtime: FakeRuntime) -> None:
    @agent.on("chat")
    async def chat(task: Task) -> None:
        await task.think("one")

    hub.accepts = False
    async with Running(agent, hub):
        hub.request("chat")
        first = await hub.next("work_status")
        hub.cut()
        await runtime.advance(1)
        again = await hub.next("work_status")
    assert (first.message_id, again.x_custom_fields["thinking"]) == (again.message_id, "one")


@pytest.mark.parametrize(("said", "content"), [({}, False), ({"thinking": "x"}, True), ({"percent": 5}, False)])
def test_only_content_must_arrive(said: dict[str, object], content: bool) -> None:
    progress = Progress(**said)  # type: ignore[arg-type]
    report = Report(id="i", at=FakeRuntime().now(), correlation=None, content=progress)  # type: ignore[arg-type]
    assert report.has_content is content


async def test_half_a_character_is_no_reason_to_lose_the_rest(agent: Agent, hub: FakeHub) -> None:
    @agent.on("odd")
    async def odd(task: Task) -> str:
        await task.text("a\ud800b")
        return "c\udc00"

    async with Running(agent, hub):
        hub.request("odd")
        status, result = await hub.next("work_status"), await hub.next("work_result")
    assert (status.payload.step.output, result.payload.output) == ("a?b", "c?")
