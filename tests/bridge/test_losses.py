"""The table of losses against what really happens: every feature over every pair.

What the table calls lost is not heard; everything else is, exactly or in other words. A speaker whose protocol has no
word for something is never heard with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from dragoman.messages.brevity import CUT, LONGEST_TEXT
from dragoman.messages.features import LONGEST_FAULT, TO_AGENT, TO_CALLER, Carriage, Feature, matrix
from dragoman.protocols.features import FEATURES
from tests.bridge.conftest import Scene, arrives
from tests.bridge.players import PLAYERS
from tests.bridge.players.neutral import PATIENCE, File, Order, Piece, Unsayable, heard
from tests.bridge.players.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

F = Feature
FILE = File("plan.bin", bytes(range(256)))
HOURS = 7200
QUESTION = "Which bank shall we start from?"
WORDS = "the third pier is missing"
USAGE = {"duration_seconds": 7, "gpu_vram_mb": 0, "cpu_time_ms": 5, "cost_usd": 0.25}
AROUND = {
    "metadata": {"river": {"wide": 40}},
    "history": [{"timestamp": "2026-03-01T12:00:00Z", "event_type": "flooded", "details": {"metres": 2}}],
}
Trial = Callable[[Scene], Awaitable[bool]]


# -- towards the agent ---------------------------------------------------------------------------------------------


def ordered(name: str, value: Any) -> Trial:
    """The job says of itself what the order said."""

    async def trial(scene: Scene) -> bool:
        _, job = await scene.begin(**{name: value})
        return bool(getattr(job, name) == value)

    return trial


async def describes(scene: Scene) -> bool:
    _, job = await scene.begin(description=WORDS)
    return WORDS in (job.description or "")


async def ranks(scene: Scene) -> bool:
    """The hub obeys; every agent that learns of it reads the same."""
    handle, job = await scene.begin(priority="high")
    assert job.priority in (None, "high")
    return bool((await scene.stage.task(handle.task_id))["priority"] == "high")


async def limits(scene: Scene) -> bool:
    handle, job = await scene.begin(deadline=HOURS)
    task = await scene.stage.task(handle.task_id)
    ends = datetime.fromisoformat(task["deadline"])
    assert job.deadline in (None, ends)
    assert (job.seconds is not None) is (scene.worker.protocol == "chiffon")
    assert abs((job.seconds or HOURS) - HOURS) < PATIENCE
    allowed = ends - datetime.fromisoformat(task["created_at"])
    # where a deadline is said as a time of day, the way to the hub took some of it, and two clocks are never one
    return abs(allowed - timedelta(seconds=HOURS)) < timedelta(seconds=PATIENCE)


async def depends(scene: Scene) -> bool:
    first, job = await scene.begin()
    order = Order(to=scene.worker.id, dependencies=(first.task_id,), type="after")
    second = await scene.caller.submit(order)
    assert (await scene.stage.task(second.task_id))["waiting"] == "dependency"
    await scene.worker.finish(job, text="done")
    return (await scene.worker.take()).type == "after"


async def cancels(scene: Scene) -> bool:
    handle, job = await scene.begin()
    await scene.caller.cancel(handle, "no longer wanted")
    await scene.worker.until_cancelled(job)
    return True


async def answers(scene: Scene) -> bool:
    handle, job = await scene.begin()
    await scene.worker.ask(job, QUESTION)
    assert await scene.stage.answer((await scene.question(handle))["id"], {"bank": "left"}) == 200
    return bool((await scene.worker.answered(job)).answer == {"bank": "left"})


async def budgets(scene: Scene) -> bool:
    """It is set aside before the worker has the task; every agent that learns of it reads the same."""
    _, job = await scene.begin(budget=0.5)
    assert job.budget in (None, 0.5)
    return bool((await scene.stage.account(scene.worker.id))["allocated"] == 0.5)


async def surrounds(scene: Scene) -> bool:
    _, job = await scene.begin(context=AROUND)
    return job.context == AROUND


async def pauses(scene: Scene) -> bool:
    handle, job = await scene.begin()
    await scene.worker.say(job, percent=10)
    await scene.caller.pause(handle)
    heard = [await scene.worker.hears()]
    await scene.caller.resume(handle)
    return [*heard, await scene.worker.hears()] == ["paused", "running"]


async def helps(scene: Scene) -> bool:
    asker = await scene.enter(PLAYERS[scene.names[0]].worker)
    job = await scene.given_to(asker)
    await asker.ask_for_help(job, QUESTION, scene.worker.id)
    return await scene.worker.help("from the left") == QUESTION


async def hands_over(scene: Scene) -> bool:
    owner = await scene.enter(PLAYERS[scene.names[0]].worker)
    job = await scene.given_to(owner)
    await owner.hand_over(job, scene.worker.id, {"found": ["cracks"]})
    told = (await scene.worker.take_over()).handover or {}
    return bool(told.get("from") == owner.id and told["metadata"] == {"found": ["cracks"]})


async def writes(scene: Scene) -> bool:
    sender = await scene.enter(PLAYERS[scene.names[0]].worker)
    try:
        await sender.write(scene.worker.id, WORDS)
    except AssertionError:
        return False
    return await scene.worker.reads() == WORDS


# -- towards the caller --------------------------------------------------------------------------------------------


def told(name: str, value: Any) -> Trial:
    """The history has what the worker said."""

    async def trial(scene: Scene) -> bool:
        handle, job = await scene.begin()
        await scene.worker.say(job, **{name: value})
        await scene.worker.finish(job, text="done")
        return value in heard(await scene.caller.history(handle), name)

    return trial


def ended(name: str, value: Any, wanted: Callable[[Piece], bool]) -> Trial:
    async def trial(scene: Scene) -> bool:
        handle, job = await scene.begin()
        await scene.worker.finish(job, **{name: value})
        return wanted((await scene.caller.history(handle))[-1])

    return trial


async def questions(scene: Scene) -> bool:
    handle, job = await scene.begin()
    await scene.worker.ask(job, QUESTION)
    assert await scene.stage.answer((await scene.question(handle))["id"], "left") == 200
    await scene.worker.finish(await scene.worker.answered(job), text="done")
    history = await scene.caller.history(handle)
    told = [words for name in ("question", "message", "thinking") for words in heard(history, name)]
    return any(QUESTION in words for words in told)


async def fails(scene: Scene) -> bool:
    handle, job = await scene.begin()
    await scene.worker.fail(job, WORDS)
    end = (await scene.caller.history(handle))[-1]
    return end["final"] == "failed" and WORDS in end["error"].lower()


async def exits(scene: Scene) -> bool:
    handle, job = await scene.begin()
    await scene.worker.fail(job, WORDS, exit_code=3)
    return (await scene.caller.history(handle))[-1].get("exit_code") == 3


TRIALS: Mapping[Feature, Trial] = {
    F.WORK_TYPE: ordered("type", "demolish"),
    F.INPUT: ordered("input", {"deep": [{"er": None}], "n": 1.5}),
    F.PRIORITY: ranks,
    F.DEADLINE: limits,
    F.DEPENDENCIES: depends,
    F.DESCRIPTION: describes,
    F.THREAD: ordered("thread", "thread-7"),
    F.ATTACHMENT: ordered("attachments", (FILE,)),
    F.BUDGET: budgets,
    F.LIMITS: ordered("limit", 1),
    F.CONTEXT: surrounds,
    F.CANCEL: cancels,
    F.PAUSE: pauses,
    F.ANSWER: answers,
    F.HELP: helps,
    F.HANDOVER: hands_over,
    F.DIRECT_MESSAGE: writes,
    F.PERCENT: told("percent", 42),
    F.MESSAGE: told("message", "halfway over"),
    F.STEP: told("step", {"number": 2, "name": "piers", "total": 4}),
    F.OUTPUT: told("output", "stone upon stone"),
    F.THINKING: told("thinking", "is it deep?"),
    F.TOOL_USE: told("tool_use", {"id": "t1", "name": "measure", "input": {"span": 1}}),
    F.TOOL_RESULT: told("tool_result", {"id": "t1", "output": "42 m", "is_error": True}),
    F.FILE: told("file", FILE),
    F.QUESTION: questions,
    F.RESULT: ended("result", {"verdict": [1, None]}, lambda end: end.get("result") == {"verdict": [1, None]}),
    F.TEXT: ended("text", "It stands.", lambda end: end.get("text") == "It stands."),
    F.FAILURE: fails,
    F.EXIT_CODE: exits,
    F.USAGE: ended("usage", USAGE, lambda end: end.get("usage") == USAGE),
}


@pytest.mark.parametrize("feature", Feature, ids=lambda feature: feature.name.lower())
async def test_what_is_lost_is_what_the_table_says(scene: Scene, feature: Feature) -> None:
    try:
        arrived = await TRIALS[feature](scene)
    except Unsayable:
        arrived = False
    cell = arrives(feature, scene.names)
    assert arrived == (cell.how is not Carriage.LOST), cell


# -- what is cut


async def cut_aside(scene: Scene, name: str, most: int) -> str:
    handle, job = await scene.begin()
    await scene.worker.say(job, **{name: "x" * (most + 1000)})
    await scene.worker.finish(job, text="done")
    return "".join(heard(await scene.caller.history(handle), name))


async def cut_reason(scene: Scene, name: str, most: int) -> str:
    handle, job = await scene.begin()
    await scene.worker.fail(job, "x" * (most + 1000))
    return str((await scene.caller.history(handle))[-1][name])


async def cut_text(scene: Scene, name: str, most: int) -> str:
    handle, job = await scene.begin()
    await scene.worker.finish(job, text="x" * (most + 1000))
    return str((await scene.caller.history(handle))[-1][name])


CUT_SHORT: Mapping[Feature, tuple[Callable[[Scene, str, int], Awaitable[str]], str, int]] = {
    F.MESSAGE: (cut_aside, "message", LONGEST_TEXT),
    F.THINKING: (cut_aside, "thinking", LONGEST_TEXT),
    F.FAILURE: (cut_reason, "error", LONGEST_FAULT),
    F.TEXT: (cut_text, "text", LONGEST_TEXT),
}
WHOLE_LINES = {F.MESSAGE: ("a2acp",), F.THINKING: ("a2acp",), F.FAILURE: ("chiffon",), F.TEXT: ("a2acp", "chiffon")}
"""Agents who cannot say so much at once, or whose words the hub sums up itself."""
NOT_AT_ALL = ("a2acp",)
"""Callers to whom what is longer than their messages is not told, but for reasons."""


TRIED = [
    pytest.param((caller, agent), feature, id=f"{caller}-to-{agent}-{feature.name.lower()}")
    for caller in PLAYERS
    for agent in PLAYERS
    for feature in CUT_SHORT
    if agent not in WHOLE_LINES[feature] and (caller not in NOT_AT_ALL or feature is F.FAILURE)
]


@pytest.mark.parametrize(("pair", "feature"), TRIED)
async def test_what_is_longer_than_the_table_says_is_cut_and_says_so(scene: Scene, feature: Feature) -> None:
    trial, name, most = CUT_SHORT[feature]
    told = await trial(scene, name, most)
    cut_above = arrives(feature, scene.names).cut_above
    assert told == ("x" * (most + 1000) if cut_above is None else "x" * cut_above + CUT)


async def test_every_feature_has_a_direction_and_a_trial() -> None:
    assert set(TRIALS) == set(Feature) == {*TO_AGENT, *TO_CALLER}
    assert not set(TO_AGENT) & set(TO_CALLER)


async def test_every_protocol_of_the_bridge_tests_says_what_it_can_carry() -> None:
    assert set(PLAYERS) == set(FEATURES)


async def test_whatever_is_not_exact_says_why() -> None:
    for name, column in FEATURES.items():
        for cells in (column.caller_sends, column.agent_receives, column.agent_sends, column.caller_receives):
            for feature, cell in cells.items():
                assert cell.note, f"{name}: {feature}"


async def test_people_can_read_the_table(stage: Stage) -> None:
    answer = await stage.admin.get("/api/v1/losses")
    assert answer.status_code == 200, answer.text
    served = {(pair["caller"], pair["agent"]): pair["losses"] for pair in answer.json()["pairs"]}
    for pair in matrix(FEATURES.values(), FEATURES.values()):
        told = served[pair.caller, pair.agent]
        assert [(loss["feature"], loss["how"], loss["cut_above"]) for loss in told] == [
            (loss.feature, loss.how, loss.cut_above) for loss in pair.losses
        ]
