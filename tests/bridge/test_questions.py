"""A worker asks a person: the answer comes exactly once, and the work goes on with it."""

from __future__ import annotations

import pytest

from dragoman.messages.features import Feature
from tests.bridge.conftest import Scene, able_to, is_lost
from tests.bridge.players.neutral import File

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("pair", able_to(Feature.QUESTION), ids="-to-".join),
]

QUESTION = "Which bank shall we start from?"
OPTIONS = ("left", "right")


async def test_a_question_is_answered_once_and_the_work_goes_on(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.ask(job, QUESTION, OPTIONS)
    question = await scene.question(handle)
    assert (question["question"], question["options"]) == (QUESTION, list(OPTIONS))
    waits = await scene.stage.task(handle.task_id)
    assert (waits["status"], waits["waiting"], waits["question"]) == ("waiting", "person", question["id"])

    assert await scene.stage.answer(question["id"], "middle") == 422
    assert await scene.stage.answer(question["id"], "left") == 200
    assert await scene.stage.answer(question["id"], "right") == 409
    job = await scene.worker.answered(job)

    assert job.answer == "left"
    await scene.worker.finish(job, text=f"started {job.answer}")
    history = await scene.caller.history(handle)
    assert [piece["final"] for piece in history if "final" in piece] == ["completed"]
    assert history[-1]["text"] == "started left"
    assert (await scene.stage.task(handle.task_id))["status"] == "completed"


async def test_the_job_with_the_answer_is_still_the_same_job(scene: Scene) -> None:
    files = () if is_lost(Feature.ATTACHMENT, scene) else (File("plan.txt", b"of the bridge"),)
    handle, job = await scene.begin(type="build", input={"subject": "a pier"}, attachments=files)
    await scene.worker.ask(job, QUESTION)
    answer = {"bank": "left", "why": ["shallow", "dry"]}
    assert await scene.stage.answer((await scene.question(handle))["id"], answer) == 200
    again = await scene.worker.answered(job)
    assert (again.id, again.type, again.input, again.answer) == (job.id, "build", {"subject": "a pier"}, answer)
    assert again.attachments == files
    await scene.worker.finish(again, text="built")
    assert (await scene.caller.history(handle))[-1]["text"] == "built"


async def test_a_second_question_has_an_answer_of_its_own(scene: Scene) -> None:
    handle, job = await scene.begin()
    answers = []
    for words, answer in (("First?", "one"), ("Second?", "two")):
        await scene.worker.ask(job, words)
        question = await scene.question(handle)
        assert question["question"] == words
        assert await scene.stage.answer(question["id"], answer) == 200
        job = await scene.worker.answered(job)
        answers.append(job.answer)
    await scene.worker.finish(job, text="done")
    assert answers == ["one", "two"]
    assert (await scene.caller.history(handle))[-1]["final"] == "completed"
