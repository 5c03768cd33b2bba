"""The SDK over agentmsg and a real hub: work, help, handoffs, direct messages, shared state; over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    Agent,
    Client,
    DirectMessage,
    Escalate,
    HandoffRequest,
    Help,
    HelpRequest,
    Reject,
    RequestRefused,
    Resource,
    StateConflict,
    SyncClient,
    Task,
    TaskCancelled,
    TaskFailed,
)
from tests.e2e import at_work
from tests.e2e.at_work import open_question, people, soon
from tests.support.hubproc import PATIENCE, HubProcess, running
from tests.support.relay import Relay


def url(hub: HubProcess, transport: str = "ws") -> str:
    return at_work.url(hub, f"agentmsg+{transport}")


def token(hub: HubProcess, id: str, protocol: str = "agentmsg", **fields: Any) -> str:
    return at_work.token(hub, id, protocol, **fields)


def serving(hub: HubProcess, *agents: Agent, at: str | None = None) -> AbstractAsyncContextManager[object]:
    return at_work.serving(hub, *agents, at=at or url(hub))


@pytest.fixture
def hub(tmp_path: Path) -> Any:
    with running(tmp_path) as hub:
        yield hub


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_work_goes_from_a_client_to_an_agent_and_back(hub: HubProcess, transport: str) -> None:
    agent = Agent("editor", token=token(hub, "editor"))

    @agent.on("edit")
    async def edit(task: Task, title: str) -> dict[str, Any]:
        await task.progress(50, "half", output="one\n")
        await task.think("hm")
        await task.text("two")
        return {"title": title, "trace": task.trace_id}

    @agent.on("say")
    async def say() -> str:
        return "hello"

    @agent.on("break")
    async def fail() -> None:
        raise ValueError("no ink")

    caller = Client(url(hub, transport), token=token(hub, "planner"), id="planner")
    async with serving(hub, agent, at=url(hub, transport)), caller as client, people(hub) as admin:
        task_id = await soon(client.submit("editor", "edit", {"title": "X"}))
        events = await soon(_all(client.events(task_id)))
        assert await soon(client.call("editor", "say")) == "hello"
        with pytest.raises(TaskFailed, match="no ink") as failed:
            await soon(client.call("editor", "break"))
        info = await admin.task(task_id)
        assert await soon(admin.call("editor", "say")) == "hello"
        assert (await soon(admin.call("editor", "edit", title="Y")))["title"] == "Y"
    assert events[-1].kind == "completed"
    assert events[-1].data["result"]["title"] == "X"
    assert [event.data["output"] for event in events if event.data.get("output") and not event.is_final] == [
        "one\n",
        "two",
    ]
    assert info.trace_id == events[-1].data["result"]["trace"]
    assert failed.value.facts["exit_code"] == 1


async def test_a_cancel_reaches_the_agent(hub: HubProcess) -> None:
    agent = Agent("editor", token=token(hub, "editor"))
    begun, ended = asyncio.Event(), asyncio.Event()

    @agent.on("edit")
    async def edit() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(hub, agent), Client(url(hub), token=token(hub, "planner"), id="planner") as client:
        task_id = await soon(client.submit("editor", "edit", {}))
        await soon(begun.wait())
        await soon(client.cancel(task_id, "enough"))
        await soon(ended.wait())
        with pytest.raises(TaskCancelled):
            await soon(client.result(task_id))


async def test_a_person_is_asked_and_answers(hub: HubProcess) -> None:
    agent = Agent("editor", token=token(hub, "editor"))

    @agent.on("edit")
    async def edit(task: Task) -> str:
        first = await task.ask("Shall I?", options=["yes", "no"])
        return f"{first}, {await task.ask('Sure?', timeout=0.05, default='no')}"

    async with serving(hub, agent), people(hub) as admin:
        task_id = await admin.submit("editor", "edit", {})
        question = await open_question(admin)
        assert (question.question, question.options) == ("Shall I?", ("yes", "no"))
        await admin.answer(question.id, "yes")
        assert await soon(admin.result(task_id)) == "yes, no"


async def test_an_agent_helps_another_and_a_person_helps_in_the_end(hub: HubProcess) -> None:
    junior, senior = Agent("junior", token=token(hub, "junior")), Agent("senior", token=token(hub, "senior"))

    @senior.on_help("CODE_REVIEW")
    async def review(request: HelpRequest) -> AsyncIterator[Any]:
        yield Help(f"first for {request.requester}", follow_up_required=True)
        yield "last"

    @junior.on("fix")
    async def fix(task: Task) -> list[str]:
        given = await task.help("Is this right?", help_type="CODE_REVIEW", attempted=["reading"])
        more = [one.content async for one in given.follow_ups]
        other = await task.help("How does it work?", help_type="ARCHITECTURE_ADVICE")
        return [given.responder, given.content, *more, other.responder, other.content]

    async with serving(hub, junior, senior), people(hub) as admin:
        task_id = await admin.submit("junior", "fix", {})
        await admin.answer((await open_question(admin)).id, "slowly")
        result = await soon(admin.result(task_id))
    assert result == ["senior", "first for junior", "last", "person", "slowly"]


@pytest.mark.parametrize("protocol", ["agentmsg", "chiffon", "forge", "coven", "a2acp"])
async def test_the_content_of_an_escalation_reaches_the_next_helper_and_the_asker(
    hub: HubProcess, protocol: str
) -> None:
    """The two helpers speak any protocol; the first is named, the second is the hub's choice."""
    junior = Agent("junior", token=token(hub, "junior"))
    first, second = (Agent(id, token=token(hub, id, protocol)) for id in ("first", "second"))
    sonar = Resource("tool", "https://example.org/sonar", "Sonar")

    @first.on_help("CODE_REVIEW")
    async def escalate(request: HelpRequest) -> str:
        raise Escalate("look below the water", resources=[sonar])

    @second.on_help("CODE_REVIEW")
    async def answer(request: HelpRequest) -> str:
        [said] = request.escalations
        return f"{said.responder} said {said.content!r}, with {said.resources[0].title}"

    @junior.on("fix")
    async def fix(task: Task) -> list[Any]:
        given = await task.help("Is this right?", help_type="CODE_REVIEW", to="first")
        [said] = given.escalations
        return [given.responder, given.content, said.responder, said.content, said.resources[0].url]

    at = f"coven://{hub.ready['grpc']}" if protocol == "coven" else hub.url.replace("http://", f"{protocol}+ws://")
    async with serving(hub, junior), serving(hub, first, second, at=at), people(hub) as admin:
        result = await soon(admin.call("junior", "fix"))
    words = "look below the water"
    assert result == ["second", f"first said {words!r}, with Sonar", "first", words, sonar.url]


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_a_task_is_handed_over_with_all_that_is_known_of_it(hub: HubProcess, transport: str) -> None:
    ids = ("junior", "senior", "busy")
    junior, senior, busy = (Agent(id, token=token(hub, id)) for id in ids)
    asked: list[HandoffRequest] = []

    @busy.on_handoff
    async def no(request: HandoffRequest) -> Reject:
        asked.append(request)
        return Reject("no time")

    @busy.on("write")
    @junior.on("write")
    async def write(task: Task, title: str) -> str:
        await task.progress(40, "draft", output="a draft\n")
        refused = await task.handoff("busy", "LOAD_BALANCING")
        given = await task.handoff(reason="CAPABILITY_LIMIT", context={"refused": refused.error}, deadline=60)
        assert given.accepted, given
        return "nobody hears this"

    @senior.on("write")
    async def finish(task: Task, title: str) -> list[Any]:
        assert task.handover is not None
        kinds = [event["event_type"] for event in task.history]
        return [title, task.context, task.handover.from_agent, task.handover.reason, "handover_asked" in kinds]

    async with serving(hub, junior, senior, busy, at=url(hub, transport)), people(hub) as admin:
        task_id = await admin.submit("junior", "write", {"title": "X"})
        result = await soon(admin.result(task_id))
        info = await admin.task(task_id)
    assert result == ["X", {"refused": "no time"}, "junior", "CAPABILITY_LIMIT", True]
    assert info.agent == "senior"
    assert next((one.task_id, one.from_agent, one.task_type) for one in asked) == (task_id, "junior", "write")


