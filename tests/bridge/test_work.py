"""Work goes over the bridge, and what came of it comes back."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.bridge.conftest import PAIRS, SOME, Scene, told_of
from tests.bridge.players.a2acp import A2acpWorker, Refusal
from tests.bridge.players.neutral import Order, Unsayable, heard

pytestmark = pytest.mark.asyncio(loop_scope="session")

INPUT = {"subject": "the bridge", "depth": 3, "ratio": 0.5, "parts": [{"name": "pier", "sound": True}, None]}
RESULT = {"verdict": "sound", "load": [1, 2.5, {"peak": None}], "sure": True}
ODD = "naïve 日本語 🌉 \u202eright to left\u202c e\u0301 \u2028 \x00\x01\x1b[31m\x7f\x85 \t\r\n \\ \" ' </script> end"
"""Everything that code on the way might escape, strip, normalise or cut."""
MEBIBYTE = 1024 * 1024
UNLIMITED = [pair for pair in SOME if "a2acp" not in pair]
LIMITED = [pair for pair in PAIRS if "a2acp" in pair]
"""A2acp's messages have a megabyte at most."""
REPEATED = [pair for pair in PAIRS if pair[0] != "a2acp"]


async def test_work_arrives_with_its_type_and_input_and_the_result_comes_back(scene: Scene) -> None:
    handle, job = await scene.begin(type="examine", input=INPUT)
    assert (job.type, job.input) == ("examine", INPUT)

    await scene.worker.finish(job, result=RESULT, text="It stands.")
    history = await scene.caller.history(handle)

    end = history[-1]
    expected = told_of(scene, RESULT, "It stands.")
    assert {name: end.get(name) for name in ("final", *expected)} == {"final": "completed", **expected}
    task = await scene.stage.task(handle.task_id)
    told = (task["status"], task["result"], task["output"], task["protocol_in"], task["protocol_out"])
    assert told == ("completed", expected["result"], "It stands.", *scene.names)


