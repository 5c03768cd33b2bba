"""Handing a task over, and taking one over."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from tests.unit.sdk.agentmsg.harness import FakeAgentmsg, Serving, plain
from tests.unit.sdk.conversation.phrases import COMPLETE, FAILED, HANDOFF, offer
from tests.unit.sdk.harness import FakeRuntime, settle

from dragoman import Accept, Agent, HandoffRequest, Reject, Task
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.records import ErrorType, TaskConstraints
from dragoman.protocols.agentmsg.types import Message


async def test_a_task_that_was_handed_over_is_not_completed_here(agent: Agent, hub: FakeAgentmsg) -> None:
    over: list[Any] = []

    @agent.on("write")
    async def write(task: Task) -> str:
        given = await task.handoff(
            "senior", "CAPABILITY_LIMIT", context={"chapter": 3}, capabilities=["prose"], deadline=30
        )
        over.append((bool(given), given.agent_id, task.handed_to))
        await task.progress(99, output="nobody hears this")
        return "ignored"

    async with Serving(agent, hub):
        order = hub.assign("write", context=None)
        asked = await hub.next(HANDOFF)
        response = agentmsg.TaskHandoffResponse(
            accepted=True,
            agent_id="senior",
            estimated_completion=hub.runtime.now(),
            requirements=(),
            constraints=TaskConstraints(required_capabilities=()),
        )
        hub.say(response, correlation_id=asked.id)
        await settle()
        await hub.runtime.advance(30)
        assert over == [(True, "senior", "senior")]
        assert hub.count(COMPLETE) == hub.count(FAILED) == hub.count("TASK_UPDATE") == 0
    said = plain(asked.payload)
    assert said.pop("deadline")
    task_id = order.payload.task.task_id
    assert said == {
        "task_id": task_id,
        "from_agent": "worker",
        "to_agent": "senior",
        "reason": "CAPABILITY_LIMIT",
        "context": {
            "task_id": task_id,
            "task_type": "write",
            "priority": "normal",
            "metadata": {"chapter": 3},
            "dependencies": [],
            "history": [],
        },
        "constraints": {"required_capabilities": ["prose"]},
    }


async def test_a_handoff_that_nobody_wants_leaves_the_task_here(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("write")
    async def write(task: Task) -> list[Any]:
        rejected = await task.handoff()
        refused = await task.handoff()
        return [rejected.accepted, rejected.error, refused.accepted, refused.error]

    async with Serving(agent, hub):
        hub.assign("write")
        asked = await hub.next(HANDOFF)
        assert (asked.to, asked.payload.to_agent) == ("hub", "*")
        hub.say(agentmsg.TaskHandoffResponse(accepted=False, agent_id="hub", error="all busy"), correlation_id=asked.id)
        hub.refuse(await hub.next(HANDOFF), ErrorType.RESOURCE_EXHAUSTED, "too many hops")
        await settle()
        for _ in range(12):
            await hub.runtime.advance(1.1)
            last = [message for message in hub.said if message.type == HANDOFF][-1]
            hub.refuse(last, ErrorType.VALIDATION_ERROR, "too many hops")
            await settle()
        done = await hub.next(COMPLETE)
    assert done.payload.result == [False, "all busy", False, "too many hops"]


async def test_the_agent_decides_what_it_takes_over(agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime) -> None:
    seen: list[HandoffRequest] = []
    wrong: Any = object()
    room, unsayable = Accept(requirements=("a quiet room",)), Accept(requirements=(wrong,))
    verdicts = iter([True, False, room, Reject("no time"), None, unsayable])

    @agent.on("write")
    async def write(task: Task) -> None: ...

    @agent.on_handoff
    async def decide(request: HandoffRequest) -> Any:
        seen.append(request)
        if (verdict := next(verdicts, "none")) == "none":
            raise LookupError("no more verdicts")
        return verdict

    async with Serving(agent, hub):
        answers = []
        for _ in range(7):
            asked = hub.say(offer(runtime), sender="junior")
            answer = await hub.next(HANDOFF)
            assert (answer.to, answer.answers, answer.payload.agent_id) == ("junior", asked.id, "worker")
            answers.append((answer.payload.accepted, answer.payload.error, answer.payload.requirements))
    assert answers == [
        (True, None, ()),
        (False, "worker does not want it", None),
        (True, None, ("a quiet room",)),
        (False, "no time", None),
        (True, None, ()),
        (False, "TypeError: this cannot be sent: object has no JSON form", None),
        (False, "LookupError: no more verdicts", None),
    ]
    first = seen[0]
    assert (first.task_id, first.reason, first.from_agent, first.context) == (
        "t1",
        "CAPABILITY_LIMIT",
        "junior",
        {"chapter": 3},
    )


async def test_without_a_handler_it_takes_what_it_does_and_has_room_for(
    runtime: FakeRuntime, hub: FakeAgentmsg
) -> None:
    agent = Agent("worker", runtime=runtime, concurrency=1)
    go_on = asyncio.Event()

    @agent.on("write")
    async def write(task: Task) -> None:
        await go_on.wait()

    async with Serving(agent, hub):
        answers = []
        for task_type in ("write", "paint"):
            hub.say(offer(runtime, task_type), sender="junior")
            answers.append((await hub.next(HANDOFF)).payload)
        hub.assign("write")
        await settle()
        hub.say(offer(runtime), sender="junior")
        answers.append((await hub.next(HANDOFF)).payload)
        go_on.set()
    assert [(one.accepted, one.error) for one in answers] == [
        (True, None),
        (False, "worker does not do paint"),
        (False, "worker is busy with 1 tasks"),
    ]


async def test_what_is_known_of_a_task_comes_with_it(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("write")
    async def write(task: Task, title: str) -> list[Any]:
        assert task.handover is not None
        return [title, task.context, len(task.history), task.handover.from_agent, task.handover.reason]

    history = [{"timestamp": "2026-01-01T00:00:00Z", "event_type": "submitted", "details": {}}]
    context = {
        "task_id": "t1",
        "task_type": "write",
        "priority": "high",
        "metadata": {"chapter": 3},
        "dependencies": [],
        "history": history,
    }
    handover = {"from": "junior", "to": "worker", "reason": "escalation", "context": {}, "history": []}
    async with Serving(agent, hub):
        order = hub.assign("write", {"title": "X"}, task_id="t1")
        await hub.next(FAILED)  # it came without any of that
        hub.say_again(
            _renamed(hub, order), context=context, handover=handover, constraints={"required_capabilities": []}
        )
        done = await hub.next(COMPLETE)
    assert done.payload.result == ["X", {"chapter": 3}, 1, "junior", "ESCALATION"]


def _renamed(hub: FakeAgentmsg, message: Message) -> Message:
    return msgspec.structs.replace(message, id=hub.runtime.mint())
