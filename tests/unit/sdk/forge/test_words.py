"""An agent over forge, and a scripted orchestrator: work, results, questions, refusals, files, the end."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from tests.unit.sdk.forge.harness import FakeForge, Serving, plain
from tests.unit.sdk.harness import PATIENCE, FakeWorld, settle

from dragoman import Agent, NotAllowed, Task
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.types import Attachment, Encoding, ErrorBody
from dragoman.sdk import trace
from dragoman.sdk.forge.words import PIECE

UPDATE, ASK, PROGRESS = "request:update-task", "request:ask-user", "event:progress"


@pytest.fixture
def forge_hub(world: FakeWorld) -> FakeForge:
    return FakeForge(world)


@pytest.mark.parametrize(
    ("is_lines", "encoding"), [(True, Encoding.JSON), (False, Encoding.JSON), (False, Encoding.MSGPACK)]
)
async def test_work_is_done_and_its_result_told(
    agent: Agent, world: FakeWorld, is_lines: bool, encoding: Encoding
) -> None:
    hub = FakeForge(world, is_lines=is_lines, encoding=encoding)

    @agent.on("add")
    async def add(a: int, b: int = 1) -> dict:
        return {"sum": a + b}

    async with Serving(agent, hub):
        register = await hub.next("request:register")
        task_id = hub.assign("add", {"a": 2})
        update = await hub.next(UPDATE)
    assert plain(register.payload) == {"name": "worker", "workTypes": ["add"], "maxConcurrent": 8}
    assert plain(update.payload) == {"taskId": task_id, "status": "completed", "result": {"sum": 3}}
    assert trace.parse(update.meta["traceparent"]) is not None


async def test_a_text_is_the_output_and_a_failure_has_its_words(agent: Agent, forge_hub: FakeForge) -> None:
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


async def test_a_task_that_is_not_told_is_asked_for(agent: Agent, forge_hub: FakeForge) -> None:
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


async def test_what_was_said_beside_a_result_is_told_with_it(agent: Agent, forge_hub: FakeForge) -> None:
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


async def test_a_file_is_sent_and_one_too_large_is_told_to_the_handler(agent: Agent, forge_hub: FakeForge) -> None:
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


# --- questions ---


def asking(agent: Agent, **how: Any) -> None:
    @agent.on("deploy")
    async def deploy(task: Task) -> dict:
        return {"answer": await task.ask("Restart?", options=["yes", "no"], **how)}


async def test_a_question_is_a_request_and_its_response_the_answer(agent: Agent, forge_hub: FakeForge) -> None:
    asking(agent, timeout=300, default="no")
    async with Serving(agent, forge_hub):
        id = forge_hub.assign("deploy")
        question = await forge_hub.next(ASK)
        asked = {"taskId": id, "question": "Restart?", "options": ["yes", "no"], "timeout": 300000.0, "default": "no"}
        assert plain(question.payload) == asked
        await forge_hub.world.advance(60)
        assert forge_hub.count(PROGRESS) == 0  # nobody need show that he lives while a person is asked
        forge_hub.succeed(question, {"answer": "yes", "metadata": {}})
        update = await forge_hub.next(UPDATE)
    assert update.payload.result == {"answer": "yes"}


@pytest.mark.parametrize(("how", "answer"), [({}, None), ({"timeout": 5, "default": "no"}, "no")])
async def test_a_question_that_nobody_answers_has_its_default(
    agent: Agent, forge_hub: FakeForge, how: dict[str, Any], answer: Any
) -> None:
    asking(agent, **how)
    async with Serving(agent, forge_hub):
        forge_hub.assign("deploy")
        forge_hub.fail(await forge_hub.next(ASK), ErrorBody(code="TIMEOUT", message="Nobody answered."))
        update = await forge_hub.next(UPDATE)
    assert update.payload.result == {"answer": answer}


async def test_a_question_whose_task_was_cancelled_is_no_surprise(
    agent: Agent, forge_hub: FakeForge, caplog: pytest.LogCaptureFixture
) -> None:
    """A response is heard before the notices that came along with it."""
    asking(agent)
    agent.on("say")(lambda: "hello")
    async with Serving(agent, forge_hub):
        id = forge_hub.assign("deploy")
        over = ErrorBody(code="INVALID_REQUEST", message="The task ended first.", details={"reason": "cancelled"})
        forge_hub.fail(await forge_hub.next(ASK), over)
        forge_hub.notify(forge.TaskCancelled(task_id=id, reason="cancelled on request"))
        forge_hub.assign("say")
        update = await forge_hub.next(UPDATE)
    assert update.payload.output == "hello"
    assert caplog.text == ""


async def test_a_question_is_asked_again_over_the_next_link_under_the_same_id(
    agent: Agent, forge_hub: FakeForge
) -> None:
    asking(agent)
    async with Serving(agent, forge_hub):
        forge_hub.assign("deploy")
        first = await forge_hub.next(ASK)
        forge_hub.cut()
        await forge_hub.world.advance(1)
        again = await forge_hub.next(ASK)
        assert again == first
        forge_hub.succeed(again, {"answer": "no"})
        update = await forge_hub.next(UPDATE)
    assert update.payload.result == {"answer": "no"}


async def test_an_agent_that_waits_for_a_person_may_leave_at_once(agent: Agent, forge_hub: FakeForge) -> None:
    asking(agent)
    async with Serving(agent, forge_hub) as serving, asyncio.timeout(PATIENCE):
        forge_hub.assign("deploy")
        await forge_hub.next(ASK)
        agent.stop()
        await forge_hub.world.advance(0.1)
        await serving


# --- links, refusals, control ---


async def test_a_result_is_said_again_until_the_hub_has_it(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("say")(lambda: "hello")
    forge_hub.answers[UPDATE] = lambda _: None
    async with Serving(agent, forge_hub):
        forge_hub.assign("say")
        first = await forge_hub.next(UPDATE)
        forge_hub.cut()
        await forge_hub.world.advance(1)
        again = await forge_hub.next(UPDATE)
        assert again == first
        forge_hub.succeed(again, {})
        await settle()
        forge_hub.cut()
        await forge_hub.world.advance(1)
    assert forge_hub.count(UPDATE) == 2
    assert forge_hub.dialled == 3


async def test_the_same_order_again_joins_and_a_named_request_is_done_once(agent: Agent, forge_hub: FakeForge) -> None:
    runs: list[int] = []

    @agent.on("count")
    async def count() -> int:
        runs.append(1)
        return len(runs)

    async with Serving(agent, forge_hub):
        for attempt in (1, 2):  # the hub gives it out anew, in the same round
            forge_hub.assign("count", task_id="t1", requestId="r1", attempt=attempt)
            assert (await forge_hub.next(UPDATE)).payload.result == 1
        forge_hub.assign("count", task_id="t1", requestId="r2")  # a person wants it done again
        assert (await forge_hub.next(UPDATE)).payload.result == 2


async def test_refused_for_good_the_work_is_over_and_later_it_is_said_again(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("say")(lambda: "hello")
    limited = ErrorBody(code="INVALID_REQUEST", message="slowly", details={"reason": "RATE_LIMITED"})
    gone = ErrorBody(code="NOT_FOUND", message="no such task")
    answers = iter([limited, gone])
    forge_hub.answers[UPDATE] = lambda _: next(answers)
    async with Serving(agent, forge_hub):
        forge_hub.assign("say")
        first = await forge_hub.next(UPDATE)
        await forge_hub.world.advance(2)
        assert (await forge_hub.next(UPDATE)) == first
        await forge_hub.world.advance(60)
    assert forge_hub.count(UPDATE) == 2


async def test_a_cancelled_task_is_stopped_and_a_paused_one_holds(agent: Agent, forge_hub: FakeForge) -> None:
    seen: list[str] = []

    @agent.on("run")
    async def run(task: Task) -> None:
        try:
            await task.held.wait()
            seen.append("held")
            await task.checkpoint()
            seen.append("released")
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async with Serving(agent, forge_hub):
        id = forge_hub.assign("run")
        for notice in (
            forge.TaskPaused(task_id=id),
            forge.TaskResumed(task_id=id),
            forge.TaskCancelled(task_id=id, reason="enough"),
        ):
            forge_hub.notify(notice)
            await settle()
    assert seen == ["held", "released", "ended"]
    assert forge_hub.count(UPDATE) == 0


async def test_a_silent_handler_is_kept_alive_by_progress(agent: Agent, forge_hub: FakeForge) -> None:
    @agent.on("run")
    async def run() -> None:
        await asyncio.Event().wait()

    async with Serving(agent, forge_hub):
        forge_hub.assign("run")
        await forge_hub.world.advance(31)
    assert forge_hub.count(PROGRESS) == 4  # at once, and every ten seconds


async def test_what_is_said_too_fast_waits_for_its_turn_in_order(agent: Agent, forge_hub: FakeForge) -> None:
    @agent.on("count")
    async def count(task: Task) -> None:
        for n in range(500):
            await task.text(f"{n} ")

    async with Serving(agent, forge_hub):
        forge_hub.assign("count")
        await forge_hub.world.advance(1)
        said = forge_hub.count(UPDATE)
        assert said < 300  # 180 at once, 90 a second from then on
        await forge_hub.world.advance(5)
    pieces = [m.payload.output for m in forge_hub.said if m.type == UPDATE and m.payload.status == "running"]
    assert "".join(pieces) == "".join(f"{n} " for n in range(500))
    assert forge_hub.said[-1].payload.status == "completed"


async def test_an_orchestrator_that_knows_no_registration_is_served_and_one_that_refuses_it_is_not(
    agent: Agent, forge_hub: FakeForge
) -> None:
    agent.on("say")(lambda: "hello")
    forge_hub.answers["request:register"] = lambda _: ErrorBody(code="INVALID_MESSAGE_TYPE", message="what?")
    async with Serving(agent, forge_hub):
        forge_hub.assign("say")
        await forge_hub.next(UPDATE)
    forge_hub.answers["request:register"] = lambda _: ErrorBody(code="UNAUTHORIZED", message="not you")
    async with Serving(agent, forge_hub) as serving, asyncio.timeout(PATIENCE):
        with pytest.raises(NotAllowed, match="not you"):
            await serving


# --- the end ---


async def test_a_child_that_is_told_to_end_finishes_what_it_has_and_takes_no_more(
    agent: Agent, world: FakeWorld
) -> None:
    hub = FakeForge(world, is_child=True)
    go_on = asyncio.Event()

    @agent.on("run")
    async def run() -> str:
        await go_on.wait()
        return "done"

    async with Serving(agent, hub) as serving, asyncio.timeout(PATIENCE):
        hub.assign("run")
        await settle()
        hub.notify(forge.Shutdown(grace_period=10_000, reason="enough for today"))
        await settle()
        hub.assign("run")
        await world.advance(1)
        assert not serving.done()
        go_on.set()
        await hub.next(UPDATE)
        await world.advance(0.1)
        await serving
    assert hub.count(UPDATE) == 1


async def test_a_child_that_does_not_finish_in_time_ends_all_the_same(agent: Agent, world: FakeWorld) -> None:
    hub = FakeForge(world, is_child=True)
    ended = asyncio.Event()

    @agent.on("run")
    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Serving(agent, hub) as serving, asyncio.timeout(PATIENCE):
        hub.assign("run")
        await settle()
        hub.notify(forge.Shutdown(grace_period=10_000, reason="enough for today"))
        await world.advance(8)
        assert not serving.done()
        await world.advance(1.5)
        await serving
    assert ended.is_set()


@pytest.mark.parametrize("hears", [True, False])
async def test_a_child_whose_hub_is_gone_ends_without_waiting_for_receipts(
    agent: Agent, world: FakeWorld, hears: bool
) -> None:
    hub = FakeForge(world, is_child=True)
    hub.answers[UPDATE] = lambda _: None
    agent.on("say")(lambda: "hello")
    async with Serving(agent, hub) as serving, asyncio.timeout(PATIENCE):
        hub.assign("say")
        await hub.next(UPDATE)
        hub.hang_up(hears=hears)
        await world.advance(0.1)
        await serving
    assert hub.dialled == 1


async def test_an_agent_elsewhere_outlives_the_hub(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("say")(lambda: "hello")
    async with Serving(agent, forge_hub) as serving:
        forge_hub.notify(forge.Shutdown())
        await settle()
        forge_hub.cut()
        await forge_hub.world.advance(1)
        assert not serving.done()
        forge_hub.assign("say")
        await forge_hub.next(UPDATE)
    assert forge_hub.dialled == 2
