"""Agents and other agents, over a scripted hub: help, handoffs, letters, status, errors; both sides, and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.sdk.agentmsg_harness import FakeAgentmsg, Serving, plain
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeWorld, Running, settle

from dragoman import (
    Accept,
    Agent,
    Escalate,
    HandoffRequest,
    Help,
    HelpRequest,
    Letter,
    Misconfigured,
    Reject,
    RequestRefused,
    Resource,
    SyncTask,
    Task,
    Unable,
)
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.records import ErrorType, Priority, TaskConstraints, TaskContext
from dragoman.protocols.agentmsg.types import HelpResponseType, Message
from dragoman.sdk.trouble import report

COMPLETE, FAILED, HELP, ANSWER, HANDOFF = (
    "TASK_COMPLETE",
    "TASK_FAILED",
    "HELP_REQUEST",
    "HELP_RESPONSE",
    "TASK_HANDOFF",
)


@pytest.fixture
def hub(world: FakeWorld) -> FakeAgentmsg:
    return FakeAgentmsg(world)


def helped(
    asked: Message,
    content: str,
    kind: HelpResponseType = HelpResponseType.DIRECT_ANSWER,
    by: str = "senior",
    more: bool = False,
) -> agentmsg.HelpResponse:
    return agentmsg.HelpResponse(
        responder_id=by,
        request_id=asked.id,
        response_type=kind,
        content=content,
        follow_up_required=more,
        estimated_effort=1,
    )


def appeal(help_type: str = "CODE_REVIEW") -> agentmsg.HelpRequest:
    return agentmsg.HelpRequest(
        requester_id="junior",
        task_id="t1",
        help_type=agentmsg.HelpType(help_type),
        description="Is this right?",
        context=agentmsg.HelpContext(current_state="stuck", attempted_solutions=("reading",)),
        urgency="high",
    )


def offer(world: FakeWorld, task_type: str = "write", task_id: str = "t1") -> agentmsg.TaskHandoffRequest:
    return agentmsg.TaskHandoffRequest(
        task_id=task_id,
        from_agent="junior",
        to_agent="worker",
        reason=agentmsg.HandoffReason.CAPABILITY_LIMIT,
        context=TaskContext(
            task_id=task_id,
            task_type=task_type,
            priority=Priority.HIGH,
            metadata={"chapter": 3},
            dependencies=(),
            history=(),
        ),
        constraints=TaskConstraints(required_capabilities=()),
        deadline=world.now() + timedelta(minutes=5),
    )


# -- asking for help --------------------------------------------------------------------------------------------


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
        await hub.world.advance(30)  # the handler's own time stands still meanwhile
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


async def test_answers_that_follow_are_heard_one_by_one(agent: Agent, hub: FakeAgentmsg) -> None:
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


async def test_help_survives_a_restart_of_who_asked(world: FakeWorld, tmp_path: Path) -> None:
    answered = asyncio.Event()

    def make() -> Agent:
        agent = Agent("worker", world=world, state_dir=tmp_path)

        @agent.on("fix")
        async def fix(task: Task) -> str:
            given = await task.help("How?")
            answered.set()
            return f"{given.content}, then {(await task.help('And now?')).content}"

        return agent

    first = FakeAgentmsg(world)
    async with Serving(make(), first), asyncio.timeout(PATIENCE):
        order = first.assign("fix")
        first.say(helped(await first.next(HELP), "so"), sender="senior")
        await answered.wait()
        await first.next(HELP)
    second = FakeAgentmsg(world)
    async with Serving(make(), second):
        second.assign("fix", task_id=order.payload.task.task_id, attempt=2)
        asked = await second.next(HELP)
        assert asked.payload.description == "And now?"
        second.say(helped(asked, "rest"), sender="senior")
        done = await second.next(COMPLETE)
    assert done.payload.result == "so, then rest"


async def test_where_agents_do_not_converse_the_error_says_who_can(agent: Agent, world: FakeWorld) -> None:
    chiffon = FakeHub(world)

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
        with pytest.raises(Misconfigured, match="agentmsg"):
            await agent.status("BUSY")
    assert "agentmsg" in helpless.payload.output
    assert "task.ask" in helpless.payload.output
    assert "agentmsg" in stuck.payload.output


# -- giving help ------------------------------------------------------------------------------------------------


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


async def test_several_answers_are_given_one_by_one(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on_help
    async def explain(request: HelpRequest) -> AsyncIterator[Any]:
        yield Help("first", follow_up_required=True)
        yield "last"

    async with Serving(agent, hub):
        hub.say(appeal(), sender="junior")
        given = [(await hub.next(ANSWER)).payload for _ in range(2)]
    assert [(one.content, one.follow_up_required) for one in given] == [("first", True), ("last", False)]


async def test_a_request_for_help_survives_a_restart_and_is_answered_once(world: FakeWorld, tmp_path: Path) -> None:
    runs: list[str] = []
    go_on = asyncio.Event()

    def make() -> Agent:
        agent = Agent("worker", world=world, state_dir=tmp_path)

        @agent.on_help
        async def explain(request: HelpRequest) -> str:
            runs.append(request.description)
            await go_on.wait()
            return "so"

        return agent

    first = FakeAgentmsg(world)
    async with Serving(make(), first), asyncio.timeout(PATIENCE):
        asked = first.say(appeal(), sender="junior")
        while not first.acked:  # the journal has it: from here on it cannot be lost
            await asyncio.sleep(0)
    go_on.set()
    second = FakeAgentmsg(world)
    async with Serving(make(), second), asyncio.timeout(PATIENCE):
        answer = await second.next(ANSWER)
        second.say_again(asked)
        while not second.acked:
            await asyncio.sleep(0)
        await settle()
    third = FakeAgentmsg(world)
    async with Serving(make(), third):
        await settle()
    assert answer.payload.request_id == asked.id
    assert len(runs) == 2
    assert second.count(ANSWER) == 1
    assert third.count(ANSWER) == 0


async def test_an_answer_that_the_hub_does_not_want_is_given_up_and_a_passing_refusal_is_not(
    agent: Agent, hub: FakeAgentmsg, world: FakeWorld
) -> None:
    agent.on_help(lambda request: "so")
    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        hub.accepts = False
        hub.say(appeal(), sender="junior")
        answer = await hub.next(ANSWER)
        hub.refuse(answer, ErrorType.RATE_LIMIT)
        await settle()
        await world.advance(1.1)
        assert hub.repeated == 1
        hub.refuse(answer, ErrorType.VALIDATION_ERROR, "nobody waits for it")
        await settle()
        hub.cut()
        await world.advance(60)
    assert hub.repeated == 1


# -- handing over -----------------------------------------------------------------------------------------------


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
            estimated_completion=hub.world.now(),
            requirements=(),
            constraints=TaskConstraints(required_capabilities=()),
        )
        hub.say(response, correlation_id=asked.id)
        await settle()
        await hub.world.advance(30)
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
            await hub.world.advance(1.1)
            last = [message for message in hub.said if message.type == HANDOFF][-1]
            hub.refuse(last, ErrorType.VALIDATION_ERROR, "too many hops")
            await settle()
        done = await hub.next(COMPLETE)
    assert done.payload.result == [False, "all busy", False, "too many hops"]


async def test_the_agent_decides_what_it_takes_over(agent: Agent, hub: FakeAgentmsg, world: FakeWorld) -> None:
    seen: list[HandoffRequest] = []
    verdicts = iter([True, False, Accept(requirements=("a quiet room",)), Reject("no time"), None])

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
        for _ in range(6):
            asked = hub.say(offer(world), sender="junior")
            answer = await hub.next(HANDOFF)
            assert (answer.to, answer.answers, answer.payload.agent_id) == ("junior", asked.id, "worker")
            answers.append((answer.payload.accepted, answer.payload.error, answer.payload.requirements))
    assert answers == [
        (True, None, ()),
        (False, "worker does not want it", None),
        (True, None, ("a quiet room",)),
        (False, "no time", None),
        (True, None, ()),
        (False, "LookupError: no more verdicts", None),
    ]
    first = seen[0]
    assert (first.task_id, first.reason, first.from_agent, first.context) == (
        "t1",
        "CAPABILITY_LIMIT",
        "junior",
        {"chapter": 3},
    )


async def test_without_a_handler_it_takes_what_it_does_and_has_room_for(world: FakeWorld, hub: FakeAgentmsg) -> None:
    agent = Agent("worker", world=world, concurrency=1)
    go_on = asyncio.Event()

    @agent.on("write")
    async def write(task: Task) -> None:
        await go_on.wait()

    async with Serving(agent, hub):
        answers = []
        for task_type in ("write", "paint"):
            hub.say(offer(world, task_type), sender="junior")
            answers.append((await hub.next(HANDOFF)).payload)
        hub.assign("write")
        await settle()
        hub.say(offer(world), sender="junior")
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
    return msgspec.structs.replace(message, id=hub.world.mint())


# -- letters, status, errors ------------------------------------------------------------------------------------


async def test_letters_are_heard_by_their_type_and_once(agent: Agent, hub: FakeAgentmsg) -> None:
    heard: list[Letter] = []
    others: list[Letter] = []
    agent.on_message("ERROR_REPORT")(heard.append)

    @agent.on_message()
    async def rest(letter: Letter) -> None:
        others.append(letter)

    async with Serving(agent, hub):
        trouble = hub.say(_trouble(hub), sender="peer")
        hub.say_again(trouble)
        hub.say(agentmsg.Heartbeat(agent_id="peer"), sender="peer")
        async with asyncio.timeout(PATIENCE):
            while not (heard and others and len(hub.acked) >= 1):
                await asyncio.sleep(0)
    assert [(letter.sender, letter.type, letter.payload["message"]) for letter in heard] == [
        ("peer", "ERROR_REPORT", "broken")
    ]
    assert [(letter.type, letter.payload) for letter in others] == [("HEARTBEAT", {"agent_id": "peer"})]
    assert set(hub.acked) == {trouble.id}


def _trouble(hub: FakeAgentmsg) -> Any:
    return report(ErrorType.NETWORK_ERROR, "broken", id=hub.world.mint(), agent="peer", details={})


async def test_an_agent_tells_others_something(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("write")(lambda: None)
    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        await agent.tell("peer", {"note": "chapter 3 is ready"})
        note = await hub.next("STATUS_UPDATE")
        await agent.tell("peer", {"state": "MAINTENANCE"}, type="HEARTBEAT", priority="high", ttl=5)
        beat = await hub.next("HEARTBEAT")
        hub.accepts = False
        telling = asyncio.ensure_future(agent.tell("peer", {"note": "x"}, priority="critical"))
        hub.refuse(await hub.next("STATUS_UPDATE"), ErrorType.VALIDATION_ERROR, "peer speaks chiffon")
        with pytest.raises(RequestRefused, match="peer speaks chiffon"):
            await telling
        with pytest.raises(Misconfigured, match="HEARTBEAT"):
            await agent.tell("peer", {"state": "ASLEEP"}, type="HEARTBEAT")
    assert (note.to, hub.trees[note.id]["payload"]["note"]) == ("peer", "chapter 3 is ready")
    assert (beat.to, beat.payload.state, beat.metadata.ttl_ms) == ("peer", "MAINTENANCE", 5000)


async def test_the_status_is_filled_in_and_what_was_said_holds(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("work")
    async def work(task: Task, fail: bool) -> None:
        await hub.world.sleep(2)
        if fail:
            raise ValueError("no")
        task.used(tokens=7)

    async with Serving(agent, hub):
        for fail in (False, True):
            hub.assign("work", {"fail": fail})
            await settle()
            await hub.world.advance(2)
        await settle()
        await agent.status("MAINTENANCE", tokens_remaining=500, next_available=60)
        said = (await hub.next("STATUS_UPDATE")).payload
        await agent.status()
        again = (await hub.next("STATUS_UPDATE")).payload
    assert (said.status.state, said.status.error_rate, said.status.avg_response_time_ms) == ("MAINTENANCE", 0.5, 2000)
    assert (said.resource_usage.tokens_used, said.resource_usage.tokens_remaining) == (7, 500)
    assert (said.health_metrics.error_count, said.health_metrics.uptime_seconds) == (1, 4)
    assert said.current_tasks == ()
    assert (again.status.state, again.resource_usage.tokens_remaining) == ("MAINTENANCE", 500)


async def test_an_error_is_reported_whole(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("work")(lambda: None)
    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        await agent.report_error(
            OSError("disk full"),
            error_type="RESOURCE_EXHAUSTED",
            severity="critical",
            details={"disk": "/var"},
            attempts=[{"strategy": "delete old logs"}],
            actions=["Add a disk."],
        )
        told = await hub.next("ERROR_REPORT")
    said = plain(told.payload)
    assert said.pop("error_id")
    assert said["recovery_attempts"][0].pop("timestamp")
    assert said == {
        "agent_id": "worker",
        "error_type": "RESOURCE_EXHAUSTED",
        "severity": "critical",
        "message": "OSError: disk full",
        "context": {"details": {"disk": "/var"}},
        "recovery_attempts": [
            {"attempt_number": 1, "strategy": "delete old logs", "outcome": "failure", "details": ""}
        ],
        "suggested_actions": ["Add a disk."],
    }


async def test_who_is_not_at_work_cannot_speak(agent: Agent) -> None:
    with pytest.raises(Misconfigured, match="not at work"):
        await agent.status("BUSY")
    with pytest.raises(Misconfigured, match="agentmsg"):
        _ = agent.state
    with pytest.raises(Misconfigured, match="no help called"):
        agent.on_help("COFFEE")(print)  # type: ignore[arg-type]
