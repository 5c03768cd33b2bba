"""One exchange through the real hub: the order of messages, acknowledgments, errors, and the SDK's side of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bridge.players.stage import Stage
from tests.support import chiffon
from tests.unit.sdk.harness import FakeHub, FakeRuntime, Running

from dragoman import Agent
from dragoman.protocols.chiffon.errors import error
from dragoman.protocols.chiffon.types import WorkResult


@pytest.mark.requirement("CH-FLW-1", "CH-STA-3", "CH-ENV-8")
async def test_the_full_workflow_of_the_document(boss: Any, infra: Any) -> None:
    asked = chiffon.work_request()
    await boss.tells(asked)
    work = await infra.hear()
    assert (work["type"], work["trace_id"]) == ("work_request", asked["trace_id"])
    assert work["payload"] == asked["payload"]
    statuses = [
        chiffon.work_status(work, percent, number=number, status="step_completed")
        for number, percent in enumerate((20, 40, 60, 80, 100), 1)
    ]
    result = chiffon.work_result(work)
    for message in (*statuses, result):
        await infra.tells(message)
    heard = [await boss.hear() for _ in range(6)]
    assert [one["payload"] for one in heard] == [one["payload"] for one in (*statuses, result)]
    assert {(one["trace_id"], one["request_id"]) for one in heard} == {(asked["trace_id"], asked["request_id"])}
    assert {(one["from_agent"], one["to_agent"]) for one in heard} == {("infra", "orchestrator")}


@pytest.mark.requirement("CH-RES-2")
@pytest.mark.parametrize("late", [chiffon.work_status, chiffon.work_result])
async def test_nothing_new_follows_a_result(hub: Stage, boss: Any, infra: Any, work: Any, late: Any) -> None:
    await infra.tells(chiffon.work_result(work, "first"))
    assert (await boss.hear())["payload"]["output"] == "first"
    refused = await infra.refused(late(work, output="second"))
    assert refused["error_code"] == 5003
    task = await hub.task(chiffon.task_of(work))
    assert (task["status"], task["output"]) == ("completed", "first")


async def test_the_very_same_result_twice_is_a_repetition(boss: Any, infra: Any, work: Any) -> None:
    result = chiffon.work_result(work)
    await infra.tells(result)
    await infra.tells(result)
    await boss.hear()
    other = chiffon.work_request(work_type="other")
    await boss.tells(other)
    await infra.tells(chiffon.work_result(await infra.hear()))
    assert (await boss.hear())["request_id"] == other["request_id"]


@pytest.mark.requirement("CH-REQ-2")
async def test_only_the_performer_answers(boss: Any, infra: Any, work: Any) -> None:
    for answer in (chiffon.work_status(work), chiffon.work_result(work)):
        refused = await boss.refused(answer | {"from_agent": "orchestrator"})
        assert refused["error_code"] == 5003
    await infra.tells(chiffon.work_result(work))
    assert (await boss.hear())["type"] == "work_result"


@pytest.mark.requirement("CH-REQ-2")
async def test_an_agent_of_the_sdk_takes_no_result_for_work(agent: Agent, hub_end: FakeHub) -> None:
    runs: list[int] = []
    agent.on("run")(lambda: runs.append(1))
    async with Running(agent, hub_end):
        request = hub_end.request("run")
        await hub_end.next("work_result")
        stray = WorkResult(task_id=request.payload.task_id, status="success", exit_code=0, output="")
        receipt = hub_end.control(request, stray)
        hub_end.request("run")
        await hub_end.next("work_result")
    assert (len(runs), receipt in hub_end.acked) == (2, True)


async def test_an_answer_about_another_task_is_refused(infra: Any, work: Any) -> None:
    strange = chiffon.work_status(work)
    strange["payload"]["task_id"] = chiffon.new_id()
    assert (await infra.refused(strange))["error_code"] == 5003
    await infra.tells(chiffon.work_status(work))


async def test_answers_with_a_request_id_of_their_own_are_found_by_task(boss: Any, infra: Any, work: Any) -> None:
    await infra.tells(chiffon.work_result(work, request_id=chiffon.new_id()))
    assert (await boss.hear())["type"] == "work_result"


ANSWERS: dict[str, Any] = {
    "status": chiffon.work_status,
    "result": chiffon.work_result,
    "error": lambda work: chiffon.error(work, 5006, work_type_requested="run_playbook", supported_types=[]),
}


@pytest.mark.requirement("chiffon-D5")
@pytest.mark.parametrize("answer", ["nothing", *ANSWERS])
async def test_the_first_answer_acknowledges_the_request(infra: Any, work: Any, answer: str) -> None:
    """What the hub still waits for can be acknowledged by `ack`; after any answer nothing is left of it."""
    if answer != "nothing":
        await infra.tells(ANSWERS[answer](work))
    assert await infra.acks(work) == (1 if answer == "nothing" else 0)


@pytest.mark.requirement("CH-ERR-1")
async def test_an_agent_may_send_an_error_outside_any_exchange(infra: Any, work: Any) -> None:
    blue = chiffon.envelope("error", {"error_code": 5005, "error_message": "full", "error_context": {}}, work)
    await infra.tells(blue | {"request_id": chiffon.new_id()})
    await infra.tells(chiffon.work_status(work))


@pytest.mark.requirement("CH-ERR-1")
async def test_the_hub_may_send_an_error_outside_any_exchange(agent: Agent, hub_end: FakeHub) -> None:
    agent.on("run")(lambda: "done")
    async with Running(agent, hub_end):
        request = hub_end.request("run")
        await hub_end.next("work_result")
        hub_end.control(request, error(5005, limit_name="x", available=0, required=1))
        hub_end.request("run")
        assert (await hub_end.next()).type == "work_result"


@pytest.mark.requirement("chiffon-D11")
async def test_a_final_error_ends_the_task_and_copies_the_ids(hub: Stage, boss: Any, infra: Any, work: Any) -> None:
    await infra.tells(chiffon.error(work, 5003, "no", validation_error="no", field_name="playbook"))
    heard = await boss.hear()
    assert (heard["type"], heard["payload"]["error_code"]) == ("error", 5003)
    assert (heard["request_id"], heard["trace_id"]) == (work["request_id"], work["trace_id"])
    assert (await hub.task(chiffon.task_of(work)))["status"] == "failed"


async def test_after_a_retryable_error_the_same_request_comes_again(boss: Any, infra: Any, work: Any) -> None:
    await infra.tells(chiffon.error(work, 5005, limit_name="gpu_vram_mb", available=1, required=2))
    again = await infra.hear()
    assert (again["request_id"], again["payload"]) == (work["request_id"], work["payload"])
    await infra.tells(chiffon.work_result(again))
    assert (await boss.hear())["type"] == "work_result"


@pytest.fixture
def hub_end() -> FakeHub:
    """The other end of an agent's connection."""
    return FakeHub(FakeRuntime())


@pytest.fixture
def agent(hub_end: FakeHub) -> Agent:
    return Agent("worker", runtime=hub_end.runtime)
