"""An agentmsg agent hands a task of any caller's over to an agent of any protocol: with all that is known of it, and
what comes of it reaches the caller as if nothing had happened."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.bridge.conftest import SOME, Scene, told_of
from tests.bridge.players import PLAYERS
from tests.bridge.players.agentmsg import AgentmsgWorker
from tests.bridge.players.neutral import Handle, Job, Order, Worker, heard

pytestmark = pytest.mark.asyncio(loop_scope="session")

INPUT = {"subject": "the bridge", "parts": [{"name": "pier", "sound": None}]}
KNOWN = {"found": ["cracks", {"where": "the third pier"}], "sure": 0.5}
RESULT = {"verdict": "sound", "load": [1, 2.5]}
TO_AGENTMSG = [(name, "agentmsg") for name in PLAYERS]
WITHOUT_LETTERS = [pair for pair in SOME if pair[1] != "agentmsg"]


async def begun(scene: Scene, **order: Any) -> tuple[AgentmsgWorker, Handle, Job]:
    """The caller's task, in the hands of an agentmsg agent that has looked at it."""
    owner: AgentmsgWorker = await scene.enter(AgentmsgWorker)
    handle = await scene.caller.submit(Order(to=owner.id, **order))
    job = await owner.take()
    await owner.say(job, percent=10, message="looked at it")
    return owner, handle, job


async def test_the_new_owner_knows_the_whole_task_and_the_caller_gets_the_outcome(scene: Scene) -> None:
    owner, handle, job = await begun(scene, type="examine", input=INPUT)
    request = await owner.hand_over(job, scene.worker.id, KNOWN)
    taken = await scene.worker.take_over()

    assert (taken.id, taken.type, taken.input, taken.trace) == (handle.task_id, "examine", INPUT, job.trace)
    assert taken.handover is not None
    reason = "ESCALATION" if scene.names[1] == "agentmsg" else "escalation"  # as its document spells it, or as we do
    assert (taken.handover["from"], taken.handover["reason"]) == (owner.id, reason)
    assert taken.handover["metadata"] == KNOWN
    assert "looked" in [event["event_type"] for event in taken.handover["history"] if "event_type" in event]
    if scene.names[1] != "agentmsg":  # where it is the task's own history
        [progress] = [event for event in taken.handover["story"] if event["kind"] == "progress"]
        assert progress["at"].endswith("Z")  # all-D2
        assert (progress["details"]["percent"], progress["details"]["message"]) == (10, "looked at it")
    answer = (await owner.answer(request))["payload"]
    assert (answer["accepted"], answer["agent_id"]) == (True, scene.worker.id)

    await scene.worker.say(taken, percent=60, message="going on")
    await scene.worker.finish(taken, result=RESULT, text="It stands.")
    history = await scene.caller.history(handle)
    assert heard(history, "message") == ["looked at it", "going on"]
    assert heard(history, "final") == ["completed"]
    expected = told_of(scene, RESULT, "It stands.")
    assert {name: history[-1].get(name) for name in expected} == expected
    task = await scene.stage.task(handle.task_id)
    assert (task["agent"], task["protocol_in"], task["protocol_out"]) == (scene.worker.id, *scene.names)


@pytest.mark.parametrize("pair", SOME, ids="-to-".join)
async def test_the_former_owner_of_a_handed_over_task_cannot_change_it(scene: Scene) -> None:
    owner, handle, job = await begun(scene)
    request = await owner.hand_over(job, scene.worker.id, KNOWN)
    taken = await scene.worker.take_over()
    await owner.answer(request)

    await owner.finish(job, text="mine after all")
    assert len(owner.refused) == 1
    owner.refused.clear()
    await scene.worker.finish(taken, text="It stands.")
    history = await scene.caller.history(handle)
    assert (heard(history, "final"), history[-1]["text"]) == (["completed"], "It stands.")


async def test_a_cancel_reaches_the_tasks_present_owner(scene: Scene) -> None:
    owner, handle, job = await begun(scene)
    await owner.hand_over(job, scene.worker.id, KNOWN)
    taken = await scene.worker.take_over()
    await scene.caller.cancel(handle, "no longer wanted")
    await scene.worker.until_cancelled(taken)
    assert (await scene.caller.history(handle))[-1]["final"] == "cancelled"


async def test_a_failure_after_it_was_handed_over_reaches_the_caller(scene: Scene) -> None:
    owner, handle, job = await begun(scene)
    await owner.hand_over(job, scene.worker.id, KNOWN)
    await scene.worker.fail(await scene.worker.take_over(), "the third pier is missing")
    end = (await scene.caller.history(handle))[-1]
    assert end["final"] == "failed"
    assert "the third pier is missing" in end["error"].lower()


