"""Tasks change hands over the wire: who is asked, what they are told, and what becomes of the task."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.samples import ATTEMPT, EVENT
from tests.conformance.agentmsg.stage import Speaker, Stage

from dragoman.core.commands import Answer, Retry
from dragoman.core.ids import ADMIN
from dragoman.core.model.tasks import QuestionStatus

EXTRA = {"seen": [1, {"deep": None}]}


@pytest.fixture
async def cast(stage: Stage) -> dict[str, Speaker]:
    """`ada` has assigned `t-1` to `bob`, who has it in hand; `cid` and `dot` are there."""
    cast = {id: await stage.join(id) for id in ("bob", "cid", "dot")}
    cast["ada"] = await stage.join("ada", work_types=())  # who only asks
    for speaker in cast.values():
        await speaker.hear()
    history = [{**EVENT, "event_type": "planned", "details": {"by": "ada"}}]
    given = words.context("t-1", metadata={"repo": "x"}, history=history, dependencies=[])
    await cast["bob"].works(cast["ada"], "t-1", context=given, constraints=words.constraints(quality_threshold=0.8))
    return cast


async def offered(stage: Stage, giver: Speaker, to: str, **fields: Any) -> dict[str, Any]:
    return await giver.say("TASK_HANDOFF", to, words.handoff("t-1", giver.id, to, **fields))


@pytest.mark.requirement("AM-HND-4", "agentmsg-D8")
async def test_a_request_reaches_its_target_and_a_yes_moves_the_task(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    request = await offered(stage, bob, "cid", x_extra=EXTRA)
    asked = await cid.hears("TASK_HANDOFF")
    assert {**asked, "metadata": None} == {**request, "metadata": None}  # word for word, with what nobody knows
    assert (await stage.named("t-1")).owner == "bob"  # until then
    answer = await cid.say("TASK_HANDOFF", "bob", words.yes("cid", requirements=["time"]), correlation_id=request["id"])
    assert (await stage.named("t-1")).owner == "cid"
    told = await bob.hears("TASK_HANDOFF")
    assert (told["id"], told["from"], told["payload"]) == (answer["id"], "cid", answer["payload"])
    assert told["metadata"]["correlation_id"] == request["id"]
    status, report = await bob.refused("TASK_COMPLETE", "hub", {"task_id": "t-1", "result": "mine!"})
    assert (status, report["error_type"]) == (404, "VALIDATION_ERROR")
    status, _ = await bob.refused("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 90, "message": "mine!"})
    assert status == 404
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "message": "cid has it now"})
    await cid.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": "done"})
    done = await cast["ada"].hears("TASK_COMPLETE")
    assert (done["from"], done["payload"]["result"]) == ("cid", "done")


@pytest.mark.requirement("AM-HND-7", "AM-SST-1", "AM-CTX-1")
async def test_the_shared_state_has_the_whole_context_of_a_task_through_all_hands(
    stage: Stage, cast: dict[str, Speaker]
) -> None:
    for n, (giver, to) in enumerate((("bob", "cid"), ("cid", "dot"))):
        said = words.context("t-1", metadata={to: n}, history=[{**EVENT, "event_type": f"tried {n}"}])
        request = await offered(stage, cast[giver], to, context=said)
        await cast[to].hears("TASK_HANDOFF")
        await cast[to].say("TASK_HANDOFF", giver, words.yes(to), correlation_id=request["id"])
        order = (await cast[to].hears("TASK_ASSIGNMENT"))["payload"]["task"]
    shared = (await stage.get("/state/TASK/t-1", cast["ada"].token)).json()["value"]
    for context in (order["context"], shared["context"]):
        assert context["metadata"] == {"repo": "x", "cid": 0, "dot": 1}
        kinds = [event["event_type"] for event in context["history"]]
        assert {"planned", "tried 0", "tried 1", "submitted", "assigned", "handover_asked"} <= set(kinds)
        times = [event["timestamp"] for event in context["history"]]
        assert times == sorted(times)
    [*_, last] = shared["context"]["history"]
    assert (last["event_type"], last["details"]) == (
        "handed_over", {"from": "cid", "to": "dot", "reason": "load_balancing"},
    )  # fmt: skip
    version = (await stage.get("/state/TASK/t-1")).json()["version"]
    answer = await stage.change("UPDATE", "TASK", "t-1", {"context": {"metadata": {"cid": None}}}, version)
    assert answer.json()["value"]["context"]["metadata"] == {"repo": "x", "dot": 1}
    stranger = await stage.join("eve")
    seen = (await stage.get("/state/TASK/t-1", stranger.token)).json()["value"]["context"]
    assert (seen["metadata"], seen["history"]) == ({}, [])


@pytest.mark.requirement("AM-HND-7", "agentmsg-D8")
async def test_the_new_owner_and_the_agent_that_asked_hear_the_outcome_of_subtasks(
    stage: Stage, cast: dict[str, Speaker]
) -> None:
    bob, cid, dot = cast["bob"], cast["cid"], cast["dot"]
    for name in ("p-1", "p-2"):
        await dot.works(bob, name, context=words.context(name, metadata={"parent_task_id": "t-1"}))
    await dot.say("TASK_COMPLETE", "bob", {"task_id": "p-1", "result": "early"})
    assert (await bob.hears("TASK_COMPLETE"))["payload"] == {"task_id": "p-1", "result": "early"}
    request = await offered(stage, bob, "cid")
    await cid.hears("TASK_HANDOFF")
    await cid.say("TASK_HANDOFF", "bob", words.yes("cid"), correlation_id=request["id"])
    order, early = await cid.hear()
    both = {"task_type": "review", "assigned_by": "bob", "assigned_agent": "dot"}
    assert order["payload"]["task"]["handover"]["parts"] == [
        {"task_id": "p-2", "status": "in_progress", **both}, {"task_id": "p-1", "status": "completed", **both},
    ]  # fmt: skip
    assert (early["type"], early["payload"]) == ("TASK_COMPLETE", {"task_id": "p-1", "result": "early"})
    await bob.hears("TASK_HANDOFF")
    await dot.say(
        "TASK_FAILED", "bob", {"task_id": "p-2", "error": words.error("dot", "p-2", error_type="VALIDATION_ERROR")}
    )
    told = [await one.hears("TASK_FAILED") for one in (bob, cid)]
    assert [(one["to"], one["from"], one["payload"]["task_id"]) for one in told] == [
        ("bob", "dot", "p-2"), ("cid", "dot", "p-2"),
    ]  # fmt: skip
    shared = (await stage.get("/state/TASK/p-1", cid.token)).json()["value"]
    assert shared["result"] == "early"


@pytest.mark.requirement("agentmsg-D8", "AM-CTX-4")
async def test_who_takes_a_task_over_has_it_until_the_earlier_deadline(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid, ada = cast["bob"], cast["cid"], cast["ada"]
    until = stage.after(20).replace("Z", "z")
    request = await offered(stage, bob, "cid", constraints=words.constraints(deadline=until))
    await cid.hears("TASK_HANDOFF")
    await cid.say("TASK_HANDOFF", "bob", words.yes("cid"), correlation_id=request["id"])
    order = (await cid.hears("TASK_ASSIGNMENT"))["payload"]["task"]
    assert order["constraints"]["deadline"] == until.upper()
    await stage.pass_time(21)
    told = (await ada.hears("TASK_FAILED"))["payload"]["error"]
    assert (told["error_type"], told["agent_id"]) == ("TIMEOUT", "hub")
    shared = (await stage.get("/state/TASK/t-1", ada.token)).json()["value"]
    assert shared["error"] == told


@pytest.mark.requirement("AM-HND-4", "agentmsg-D8")
async def test_a_no_without_terms_leaves_the_task_where_it_is(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    request = await offered(stage, bob, "cid")
    await cid.hears("TASK_HANDOFF")
    await cid.say("TASK_HANDOFF", "bob", words.no("cid", "no time"), correlation_id=request["id"])
    told = await bob.hears("TASK_HANDOFF")
    assert told["payload"] == {"accepted": False, "agent_id": "cid", "error": "no time"}
    assert (await stage.named("t-1")).owner == "bob"
    status, _ = await cid.refused("TASK_HANDOFF", "bob", words.yes("cid"), correlation_id=request["id"])
    assert status == 409  # it was answered
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})


@pytest.mark.requirement("AM-HND-6", "agentmsg-D8")
@pytest.mark.parametrize("earlier", ["the request's", "the constraints'"])
async def test_nobody_answers_by_the_earlier_deadline(stage: Stage, cast: dict[str, Speaker], earlier: str) -> None:
    bob, cid = cast["bob"], cast["cid"]
    soon, late = stage.after(5), stage.after(500)
    one, other = (soon, late) if earlier == "the request's" else (late, soon)
    request = await offered(stage, bob, "cid", deadline=one, constraints=words.constraints(deadline=other))
    await cid.hears("TASK_HANDOFF")
    await stage.pass_time(4)
    assert await bob.hear() == []
    await stage.pass_time(2)
    told = await bob.hears("TASK_HANDOFF")
    assert told["metadata"]["correlation_id"] == request["id"]
    assert (told["from"], told["payload"]["accepted"]) == ("hub", False)
    assert told["payload"]["error"]
    assert (await stage.named("t-1")).owner == "bob"
    status, report = await cid.refused("TASK_HANDOFF", "bob", words.yes("cid"), correlation_id=request["id"])
    assert (status, (await stage.named("t-1")).owner) == (409, "bob"), report


@pytest.mark.requirement("AM-HND-7", "agentmsg-D8")
async def test_context_and_history_arrive_whole(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 40, "message": "began"})
    tried = {**EVENT, "event_type": "tried", "agent_id": "bob", "details": EXTRA}
    failure = words.error("bob", "t-1", recovery_attempts=[ATTEMPT])
    request = await offered(
        stage,
        bob,
        "cid",
        reason="ERROR_RECOVERY",
        error=failure,
        context=words.context("t-1", metadata={"branch": "main"}, history=[tried]),
        constraints=words.constraints(max_tokens=500),
    )
    await cid.hears("TASK_HANDOFF")
    await cid.say("TASK_HANDOFF", "bob", words.yes("cid"), correlation_id=request["id"])
    order = await cid.hears("TASK_ASSIGNMENT")
    task = order["payload"]["task"]
    assert (task["task_id"], task["task_type"], task["input"]) == ("t-1", "review", {"file": "a.py"})
    assert {"repo": "x", "branch": "main"}.items() <= task["context"]["metadata"].items()
    assert task["constraints"]["max_tokens"] == 500
    assert task["constraints"]["quality_threshold"] == 0.8
    kinds = [event["event_type"] for event in task["context"]["history"]]
    assert {"planned", "tried", "submitted", "assigned", "progress"} <= set(kinds), kinds
    assert next(e for e in task["context"]["history"] if e["event_type"] == "tried")["details"] == EXTRA
    assert task["handover"]["from"] == "bob"
    assert task["handover"]["error"]["recovery_attempts"] == [ATTEMPT]


@pytest.mark.requirement("AM-HND-5")
@pytest.mark.parametrize(
    ("reason", "to"),
    [
        ("CAPABILITY_LIMIT", "cid"),  # who declared most
        ("RATE_LIMIT", "dot"),  # who has most left to spend
        ("LOAD_BALANCING", "dot"),  # who has the most free seats
        ("ERROR_RECOVERY", "dot"),  # who failed least
        ("ESCALATION", "pam"),  # planners first
    ],
)
async def test_each_reason_decides_where_the_task_goes(
    stage: Stage, cast: dict[str, Speaker], reason: str, to: str
) -> None:
    cid = cast["cid"]
    await cid.say("REGISTER", "hub", {"agent_id": "cid", "capabilities": ["python", "sql"], "max_concurrent": 8})
    await stage.change("CREATE", "RESOURCE", "cid:tokens", {"limit": 100, "consumed": 90}, 0)
    await cid.works(cast["ada"], "t-2")
    await cid.say("ERROR_REPORT", "hub", words.error("cid", severity="high"))
    there = {"cid": cid, "dot": cast["dot"]}
    if reason == "ESCALATION":
        there["pam"] = await stage.join("pam", role="planner")
    async with AsyncExitStack() as stack:
        links = {id: await stack.enter_async_context(speaker.link()) for id, speaker in there.items()}
        request = await offered(stage, cast["bob"], "hub", to_agent="*", reason=reason)
        told = {id: await link.told() for id, link in links.items()}
        assert [id for id in told if request["id"] in told[id]] == [to]
        asked = told[to][request["id"]]
        assert (asked["to"], asked["payload"]["to_agent"], asked["payload"]["reason"]) == (to, to, reason)


@pytest.mark.requirement("AM-HND-5")
async def test_at_a_rate_limit_the_tokens_that_are_left_count(stage: Stage, cast: dict[str, Speaker]) -> None:
    for id, consumed in (("cid", 90), ("dot", 10)):
        await stage.change("CREATE", "RESOURCE", f"{id}:tokens", {"limit": 100, "consumed": consumed}, 0)
    request = await offered(stage, cast["bob"], "hub", to_agent="*", reason="RATE_LIMIT")
    assert (await cast["dot"].hears("TASK_HANDOFF"))["id"] == request["id"]


@pytest.mark.requirement("AM-HND-5")
async def test_an_agent_that_was_only_just_added_can_be_asked(stage: Stage) -> None:
    ada, bob = await stage.join("ada", work_types=()), await stage.join("bob")
    await bob.works(ada, "t-1")
    cid = await stage.join("cid", capabilities=("sql",))
    terms = words.constraints(required_capabilities=["sql"])
    request = await offered(stage, bob, "*", reason="CAPABILITY_LIMIT", constraints=terms)
    assert (await cid.hears("TASK_HANDOFF"))["id"] == request["id"]


@pytest.mark.requirement("AM-HND-5")
async def test_an_escalation_that_nobody_can_take_ends_at_a_person(stage: Stage) -> None:
    ada, bob = await stage.join("ada", work_types=()), await stage.join("bob")
    await bob.works(ada, "t-1")
    request = await offered(stage, bob, "hub", to_agent="*", reason="ESCALATION")
    told = await bob.hears("TASK_HANDOFF")
    assert (told["metadata"]["correlation_id"], told["payload"]["agent_id"]) == (request["id"], "person")
    assert told["payload"]["accepted"] is True
    [job] = await stage.store.questions(status=QuestionStatus.OPEN, limit=10)
    await stage.ask(Answer(principal=ADMIN, question=job.id, answer="done"))
    done = (await ada.hears("TASK_COMPLETE"))["payload"]
    assert (done["result"], done["agent_id"]) == ("done", "person")


@pytest.mark.requirement("AM-HND-5", "AM-HND-4")
async def test_with_the_choice_left_open_the_next_is_asked_after_a_no(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid, dot = (cast[id] for id in ("bob", "cid", "dot"))
    async with cid.link() as first, dot.link() as second:
        request = await offered(stage, bob, "*")
        for link, answer in ((first, words.no("cid")), (second, words.yes("dot"))):  # equally loaded
            asked = await link.hears("TASK_HANDOFF")
            assert asked["to"] == asked["payload"]["to_agent"] == link.agent.id
            await link.ack(asked)
            await link.say("TASK_HANDOFF", "bob", answer, correlation_id=request["id"])
        assert (await second.hears("TASK_ASSIGNMENT"))["payload"]["task"]["task_id"] == "t-1"
    told = await bob.hears("TASK_HANDOFF")
    assert (told["payload"]["accepted"], told["payload"]["agent_id"]) == (True, "dot")
    assert (await stage.named("t-1")).owner == "dot"


@pytest.mark.requirement("AM-HND-4")
async def test_who_left_the_choice_open_hears_why_nobody_took_it(stage: Stage, cast: dict[str, Speaker]) -> None:
    await cast["ada"].say("REGISTER", "hub", {"agent_id": "ada", "task_types": ["review"]})  # who wants others to do it
    request = await offered(stage, cast["bob"], "*")
    for id in ("cid", "dot"):
        await cast[id].hears("TASK_HANDOFF")
        await cast[id].say("TASK_HANDOFF", "bob", words.no(id, f"{id} sleeps"), correlation_id=request["id"])
    told = (await cast["bob"].hears("TASK_HANDOFF"))["payload"]
    assert (told["accepted"], "dot sleeps" in told["error"]) == (False, True)


@pytest.mark.requirement("AM-HND-5")
async def test_an_agent_between_two_polls_can_be_asked(stage: Stage, cast: dict[str, Speaker]) -> None:
    request = await offered(stage, cast["bob"], "*")
    assert (await cast["cid"].hears("TASK_HANDOFF"))["id"] == request["id"]


@pytest.mark.requirement("agentmsg-D8")
async def test_after_eight_hops_the_task_fails_with_capability_limit(stage: Stage, cast: dict[str, Speaker]) -> None:
    hands = [cast["bob"], *[await stage.join(f"h{n}") for n in range(9)]]
    for giver, taker in pairwise(hands[:9]):
        await taker.hear()
        request = await offered(stage, giver, taker.id)
        await taker.hears("TASK_HANDOFF")
        await taker.say("TASK_HANDOFF", giver.id, words.yes(taker.id), correlation_id=request["id"])
        await taker.hear()
    await offered(stage, hands[8], "h8")
    told = await cast["ada"].hears("TASK_FAILED")
    assert told["payload"]["error"]["context"]["details"]["reason"] == "CAPABILITY_LIMIT"
    value = (await stage.get("/state/TASK/t-1")).json()["value"]
    assert value["status"] == "failed"
    await cast["bob"].hear()
    await stage.ask(Retry(principal=ADMIN, task_id=(await stage.named("t-1")).id))  # then it has all its hops again
    await cast["bob"].hears("TASK_ASSIGNMENT")
    request = await offered(stage, cast["bob"], "h0")
    await hands[1].hear()
    await hands[1].say("TASK_HANDOFF", "bob", words.yes("h0"), correlation_id=request["id"])
    assert (await stage.named("t-1")).owner == "h0"


@pytest.mark.requirement("agentmsg-D8", "agentmsg-D10")
async def test_what_is_set_aside_for_a_task_moves_with_it(stage: Stage, cast: dict[str, Speaker]) -> None:
    ada, cid, dot = cast["ada"], cast["cid"], cast["dot"]
    await cid.works(ada, "t-paid", constraints=words.constraints(budget_usd=2))
    request = await cid.say("TASK_HANDOFF", "dot", words.handoff("t-paid", "cid", "dot"))
    await dot.hears("TASK_HANDOFF")
    await dot.say("TASK_HANDOFF", "cid", words.yes("dot"), correlation_id=request["id"])
    value = (await stage.get("/state")).json()["resource_allocations"]
    assert [value[f"{id}:budget"]["allocated"] for id in ("cid", "dot", "hub")] == [0, 2, 2]
    await dot.say("TASK_COMPLETE", "ada", {"task_id": "t-paid", "result": 1, "usage": {"cost_usd": 1.5}})
    value = (await stage.get("/state")).json()["resource_allocations"]
    assert [value[f"{id}:budget"]["consumed"] for id in ("cid", "dot", "hub")] == [0, 1.5, 1.5]


@pytest.mark.requirement("AM-HND-4")
async def test_a_task_that_the_hub_does_not_know_can_change_hands_too(stage: Stage, cast: dict[str, Speaker]) -> None:
    bob, cid = cast["bob"], cast["cid"]
    request = await bob.say("TASK_HANDOFF", "cid", words.handoff("own idea", "bob", "cid"))
    await cid.hears("TASK_HANDOFF")
    await cid.say("TASK_HANDOFF", "bob", words.yes("cid"), correlation_id=request["id"].upper())
    assert (await cid.hears("TASK_ASSIGNMENT"))["payload"]["task"]["task_id"] == "own idea"
    await cid.say("TASK_COMPLETE", "bob", {"task_id": "own idea", "result": 7})
    heard = {one["type"]: one for one in await bob.hear()}
    assert heard["TASK_HANDOFF"]["payload"]["accepted"] is True
    assert heard["TASK_COMPLETE"]["payload"]["result"] == 7
