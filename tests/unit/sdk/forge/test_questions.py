"""An agent over forge asks, and a scripted orchestrator answers, late or never."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.sdk.forge.harness import ASK, PROGRESS, UPDATE, FakeForge, Serving, plain
from tests.unit.sdk.harness import PATIENCE

from dragoman import Agent, Task
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.types import ErrorBody


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
        await forge_hub.runtime.advance(60)
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


async def test_a_question_is_asked_again_over_the_next_connection_under_the_same_id(
    agent: Agent, forge_hub: FakeForge
) -> None:
    asking(agent)
    async with Serving(agent, forge_hub):
        forge_hub.assign("deploy")
        first = await forge_hub.next(ASK)
        forge_hub.cut()
        await forge_hub.runtime.advance(1)
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
        await forge_hub.runtime.advance(0.1)
        await serving
