"""Budgets hold for tasks of every protocol: what cannot be paid for nobody ever sees (agentmsg-D10)."""

from __future__ import annotations

from itertools import product

import pytest

from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.agentmsg import AgentmsgWorker
from tests.bridge.players.neutral import Order

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_agent_without_budget_gets_no_task(scene: Scene) -> None:
    scene.messy = True
    await scene.stage.allot(scene.worker.id, 0)
    with pytest.raises(AssertionError, match=r"may use 0 USD: 0 are used, 0 set aside.*, 0 remain") as refused:
        await scene.caller.submit(Order(to=scene.worker.id))
    told = str(refused.value)
    assert "asks for" not in told
    assert "constraints." not in told  # it named no amount
    assert "'retryable': True" not in told
    wish = {"type": "examine", "agent": scene.worker.id, "priority": "critical"}
    refused = await scene.stage.admin.post("/api/v1/tasks", json=wish)
    assert refused.status_code == 422, refused.text
    assert "0 remain" in refused.text
    assert (await scene.stage.get("tasks", agent=scene.worker.id))["tasks"] == []

    version = (await scene.stage.account(scene.worker.id))["version"]
    await scene.stage.allot(scene.worker.id, 1, version=version)
    handle, job = await scene.begin(type="paid for")
    assert job.type == "paid for"  # and nothing was before it
    await scene.worker.finish(job, text="done")
    assert (await scene.caller.history(handle))[-1]["text"] == "done"


@pytest.mark.parametrize("pair", [("agentmsg", name) for name in PLAYERS], ids=PLAYERS)
async def test_a_budget_is_set_aside_and_given_back(scene: Scene) -> None:
    await scene.stage.allot(scene.worker.id, 1)
    with pytest.raises(AssertionError, match="asks for 2 USD"):
        await scene.caller.submit(Order(to=scene.worker.id, budget=2))
    handle, job = await scene.begin(budget=0.75)
    assert (await scene.stage.account(scene.worker.id))["allocated"] == 0.75
    wish = {"type": "next", "agent": scene.worker.id, "budget": 0.5}
    made = await scene.stage.admin.post("/api/v1/tasks", json=wish)
    assert (made.status_code, made.json()["status"]) == (202, "queued")  # it must only wait

    await scene.worker.finish(job, text="done")
    assert (await scene.worker.take()).type == "next"
    assert (await scene.stage.account(scene.worker.id))["allocated"] == 0.5
    assert (await scene.caller.history(handle))[-1]["final"] == "completed"


@pytest.mark.parametrize("pair", [("agentmsg", name) for name in PLAYERS if name != "agentmsg"], ids="-to-".join)
async def test_no_agent_takes_over_a_task_that_it_cannot_pay_for(scene: Scene) -> None:
    owner: AgentmsgWorker = await scene.enter(AgentmsgWorker)
    await scene.stage.allot(scene.worker.id, 1)
    await scene.caller.submit(Order(to=owner.id, budget=2))
    job = await owner.take()
    request = await owner.hand_over(job, scene.worker.id, {}, reason="LOAD_BALANCING")
    answer = (await owner.answer(request))["payload"]
    assert (answer["accepted"], answer["error"]) == (
        False,
        f"{scene.worker.id} has no budget for it now; the task stays yours",
    )
    assert (await scene.stage.account(scene.worker.id))["allocated"] == 0
    assert (await scene.stage.account(owner.id))["allocated"] == 2
    await owner.finish(job, text="done")


@pytest.mark.parametrize("pair", [(name, "agentmsg") for name in PLAYERS], ids=PLAYERS)
async def test_what_was_used_counts_against_the_next_of_any_protocol(scene: Scene) -> None:
    scene.messy = True
    await scene.stage.allot(scene.worker.id, 1)
    handle, job = await scene.begin()
    await scene.worker.finish(job, text="done", usage={"cost_usd": 1.25, "tokens_used": 10})
    assert (await scene.caller.history(handle))[-1]["final"] == "completed"
    account = await scene.stage.account(scene.worker.id)
    assert (account["consumed"], account["allocated"]) == (1.25, 0)
    with pytest.raises(AssertionError, match="0 remain"):
        await scene.caller.submit(Order(to=scene.worker.id))


@pytest.mark.parametrize(
    "pair", list(product(("agentmsg", "chiffon", "a2acp"), ("agentmsg", "chiffon"))), ids=lambda pair: "-".join(pair)
)
async def test_the_caller_learns_what_failed_work_used(scene: Scene) -> None:
    used = {"duration_seconds": 4, "cpu_time_ms": 6}
    handle, job = await scene.begin()
    await scene.worker.fail(job, "it broke", usage=used)
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], end.get("usage")) == ("failed", used)


@pytest.mark.parametrize("pair", [(name, "agentmsg") for name in PLAYERS], ids=PLAYERS)
async def test_what_failed_work_used_counts_once(scene: Scene) -> None:
    await scene.stage.allot(scene.worker.id, 5)
    handle, job = await scene.begin()
    await scene.worker.fail(job, "it broke", usage={"cost_usd": 1.25})
    assert (await scene.caller.history(handle))[-1]["final"] == "failed"
    account = await scene.stage.account(scene.worker.id)
    assert (account["consumed"], account["allocated"]) == (1.25, 0)
