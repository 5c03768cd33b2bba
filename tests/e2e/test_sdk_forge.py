"""The SDK over forge and a real hub: an agent that the hub starts, agents and callers elsewhere, what survives."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Client, SyncClient, Task, TaskCancelled, TaskFailed
from dragoman.sdk.messages import File
from tests.e2e import at_work
from tests.e2e.at_work import open_question, people, serving, soon
from tests.support.hubproc import HubProcess, running, until
from tests.support.relay import Relay

CHILD = """
import logging, os, subprocess
from dragoman import Agent, Task

print("starting")
agent = Agent("whatever")

@agent.on("greet")
async def greet(task: Task, name: str) -> dict:
    print('{"type":"event:error","id":"x","timestamp":"2026-01-01T00:00:00Z","payload":{"taskId":"%s",'
          '"error":"faked","recoverable":false}}' % task.id)
    os.write(1, b"a bare write\\n")
    subprocess.run(["echo", "a grandchild"])
    logging.getLogger("greeter").warning("greeting %s", name)
    await task.progress(50, "half", output="Hello, ")
    return {"greeting": f"Hello, {name}"}

@agent.on("ask")
async def ask(task: Task) -> str:
    first = await task.ask("Shall I?", options=["yes", "no"])
    marker = "asked-once"
    if not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(3)
    return f"{first}, {await task.ask('Sure?', timeout=0.05, default='no')}"