@pytest.mark.parametrize("protocol", ["chiffon", "forge"])
async def test_an_agent_of_another_protocol_takes_over_too(hub: HubProcess, protocol: str) -> None:
    junior, other = Agent("junior", token=token(hub, "junior")), Agent("other", token=token(hub, "other", protocol))

    @junior.on("write")
    async def write(task: Task, title: str) -> None:
        assert await task.handoff("other", "ESCALATION", context={"chapter": 3})

    @other.on("write")
    async def finish(task: Task, title: str) -> list[Any]:
        assert task.handover is not None
        return [title, task.handover.from_agent, task.handover.reason, task.context["chapter"]]

    elsewhere = hub.url.replace("http://", f"{protocol}+ws://")
    async with serving(hub, junior), serving(hub, other, at=elsewhere), people(hub) as admin:
        result = await soon(admin.call("junior", "write", title="X"))
    assert result == ["X", "junior", "ESCALATION", 3]


async def test_direct_messages_status_and_errors(hub: HubProcess) -> None:
    one, two = Agent("one", token=token(hub, "one")), Agent("two", token=token(hub, "two"))
    other = token(hub, "other", "chiffon")
    assert other
    heard: asyncio.Queue[DirectMessage] = asyncio.Queue()
    one.on("work")(lambda: None)

    @two.on_message()
    async def hear(letter: DirectMessage) -> None:
        heard.put_nowait(letter)

    async with serving(hub, one, two), people(hub) as admin:
        await soon(one.tell("two", {"note": "ready"}, priority="high"))
        letter = await soon(heard.get())
        with pytest.raises(RequestRefused):
            await soon(one.tell("other", {"note": "ready"}, priority="high"))
        await soon(one.report_error("disk full", error_type="RESOURCE_EXHAUSTED", to="two"))
        trouble = await soon(heard.get())
        await one.status("MAINTENANCE", tokens_used=5)
        async with asyncio.timeout(PATIENCE):
            while (await admin.state.get("AGENT", "one")).value["state"] != "MAINTENANCE":
                pass
    assert (letter.sender, letter.type, letter.payload["note"]) == ("one", "STATUS_UPDATE", "ready")
    assert (trouble.type, trouble.payload["message"]) == ("ERROR_REPORT", "disk full")


