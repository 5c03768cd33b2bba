"""Work goes over the bridge, and what came of it comes back."""

from __future__ import annotations

import pytest

from tests.bridge.conftest import Scene
from tests.bridge.players.neutral import Order, heard

pytestmark = pytest.mark.asyncio(loop_scope="session")

INPUT = {"subject": "the bridge", "depth": 3, "ratio": 0.5, "parts": [{"name": "pier", "sound": True}, None]}
RESULT = {"verdict": "sound", "load": [1, 2.5, {"peak": None}], "sure": True}
ODD = "naïve 日本語 🌉 \u202eright to left\u202c e\u0301 \u2028 \x00\x01\x1b[31m\x7f\x85 \t\r\n \\ \" ' </script> end"
"""Everything that somebody on the way might want to escape, strip, normalise or cut."""
MEBIBYTE = 1024 * 1024


async def test_work_arrives_with_its_type_and_input_and_the_result_comes_back(scene: Scene) -> None:
    handle, job = await scene.begin(type="examine", input=INPUT)
    assert (job.type, job.input) == ("examine", INPUT)

    await scene.worker.finish(job, result=RESULT, text="It stands.")
    story = await scene.caller.story(handle)

    end = story[-1]
    assert (end["final"], end["result"], end["text"]) == ("completed", RESULT, "It stands.")
    task = await scene.stage.task(handle.task_id)
    told = (task["status"], task["result"], task["output"], task["protocol_in"], task["protocol_out"])
    assert told == ("completed", RESULT, "It stands.", *scene.names)


async def test_a_result_of_words_alone_comes_back_as_words(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.finish(job, text="It stands.")
    story = await scene.caller.story(handle)
    assert (story[-1]["final"], story[-1]["text"]) == ("completed", "It stands.")


async def test_a_result_without_words_reaches_those_who_only_read_words(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.finish(job, result=RESULT)
    story = await scene.caller.story(handle)
    assert (story[-1]["final"], story[-1]["result"]) == ("completed", RESULT)


async def test_three_mebibytes_of_result_come_back_whole(scene: Scene) -> None:
    text = "".join(f"{number:06} ü\n" for number in range(3 * MEBIBYTE // 10 + 1))
    assert len(text.encode()) > 3 * MEBIBYTE
    handle, job = await scene.begin()
    await scene.worker.say(job, output="a word before, ")
    await scene.worker.finish(job, text=text)
    story = await scene.caller.story(handle)
    assert (story[-1]["final"], story[-1]["text"]) == ("completed", text)
    assert heard(story, "output")[0] == "a word before, "
    assert (await scene.stage.task(handle.task_id))["output"] == text


async def test_three_mebibytes_of_structure_come_back_whole(scene: Scene) -> None:
    result = {"rows": [f"{number:06} ü" for number in range(3 * MEBIBYTE // 12)]}
    handle, job = await scene.begin()
    await scene.worker.finish(job, result=result)
    story = await scene.caller.story(handle)
    assert (story[-1]["final"], story[-1]["result"]) == ("completed", result)


async def test_every_character_arrives_as_it_was_sent(scene: Scene) -> None:
    handle, job = await scene.begin(type="examine", input={"subject": ODD, ODD: [ODD]})
    assert job.input == {"subject": ODD, ODD: [ODD]}

    used = {"id": "t1", "name": "measure", "input": {"what": ODD}}
    await scene.worker.say(job, percent=10, message=ODD)
    await scene.worker.say(job, thinking=ODD)
    await scene.worker.say(job, tool_use=used)
    await scene.worker.say(job, output=ODD)
    await scene.worker.finish(job, result={"said": ODD}, text=ODD)
    story = await scene.caller.story(handle)

    assert heard(story, "message") == [ODD]
    assert heard(story, "thinking") == [ODD]
    assert heard(story, "tool_use") == [used]
    assert heard(story, "output")[0] == ODD
    assert (story[-1]["result"], story[-1]["text"]) == ({"said": ODD}, ODD)


async def test_the_same_request_twice_is_done_once(scene: Scene) -> None:
    order = Order(to=scene.worker.id)
    first = await scene.caller.submit(order)
    second = await scene.caller.submit(order)
    assert second.task_id == first.task_id

    job = await scene.worker.take()
    await scene.worker.finish(job, text="once")
    story = await scene.caller.story(first)
    third = await scene.caller.submit(order)
    assert (third.task_id, story[-1]["text"]) == (first.task_id, "once")
    assert scene.worker.jobs.empty()
    listed = await scene.stage.get("tasks", principal=scene.caller.id)
    assert [(task["id"], task["attempts"]) for task in listed["tasks"]] == [(first.task_id, 1)]

    again = await scene.caller.story(third)
    assert again[-1]["text"] == "once"
