"""A message of coven may have 16 MiB, and one of most other protocols half of that: what does not fit is told in short.

Nobody's connection breaks over it, and people find the whole with the task.
"""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.messages.brevity import CUT
from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.neutral import heard

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("pair", [(name, "coven") for name in PLAYERS], ids=PLAYERS),
]

LONG = "x" * 9 * 1024 * 1024
SHORT = 5 * 1024 * 1024
"""More than anything that is told in short."""


def is_told_in_short(words: Any) -> bool:
    return len(words) < SHORT and words.startswith("xxx") and words.endswith(CUT)


async def test_long_thoughts_and_tools_are_cut_where_no_message_holds_them(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.say(job, thinking=LONG)
    await scene.worker.say(job, tool_use={"id": "t1", "name": "read", "input": {"path": LONG}})
    await scene.worker.say(job, tool_result={"id": "t1", "output": LONG, "is_error": False})
    await scene.worker.finish(job, text="done")
    history = await scene.caller.history(handle)

    assert history[-1]["text"] == "done"
    told = [*heard(history, "thinking"), *(result["output"] for result in heard(history, "tool_result"))]
    used = [tool["input"] for tool in heard(history, "tool_use")]
    if scene.caller.protocol == "coven":
        assert (told, used) == ([LONG, LONG], [{"path": LONG}])
    elif scene.caller.protocol == "a2acp":
        assert (told, used) == ([], [])  # where even less fits
    else:
        assert [is_told_in_short(words) for words in told] == [True, True]
        assert [words.startswith('{"path":"xxx') and len(words) < SHORT for words in used] == [True]


async def test_a_long_reason_of_a_failure_is_shortened_on_the_wire_and_kept_whole(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.fail(job, LONG)
    history = await scene.caller.history(handle)

    assert history[-1]["final"] == "failed"
    task = await scene.stage.task(handle.task_id)
    assert is_told_in_short(task["error"]["message"])  # it stands in lists
    events = await scene.stage.admin.get(f"/api/v1/tasks/{handle.task_id}/events")
    assert LONG in events.text


async def test_a_long_answer_arrives_as_far_as_a_message_holds_it(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.finish(job, text=LONG)
    history = await scene.caller.history(handle)

    assert (await scene.stage.task(handle.task_id))["output"] == LONG
    if scene.caller.protocol == "a2acp":
        assert history[-1]["final"] == "failed"  # half of it would be nothing
    elif scene.caller.protocol == "agentmsg":
        assert is_told_in_short(history[-1]["text"])
    else:
        assert history[-1]["text"] == LONG
