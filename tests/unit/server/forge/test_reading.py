"""Queries, and who may see what."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.forge import ForgeHub, soon

JOB: dict[str, Any] = {"type": "implementation", "name": "Job", "requiredRole": "worker"}


@pytest.mark.requirement("FG-QAG-1", "FG-QAG-2")
async def test_agents_are_found_by_role_status_and_capabilities(hub: ForgeHub) -> None:
    worker = await hub.connect("worker-1")
    planner = await hub.connect("planner-1")

    async def found(**filters: Any) -> list[str]:
        return [agent["id"] for agent in (await planner.ask("query-agents", **filters))["agents"]]

    assert await found() == ["planner-1", "worker-1", "worker-2", "reviewer-1"]
    assert await found(role="worker") == ["worker-1", "worker-2"]
    assert await found(status="idle") == ["planner-1", "worker-1"]
    assert await found(capabilities=["typescript", "testing"]) == ["worker-1"]
    assert await found(role="reviewer", capabilities=["python"]) == []
    task = (await planner.ask("submit-task", **JOB))["task"]["id"]
    await worker.notice("task-assigned")
    assert await found(role="worker", status="busy") == ["worker-1"]
    [agent] = (await planner.ask("query-agents", capabilities=["testing"]))["agents"]
    assert agent == {
        "id": "worker-1", "role": "worker", "status": "busy", "capabilities": ["typescript", "testing"],
        "currentTask": task,
    }  # fmt: skip


@pytest.mark.requirement("FG-QAG-3")
async def test_a_role_that_no_agent_has_is_refused_with_the_documents_code(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    refused = await planner.ask("query-agents", role="invalid-role")
    assert refused["code"] == "INVALID_REQUEST"
    assert refused["message"].startswith("Invalid role specified")
    assert refused["details"]["role"] == "invalid-role"
    refused = await planner.ask("query-agents", role="x" * 100_000)
    assert refused["details"]["role"] == "x" * 200  # a refusal is never as long as what it refuses
    await hub.add("odd", role="archivist")
    assert [agent["id"] for agent in (await planner.ask("query-agents", role="archivist"))["agents"]] == ["odd"]


@pytest.mark.requirement("FG-QTK-1", "FG-QTK-2")
async def test_tasks_are_found_by_status_role_and_limit(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    ids = [(await planner.ask("submit-task", **{**JOB, "name": f"Job {n}"}))["task"]["id"] for n in range(3)]
    review = (await planner.ask("submit-task", type="review", requiredRole="reviewer"))["task"]["id"]

    async def found(**filters: Any) -> list[str]:
        return [task["id"] for task in (await planner.ask("query-tasks", **filters))["tasks"]]

    assert await found() == [review, *reversed(ids)]
    assert await found(status="queued", requiredRole="worker", limit=2) == [ids[2], ids[1]]
    assert await found(requiredRole="reviewer") == [review]
    assert await found(status="running") == []
    task = (await planner.ask("query-tasks", limit=1, requiredRole="worker"))["tasks"][0]
    assert (task["name"], task["status"], task["requiredRole"], task["dependencies"]) == (
        "Job 2", "queued", "worker", [],
    )  # fmt: skip


@pytest.mark.requirement("forge-D14-reads")
@pytest.mark.parametrize("together", [False, True])
async def test_a_request_sees_the_messages_before_it_on_the_same_connection(hub: ForgeHub, together: bool) -> None:
    """Also while that is still being committed."""
    worker, planner = await hub.connect("worker-1"), await hub.connect("planner-1")
    id = (await planner.ask("submit-task", **JOB))["task"]["id"]
    await worker.notice("task-assigned")
    hub.handler.hub.enqueue_then, enqueue_then = lambda *given: held.append(given), hub.handler.hub.enqueue_then  # type: ignore[method-assign]
    held: list[Any] = []
    begun = worker.message("event:progress", {"taskId": id, "progress": 0.5})
    asked = [worker.message("request:query-tasks", {}), worker.message("request:get-task", {"taskId": id})]
    if together:
        await worker.say(begun, *asked)
    else:
        for one in (begun, *asked):
            await worker.say(one)
    await soon(await worker.ws.ping())  # all of them were heard
    hub.handler.hub.enqueue_then = enqueue_then  # type: ignore[method-assign]
    for given in held:
        enqueue_then(*given)
    listed, shown = [await worker.response(one["id"]) for one in asked]
    assert [task["status"] for task in (*listed["tasks"], shown["task"])] == ["running", "running"]


@pytest.mark.requirement("FG-SEC-2", "forge-D5", "forge-all-D1")
async def test_an_agent_sees_its_own_tasks_those_it_submitted_and_those_it_could_claim(hub: ForgeHub) -> None:
    await hub.add("boss-1")
    await hub.add("boss-2")
    boss, other = await hub.connect("boss-1"), await hub.connect("boss-2")
    planner = await hub.connect("planner-1")
    mine = (await boss.ask("submit-task", **JOB))["task"]["id"]
    theirs = (await other.ask("submit-task", type="x", agent="reviewer-1"))["task"]["id"]

    async def seen(peer: Any) -> set[str]:
        return {task["id"] for task in (await peer.ask("query-tasks"))["tasks"]}

    assert (await seen(boss), await seen(other), await seen(planner)) == ({mine}, {theirs}, {mine, theirs})
    worker = await hub.connect("worker-1", subprotocol=None)
    await worker.notice("task-assigned")
    assert await seen(worker) == {mine}
    claimable = (await other.ask("submit-task", **JOB, requiredCapabilities=["python"]))["task"]["id"]
    second = await hub.connect("worker-2")
    assert await seen(second) == {claimable}
    # What is not theirs does not exist, whoever they say they are.
    for asked in ({"taskId": theirs}, {"taskId": "no-such-task"}):
        message = boss.message("request:get-task", asked, agentId="boss-2")
        await boss.say(message)
        refused = await boss.response(message["id"])
        assert refused["code"] == "NOT_FOUND"
        assert refused["details"].pop("fault") == {"kind": "not_found", "message": "no such task"}
        assert refused["details"] == {
            "reason": "not_found", "taskId": asked["taskId"], "field": "payload.taskId", "retryable": False,
        }  # fmt: skip
    for extra in ({"dependencies": [theirs]}, {"parentId": theirs}):
        assert (await boss.ask("submit-task", **JOB, **extra))["code"] == "NOT_FOUND"
    agents = (await boss.ask("query-agents", role="worker"))["agents"]
    assert {agent["id"]: agent["currentTask"] for agent in agents} == {"worker-1": mine, "worker-2": None}


@pytest.mark.requirement("FG-SEC-5")
async def test_every_request_is_in_the_audit_record(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    id = (await planner.ask("submit-task", **JOB))["task"]["id"]
    await planner.ask("query-agents")
    await planner.ask("query-tasks")
    await planner.ask("get-task", taskId=id)
    await planner.ask("subscribe", topic="t")
    await planner.ask("publish", topic="t")
    await planner.ask("make-coffee")
    await planner.ask("cancel-task", taskId=id)
    told = [(action, outcome) for who, action, outcome in await hub.audited() if who == "planner-1"]
    assert told == [
        ("task.submit", "accepted"),
        *(
            (f"forge.{read}", "accepted")
            for read in ("query-agents", "query-tasks", "get-task", "subscribe", "publish")
        ),
        ("forge.frame", "refused"),
        ("task.cancel", "accepted"),
    ]


@pytest.mark.requirement("FG-SEC-5")
async def test_what_an_agent_may_not_see_is_in_the_audit_record_as_refused(hub: ForgeHub) -> None:
    planner, worker = await hub.connect("planner-1"), await hub.connect("worker-1")
    theirs = (await planner.ask("submit-task", type="x", requiredRole="reviewer"))["task"]["id"]
    await worker.ask("get-task", taskId=theirs)
    await worker.ask("get-file", taskId=theirs, fileId="f")
    await worker.ask("update-task", taskId=theirs, status="running")
    await worker.ask("submit-task", **JOB, dependencies=[theirs])
    await worker.ask("subscribe", topic="a*b")
    await worker.ask("publish", topic="*")
    told = [(action, outcome) for who, action, outcome in await hub.audited() if who == "worker-1"]
    assert told == [
        (f"forge.{request}", "refused")
        for request in ("get-task", "get-file", "update-task", "submit-task", "subscribe", "publish")
    ]
