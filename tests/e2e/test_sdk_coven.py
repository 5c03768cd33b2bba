"""The SDK over coven and a real hub: agents and clients, and what breaks between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Client, Event, SyncClient, Task, TaskCancelled, TaskFailed
from dragoman.sdk.messages import File
from tests.e2e.at_work import open_question, people, serving, soon
from tests.support.hubproc import HubProcess, running
from tests.support.relay import Relay

PIECES = [f"{n} " for n in range(60)]
WHOLE = "".join(PIECES)


def at(hub: HubProcess) -> str:
    return f"coven://{hub.ready['grpc']}"


async def test_everything_an_agent_says_reaches_the_caller(hub: HubProcess) -> None:
    agent = Agent("speaker", version="1.0")

    @agent.on("speak")
    async def speak(task: Task, content: str) -> None:
        await task.think(content)
        await task.tool_use("df", {"p": "/"}, id="t")
        await task.tool_result("t", "90 %")
        await task.progress(50, "half")
        await task.text("all ")
        await task.text("well")
        (file,) = task.files
        await task.send_file(f"re-{file.name}", file.data[::-1], file.mime_type)

    async with serving(hub, agent, at=at(hub)), Client(at(hub)) as caller:
        task_id = await caller.submit(
            "speaker", "speak", {"content": "hm"}, files=[File("a.txt", "text/plain", b"abc")]
        )
        events = [event async for event in caller.events(task_id)]
        assert await soon(caller.result(task_id)) == "all well"
    said: dict[str, Any] = {}
    for event in events:
        said |= {**event.data, "output": said.get("output", "") + event.data.get("output", "")}
    assert said["thinking"] == "hm"
    assert said["tool_use"] == {"id": "t", "name": "df", "input": {"p": "/"}}
    assert said["tool_result"] == {"id": "t", "output": "90 %", "is_error": False}
    assert (said["percent"], said["step"]["name"]) == (50, "half")
    assert said["file"] == {"name": "re-a.txt", "mime_type": "text/plain", "size": 3, "data": b"cba"}
    assert "".join(event.data.get("output", "") for event in events[:-1]) == "all well"
    assert (events[-1].kind, events[-1].data["output"]) == ("completed", "all well")
    assert [event.seq for event in events] == sorted({event.seq for event in events})


async def test_people_and_programs_without_a_loop_reach_the_same_agent(hub: HubProcess) -> None:
    agent = Agent("adder")

    @agent.on("add")
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    def call() -> Any:
        with SyncClient(at(hub)) as caller:
            return caller.call("adder", "add", a=1, b=2)

    async with serving(hub, agent, at=at(hub)), people(hub) as api, Client(at(hub)) as caller:
        assert await soon(api.call("adder", "add", a=20, b=22)) == {"sum": 42}
        assert await soon(asyncio.to_thread(call)) == {"sum": 3}
        with pytest.raises(TaskFailed, match=r"failed: b: missing") as caught:
            await soon(caller.call("adder", "add", a=1))
        assert caught.value.kind == "invalid"


async def test_a_persons_answer_ends_the_wait_also_in_the_next_process(hub: HubProcess, tmp_path: Path) -> None:
    def asking() -> Agent:
        agent = Agent("asker", state_dir=tmp_path)

        @agent.on("ask")
        async def ask(task: Task, content: str) -> str:
            first = await task.ask("one?", options=["a", "b"])
            return first + str(await task.ask("two?"))

        return agent

    async with people(hub) as api, Client(at(hub)) as caller:
        async with serving(hub, asking(), at=at(hub)):
            task_id = await caller.submit("asker", "ask", {"content": ""})
            question = await open_question(api)
            assert (question.question, question.options) == ("one?", ("a", "b"))
            await api.answer(question.id, "a")
            question = await open_question(api)
            assert question.question == "two?"
        async with serving(hub, asking(), at=at(hub)):
            await api.answer(question.id, "z")
            assert await soon(caller.result(task_id)) == "az"


async def test_a_cancel_reaches_the_handler_and_the_agent_is_free_again(hub: HubProcess) -> None:
    agent = Agent("patient")
    begun, stopped = asyncio.Event(), asyncio.Event()

    @agent.on("wait")
    async def wait(task: Task, content: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @agent.on("echo")
    async def echo(content: str) -> str:
        return content

    async with serving(hub, agent, at=at(hub)), Client(at(hub)) as caller:
        task_id = await caller.submit("patient", "wait", {"content": ""})
        await soon(begun.wait())
        await caller.cancel(task_id, "enough")
        with pytest.raises(TaskCancelled, match="enough"):
            await soon(caller.result(task_id))
        await soon(stopped.wait())
        assert await soon(caller.call("patient", "echo", content="hello")) == "hello"


async def test_a_stopped_agent_ends_its_work_first(hub: HubProcess) -> None:
    agent = Agent("leaver")
    begun, go = asyncio.Event(), asyncio.Event()

    @agent.on("last")
    async def last(task: Task, content: str) -> str:
        begun.set()
        await go.wait()
        return "done"

    async with serving(hub, agent, at=at(hub)) as [served], Client(at(hub)) as caller:
        task_id = await caller.submit("leaver", "last", {"content": ""})
        await soon(begun.wait())
        agent.stop()
        go.set()
        await soon(served)
        assert await soon(caller.result(task_id)) == "done"
        assert (await asyncio.to_thread(hub.task, task_id))["attempts"] == 1


async def streamed(
    hub: HubProcess, relay: Relay, interrupt: Callable[[int], Awaitable[None]]
) -> tuple[list[Event], int]:
    """An agent streams over a wire that is interrupted. What the caller heard, and how often the agent ran."""
    url = f"coven://{relay.address}"
    agent = Agent("streamer")
    runs = 0

    @agent.on("stream")
    async def stream(task: Task, content: str) -> None:
        nonlocal runs
        runs += 1
        for number, piece in enumerate(PIECES):
            await interrupt(number)
            await task.text(piece)

    async def listen(caller: Client) -> list[Event]:
        return [event async for event in caller.stream("streamer", "stream", content="")]

    async with serving(hub, agent, at=url), Client(url) as caller:
        return await soon(listen(caller)), runs


def check(events: list[Event], runs: int) -> None:
    assert runs == 1
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert (events[-1].kind, events[-1].data["output"]) == ("completed", WHOLE)
    last_try = max((n for n, event in enumerate(events) if event.kind == "attempt_failed"), default=-1) + 1
    assert "".join(event.data.get("output", "") for event in events[last_try:-1]) == WHOLE


async def test_a_wire_that_is_cut_changes_nothing_but_the_time_it_takes(hub: HubProcess) -> None:
    async def interrupt(number: int) -> None:
        if number in (20, 40):
            relay.cut()

    async with Relay(hub.ready["grpc"]) as relay:
        check(*await streamed(hub, relay, interrupt))


async def test_a_hub_that_is_killed_in_the_middle_of_a_report_gets_the_whole_report(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        async with Relay(hub.ready["grpc"]) as relay:

            async def interrupt(number: int) -> None:
                if number == 30:
                    await asyncio.to_thread(hub.restart)
                    relay.target = hub.ready["grpc"]

            check(*await streamed(hub, relay, interrupt))


async def test_of_many_calls_over_a_bad_wire_each_is_done_once_and_answered(hub: HubProcess) -> None:
    """The wire is cut while work is handed out, done and answered, wherever that happens to be."""
    agent = Agent("counter")
    runs: Counter[int] = Counter()

    @agent.on("count")
    async def count(task: Task, n: int) -> int:
        runs[n] += 1
        await task.text(f"{n}")
        if n % 10 == 3:
            relay.cut()
        await task.think("done")
        if n % 10 == 7:
            asyncio.get_running_loop().call_soon(relay.cut)  # about when the answer leaves
        return n

    async with Relay(hub.ready["grpc"]) as relay:
        url = f"coven://{relay.address}"
        async with serving(hub, agent, at=url), Client(url) as caller:
            results = await soon(asyncio.gather(*(caller.call("counter", "count", n=n) for n in range(60))))
    assert results == list(range(60))
    assert runs == Counter(range(60))
