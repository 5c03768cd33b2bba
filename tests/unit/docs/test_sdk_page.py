"""The examples of the SDK's page, run as they stand: agents at a real hub, clients beside it."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest

from dragoman import Agent, CallNext, RateLimitExceeded, StateConflict, Task
from dragoman.testing import Hub

PAGE = "docs/sdk.md"

RUNS = re.compile(r"(?!asyncio)[a-z]+\.run\(")

Block = Callable[[str, str, str], str]


def declared(code: str, **known: Any) -> dict[str, Any]:
    """What an example declares; without the line by which its agent would run for ever."""
    lines = [line for line in code.splitlines() if not RUNS.match(line)]
    module = ModuleType("example")
    vars(module).update(known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "example", module)
        exec(compile("\n".join(lines), PAGE, "exec"), vars(module))
    return vars(module)


def program(code: str) -> str:
    """An example that begins with a client of a protocol, as a whole program: the client is the test's."""
    first, *rest = code.splitlines()
    assert first.startswith("async with Client(")
    body = "\n".join(f"    {line}" for line in rest)
    return f"async def main() -> None:\n    async with client as hub:\n{body}\n\nasyncio.run(main())\n"


def writer(**more: Any) -> Agent:
    agent = Agent("writer", **more)

    @agent.on("write")
    async def write(task: Task, topic: str) -> dict[str, Any]:
        await task.progress(50, "research")
        await task.progress(90, output=f"{topic} rise\n")
        return {"title": topic, "words": 2}

    return agent


def test_the_agent_asks_a_person_and_goes_on(hub: Hub, block: Block) -> None:
    hub.add(declared(block(PAGE, "python", "run_playbook"))["agent"])
    hub.human.answers("yes", "no")
    assert hub.call("deployer", "run_playbook", playbook="x.yml") == {"url": "https://kuma.lan"}


def test_a_handler_is_run_again_after_an_error_and_when_it_says_so(
    hub: Hub, block: Block, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [ConnectionError("gone"), (429, ""), (200, "the page")]

    async def get(url: str) -> tuple[int, str]:
        answer: Any = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer[0], answer[1]

    hub.add(declared(block(PAGE, "python", "RetryPolicy"), get=get)["agent"])
    assert hub.call("fetcher", "fetch", url="https://example.com") == "the page"
    again = [record.getMessage() for record in caplog.records if "it runs again in" in record.getMessage()]
    assert [message.rpartition(" in ")[2] for message in again] == ["2.0 s", "30.0 s"]


def test_a_middleware_runs_around_a_plain_function(hub: Hub, block: Block) -> None:
    example = declared(block(PAGE, "python", "@agent.middleware"))
    hub.add(example["agent"])
    assert hub.call("measured", "count", words=["a", "b"]) == 2
    assert example["seconds"].keys() == {"count"}


def test_the_lifespan_and_the_hooks_run_around_the_agent(
    hub: Hub, block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
    happened: list[str] = []

    class Database:
        async def execute(self, query: str) -> str:
            happened.append(query)
            return query.upper()

    @asynccontextmanager
    async def connect(dsn: str) -> Any:
        happened.append("connected")
        yield Database()
        happened.append("closed")

    agent = declared(block(PAGE, "python", "lifespan=lifespan"), connect=connect)["agent"]
    hub.add(agent)
    assert hub.call("keeper", "look_up", key="k") == "K"
    hub.remove(agent, kill=False)
    assert happened == ["connected", "SELECT 1", "k", "closed"]
    assert "the keeper ends" in capsys.readouterr().out


def test_an_agent_gives_up_where_there_is_no_hub(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # and does not listen
        taken.bind(("127.0.0.1", 0))
        code = block(PAGE, "python", "give_up_after=60").replace("give_up_after=60", "give_up_after=0.01, token='x'")
        declared(code.replace("localhost:8420", f"127.0.0.1:{taken.getsockname()[1]}"))
    assert "no hub for a minute" in capsys.readouterr().out


def test_a_call_returns_the_type_that_was_asked_for(hub: Hub, block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add(writer())
    declared(block(PAGE, "python", "returns=Report"))
    assert "tides 2" in capsys.readouterr().out


def test_a_handle_has_typed_events_and_the_result(hub: Hub, block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add(writer())
    declared(block(PAGE, "python", "handle.events()"))
    printed = capsys.readouterr().out
    assert [text for text in ("50 %", "tides rise", "done: {") if text in printed] == ["50 %", "tides rise", "done: {"]


def test_a_client_answers_what_waits_for_a_person(hub: Hub, block: Block) -> None:
    agent = Agent("asker")

    @agent.on("ask")
    async def ask(task: Task) -> Any:
        return await task.ask("Go on?", options=["yes", "no"])

    hub.add(agent)
    task = hub.submit("asker", "ask")
    hub.settle()
    declared(block(PAGE, "python", "hub.questions()"))
    assert hub.result(task) == "yes"


def test_agents_help_each_other_and_hand_work_over(hub: Hub, block: Block) -> None:
    example = declared(block(PAGE, "python", "junior, senior"))
    hub.add(example["junior"], protocol="agentmsg")
    hub.add(example["senior"], protocol="agentmsg")
    assert hub.call("junior", "fix", issue=7) == {"begun_by": "junior", "plan": "look at the plan"}


def test_an_agent_works_under_a_contract_and_a_client_calls_it(hub: Hub, block: Block) -> None:
    hub.allow("research", "clinic")
    hub.add(declared(block(PAGE, "python", "@records.task"), busy=lambda: False)["records"], protocol="a2acp")
    with hub.sync_client("a2acp", "lab", domain="research", capabilities=("read:records",)) as lab:
        answer = lab.call("read_record", {"patient": "P-101"}, agent="records")
    assert answer == {"patient": "P-101", "nights": 3}


def test_contracts_are_found_made_renewed_and_ended(hub: Hub, block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    hub.allow("research", "clinic")
    records = declared(block(PAGE, "python", "@records.task"), busy=lambda: len(calls) > 2)["records"]
    calls: list[str] = []

    @records.middleware
    async def counted(task: Task, call_next: CallNext) -> object:
        calls.append(task.type)
        return await call_next(task)

    hub.add(records, protocol="a2acp")
    client = hub.client("a2acp", "lab", domain="research", capabilities=("read:records",))
    example = program(block(PAGE, "python", "hub.discover"))
    declared(example, asyncio=asyncio, client=client, RateLimitExceeded=RateLimitExceeded)
    assert "records True True" in capsys.readouterr().out


def test_the_shared_state_is_read_changed_and_watched(
    hub: Hub, block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.let_in("editor", "agentmsg")
    client = hub.client("agentmsg", "planner", role="planner")
    limit = {"agent_id": "editor", "resource_type": "tokens", "limit": 1}
    with hub.sync_client() as admin:
        admin.state.create("RESOURCE", "editor:tokens", limit)
    example = program(block(PAGE, "python", "hub.state.watch")).replace('entity_type="TASK"', 'entity_type="RESOURCE"')
    example = example.replace("change.changes)\n", "change.changes)\n            break\n", 1)
    declared(example, asyncio=asyncio, client=client, StateConflict=StateConflict)
    assert "UPDATE editor:tokens {'limit': 50000}" in capsys.readouterr().out