async def test_the_shared_state_is_read_changed_and_watched(hub: HubProcess) -> None:
    agent = Agent("editor", token=token(hub, "editor"))
    agent.on("edit")(lambda: "done")
    async with serving(hub, agent), people(hub) as admin:
        before = await soon(agent.state.read())
        assert "editor" in before.agent_registry
        allocation = {"agent_id": "editor", "resource_type": "tokens", "allocated": 0, "consumed": 0, "limit": 100}
        made = await soon(admin.state.create("RESOURCE", "editor:tokens", allocation))
        changed = await soon(admin.state.update("RESOURCE", made.id, {"limit": 200}, version=made.version))
        with pytest.raises(StateConflict) as conflict:
            await soon(admin.state.update("RESOURCE", made.id, {"limit": 300}, version=made.version))
        assert conflict.value.current_version == changed.version
        assert (await soon(agent.state.get("RESOURCE", made.id))).value["limit"] == 200
        task_id = await admin.submit("editor", "edit", {})
        await soon(admin.result(task_id))
        watch = agent.state.watch(before.cursor, entity_type="TASK", entity_id=task_id)
        seen = []
        async with aclosing(watch) as changes:
            async for change in changes:
                seen.append(change)
                if change.changes.get("status") == "completed":
                    break
    assert seen[0].operation == "CREATE"
    assert [change.version for change in seen] == sorted(change.version for change in seen)


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_everything_goes_on_when_the_hub_is_killed_and_comes_back(hub: HubProcess, transport: str) -> None:
    """A call, a request for help whose helper is at work, and a watch."""
    junior, senior = Agent("junior", token=token(hub, "junior")), Agent("senior", token=token(hub, "senior"))
    caller = token(hub, "planner")
    begun, go_on = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    @junior.on("fix")
    async def fix(task: Task) -> str:
        runs.append(task.id)
        return (await task.help("How?", to="senior")).content

    @senior.on_help
    async def explain(request: HelpRequest) -> str:
        runs.append(request.id)
        begun.set()
        await go_on.wait()
        return "so"

    async with Relay(hub.url.removeprefix("http://")) as relay:
        at = f"agentmsg+{transport}://{relay.address}"
        client = Client(at, token=caller, id="planner")
        async with serving(hub, junior, senior, at=at), client:
            cursor = (await soon(client.state.read())).cursor
            watching = asyncio.ensure_future(soon(_until_completed(client, cursor)))
            calling = asyncio.ensure_future(client.call("junior", "fix"))
            await soon(begun.wait())
            await asyncio.to_thread(hub.kill)
            go_on.set()
            await asyncio.to_thread(hub.start)
            relay.target = hub.url.removeprefix("http://")
            assert await soon(calling) == "so"
            assert await watching == "completed"
    assert len(runs) == 2


