"""What the hub itself obeys of the shared state: the policy, and the budgets. Over the wire, from the commit on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.stage import Speaker, Stage

from dragoman.core.commands import Answer
from dragoman.core.ids import ADMIN
from dragoman.core.model.tasks import QuestionStatus
from dragoman.protocols.agentmsg.records import PolicyState


@pytest.fixture
async def pair(stage: Stage) -> tuple[Speaker, Speaker]:
    """`ada` asks; `bob` can review."""
    return await stage.join("ada", work_types=()), await stage.join("bob")


@pytest.mark.requirement("agentmsg-D11")
async def test_the_policys_defaults_hold_until_they_are_changed(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    body = (await stage.get("/state/POLICY/policy")).json()
    policy = msgspec.convert(body["value"], PolicyState)
    assert (body["version"], policy.enabled_chains) == (1, ("A", "B", "C"))
    assert (policy.risk_thresholds.low, policy.risk_thresholds.high) == (0.25, 0.60)
    breaker = policy.circuit_breaker_config
    assert (breaker.error_threshold, breaker.timeout_ms, breaker.reset_timeout_ms) == (3, 30_000, 300_000)
    for chain, status in (("A", 202), ("C", 202), ("D", 403)):
        given = words.context(f"t-{chain}", metadata={"chain": chain})
        said = ada.message("TASK_ASSIGNMENT", "bob", words.assignment(f"t-{chain}", context=given))
        assert (await ada.send(said)).status_code == status
    for risk, waits in ((0.2, False), (0.5, False), (0.6, True)):
        name = f"risk {risk}"
        given = words.context(name, metadata={"risk": risk})
        await ada.say("TASK_ASSIGNMENT", "bob", words.assignment(name, context=given))
        given_out = [one["payload"]["task"]["task_id"] for one in await bob.hear()]
        assert (name in given_out) is not waits
    [question] = await stage.store.questions(status=QuestionStatus.OPEN, limit=10)
    await stage.ask(Answer(principal=ADMIN, question=question.id, answer="approve"))
    assert [one["payload"]["task"]["task_id"] for one in await bob.hear()] == ["risk 0.6"]


@pytest.mark.requirement("AM-SST-5", "agentmsg-D11")
async def test_a_policy_that_changed_holds_at_once(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair

    async def assign(name: str, **limits: Any) -> int:
        metadata = {"chain": "B"}
        payload = words.assignment(
            name, context=words.context(name, metadata=metadata), constraints=words.constraints(**limits)
        )
        return (await ada.send(ada.message("TASK_ASSIGNMENT", "bob", payload))).status_code

    assert await assign("one", budget_usd=5) == 202
    changed = await stage.policy(enabled_chains=["A"])
    assert (changed["version"], changed["value"]["version"]) == (2, "2")
    assert await assign("two") == 403
    await stage.policy(enabled_chains=["A", "B"], budget_limits={"per_task": 4})
    assert await assign("three", budget_usd=5) == 422
    assert await assign("four", budget_usd=4) == 202
    await stage.policy(circuit_breaker_config={"error_threshold": 1})
    await bob.say("ERROR_REPORT", "hub", words.error("bob", severity="high"))
    assert await bob.hear() == []  # one is enough now


@pytest.mark.requirement("AM-SST-1", "AM-SST-5")
async def test_what_is_taken_out_of_the_policy_is_as_in_the_beginning(stage: Stage) -> None:
    first = (await stage.get("/state/POLICY/policy")).json()["value"]
    await stage.policy(enabled_chains=["A"], budget_limits={"per_task": 4}, circuit_breaker_config={"timeout_ms": 5})
    taken = await stage.policy(enabled_chains=None, budget_limits={"per_task": None}, circuit_breaker_config=None)
    assert taken["value"] == {**first, "version": "3"}
    assert msgspec.convert(taken["value"], PolicyState).enabled_chains == ("A", "B", "C")


@pytest.mark.requirement("agentmsg-D10", "AM-HND-7")
async def test_a_handover_never_raises_what_a_task_may_use(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    cid = await stage.join("cid")
    await stage.policy(budget_limits={"per_task": 6})
    await bob.works(ada, "t-1", constraints=words.constraints(budget_usd=5))
    for usd, held in ((1000, 5), (3, 3)):
        giver, taker = (bob, cid) if held == 5 else (cid, bob)
        asked = words.handoff("t-1", giver.id, taker.id, constraints=words.constraints(budget_usd=usd, max_tokens=7))
        request = await giver.say("TASK_HANDOFF", taker.id, asked)
        await taker.hear()
        await taker.say("TASK_HANDOFF", giver.id, words.yes(taker.id), correlation_id=request["id"])
        given = (await taker.hears("TASK_ASSIGNMENT"))["payload"]["task"]["constraints"]
        assert (given["budget_usd"], given["max_tokens"]) == (held, 7)
        account = (await stage.get(f"/state/RESOURCE/{taker.id}:budget")).json()["value"]
        assert account["allocated"] == held
        await giver.hear()
    asked = words.handoff("of their own", "bob", "cid", constraints=words.constraints(budget_usd=7))
    status, report = await bob.refused("TASK_HANDOFF", "cid", asked)
    told = report["context"]["details"]
    assert (status, told["asked"], told["limit"]) == (422, 7, 6)
    assert told["field"] == "payload.constraints.budget_usd"
    assert await cid.hear() == []


@pytest.mark.requirement("agentmsg-D10")
async def test_budgets_are_reserved_before_dispatch_and_settled_after(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    await stage.policy(budget_limits={"per_task": 6, "per_agent": 8, "total": 10})

    def paid(name: str, usd: float) -> dict[str, Any]:
        return words.assignment(name, constraints=words.constraints(budget_usd=usd))

    async def account(whose: str) -> tuple[float, float]:
        value = (await stage.get(f"/state/RESOURCE/{whose}:budget")).json()["value"]
        assert value.keys() == {"agent_id", "resource_type", "allocated", "consumed", "limit"}
        return value["allocated"], value["consumed"]

    status, report = await ada.refused("TASK_ASSIGNMENT", "bob", paid("t-0", 7))
    told = report["context"]["details"]
    assert (status, report["error_type"], told["asked"]) == (422, "RESOURCE_EXHAUSTED", 7)
    assert (told["limit"], told["consumed"], told["remaining"]) == (6, 0, 6)
    await bob.works(ada, "t-1", constraints=words.constraints(budget_usd=5))
    assert (await account("bob"), await account("hub")) == ((5, 0), (5, 0))
    await ada.say("TASK_ASSIGNMENT", "bob", paid("t-2", 4))
    assert await bob.hear() == []  # only 3 of his 8 are free: it waits, and nobody works on it
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1, "usage": {"cost_usd": 3}})
    order = await bob.hears("TASK_ASSIGNMENT")
    assert order["payload"]["task"]["task_id"] == "t-2"
    assert (await account("bob"), await account("hub")) == ((4, 3), (4, 3))
    await bob.say("TASK_FAILED", "ada", {"task_id": "t-2", "error": words.error(
        "bob", "t-2", error_type="VALIDATION_ERROR")})  # fmt: skip
    assert (await account("bob"), await account("hub")) == ((0, 3), (0, 3))
    status, report = await ada.refused("TASK_ASSIGNMENT", "bob", paid("t-3", 6))
    told = report["context"]["details"]
    assert (told["whose"], told["limit"], told["consumed"], told["remaining"]) == ("bob", 8, 3, 5)


@pytest.mark.requirement("agentmsg-D10")
@pytest.mark.parametrize("error_type", ["TIMEOUT", "VALIDATION_ERROR"], ids=["tried again", "final"])
async def test_what_a_failed_attempt_used_counts_once(
    stage: Stage, pair: tuple[Speaker, Speaker], error_type: str
) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1", constraints=words.constraints(budget_usd=5))
    error = words.error("bob", "t-1", error_type=error_type)
    failure = await bob.say("TASK_FAILED", "ada", {"task_id": "t-1", "error": error, "usage": {"cost_usd": 2.5}})
    assert (await bob.send(failure)).status_code == 202
    for whose in ("bob", "hub"):
        value = (await stage.get(f"/state/RESOURCE/{whose}:budget")).json()["value"]
        assert (value["allocated"], value["consumed"]) == (0, 2.5)


@pytest.mark.requirement("agentmsg-D10")
async def test_what_an_agent_reports_to_have_used_is_taken_from_its_budget_before_it_is_given_more(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    await stage.policy(budget_limits={"per_agent": 2, "total": 10})
    for cost, code in ((1.5, 202), (2.0, 422)):
        usage = {"tokens_used": 10, "tokens_remaining": 0, "cost_usd": cost, "cpu_usage": 1, "memory_usage": 1}
        await bob.say("STATUS_UPDATE", "hub", words.status("bob", stage.at, resource_usage=usage))
        answer = await ada.send(ada.message("TASK_ASSIGNMENT", "bob", words.assignment(f"at {cost}")))
        assert answer.status_code == code
        await bob.hear()
    told = answer.json()["context"]["details"]
    assert (told["whose"], told["limit"], told["consumed"]) == ("bob", 2, 2)
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "at 1.5", "result": 1, "usage": {"cost_usd": 0.5}})
    spent = (await stage.get("/state/RESOURCE/hub:budget")).json()["value"]
    assert spent["consumed"] == 2  # the half is in what bob said


@pytest.mark.requirement("agentmsg-D10")
async def test_a_task_without_a_budget_has_what_a_task_may_use_and_ends_when_it_used_more(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    await stage.policy(budget_limits={"per_task": 4})
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    order = await bob.hears("TASK_ASSIGNMENT")
    assert order["payload"]["task"]["constraints"]["budget_usd"] == 4  # so its agent knows
    account = (await stage.get("/state/RESOURCE/bob:budget")).json()["value"]
    assert (account["allocated"], account["consumed"]) == (4, 0)
    update = {"task_id": "t-1", "status": "in_progress", "usage": {"cost_usd": 4.5}}
    await bob.say("TASK_UPDATE", "ada", update)
    failed = (await ada.hears("TASK_FAILED"))["payload"]
    assert (failed["error"]["error_type"], failed["status"]) == ("RESOURCE_EXHAUSTED", "failed")
    assert "used 4.5 USD, and may use 4" in failed["error"]["message"]
    told = await bob.hears("TASK_UPDATE")
    assert (told["payload"]["task_id"], told["payload"]["status"]) == ("t-1", "cancelled")
    account = (await stage.get("/state/RESOURCE/bob:budget")).json()["value"]
    assert (account["allocated"], account["consumed"]) == (0, 4.5)
