"""Who may say what, the same thing said twice, and the hub's own words for what becomes of a task: over the wire."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.stage import ADMIN_TOKEN, Speaker, Stage, reopened

from dragoman.core.ids import AgentId
from dragoman.core.model.tasks import Status


@pytest.fixture
async def pair(stage: Stage) -> tuple[Speaker, Speaker]:
    """`ada` asks, `bob` works."""
    return await stage.join("ada"), await stage.join("bob")


def note(agent: Speaker, text: str) -> dict[str, Any]:
    """An ERROR_REPORT between agents is a letter, and kept."""
    return words.error(agent.id, message=text)


# -- who, and once


@pytest.mark.requirement("agentmsg/all-D1")
async def test_from_and_its_copies_agree_with_the_credential(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    said = bob.message("HEARTBEAT", "hub", {"agent_id": "bob"})
    answer = await ada.send(said)
    assert (answer.status_code, answer.json()["error_type"]) == (403, "AUTHENTICATION_ERROR")
    for kind, payload in (
        ("HEARTBEAT", {"agent_id": "bob"}),
        ("STATUS_UPDATE", words.status("bob", stage.at)),
        ("ERROR_REPORT", words.error("bob")),
        ("HELP_REQUEST", words.help_request("bob", "t-1")),
        ("TASK_HANDOFF", words.handoff("t-1", "bob", "hub")),
        ("REGISTER", {"agent_id": "bob"}),
    ):
        status, report = await ada.refused(kind, "hub", payload)
        assert (status, report["error_type"]) == (403, "AUTHENTICATION_ERROR"), kind
    for token in ("x", "0" * 32, ADMIN_TOKEN):
        answer = await stage.post("/messages", said, token)
        assert (answer.status_code, answer.json()["error_type"]) == (401, "AUTHENTICATION_ERROR")
    async with ada.link() as link:
        await link.socket.send(json.dumps(said))
        told = await link.hears("ERROR_REPORT")
        assert (told["payload"]["error_type"], told["metadata"]["correlation_id"]) == (
            "AUTHENTICATION_ERROR", said["id"],
        )  # fmt: skip
    assert stage.intake.seen_at(AgentId("bob")) is None


@pytest.mark.requirement("agentmsg/all-D4")
async def test_a_senders_credential_goes_nowhere(stage: Stage, pair: tuple[Speaker, Speaker], capfd: Any) -> None:
    ada, bob = pair
    await ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    await bob.works(ada, "t-1")
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})
    heard = json.dumps([await ada.hear(), await bob.hear(), (await stage.get("/state")).json()])
    stored = repr(stage.store._tables)
    said = "".join(capfd.readouterr())
    for token in (ada.token, bob.token, ADMIN_TOKEN):
        assert token not in heard
        assert token not in stored
        assert token not in said


@pytest.mark.requirement("agentmsg/all-D5")
async def test_the_same_message_again_has_one_effect_and_other_content_is_refused(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    letter = await ada.say("ERROR_REPORT", "bob", note(ada, "once"))
    order = await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    asks = await ada.say("HELP_REQUEST", "bob", words.help_request("ada", "a thought"))
    for said in (letter, order, asks):
        again = {**said, "metadata": {**said["metadata"], "retry_count": 1}}
        assert (await ada.send(again)).status_code == 202
        other = {**said, "payload": {**said["payload"], "x_other": 1}}
        answer = await ada.send(other)
        assert (answer.status_code, answer.json()["error_type"]) == (409, "VALIDATION_ERROR")
        assert answer.json()["context"]["details"]["field"] == "id"
        assert not {"request_id", "message_id"} & set(re.findall(r"\w+", answer.json()["message"]))
    assert sorted(one["type"] for one in await bob.hear()) == ["ERROR_REPORT", "HELP_REQUEST", "TASK_ASSIGNMENT"]
    done = await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})
    assert (await bob.send(done)).status_code == 202
    assert (await bob.send({**done, "id": stage.uuid()})).status_code == 202  # the same result by another name
    status, _ = await bob.refused("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 2})
    assert status == 409
    assert len([one for one in await ada.hear() if one["type"] == "TASK_COMPLETE"]) == 1


@pytest.mark.requirement("agentmsg/all-D5")
async def test_the_same_message_many_times_at_once_joins_the_first(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    said = [
        ada.message("ERROR_REPORT", "bob", note(ada, "once")),
        ada.message("TASK_ASSIGNMENT", "bob", words.assignment("t-1")),
        ada.message("STATUS_UPDATE", "bob", words.status("ada", stage.at)),
        ada.message("HELP_REQUEST", "bob", words.help_request("ada", "a thought")),
    ]
    answers = await asyncio.gather(*(ada.send(message) for message in said * 15))
    assert [answer.status_code for answer in answers] == [202] * 60
    assert sorted(one["type"] for one in await bob.hear()) == sorted(message["type"] for message in said)


@pytest.mark.requirement("agentmsg/all-D5")
async def test_used_ids_are_known_after_a_restart_of_the_endpoint(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    """The memory of the endpoint is a shortcut; the store is what remembers."""
    ada, bob = pair
    letter = await ada.say("ERROR_REPORT", "bob", note(ada, "once"))
    assert len(await bob.hear()) == 1
    async with reopened(stage):
        assert (await ada.send(letter)).status_code == 202
        assert (await ada.send({**letter, "payload": note(ada, "other")})).status_code == 409
        assert await bob.hear() == []


@pytest.mark.requirement("agentmsg/all-D5", "AM-DLV-5")
@pytest.mark.parametrize("kind", ["TASK_FAILED", "ERROR_REPORT"])
async def test_a_failure_that_is_sent_again_after_a_crash_ends_no_second_attempt(
    stage: Stage, pair: tuple[Speaker, Speaker], kind: str
) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    error = words.error("bob", "t-1", error_type="TIMEOUT", severity="critical")
    failure = await bob.say(kind, "hub", error if kind == "ERROR_REPORT" else {"task_id": "t-1", "error": error})
    await stage.pass_time(1)
    assert (await bob.hears("TASK_ASSIGNMENT"))["payload"]["task"]["attempt"] == 2
    async with reopened(stage):
        assert (await bob.send(failure)).status_code == 202
        assert ((await stage.named("t-1")).status, (await stage.named("t-1")).attempt.count) == (Status.ASSIGNED, 2)
        assert stage.intake.agent(AgentId("bob")).breaker.failures == 1  # type: ignore[union-attr]


@pytest.mark.requirement("agentmsg/all-D5", "AM-DLV-5")
async def test_an_answer_whose_receipt_got_lost_counts_once_also_after_a_crash(stage: Stage) -> None:
    ada, bob = await stage.join("ada", work_types=()), await stage.join("bob")
    cid = await stage.join("cid", capabilities=("help",))
    for speaker in (bob, cid):
        await speaker.hear()
    await bob.works(ada, "t-1")
    said: list[tuple[Speaker, dict[str, Any]]] = []
    for verdict in ("DIRECT_ANSWER", "UNABLE_TO_HELP", "ESCALATION"):
        asked = await bob.say("HELP_REQUEST", "hub", words.help_request("bob", "t-0"))
        await cid.hears("HELP_REQUEST")
        answer = words.help_response("cid", asked["id"], response_type=verdict)
        said.append((cid, await cid.say("HELP_RESPONSE", "bob", answer)))
    for to, answer in (("hub", words.no("cid")), ("cid", words.yes("cid"))):
        asked = await bob.say("TASK_HANDOFF", to, words.handoff("t-1", "bob", to))
        await cid.hears("TASK_HANDOFF")
        said.append((cid, await cid.say("TASK_HANDOFF", "bob", answer, correlation_id=asked["id"])))
    change = words.change("CREATE", "TASK", "note", {}, 0, stage.at)
    said.append((ada, await ada.say("STATE_UPDATE", "hub", change)))
    said.append((ada, await ada.say("TASK_UPDATE", "cid", {"task_id": "t-1", "status": "cancelled"})))
    heard = [await one.hear() for one in (ada, bob, cid)]
    assert all(heard)
    async with reopened(stage):
        for speaker, message in said:
            again = await speaker.send(message)
            assert again.status_code == 202, (message, again.text)
            if message["type"] == "STATE_UPDATE":
                assert again.json()["answer"]["payload"] == {"version": 1}
            other = {**message, "payload": {**message["payload"], "x_other": 1}}
            assert (await speaker.send(other)).status_code == 409, message
        assert [await one.hear() for one in (ada, bob, cid)] == [[], [], []]


# -- in the hub's words


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.requirement("AM-MTA-2", "AM-MSG-4")
async def test_a_report_of_a_task_is_the_agents_message_and_names_the_assignment(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    given = await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    order = await bob.hears("TASK_ASSIGNMENT")
    assert (order["id"], order["from"]) == (given["id"], "ada")
    said = [
        await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 5}, correlation_id=order["id"]),
        await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 6}, correlation_id="a thread of theirs"),
        await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1}),
    ]
    told = await ada.hear()
    assert [one["id"] for one in told] == [one["id"] for one in said]
    named = [one["metadata"]["correlation_id"] for one in told]
    assert named == [given["id"], "a thread of theirs", given["id"]]
    await stage.pass_time(1)
    await ada.send(given)  # it missed the end of it: that is told again, as a new message
    [again] = await ada.hear()
    assert again["id"] != said[-1]["id"]
    assert (again["payload"], again["metadata"]["correlation_id"]) == (said[-1]["payload"], given["id"])


@pytest.mark.requirement("agentmsg/all-D8")
async def test_old_news_of_a_task_that_has_ended_do_not_say_that_it_has(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    request = await bob.say("HELP_REQUEST", "ada", words.help_request("bob", "t-1"))
    await ada.say("HELP_RESPONSE", "bob", words.help_response("ada", request["id"]))
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})
    told = [(one["type"], one["payload"].get("status")) for one in await ada.hear() if one["type"] != "HELP_REQUEST"]
    assert {status for type, status in told if type == "TASK_UPDATE"} == {"in_progress"}
    assert told[-1][0] == "TASK_COMPLETE"


@pytest.mark.requirement("AM-ERR-4")
async def test_a_refusal_calls_the_task_as_the_message_did(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    _, report = await ada.refused("TASK_COMPLETE", "hub", {"task_id": "t-1", "result": 1})
    assert (report["task_id"], report["context"]["details"]["task_id"]) == ("t-1", "t-1")


@pytest.mark.requirement("AM-MTA-2")
async def test_a_later_attempt_is_another_message_and_its_end_names_the_assignment(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    given = await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    await bob.hears("TASK_ASSIGNMENT")
    await bob.say("TASK_FAILED", "ada", {"task_id": "t-1", "error": words.error("bob", error_type="NETWORK_ERROR")})
    await stage.pass_time(2)
    order = await bob.hears("TASK_ASSIGNMENT")
    assert (order["payload"]["task"]["attempt"], order["id"] == given["id"]) == (2, False)
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1}, correlation_id=order["id"])
    assert (await ada.hears("TASK_COMPLETE"))["metadata"]["correlation_id"] == given["id"]


@pytest.mark.requirement("agentmsg/all-D7")
async def test_the_trace_travels_in_the_metadata(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"), traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    order = await bob.hears("TASK_ASSIGNMENT")
    assert order["metadata"]["traceparent"].split("-")[1] == TRACE
    assert (await stage.named("t-1")).lineage.trace_id == TRACE
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})
    assert (await ada.hears("TASK_COMPLETE"))["metadata"]["traceparent"].split("-")[1] == TRACE
    letter = await ada.say("ERROR_REPORT", "bob", note(ada, "?"), traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    heard = await bob.hears("ERROR_REPORT")
    assert heard["metadata"]["traceparent"] == letter["metadata"]["traceparent"]


@pytest.mark.requirement("agentmsg/all-D7")
async def test_the_trace_of_the_request_counts_where_the_message_has_none(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, _ = pair
    said = ada.message("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    await stage.post("/messages", said, ada.token, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    assert (await stage.named("t-1")).lineage.trace_id == TRACE


@pytest.mark.requirement("agentmsg/all-D8")
async def test_each_state_has_one_name(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair

    async def status() -> str:
        return str((await stage.get("/state/TASK/t-1", ada.token)).json()["value"]["status"])

    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    seen = [await status()]
    await bob.hears("TASK_ASSIGNMENT")
    seen.append(await status())  # assigned
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 1})
    seen.append(await status())  # running
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "status": "paused"})
    seen.append(await status())  # waiting
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "status": "in_progress", "message": "on"})
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "status": "completed", "output": "ok"})
    seen.append(await status())
    assert seen == ["pending", "in_progress", "in_progress", "in_progress", "completed"]
    told = await ada.hear()
    assert [one["payload"].get("status") for one in told if one["type"] == "TASK_UPDATE"][1:] == [
        "paused", "in_progress",
    ]  # fmt: skip
    assert told[-1]["type"] == "TASK_COMPLETE"


@pytest.mark.requirement("agentmsg/all-D8")
@pytest.mark.parametrize("ends", ["failed", "cancelled"])
async def test_what_an_agent_says_of_the_end_is_what_the_registry_says(
    stage: Stage, pair: tuple[Speaker, Speaker], ends: str
) -> None:
    ada, bob = pair
    await bob.works(ada, "t-2")
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-2", "status": ends})
    assert (await ada.hears("TASK_FAILED"))["payload"]["status"] == ends
    assert (await stage.get("/state/TASK/t-2")).json()["value"]["status"] == ends


@pytest.mark.requirement("agentmsg/B4")
@pytest.mark.parametrize("by", ["who asked", "the shared state"])
async def test_a_cancelled_task_is_reported_as_an_update(stage: Stage, pair: tuple[Speaker, Speaker], by: str) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    await bob.say("TASK_ASSIGNMENT", "ada", words.assignment("t-2", context=words.context(
        "t-2", metadata={"parent_task_id": "t-1"},
    )))  # fmt: skip
    await ada.hears("TASK_ASSIGNMENT")
    if by == "who asked":
        await ada.say("TASK_UPDATE", "bob", {"task_id": "t-1", "status": "cancelled", "message": "enough"})
    else:
        version = (await stage.get("/state/TASK/t-1")).json()["version"]
        answer = await stage.change("UPDATE", "TASK", "t-1", {"status": "cancelled"}, version, ada.token)
        assert answer.status_code == 200, answer.text
    heard = [one for one in await bob.hear() if one["type"] == "TASK_UPDATE"]
    assert [(one["payload"]["task_id"], one["payload"]["status"]) for one in heard] == [("t-1", "cancelled")]
    assert heard[0]["metadata"]["priority"] == "high"  # kept until it is acknowledged
    child = [one for one in await ada.hear() if one["payload"].get("task_id") == "t-2"]
    assert [(one["type"], one["payload"]["status"]) for one in child] == [("TASK_UPDATE", "cancelled")]
    status, _ = await bob.refused("TASK_COMPLETE", "hub", {"task_id": "t-1", "result": "too late"})
    assert status == 409


@pytest.mark.requirement("agentmsg/all-D3")
@pytest.mark.parametrize("via", ["HTTP", "link"])
async def test_each_refusal_names_the_field_where_it_stands(
    stage: Stage, pair: tuple[Speaker, Speaker], via: str
) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    past, risky = stage.after(-5), words.assignment("t-2", context=words.context("t-2", metadata={"risk": 7}))
    stray = {"correlation_id": stage.uuid()}
    cases: list[tuple[Speaker, str, str, dict[str, Any], dict[str, Any], str]] = [
        (ada, "TASK_ASSIGNMENT", "bob", words.assignment("t-1"), {}, "payload.task.task_id"),
        (ada, "TASK_ASSIGNMENT", "bob", risky, {}, "payload.task.context.metadata.risk"),
        (ada, "TASK_ASSIGNMENT", "nobody", words.assignment("t-2"), {}, "to"),
        (ada, "TASK_COMPLETE", "hub", {"task_id": "t-1", "result": 1}, {}, "payload.task_id"),
        (bob, "TASK_HANDOFF", "ada", words.handoff("t-1", "bob", "ada", deadline=past), {}, "payload.deadline"),
        (bob, "TASK_HANDOFF", "ada", words.yes("bob"), stray, "metadata.correlation_id"),
        (bob, "HELP_REQUEST", "ada", words.help_request("bob", "t-1", deadline=past), {}, "payload.deadline"),
        (bob, "HELP_RESPONSE", "hub", words.help_response("bob", "x"), {}, "payload.request_id"),
        (
            bob, "STATE_UPDATE", "hub", words.change("CREATE", "TASK", "x", {"status": "?"}, 0, stage.at), {},
            "payload.changes.status",
        ),
    ]  # fmt: skip
    for speaker, kind, to, payload, metadata, field in cases:
        if via == "HTTP":
            _, report = await speaker.refused(kind, to, payload, **metadata)
        else:
            async with speaker.link() as link:
                said = await link.say(kind, to, payload, **metadata)
                told = await link.hears("ERROR_REPORT")
                assert told["metadata"]["correlation_id"] == said["id"]
                report = told["payload"]
        assert report["context"]["details"]["field"] == field, (kind, report)