async def test_a_result_of_text_alone_comes_back_as_text(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.finish(job, text="It stands.")
    history = await scene.caller.history(handle)
    assert (history[-1]["final"], history[-1]["text"]) == ("completed", "It stands.")


async def test_a_result_without_text_reaches_callers_that_only_read_text(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.finish(job, result=RESULT)
    history = await scene.caller.history(handle)
    assert (history[-1]["final"], history[-1]["result"]) == ("completed", RESULT)


@cache
def numbered_lines(count: int) -> str:
    """A text in which a line that is missing or stands twice shows; made once for all pairs."""
    return "".join(f"{number:06} ü\n" for number in range(count))


@pytest.mark.parametrize("pair", UNLIMITED, ids="-to-".join)
async def test_three_mebibytes_of_result_come_back_whole(scene: Scene) -> None:
    text = numbered_lines(3 * MEBIBYTE // 10 + 1)
    assert len(text.encode()) > 3 * MEBIBYTE
    handle, job = await scene.begin()
    await scene.worker.say(job, output="a word before, ")
    await scene.worker.finish(job, text=text)
    history = await scene.caller.history(handle)
    assert (history[-1]["final"], history[-1]["text"]) == ("completed", text)
    assert heard(history, "output")[0] == "a word before, "
    assert (await scene.stage.task(handle.task_id))["output"] == text


@pytest.mark.parametrize("pair", UNLIMITED, ids="-to-".join)
async def test_three_mebibytes_of_structure_come_back_whole(scene: Scene) -> None:
    result = {"rows": [f"{number:06} ü" for number in range(3 * MEBIBYTE // 12)]}
    handle, job = await scene.begin()
    await scene.worker.finish(job, result=result)
    history = await scene.caller.history(handle)
    assert (history[-1]["final"], history[-1]["result"]) == ("completed", result)


@pytest.mark.parametrize("pair", LIMITED, ids="-to-".join)
async def test_what_exceeds_a_message_is_never_sent_in_part(scene: Scene) -> None:
    """Who can say it has done the work; who cannot hear it is told so."""
    text = numbered_lines(2 * MEBIBYTE // 10)
    handle, job = await scene.begin()
    if scene.names[1] == "a2acp":
        with pytest.raises(Unsayable):
            await scene.worker.finish(job, text=text)
        return
    await scene.worker.finish(job, text=text)
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], end["code"]) == ("failed", "SCHEMA_MISMATCH")
    task = await scene.stage.task(handle.task_id)
    assert (task["status"], task["output"]) == ("completed", text)


@pytest.mark.parametrize("pair", [pair for pair in LIMITED if pair[0] != "a2acp"], ids="-to-".join)
async def test_more_than_a_message_may_have_is_not_asked_of_an_a2acp_agent(scene: Scene) -> None:
    scene.messy = True
    handle = await scene.caller.submit(Order(to=scene.worker.id, input={"text": "ü" * MEBIBYTE}))
    assert (await scene.caller.history(handle))[-1]["final"] == "failed"
    _, job = await scene.begin(type="another")
    assert job.type == "another"  # and nothing was before it


@pytest.mark.parametrize("pair", [("chiffon", "a2acp")], ids="-to-".join)
async def test_nor_of_one_that_polls(scene: Scene) -> None:
    poller = await scene.enter(A2acpPoller)
    handle = await scene.caller.submit(Order(to=poller.id, input={"text": "ü" * MEBIBYTE}))
    after = await scene.caller.submit(Order(to=poller.id, type="another"))
    [message] = await poller.poll()
    assert message["intent"] == "another"
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], "larger" in end["error"]) == ("failed", True)
    assert (await scene.stage.task(after.task_id))["status"] == "assigned"


class A2acpPoller(A2acpWorker):
    """Over HTTP alone."""

    connect = A2acpWorker.register

    async def leave(self) -> None:
        pass

    async def poll(self) -> list[dict[str, Any]]:
        answer = await self.stage.http.get("/a2acp/messages", params={"wait": 30}, headers=self.bearer)
        assert answer.status_code == 200, answer.text
        return [one["message"] for one in answer.json()["messages"]]


async def test_every_character_arrives_as_it_was_sent(scene: Scene) -> None:
    handle, job = await scene.begin(type="examine", input={"subject": ODD, ODD: [ODD]})
    assert job.input == {"subject": ODD, ODD: [ODD]}

    used = {"id": "t1", "name": "measure", "input": {"what": ODD}}
    await scene.worker.say(job, percent=10, message=ODD)
    await scene.worker.say(job, thinking=ODD)
    await scene.worker.say(job, tool_use=used)
    await scene.worker.say(job, output=ODD)
    await scene.worker.finish(job, result={"said": ODD}, text=ODD)
    history = await scene.caller.history(handle)

    assert heard(history, "message") == [ODD]
    assert heard(history, "thinking") == [ODD]
    assert heard(history, "tool_use") == [used]
    assert heard(history, "output")[0] == ODD
    expected = told_of(scene, {"said": ODD}, ODD)
    assert {name: history[-1].get(name) for name in expected} == expected


@pytest.mark.parametrize("pair", REPEATED, ids="-to-".join)
async def test_the_same_request_twice_is_done_once(scene: Scene) -> None:
    order = Order(to=scene.worker.id)
    first = await scene.caller.submit(order)
    second = await scene.caller.submit(order)
    assert second.task_id == first.task_id

    job = await scene.worker.take()
    await scene.worker.finish(job, text="once")
    history = await scene.caller.history(first)
    third = await scene.caller.submit(order)
    assert (third.task_id, history[-1]["text"]) == (first.task_id, "once")
    assert scene.worker.jobs.empty()
    listed = await scene.stage.get("tasks", principal=scene.caller.id)
    assert [(task["id"], task["attempts"]) for task in listed["tasks"]] == [(first.task_id, 1)]

    again = await scene.caller.history(third)
    assert again[-1]["text"] == "once"


@pytest.mark.parametrize("pair", [pair for pair in REPEATED if "a2acp" not in pair], ids="-to-".join)
async def test_a_repeated_request_gets_a_long_answer_whole(scene: Scene) -> None:
    """Also where it came in parts, and only the last of them with the outcome."""
    text = numbered_lines(2 * MEBIBYTE // 10)
    order = Order(to=scene.worker.id)
    handle = await scene.caller.submit(order)
    await scene.worker.finish(await scene.worker.take(), text=text)
    assert (await scene.caller.history(handle))[-1]["text"] == text
    handle = await scene.caller.submit(order)
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], end["text"]) == ("completed", text)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[0] == "a2acp"], ids="-to-".join)
async def test_a2acp_takes_a_message_once_and_never_again(scene: Scene) -> None:
    """Also with the same content (a2acp-D15): a caller that asks again writes a new message."""
    order = Order(to=scene.worker.id)
    handle = await scene.caller.submit(order)
    job = await scene.worker.take()
    for done in (False, True):
        if done:
            await scene.worker.finish(job, text="once")
            assert (await scene.caller.history(handle))[-1]["text"] == "once"
        with pytest.raises(Refusal, match="used before") as refused:
            await scene.caller.submit(order)
        assert refused.value.code == "AUTH_FAILED"
    assert scene.worker.jobs.empty()
    assert len((await scene.stage.get("tasks", principal=scene.caller.id))["tasks"]) == 1
