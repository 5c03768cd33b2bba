"""A person is asked: with and without waiting, over restarts, in time and too late."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.forge import PATIENCE, ForgeHub, ForgePeer, soon

from dragoman.core.commands import Answer, Cancel
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, QuestionId
from dragoman.core.model.tasks import QuestionDetails, QuestionStatus, Status

OPTIONS = [{"label": "OAuth 2.0", "value": "oauth"}, {"label": "JWT", "value": "jwt"}]


async def at_work(hub: ForgeHub) -> tuple[ForgePeer, str]:
    planner, worker = await hub.connect("planner-1"), await hub.connect("worker-1")
    id = (await planner.ask("submit-task", type="x", agent="worker-1"))["task"]["id"]
    await worker.notice("task-assigned")
    return worker, id


async def question(hub: ForgeHub) -> Any:
    [asked] = await hub.world.store.questions()
    return asked


async def asked(hub: ForgeHub, worker: ForgePeer, **payload: Any) -> str:
    """The question is put, and in the store."""
    message = worker.message("request:ask-user", {"question": "Which method?", "options": OPTIONS, **payload})
    await worker.say(message)
    await worker.ask("query-agents")  # behind it
    id: str = message["id"]
    return id


@pytest.mark.requirement("FG-ASK-2", "forge-D8")
async def test_the_answer_is_the_response(hub: ForgeHub) -> None:
    worker, task = await at_work(hub)
    id = await asked(hub, worker, timeout=300_000)
    put = await question(hub)
    assert (put.question, list(put.options), put.agent, put.task) == ("Which method?", OPTIONS, "worker-1", task)
    assert (await hub.world.task(task)).status is Status.WAITING  # type: ignore[arg-type]
    await hub.world.advance(120)  # four times a request's own time
    await hub.world.ask(Answer(principal=ADMIN, question=put.id, answer="oauth"))
    answer = await worker.response(id)
    assert answer["answer"] == "oauth"
    assert answer["metadata"]["answeredAt"] == "2027-01-15T08:02:00Z"
    assert (await hub.world.refused(Answer(principal=ADMIN, question=put.id, answer="jwt"))).kind.value == "conflict"
    assert (await hub.world.task(task)).status is Status.RUNNING  # type: ignore[arg-type]


async def test_a_hub_that_stops_does_not_wait_for_a_person(hub: ForgeHub) -> None:
    worker, task = await at_work(hub)
    await asked(hub, worker, timeout=300_000)
    await soon(hub.endpoint.drain(2 * PATIENCE))
    assert (await worker.notice("shutdown"))["gracePeriod"] == 30_000
    assert (await hub.world.task(task)).status is Status.WAITING  # type: ignore[arg-type]


@pytest.mark.requirement("forge-D8", "FG-ASK-1", "FG-COR-2")
async def test_nobody_answers_in_time(hub: ForgeHub) -> None:
    worker, _ = await at_work(hub)
    id = await asked(hub, worker, timeout=60_000)
    await hub.world.advance(61)
    refused = await worker.response(id)
    assert (refused["code"], refused["details"]["reason"], refused["details"]["retryable"]) == (
        "TIMEOUT",
        "timeout",
        True,
    )
    assert (await question(hub)).status is QuestionStatus.EXPIRED  # a late answer finds nothing to answer


@pytest.mark.requirement("forge-D8", "FG-TMO-1")
async def test_a_question_without_a_time_of_its_own_is_a_request_like_any_other(hub: ForgeHub) -> None:
    worker, _ = await at_work(hub)
    id = await asked(hub, worker)
    await hub.world.advance(29)
    assert (await question(hub)).status is QuestionStatus.OPEN
    await hub.world.advance(2)
    assert (await worker.response(id))["code"] == "TIMEOUT"
    hub.handler.request_seconds = 5  # `forge.request_seconds`
    id = await asked(hub, worker)
    await hub.world.advance(6)
    assert (await worker.response(id))["code"] == "TIMEOUT"


@pytest.mark.parametrize("end", ["cancelled", "timed out"])
async def test_an_agent_that_waits_for_an_answer_learns_that_its_task_ended_first(hub: ForgeHub, end: str) -> None:
    worker = await hub.connect("worker-1")
    due = Instant(hub.world.time + 600 * SECOND)
    task = await hub.world.submit(None, principal=ADMIN, pinned=AgentId("worker-1"), deadline=due, firm=True)
    await worker.notice("task-assigned")
    id = await asked(hub, worker, timeout=3_600_000)
    if end == "cancelled":
        await hub.world.ask(Cancel(principal=ADMIN, task_id=task.id, reason="no longer wanted"))
    else:
        await hub.world.advance(601)
    assert (await worker.notice("task-cancelled"))["taskId"] == task.id
    assert worker.received == []  # first why, then what comes of it
    refused = await worker.response(id)
    assert (refused["code"], refused["details"]["reason"]) == ("INVALID_REQUEST", "cancelled")
    assert (await question(hub)).status is QuestionStatus.WITHDRAWN


async def test_an_agent_that_ends_its_task_over_its_own_question_has_an_answer_to_both(hub: ForgeHub) -> None:
    worker, task = await at_work(hub)
    id = await asked(hub, worker, timeout=3_600_000)
    done = await worker.ask("update-task", taskId=task, status="completed", result={"ok": True})
    assert done["task"]["status"] == "completed"
    refused = await worker.response(id)
    assert (refused["code"], refused["details"]["reason"]) == ("INVALID_REQUEST", "cancelled")


async def test_a_default_stands_in(hub: ForgeHub) -> None:
    worker, _ = await at_work(hub)
    id = await asked(hub, worker, timeout=60_000, default="jwt")
    await hub.world.advance(61)
    answer = await worker.response(id)
    assert (answer["answer"], answer["metadata"]["default"]) == ("jwt", True)


@pytest.mark.requirement("forge-D8")
async def test_an_answer_finds_the_agent_that_was_away(hub: ForgeHub) -> None:
    worker, _ = await at_work(hub)
    id = await asked(hub, worker)
    put = await question(hub)
    await worker.close()
    worker = await hub.connect("worker-1")
    await hub.world.ask(Answer(principal=ADMIN, question=put.id, answer="jwt"))
    assert (await worker.response(id))["answer"] == "jwt"


@pytest.mark.requirement("forge-D8")
async def test_a_question_survives_the_hub(hub: ForgeHub) -> None:
    worker, _ = await at_work(hub)
    id = await asked(hub, worker, timeout=300_000)
    put = await question(hub)
    await hub.restart()
    worker = await hub.connect("worker-1")
    await hub.world.ask(Answer(principal=ADMIN, question=put.id, answer="oauth"))
    assert (await worker.response(id))["answer"] == "oauth"


async def test_asking_again_under_the_same_id_is_the_same_question(hub: ForgeHub) -> None:
    worker, _ = await at_work(hub)
    message = worker.message("request:ask-user", {"question": "Which?"})
    await worker.say(message)
    await worker.say(message)
    await worker.ask("query-agents")
    put = await question(hub)
    await hub.world.ask(Answer(principal=ADMIN, question=put.id, answer=1))
    assert (await worker.response(message["id"]))["answer"] == 1
    await worker.say(message)
    assert (await worker.response(message["id"]))["answer"] == 1


@pytest.mark.requirement("FG-EVT-5", "forge-D8")
async def test_a_question_that_does_not_block(hub: ForgeHub) -> None:
    worker, task = await at_work(hub)
    id = await worker.tell("question", question="Break things?", context={"affectedFiles": 15}, taskId=task)
    assert (await worker.ask("update-task", taskId=task, status="running", progress=0.5))["task"]["status"] == "running"
    put = await question(hub)
    assert put.details == QuestionDetails(context={"affectedFiles": 15})
    await hub.world.ask(Answer(principal=ADMIN, question=put.id, answer=False))
    assert await worker.notice("question-answered") == {
        "questionId": id, "question": "Break things?", "answer": False, "taskId": task,
        "answeredAt": "2027-01-15T08:00:00Z",
    }  # fmt: skip


async def test_a_question_without_a_task(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    message = planner.message("request:ask-user", {"question": "What next?"})
    await planner.say(message)
    await planner.ask("query-agents")
    put = await question(hub)
    assert put.task is None
    await hub.world.ask(Answer(principal=ADMIN, question=QuestionId(put.id), answer="rest"))
    assert (await planner.response(message["id"]))["answer"] == "rest"


@pytest.mark.requirement("FG-SEC-4", "forge-D13")
async def test_what_people_are_shown_is_kept_as_it_came(hub: ForgeHub) -> None:
    """Escaping is done where it is shown: in the command line, in the page."""
    hostile = "<img onerror=alert(1)> \x1b[31m \u202e"
    worker, _ = await at_work(hub)
    await asked(hub, worker, question=hostile)
    assert (await question(hub)).question == hostile
