"""An agentmsg agent that does any caller's task asks for help: an agent of any protocol gives it, or a person."""

from __future__ import annotations

import pytest

from tests.bridge.conftest import SOME, Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.agentmsg import AgentmsgWorker
from tests.bridge.players.agentmsg_link import HUB
from tests.bridge.players.neutral import Handle, Job, Order

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = "Which bank shall we start from?"
TO_PEOPLE = [(name, "agentmsg") for name in PLAYERS]


async def begun(scene: Scene) -> tuple[AgentmsgWorker, Handle, Job]:
    """The caller's task, in the hands of an agentmsg agent."""
    asker: AgentmsgWorker = await scene.enter(AgentmsgWorker)
    handle = await scene.caller.submit(Order(to=asker.id))
    return asker, handle, await asker.take()


async def finished(scene: Scene, asker: AgentmsgWorker, handle: Handle, job: Job) -> None:
    """The work goes on, and the caller hears its end."""
    task = await scene.stage.task(handle.task_id)
    assert (task["status"], task["waiting"], task["agent"]) == ("running", None, asker.id)
    await asker.finish(job, text="started there")
    assert (await scene.caller.history(handle))[-1]["text"] == "started there"


async def test_an_agent_of_any_protocol_helps_and_the_work_goes_on(scene: Scene) -> None:
    asker, handle, job = await begun(scene)
    request = await asker.ask_for_help(job, QUESTION, scene.worker.id)
    waits = await scene.stage.task(handle.task_id)
    assert (waits["status"], waits["waiting"]) == ("waiting", "help")

    assert await scene.worker.help("from the left") == QUESTION
    given = (await asker.answer(request))["payload"]
    assert (given["response_type"], given["responder_id"]) == ("DIRECT_ANSWER", scene.worker.id)
    assert (given["request_id"], given["content"]) == (request, "from the left")
    await finished(scene, asker, handle, job)


@pytest.mark.parametrize("pair", SOME, ids="-to-".join)
async def test_an_agent_that_cannot_help_says_so_and_the_work_goes_on(scene: Scene) -> None:
    asker, handle, job = await begun(scene)
    request = await asker.ask_for_help(job, QUESTION, scene.worker.id)
    await scene.worker.refuse_to_help("no idea")
    given = (await asker.answer(request))["payload"]
    assert (given["response_type"], given["content"]) == ("UNABLE_TO_HELP", "no idea")
    await finished(scene, asker, handle, job)


@pytest.mark.parametrize("pair", TO_PEOPLE, ids=PLAYERS)
async def test_where_no_agent_can_help_a_person_does(scene: Scene) -> None:
    asker, handle, job = await begun(scene)
    request = await asker.ask_for_help(job, QUESTION, HUB)
    question = await scene.question(handle)
    assert question["question"] == QUESTION
    assert await scene.stage.answer(question["id"], "from the right") == 200
    assert await scene.stage.answer(question["id"], "from the left") == 409
    given = (await asker.answer(request))["payload"]
    assert (given["responder_id"], given["content"]) == ("person", "from the right")
    await finished(scene, asker, handle, job)


@pytest.mark.parametrize("pair", [("agentmsg", name) for name in PLAYERS], ids=PLAYERS)
async def test_what_a_helper_says_that_escalates_reaches_the_asker_the_next_helper_and_a_person(scene: Scene) -> None:
    """Both helpers speak the same protocol, whichever that is; the second is the hub's choice."""
    asker, handle, job = await begun(scene)
    second = await scene.enter(type(scene.worker), able=("technical_guidance",))
    resources = [{"type": "tool", "url": "https://example.org/sonar", "title": "Sonar"}]
    request = await asker.ask_for_help(job, QUESTION, scene.worker.id)
    told: list[dict[str, object]] = []
    for helper in (scene.worker, second):
        assert await helper.escalate("not mine to say", resources) == told
        told.append({"agent": helper.id, "content": "not mine to say", "resources": resources})
        given = (await asker.answer(request))["payload"]
        assert (given["response_type"], given["responder_id"]) == ("ESCALATION", helper.id)
        assert (given["content"], given["resources"]) == ("not mine to say", resources)
        waits = await scene.stage.task(handle.task_id)
        assert (waits["status"], waits["waiting"]) == ("waiting", "help")
    question = await scene.question(handle)
    assert question["escalations"] == told
    assert await scene.stage.answer(question["id"], "from the right") == 200
    given = (await asker.answer(request))["payload"]
    assert (given["response_type"], given["content"]) == ("DIRECT_ANSWER", "from the right")
    await finished(scene, asker, handle, job)
    await scene.stage.remove(second.id)  # the hub would ask it in later scenes, before a person
