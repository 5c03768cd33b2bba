"""How agents are, over the wire: reports, routing by them, errors, the breaker, and silence."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.samples import USAGE
from tests.conformance.agentmsg.stage import Speaker, Stage

from dragoman.core.ids import AgentId
from dragoman.core.model.agents import BreakerState
from dragoman.core.model.tasks import EventKind


@pytest.fixture
async def cast(stage: Stage) -> dict[str, Speaker]:
    """`ada` asks; `bob` and `cid` can review."""
    cast = {"ada": await stage.join("ada", work_types=())}
    for id in ("bob", "cid"):
        cast[id] = await stage.join(id, work_types=("review",))
    return cast


async def report(speaker: Speaker, **fields: Any) -> dict[str, Any]:
    return await speaker.say("STATUS_UPDATE", "hub", words.status(speaker.id, speaker.stage.at, **fields))


async def entry(stage: Stage, id: str) -> dict[str, Any]:
    return dict((await stage.get(f"/state/AGENT/{id}")).json()["value"])


async def work(boss: Speaker, **fields: Any) -> str:
    """A task for whoever can: its name."""
    name = boss.stage.uuid()
    await boss.say("TASK_ASSIGNMENT", "*", words.assignment(name, **fields))
    return name


async def orders(speaker: Speaker) -> list[str]:
    return [one["payload"]["task"]["task_id"] for one in await speaker.hear() if one["type"] == "TASK_ASSIGNMENT"]


# -- reports


@pytest.mark.requirement("AM-STA-4")
async def test_the_registry_shows_an_agents_last_status_and_those_before(
    stage: Stage, cast: dict[str, Speaker]
) -> None:
    bob = cast["bob"]
    for n, state in enumerate(("BUSY", "MAINTENANCE", "IDLE"), 1):
        await stage.pass_time(1)
        await report(bob, state=state, error_rate=n / 10, current_tasks=["t-1"], next_available=stage.after(n))
        answer = (await stage.get("/state/AGENT/bob")).json()
        assert (answer["version"], answer["value"]["state"]) == (n, state)
    value = answer["value"]
    assert (value["error_rate"], value["current_tasks"], value["resource_usage"]) == (0.3, ["t-1"], USAGE)
    assert value["next_available"] == stage.after(3)
    assert (await stage.get("/state")).json()["agent_registry"]["bob"] == value
    known = stage.intake.entity("AGENT/bob")
    assert known is not None
    assert [past["state"] for past in known.past] == ["BUSY", "MAINTENANCE"]


@pytest.mark.requirement("AM-STA-4")
async def test_a_report_to_another_agent_reaches_both(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    said = await bob.say("STATUS_UPDATE", "cid", words.status("bob", stage.at, state="ERROR"))
    assert (await cid.hears("STATUS_UPDATE"))["payload"] == said["payload"]
    assert (await entry(stage, "bob"))["state"] == "ERROR"


# -- routing


@pytest.mark.requirement("AM-STA-5")
async def test_work_goes_to_the_least_loaded(stage: Stage, cast: dict[str, Speaker]) -> None:
    async with cast["bob"].link() as bob, cast["cid"].link() as cid:
        await cast["ada"].say("TASK_ASSIGNMENT", "bob", words.assignment("first"))
        await bob.hears("TASK_ASSIGNMENT")
        name = await work(cast["ada"])
        assert (await cid.hears("TASK_ASSIGNMENT"))["payload"]["task"]["task_id"] == name


@pytest.mark.requirement("AM-STA-5")
@pytest.mark.parametrize(("bob", "cid"), [(0.5, 0.1), (0.1, 0.5)])
async def test_of_equally_loaded_ones_who_fails_least_gets_it(
    stage: Stage, cast: dict[str, Speaker], bob: float, cid: float
) -> None:
    await report(cast["bob"], error_rate=bob)
    await report(cast["cid"], error_rate=cid)
    async with cast["bob"].link() as one, cast["cid"].link() as other:
        name = await work(cast["ada"])
        chosen = one if bob < cid else other
        assert (await chosen.hears("TASK_ASSIGNMENT"))["payload"]["task"]["task_id"] == name


@pytest.mark.requirement("AM-STA-5")
async def test_nothing_before_next_available(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    await report(bob, state="BUSY", next_available=stage.after(15))
    name = await work(cast["ada"])
    for _ in range(2):
        await stage.pass_time(7)
        assert await orders(bob) == []
    await stage.pass_time(2)
    assert await orders(bob) == [name]


@pytest.mark.requirement("AM-STA-5")
@pytest.mark.parametrize("state", ["ERROR", "OFFLINE", "MAINTENANCE"])
async def test_who_is_away_gets_no_work_until_it_is_back(stage: Stage, cast: dict[str, Speaker], state: str) -> None:
    bob = cast["bob"]
    await report(bob, state=state)
    name = await work(cast["ada"])
    assert await orders(bob) == []
    await bob.say("HEARTBEAT", "hub", {"agent_id": "bob", "state": "IDLE"})
    assert await orders(bob) == [name]


# -- constraints


@pytest.mark.requirement("AM-CTX-4")
async def test_required_capabilities_bind_the_agent_that_does_it(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    await cid.say("REGISTER", "hub", {"agent_id": "cid", "capabilities": ["python"], "task_types": ["review"]})
    name = await work(cast["ada"], constraints=words.constraints(required_capabilities=["python"]))
    assert (await orders(bob), await orders(cid)) == ([], [name])


@pytest.mark.requirement("AM-CTX-4")
async def test_a_deadline_ends_the_task_wherever_it_is(stage: Stage, cast: dict[str, Speaker]) -> None:
    ada, bob = cast["ada"], cast["bob"]
    until = stage.after(12)
    name = await work(ada, constraints=words.constraints(deadline=until))
    order = await bob.hears("TASK_ASSIGNMENT")
    assert order["payload"]["task"]["constraints"]["deadline"] == until
    await stage.pass_time(11)
    await bob.say("TASK_UPDATE", "hub", {"task_id": name, "progress": 10})
    await stage.pass_time(2)
    failed = await ada.hears("TASK_FAILED")
    assert failed["payload"]["error"]["error_type"] == "TIMEOUT"
    told = await bob.hears("TASK_UPDATE")
    assert told["payload"]["status"] == "cancelled"


@pytest.mark.requirement("AM-CTX-4")
async def test_the_agent_reads_its_limits_and_a_task_beyond_an_allocation_is_refused(
    stage: Stage, cast: dict[str, Speaker]
) -> None:
    ada, bob = cast["ada"], cast["bob"]
    limits = words.constraints(max_tokens=900, budget_usd=0.5, quality_threshold=0.9)
    await work(ada, constraints=limits)
    told = (await bob.hears("TASK_ASSIGNMENT"))["payload"]["task"]["constraints"]
    assert limits.items() <= told.items()
    assert (await stage.change("CREATE", "RESOURCE", "cid:tokens", {"limit": 100}, 0)).status_code == 200
    status, report = await ada.refused("TASK_ASSIGNMENT", "cid", words.assignment("too much", constraints=limits))
    assert (status, report["error_type"]) == (422, "RESOURCE_EXHAUSTED")
    numbers = report["context"]["details"]
    assert (numbers["asked"], numbers["limit"], numbers["remaining"]) == (900, 100, 100)


# -- errors


@pytest.mark.requirement("AM-ERR-4")
async def test_reports_are_seen_with_their_task_and_their_agent(stage: Stage, cast: dict[str, Speaker]) -> None:
    ada, bob, cid = cast["ada"], cast["bob"], cast["cid"]
    await bob.works(ada, "t-1")
    said = words.error("bob", "t-1", severity="medium", message="odd", stack_trace="line 1")
    await bob.say("ERROR_REPORT", "hub", said)
    task = await stage.named("t-1")
    [event] = [e for e in await stage.store.events(task.id) if e.kind is EventKind.ERROR_REPORTED]
    assert (event.agent, b"line 1" in bytes(event.body)) == ("bob", True)
    [kept] = (await entry(stage, "bob"))["errors"]
    assert (kept["error_id"], kept["message"], kept["severity"]) == (said["error_id"], "odd", "medium")
    assert not task.final  # it goes on
    again = words.error("bob", "t-1", message="to you, too")
    await bob.say("ERROR_REPORT", "cid", again)
    assert (await cid.hears("ERROR_REPORT"))["payload"] == again
    assert len((await entry(stage, "bob"))["errors"]) == 2


@pytest.mark.requirement("AM-ERR-4", "AM-STA-4")
async def test_an_agent_whose_first_message_is_an_error_is_there(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    await bob.say("ERROR_REPORT", "hub", words.error("bob"))
    assert (await entry(stage, "bob"))["state"] == "IDLE"
    name = await work(cast["ada"])
    assert await orders(bob) == [name]


@pytest.mark.requirement("AM-ERR-5", "agentmsg-D11")
async def test_three_grave_reports_in_a_row_open_the_breaker(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    for severity in ("low", "medium", "high", "high"):
        await bob.say("ERROR_REPORT", "hub", words.error("bob", severity=severity))
    assert stage.intake.agent(AgentId("bob")).breaker.state is BreakerState.CLOSED  # type: ignore[union-attr]
    last = await bob.say("ERROR_REPORT", "hub", words.error("bob", severity="critical"))
    assert (await bob.send(last)).status_code == 202  # the same report again counts once
    breaker = stage.intake.agent(AgentId("bob")).breaker  # type: ignore[union-attr]
    assert breaker.state is BreakerState.OPEN
    name = await work(cast["ada"])
    assert await orders(bob) == []
    assert await orders(cast["cid"]) == [name]


@pytest.mark.requirement("AM-ERR-5", "agentmsg-D11")
@pytest.mark.parametrize("answer", ["TASK_COMPLETE", "TASK_FAILED", "TASK_UPDATE"])
async def test_after_its_pause_any_answer_to_a_health_check_closes_the_breaker(
    stage: Stage, cast: dict[str, Speaker], answer: str
) -> None:
    ada, bob = cast["ada"], cast["bob"]
    await bob.poll()
    for _ in range(3):
        await bob.say("ERROR_REPORT", "hub", words.error("bob", severity="high"))
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    for _ in range(29):
        await stage.pass_time(10)
        assert await bob.hear() == []
    await stage.pass_time(11)
    check = await bob.hears("TASK_ASSIGNMENT")
    task = check["payload"]["task"]
    assert (check["from"], task["task_type"]) == ("hub", "health_check")
    said: dict[str, dict[str, Any]] = {
        "TASK_COMPLETE": {"result": None},
        "TASK_FAILED": {"error": words.error("bob", error_type="VALIDATION_ERROR")},
        "TASK_UPDATE": {"progress": 1},
    }
    await bob.say(answer, "hub", {"task_id": task["task_id"], **said[answer]})
    assert stage.intake.agent(AgentId("bob")).breaker.state is BreakerState.CLOSED  # type: ignore[union-attr]
    assert await orders(bob) == ["t-1"]


@pytest.mark.requirement("AM-ERR-5")
async def test_a_critical_report_ends_the_attempt_and_it_is_tried_again(stage: Stage, cast: dict[str, Speaker]) -> None:
    ada, bob, cid = cast["ada"], cast["bob"], cast["cid"]
    name = await work(ada)
    assert await orders(bob) == [name]
    await bob.say("ERROR_REPORT", "hub", words.error("bob", name, severity="critical", error_type="TIMEOUT"))
    await stage.pass_time(1)
    order = await cid.hears("TASK_ASSIGNMENT")
    assert (order["payload"]["task"]["task_id"], order["payload"]["task"]["attempt"]) == (name, 2)
    await cid.say("TASK_COMPLETE", "hub", {"task_id": name, "result": 1})
    assert (await ada.hears("TASK_COMPLETE"))["from"] == "cid"


RETRIED = {
    "TIMEOUT": True, "RATE_LIMIT": True, "NETWORK_ERROR": True, "RESOURCE_EXHAUSTED": True, "INTERNAL_ERROR": True,
    "VALIDATION_ERROR": False, "AUTHENTICATION_ERROR": False, "EXTERNAL_SERVICE_ERROR": False,
}  # fmt: skip


@pytest.mark.requirement("AM-ERR-5")
@pytest.mark.parametrize("error_type", RETRIED)
async def test_each_type_of_failure_is_tried_again_or_not(
    stage: Stage, cast: dict[str, Speaker], error_type: str
) -> None:
    ada, bob = cast["ada"], cast["bob"]
    name = await work(ada)
    assert await orders(bob) == [name]
    failure = {"task_id": name, "error": words.error("bob", name, error_type=error_type)}
    await bob.say("TASK_FAILED", "ada", failure)
    await stage.pass_time(1)
    if RETRIED[error_type]:
        assert [one["type"] for one in await ada.hear() if one["type"] == "TASK_FAILED"] == []
        assert [*await orders(cast["cid"]), *await orders(bob)] == [name]
    else:
        assert (await ada.hears("TASK_FAILED"))["payload"] == failure


# -- silence


@pytest.mark.requirement("agentmsg-D12")
async def test_silent_for_three_heartbeats_is_offline_and_its_work_goes_back(
    stage: Stage, cast: dict[str, Speaker]
) -> None:
    ada, bob, cid = cast["ada"], cast["bob"], cast["cid"]
    name = await work(ada, constraints=words.constraints(deadline=stage.after(3000)))
    assert await orders(bob) == [name]
    for _ in range(4):  # as long as it says anything, it has its time
        await stage.pass_time(25)
        await bob.say("TASK_UPDATE", "hub", {"task_id": name, "progress": 1})
    await stage.pass_time(29)
    assert (await entry(stage, "bob"))["state"] != "OFFLINE"
    await stage.pass_time(2)
    assert (await entry(stage, "bob"))["state"] == "OFFLINE"
    await stage.pass_time(2)
    assert await orders(cid) == [name]
    await bob.say("HEARTBEAT", "hub", {"agent_id": "bob"})
    assert (await entry(stage, "bob"))["state"] == "IDLE"
    status, _ = await bob.refused("TASK_COMPLETE", "hub", {"task_id": name, "result": "late"})
    assert status == 404  # it is somebody else's now


@pytest.mark.requirement("agentmsg-D12")
async def test_heartbeats_alone_keep_an_agent_there(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob = cast["bob"]
    await bob.poll()
    for _ in range(12):
        await stage.pass_time(10)
        await bob.say("HEARTBEAT", "hub", {"agent_id": "bob"})
    value = await entry(stage, "bob")
    assert (value["state"], value["last_heartbeat"]) == ("IDLE", stage.at)
