"""Asking for help and giving it, also over restarts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sdk.agentmsg.harness import FakeAgentmsg, Serving, plain
from tests.unit.sdk.conversation.phrases import ANSWER, COMPLETE, HELP, appeal, helped
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeRuntime, Running, settle

from dragoman import (
    Agent,
    Escalate,
    Help,
    HelpRequest,
    NotSupported,
    RequestRefused,
    Resource,
    SyncTask,
    Task,
    Unable,
)
from dragoman.protocols.agentmsg.records import ErrorType
from dragoman.protocols.agentmsg.types import HelpResponseType


async def test_a_task_asks_for_help_and_goes_on_with_the_answer(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("fix", timeout=5)
    async def fix(task: Task) -> list[Any]:
        await task.progress(30, "reading")
        given = await task.help(
            "Why does it hang?",
            help_type="DEBUGGING_ASSISTANCE",
            urgency="critical",
            attempted=["restarting"],
            deadline=60,
            error=ValueError("deadlock"),
        )
        return [given.content, given.responder, given.helped, given.response_type]

    async with Serving(agent, hub):
        order = hub.assign("fix")
        asked = await hub.next(HELP)
        await hub.runtime.advance(30)  # the handler's own time stands still meanwhile
        answer = hub.say(helped(asked, "a lock is taken twice"), sender="senior")
        done = await hub.next(COMPLETE)
        await settle()
    assert (asked.to, asked.metadata.priority) == ("hub", "critical")
    said = plain(asked.payload)
    assert said.pop("deadline")
    assert said == {
        "requester_id": "worker",
        "task_id": order.payload.task.task_id,
        "help_type": "DEBUGGING_ASSISTANCE",
        "description": "Why does it hang?",
        "context": {
            "current_state": "reading, 30 % done",
            "attempted_solutions": ["restarting"],
            "error_details": "ValueError: deadlock",
        },
        "urgency": "critical",
    }
    assert done.payload.result == ["a lock is taken twice", "senior", True, "DIRECT_ANSWER"]
    assert answer.id in hub.acked


async def test_a_plain_function_asks_for_help_too(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("fix")
    def fix(task: SyncTask) -> str:
        return task.help("How?", to="senior").content

    async with Serving(agent, hub):
        hub.assign("fix")
        asked = await hub.next(HELP)
        hub.say(helped(asked, "so"), sender="senior")
        done = await hub.next(COMPLETE)
    assert asked.to == "senior"
    assert done.payload.result == "so"


async def test_answers_that_follow_arrive_one_by_one(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("fix")
    async def fix(task: Task) -> list[str]:
        given = await task.help("How?")
        return [given.content, *[more.content async for more in given.follow_ups]]

    async with Serving(agent, hub):
        hub.assign("fix")
        asked = await hub.next(HELP)
        for content, more in (("first", True), ("then", True), ("last", False)):
            hub.say(helped(asked, content, more=more), sender="senior")
        done = await hub.next(COMPLETE)
        await settle()
    assert done.payload.result == ["first", "then", "last"]
    assert len(hub.acked) == 4


async def test_an_escalation_is_no_answer_and_is_there_beside_the_one_that_follows(
    agent: Agent, hub: FakeAgentmsg
) -> None:
    @agent.on("fix")
    async def fix(task: Task) -> list[Any]:
        given = await task.help("How?")
        return [given.content, [(said.responder, said.content) for said in given.escalations]]

    async with Serving(agent, hub):
        hub.assign("fix")
        asked = await hub.next(HELP)
        hub.say(helped(asked, "ask the architects", HelpResponseType.ESCALATION), sender="senior")
        hub.say(helped(asked, "so", by="architect"), sender="architect")
        done = await hub.next(COMPLETE)
        await settle()
    assert done.payload.result == ["so", [["senior", "ask the architects"]]]
    assert len(hub.acked) == 3


@pytest.mark.parametrize(
    ("error_type", "ends"),
    [(ErrorType.TIMEOUT, "UNABLE_TO_HELP nobody"), (ErrorType.VALIDATION_ERROR, "refused: nobody")],
)
async def test_help_that_cannot_be_had_says_so(
    agent: Agent, hub: FakeAgentmsg, error_type: ErrorType, ends: str
) -> None:
    @agent.on("fix")
    async def fix(task: Task) -> str:
        try:
            given = await task.help("How?")
        except RequestRefused as refused:
            return f"refused: {refused}"
        return f"{given.response_type} {given.content}"

    async with Serving(agent, hub):
        hub.assign("fix")
        hub.refuse(await hub.next(HELP), error_type, "nobody")
        done = await hub.next(COMPLETE)
    assert done.payload.result == ends


async def test_help_survives_a_restart_of_the_agent_that_asked(runtime: FakeRuntime, tmp_path: Path) -> None:
    answered = asyncio.Event()

    def make() -> Agent:
        agent = Agent("worker", runtime=runtime, state_dir=tmp_path)

        @agent.on("fix")
        async def fix(task: Task) -> str:
            given = await task.help("How?")
            answered.set()
            return f"{given.content}, then {(await task.help('And now?')).content}"

        return agent

    first = FakeAgentmsg(runtime)
    async with Serving(make(), first), asyncio.timeout(PATIENCE):
        order = first.assign("fix")
        first.say(helped(await first.next(HELP), "so"), sender="senior")
        await answered.wait()
        await first.next(HELP)
    second = FakeAgentmsg(runtime)
    async with Serving(make(), second):
        second.assign("fix", task_id=order.payload.task.task_id, attempt=2)
        asked = await second.next(HELP)
        assert asked.payload.description == "And now?"
        second.say(helped(asked, "rest"), sender="senior")
        done = await second.next(COMPLETE)
    assert done.payload.result == "so, then rest"


async def test_where_a_protocol_has_no_direct_messages_the_error_says_which_has(
    agent: Agent, runtime: FakeRuntime
) -> None:
    chiffon = FakeHub(runtime)

    @agent.on("fix")
    async def fix(task: Task) -> None:
        await task.help("How?")

    @agent.on("give")
    async def give(task: Task) -> None:
        await task.handoff()

    async with Running(agent, chiffon):
        chiffon.request("fix")
        helpless = await chiffon.next("work_result")
        chiffon.request("give")
        stuck = await chiffon.next("work_result")
        with pytest.raises(NotSupported, match="agentmsg"):
            await agent.status("BUSY")
    assert "agentmsg" in helpless.payload.output
    assert "task.ask" in helpless.payload.output
    assert "agentmsg" in stuck.payload.output


async def test_help_is_given_in_every_way(agent: Agent, hub: FakeAgentmsg) -> None:
    seen: list[HelpRequest] = []

    @agent.on_help("CODE_REVIEW")
    async def review(request: HelpRequest) -> str:
        seen.append(request)
        return "yes"

    @agent.on_help("RESOURCE_SHARING")
    def share(request: HelpRequest) -> Help:
        link = Resource("documentation", "https://wiki.lan/x", "X")
        return Help("there", "RESOURCE_PROVISION", resources=(link,), estimated_effort=5)

    @agent.on_help("ARCHITECTURE_ADVICE")
    async def advise(request: HelpRequest) -> None:
        raise Escalate("ask the architects")

    @agent.on_help("TECHNICAL_GUIDANCE")
    async def guide(request: HelpRequest) -> None:
        raise Unable("not my field")

    async with Serving(agent, hub):
        register = await hub.next("REGISTER")
        answers = []
        kinds = ("CODE_REVIEW", "RESOURCE_SHARING", "ARCHITECTURE_ADVICE", "TECHNICAL_GUIDANCE", "DEBUGGING_ASSISTANCE")
        for kind in kinds:
            asked = hub.say(appeal(kind), sender="junior")
            answer = await hub.next(ANSWER)
            assert (answer.to, answer.payload.request_id, answer.answers) == ("junior", asked.id, asked.id)
            answers.append((answer.payload.response_type.value, answer.payload.content))
        await settle()
        assert len(hub.acked) == 5
    assert set(register.payload.capabilities) == set(kinds[:4])
    assert answers == [
        ("DIRECT_ANSWER", "yes"),
        ("RESOURCE_PROVISION", "there"),
        ("ESCALATION", "ask the architects"),
        ("UNABLE_TO_HELP", "not my field"),
        ("UNABLE_TO_HELP", "worker does not help with DEBUGGING_ASSISTANCE"),
    ]
    assert (seen[0].requester, seen[0].description, seen[0].task_id) == ("junior", "Is this right?", "t1")
    assert seen[0].context == {"current_state": "stuck", "attempted_solutions": ("reading",)}


async def _cancelled(request: HelpRequest) -> str:
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting
    return "not reached"


@pytest.mark.parametrize(
    ("helper", "said"),
    [
        (lambda request: sys.exit(3), "RuntimeError: SystemExit: 3"),
        (_cancelled, "RuntimeError: CancelledError"),
        (lambda request: 5, "a help handler returns text or a Help, not int"),
        (lambda request: Help(object()), "TypeError: this cannot be sent: object has no JSON form"),  # type: ignore[arg-type]
        (lambda request: "\ud800", "surrogates not allowed"),
    ],
    ids=["exit", "cancelled", "a number", "no words", "half a character"],
)
async def test_the_asker_gets_an_answer_whatever_becomes_of_the_helper(
    agent: Agent, hub: FakeAgentmsg, helper: Any, said: str
) -> None:
    agent.on_help("CODE_REVIEW")(helper)
    async with Serving(agent, hub):
        hub.say(appeal("CODE_REVIEW"), sender="junior")
        answer = await hub.next(ANSWER)
        hub.say(appeal("DEBUGGING_ASSISTANCE"), sender="junior")
        await hub.next(ANSWER)  # it goes on
    assert answer.payload.response_type == "UNABLE_TO_HELP"
    assert said in answer.payload.content


async def test_several_answers_are_given_one_by_one(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on_help
    async def explain(request: HelpRequest) -> AsyncIterator[Any]:
        yield Help("first", follow_up_required=True)
        yield "last"

    async with Serving(agent, hub):
        hub.say(appeal(), sender="junior")
        given = [(await hub.next(ANSWER)).payload for _ in range(2)]
    assert [(one.content, one.follow_up_required) for one in given] == [("first", True), ("last", False)]


async def test_a_request_for_help_survives_a_restart_and_is_answered_once(runtime: FakeRuntime, tmp_path: Path) -> None:
    runs: list[str] = []
    go_on = asyncio.Event()

    def make() -> Agent:
        agent = Agent("worker", runtime=runtime, state_dir=tmp_path)

        @agent.on_help
        async def explain(request: HelpRequest) -> str:
            runs.append(request.description)
            await go_on.wait()
            return "so"

        return agent

    first = FakeAgentmsg(runtime)
    async with Serving(make(), first), asyncio.timeout(PATIENCE):
        asked = first.say(appeal(), sender="junior")
        while not first.acked:  # the journal has it: from here on it cannot be lost
            await asyncio.sleep(0)
    go_on.set()
    second = FakeAgentmsg(runtime)
    async with Serving(make(), second), asyncio.timeout(PATIENCE):
        answer = await second.next(ANSWER)
        second.say_again(asked)
        while not second.acked:
            await asyncio.sleep(0)
        await settle()
    third = FakeAgentmsg(runtime)
    async with Serving(make(), third):
        await settle()
    assert answer.payload.request_id == asked.id
    assert len(runs) == 2
    assert second.count(ANSWER) == 1
    assert third.count(ANSWER) == 0


async def test_an_answer_that_the_hub_does_not_want_is_given_up_and_a_passing_refusal_is_not(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    agent.on_help(lambda request: "so")
    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        hub.accepts = False
        hub.say(appeal(), sender="junior")
        answer = await hub.next(ANSWER)
        hub.refuse(answer, ErrorType.RATE_LIMIT)
        await settle()
        await runtime.advance(1.1)
        assert hub.repeated == 1
        hub.refuse(answer, ErrorType.VALIDATION_ERROR, "nobody waits for it")
        await settle()
        hub.cut()
        await runtime.advance(60)
    assert hub.repeated == 1
