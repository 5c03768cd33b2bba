"""How work ends otherwise: it is cancelled, it fails, its worker dies."""

from __future__ import annotations

import pytest

from tests.bridge.conftest import PAIRS, SOME, Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.coven import CovenWorker
from tests.bridge.players.neutral import Handle, Order, heard, soon

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORDS = "the third pier is missing"
ATTEMPTS = 4
BOTH_A2ACP = ("a2acp", "a2acp")
TRIED_AGAIN = [pair for pair in PAIRS if pair != BOTH_A2ACP]


async def test_a_cancel_reaches_the_worker_and_the_children(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.say(job, percent=10)
    other = await scene.enter(type(scene.worker))
    made = await scene.stage.admin.post(
        "/api/v1/tasks", json={"type": "examine", "agent": other.id, "parent": handle.task_id}
    )
    child = await other.take()
    await other.say(child, percent=10)

    await scene.caller.cancel(handle, "no longer wanted")
    await scene.worker.until_cancelled(job)
    await other.until_cancelled(child)

    history = await scene.caller.history(handle)
    assert history[-1]["final"] == "cancelled"
    assert "no longer wanted" in history[-1]["error"].lower()
    for id in (handle.task_id, made.json()["id"]):
        assert (await scene.stage.task(id))["status"] == "cancelled"


async def test_a_result_that_comes_after_the_cancel_changes_nothing(scene: Scene) -> None:
    scene.messy = True
    handle, job = await scene.begin()
    await scene.worker.say(job, percent=10)
    await scene.caller.cancel(handle, "no longer wanted")
    await scene.worker.finish(job, text="too late")
    await next_job_is_done(scene)
    history = await scene.caller.history(handle)
    assert heard(history, "final") == ["cancelled"]
    task = await scene.stage.task(handle.task_id)
    assert (task["status"], task["output"]) == ("cancelled", "")


@pytest.mark.parametrize("pair", [(name, "coven") for name in PLAYERS], ids=PLAYERS)
async def test_the_hub_ignores_a_worker_that_cannot_receive_a_cancel(scene: Scene) -> None:
    deaf = await scene.enter(CovenWorker, extensions=())
    handle = await scene.caller.submit(Order(to=deaf.id))
    job = await deaf.take()
    await scene.caller.cancel(handle, "no longer wanted")
    await deaf.say(job, output="I go on")
    await deaf.finish(job, text="too late")
    scene.worker = deaf
    await next_job_is_done(scene)
    assert heard(await scene.caller.history(handle), "final") == ["cancelled"]


async def next_job_is_done(scene: Scene) -> None:
    """The worker is as good as ever; and what it said before was heard before."""
    handle, job = await scene.begin(type="another")
    await scene.worker.finish(job, text="done")
    assert (await scene.caller.history(handle))[-1]["text"] == "done"


async def test_a_failure_reaches_the_caller_with_its_message_and_is_not_retried(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.fail(job, WORDS)
    history = await scene.caller.history(handle)
    assert history[-1]["final"] == "failed"
    assert WORDS in history[-1]["error"].lower()
    task = await scene.stage.task(handle.task_id)
    assert (task["status"], task["attempts"]) == ("failed", 1)
    assert WORDS in task["error"]["message"]
    assert scene.worker.jobs.empty()


@pytest.mark.parametrize("pair", TRIED_AGAIN, ids="-to-".join)
async def test_a_passing_failure_is_retried(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.fail(job, "no room just now", retryable=True)
    again = await scene.worker.take()
    assert (again.id, again.input, again.attempt) == (job.id, job.input, 2)
    await scene.worker.finish(again, text="now it went")
    history = await scene.caller.history(handle)
    assert heard(history, "final") == ["completed"]
    assert history[-1]["text"] == "now it went"


@pytest.mark.parametrize("pair", [pair for pair in SOME if pair != BOTH_A2ACP], ids="-to-".join)
async def test_after_the_last_attempt_the_caller_hears_why(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.fail(job, WORDS, retryable=True)
    for _ in range(ATTEMPTS - 1):
        await scene.worker.fail(await scene.worker.take(), WORDS, retryable=True)
    history = await scene.caller.history(handle)
    assert heard(history, "final") == ["failed"]
    assert WORDS in history[-1]["error"].lower()
    assert (await scene.stage.task(handle.task_id))["attempts"] == ATTEMPTS


@pytest.mark.parametrize("pair", [BOTH_A2ACP], ids="-to-".join)
async def test_under_a_contract_the_caller_decides_whether_to_try_again(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.fail(job, WORDS, retryable=True)
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], end["code"], end["error"]) == ("failed", "RATE_LIMIT_EXCEEDED", WORDS)
    assert scene.worker.jobs.empty()
    await next_job_is_done(scene)


async def test_a_worker_that_dies_and_comes_back_does_the_work_and_its_result_counts_once(scene: Scene) -> None:
    handle, job = await scene.begin(input={"subject": "a pier"})
    await scene.worker.say(job, percent=10)
    await until_running(scene, handle)
    scene.worker.die()
    await soon(scene.worker.come_back())
    again = await scene.worker.take()
    assert (again.id, again.type, again.input, again.attempt) == (job.id, job.type, job.input, 2)
    await scene.worker.finish(again, text="done after all")
    history = await scene.caller.history(handle)
    assert heard(history, "final") == ["completed"]
    assert history[-1]["text"] == "done after all"
    assert (await scene.stage.task(handle.task_id))["attempts"] == 2


async def until_running(scene: Scene, handle: Handle) -> None:
    """The first piece of the history says that the hub has heard it."""
    assert await soon(scene.caller.piece(handle))