agent.run()
"""


def url(hub: HubProcess) -> str:
    return at_work.url(hub, "forge+ws")


def token(hub: HubProcess, id: str, **fields: Any) -> str:
    return at_work.token(hub, id, "forge", **fields)


def start_child(hub: HubProcess, id: str, home: Path, **fields: Any) -> None:
    script = home / f"{id}.py"
    script.write_text(textwrap.dedent(CHILD))
    body = {"agent_id": id, "protocol": "forge", "command": [sys.executable, str(script)], "cwd": str(home), **fields}
    made = hub.admin.post("/api/v1/agents", body)
    assert made.status == 201, made


async def test_an_agent_that_the_hub_starts_may_print_what_it_likes(hub: HubProcess, tmp_path: Path) -> None:
    start_child(hub, "greeter", tmp_path)
    async with people(hub) as api:
        assert await soon(api.call("greeter", "greet", name="you")) == {"greeting": "Hello, you"}
        task_id = await api.submit("greeter", "greet", {"name": "them"})
        events = [event async for event in api.events(task_id)]
        with pytest.raises(TaskFailed, match=r"failed: nam: not a parameter"):
            await soon(api.call("greeter", "greet", nam="you"))
    assert events[-1].kind == "completed"
    assert "Hello, " in [event.data.get("output") for event in events]
    printed = {"starting", "a bare write", "a grandchild", "greeting you", "greeting them"}

    def logged() -> set[str]:
        return {line["text"] for line in hub.admin.get("/api/v1/agents/greeter/logs").json["logs"]}

    until(lambda: printed <= logged(), "everything that was printed is in the log")
    assert any('"error":"faked"' in line for line in logged())


async def test_an_answer_survives_the_death_of_the_child_that_asked(hub: HubProcess, tmp_path: Path) -> None:
    start_child(hub, "asker", tmp_path)
    async with people(hub) as api:
        task_id = await api.submit("asker", "ask", {})
        question = await open_question(api)
        assert (question.question, question.options) == ("Shall I?", ("yes", "no"))
        await api.answer(question.id, "yes")  # with it in hand the child dies, and its successor asks again
        assert await soon(api.result(task_id)) == "yes, no"
        asked = [event.data["question"] async for event in api.events(task_id) if event.kind == "asked"]
    assert asked == ["Shall I?", "Sure?"]


async def test_everything_an_agent_says_reaches_the_caller(hub: HubProcess) -> None:
    agent = Agent("f-speaker", version="1.0", token=token(hub, "f-speaker", kind="speakers"))

    @agent.on("speak")
    async def speak(task: Task, content: str) -> str:
        await task.think(content)
        await task.tool_use("df", {"p": "/"}, id="t")
        await task.tool_result("t", "90 %", is_error=True)
        await task.progress(50, "half", output="a piece, ")
        (file,) = task.files
        return f"{file.name}: {file.data.decode()}"

    async with serving(hub, agent, at=url(hub)), Client(url(hub), token=token(hub, "f-boss")) as caller:
        for target in ("f-speaker", "speakers"):
            files = [File("a.txt", "text/plain", b"abc")]
            task_id = await soon(caller.submit(target, "speak", {"content": "hm"}, files=files, priority="high"))
            events = [event async for event in caller.events(task_id)]
            info = await soon(caller.task(task_id))
            assert (info.status, info.type, info.agent) == ("completed", "speak", "f-speaker")
    said: dict[str, Any] = {}
    for event in events:
        said |= {name: value for name, value in event.data.items() if name != "status"}
    assert said["thinking"] == "hm"
    assert said["tool_use"] == {"id": "t", "name": "df", "input": {"p": "/"}}
    assert said["tool_result"] == {"id": "t", "output": "90 %", "is_error": True}
    assert (said["percent"], said["step"]["name"]) == (50, "half")
    assert "a piece, " in [event.data.get("output") for event in events]
    assert events[-1].kind == "completed"
    assert events[-1].data["output"].endswith("a.txt: abc")


async def test_long_outputs_failures_and_cancels(hub: HubProcess) -> None:
    agent = Agent("f-worker", token=token(hub, "f-worker"))
    text = "".join(f"{n:06}\n" for n in range(300_000))  # 2.1 MB
    begun = asyncio.Event()

    @agent.on("say")
    async def say() -> str:
        return text

    @agent.on("break")
    def fail() -> None:
        raise ValueError("no such file")

    @agent.on("sleep")
    async def sleep(task: Task) -> None:
        begun.set()
        await asyncio.Event().wait()

    caller_token = token(hub, "f-caller")
    async with serving(hub, agent, at=url(hub)), Client(url(hub), token=caller_token) as caller:
        said = await soon(caller.call("f-worker", "say"))
        assert said == text
        with pytest.raises(TaskFailed, match="ValueError: no such file") as failed:
            await soon(caller.call("f-worker", "break"))
        assert failed.value.kind == "work_failed"
        task_id = await soon(caller.submit("f-worker", "sleep"))
        await soon(begun.wait())
        await soon(caller.cancel(task_id, "enough"))
        with pytest.raises(TaskCancelled, match="enough"):
            await soon(caller.result(task_id))

        def call() -> Any:
            with SyncClient(url(hub), token=token(hub, "f-sync")) as hub_:
                with pytest.raises(TaskFailed):
                    hub_.call("f-worker", "break")
                return [event.kind for event in hub_.stream("f-worker", "break")]

        assert (await soon(asyncio.to_thread(call)))[-1] == "failed"


async def test_a_call_outlives_the_hub(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        agent = Agent("survivor", token=token(hub, "survivor"))
        go_on, begun = asyncio.Event(), asyncio.Event()
        runs: list[int] = []

        @agent.on("run")
        async def run(task: Task) -> str:
            runs.append(1)
            await task.text("before, ")
            begun.set()
            await go_on.wait()
            await task.text("after")
            return "done"

        @agent.on("ask")
        async def ask(task: Task) -> Any:
            return await task.ask("Well?")

        caller_token = token(hub, "caller")
        async with (
            Relay(hub.url.removeprefix("http://")) as relay,
            serving(hub, agent, at=f"forge+ws://{relay.address}"),
            Client(f"forge+ws://{relay.address}", token=caller_token) as caller,
        ):
            calling = asyncio.ensure_future(caller.call("survivor", "run"))
            asking = asyncio.ensure_future(caller.call("survivor", "ask"))
            await soon(begun.wait())
            async with people(hub) as api:
                question = await open_question(api)
            await asyncio.to_thread(hub.kill)
            go_on.set()
            await asyncio.to_thread(hub.start)
            relay.target = hub.url.removeprefix("http://")
            assert await soon(calling) == "done"
            async with people(hub) as api:
                await api.answer(question.id, "well")
            assert await soon(asking) == "well"
        assert len(runs) == 1