async def test_a_passing_failure_is_retried_by_the_tasks_present_owner(scene: Scene) -> None:
    owner, handle, job = await begun(scene, input=INPUT)
    await owner.hand_over(job, scene.worker.id, KNOWN)
    taken = await scene.worker.take_over()
    await scene.worker.fail(taken, "no room just now", retryable=True)
    again = await first_of(scene.worker, owner)
    assert (again.id, again.input, again.attempt) == (taken.id, INPUT, taken.attempt + 1)
    assert again.handover is not None
    assert again.handover["metadata"] == KNOWN
    await scene.worker.finish(again, text="now it went")
    assert (await scene.caller.history(handle))[-1]["text"] == "now it went"


async def first_of(mine: Worker, other: Worker) -> Job:
    """The next job, which must not be the other's."""
    takes = [asyncio.ensure_future(worker.take()) for worker in (mine, other)]
    await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
    got = [take.done() for take in takes]
    for take in takes:
        take.cancel()
    assert got == [True, False]
    return takes[0].result()


@pytest.mark.parametrize("pair", SOME, ids="-to-".join)
async def test_it_goes_through_several_hands(scene: Scene) -> None:
    first, handle, job = await begun(scene, input=INPUT)
    second: AgentmsgWorker = await scene.enter(AgentmsgWorker)
    await first.hand_over(job, second.id, {"first": "saw cracks"})
    job = await second.take_over()
    await second.hand_over(job, scene.worker.id, {"second": "measured them"})
    taken = await scene.worker.take_over()
    assert taken.input == INPUT
    assert taken.handover is not None
    assert taken.handover["from"] == second.id
    assert taken.handover["metadata"]["second"] == "measured them"
    await scene.worker.finish(taken, text="done")
    assert (await scene.caller.history(handle))[-1]["text"] == "done"


@pytest.mark.parametrize("pair", WITHOUT_LETTERS, ids="-to-".join)
async def test_without_a_candidate_the_owner_keeps_the_task(scene: Scene) -> None:
    """An agent that receives direct messages would be asked when it connects, until the deadline."""
    owner, handle, job = await begun(scene)
    await scene.stage.add(away := f"away-{uuid.uuid4().hex}", scene.worker.protocol)
    answer = (await owner.answer(await owner.hand_over(job, away, KNOWN, "LOAD_BALANCING")))["payload"]
    assert (answer["accepted"], "stays yours" in answer["error"]) == (False, True)
    await owner.finish(job, text="did it myself")
    assert (await scene.caller.history(handle))[-1]["text"] == "did it myself"


@pytest.mark.parametrize("pair", WITHOUT_LETTERS, ids="-to-".join)
async def test_without_an_agent_an_escalated_task_is_done_by_a_person(scene: Scene) -> None:
    owner, handle, job = await begun(scene)
    await scene.stage.add(away := f"away-{uuid.uuid4().hex}", scene.worker.protocol)
    answer = (await owner.answer(await owner.hand_over(job, away, KNOWN, "ESCALATION")))["payload"]
    assert (answer["accepted"], answer["agent_id"]) == (True, "person")
    assert await scene.stage.answer((await scene.question(handle))["id"], RESULT) == 200
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], end["result"]) == ("completed", RESULT)


@pytest.mark.parametrize("pair", TO_AGENTMSG, ids=PLAYERS)
async def test_a_declined_handoff_leaves_the_task_with_its_owner(scene: Scene) -> None:
    assert isinstance(scene.worker, AgentmsgWorker)
    owner, handle, job = await begun(scene)
    request = await owner.hand_over(job, scene.worker.id, KNOWN)
    await scene.worker.decline("busy with a pier")
    answer = (await owner.answer(request))["payload"]
    assert (answer["accepted"], answer["error"]) == (False, "busy with a pier")
    await owner.finish(job, text="did it myself")
    assert (await scene.caller.history(handle))[-1]["text"] == "did it myself"
    assert scene.worker.jobs.empty()


@pytest.mark.parametrize("pair", [("agentmsg", "agentmsg")], ids=["agentmsg-to-agentmsg"])
async def test_an_agent_that_polls_is_handed_a_task_between_two_polls(scene: Scene) -> None:
    owner, handle, job = await begun(scene)
    token = await scene.stage.add(poller := f"poller-{uuid.uuid4().hex}", "chiffon")
    http, bearer = scene.stage.http, {"Authorization": f"Bearer {token}"}
    assert (await http.get("/api/agent/messages", params={"wait": 0}, headers=bearer)).json() == {"messages": []}

    answer = (await owner.answer(await owner.hand_over(job, poller, KNOWN, "LOAD_BALANCING")))["payload"]
    assert (answer["accepted"], answer["agent_id"]) == (True, poller)
    polled = await http.get("/api/agent/messages", params={"wait": 0}, headers=bearer)
    [found] = polled.json()["messages"]
    work = found["message"]["payload"]
    assert (work["task_id"], work["parameters"]["handover"]["metadata"]) == (handle.task_id, KNOWN)
    task = await scene.stage.task(handle.task_id)
    assert (task["agent"], task["status"]) == (poller, "assigned")