async def _until_completed(client: Client, cursor: int) -> str:
    async with aclosing(client.state.watch(cursor, "TASK")) as changes:
        async for change in changes:
            if change.changes.get("status") == "completed":
                break
    return "completed"


async def test_an_agent_that_dies_between_two_answers_asks_only_for_the_second(hub: HubProcess, tmp_path: Path) -> None:
    secret = token(hub, "junior")
    senior = Agent("senior", token=token(hub, "senior"))
    asked: list[str] = []
    second = asyncio.Event()

    @senior.on_help
    async def explain(request: HelpRequest) -> str:
        asked.append(request.description)
        return f"{request.description} So!"

    def make() -> Agent:
        agent = Agent("junior", token=secret, state_dir=tmp_path / "state", grace=0)

        @agent.on("fix")
        async def fix(task: Task) -> str:
            first = await task.help("How?")
            if not second.is_set():
                second.set()
                await asyncio.Event().wait()
            return f"{first.content} {(await task.help('And then?')).content}"

        return agent

    async with serving(hub, senior), people(hub) as admin:
        async with serving(hub, make()):
            task_id = await admin.submit("junior", "fix", {})
            await soon(second.wait())
        async with serving(hub, make()):
            assert await soon(admin.result(task_id)) == "How? So! And then? So!"
    assert asked == ["How?", "And then?"]


def test_a_program_without_an_event_loop_shares_state_too(hub: HubProcess) -> None:
    token(hub, "editor")
    allocation = {"agent_id": "editor", "resource_type": "tokens", "allocated": 0, "consumed": 0, "limit": 1}
    with SyncClient(url(hub, "http"), token=token(hub, "planner"), id="planner") as client:
        cursor = client.state.read().cursor
        with SyncClient(hub.url, token=hub.ready["admin_token"]) as admin:
            made = admin.state.create("RESOURCE", "editor:tokens", allocation)
            admin.state.delete("RESOURCE", made.id, version=made.version)
        seen = client.state.watch(cursor, "RESOURCE")
        assert [next(seen).operation for _ in range(2)] == ["CREATE", "DELETE"]
        seen.close()  # type: ignore[attr-defined]


async def _all(source: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in source]
