"""What is promised of a message between two agents, over real endpoints: order, priority, time, and the last resort."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.stage import Speaker, Stage

from dragoman.core import hub
from dragoman.core.commands import RemoveAgent, WaitAgain
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.tasks import Status
from dragoman.messages.faults import Kind


@pytest.fixture
async def pair(stage: Stage) -> tuple[Speaker, Speaker]:
    """`ada` writes to `bob`."""
    return await stage.join("ada"), await stage.join("bob")


def note(agent: Speaker, text: str, task: str | None = None, **fields: Any) -> dict[str, Any]:
    """An ERROR_REPORT between agents is a letter, and kept."""
    return words.error(agent.id, task, message=text, **fields)


# -- order and urgency


@pytest.mark.requirement("AM-RTE-2", "agentmsg-D5")
async def test_what_is_more_urgent_is_delivered_first(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    for kind, payload in (
        ("HEARTBEAT", {"agent_id": "ada"}),
        ("STATUS_UPDATE", words.status("ada", stage.at)),
        ("TASK_COMPLETE", {"task_id": "a matter of ours", "result": 1}),
        ("ERROR_REPORT", note(ada, "fire")),
    ):
        await ada.say(kind, "bob", payload, priority="low")
    heard = []
    while got := await bob.poll(1):
        heard += [one["message"]["type"] for one in got]
        await bob.ack(*got)
    assert heard == ["ERROR_REPORT", "TASK_COMPLETE", "STATUS_UPDATE", "HEARTBEAT"]


@pytest.mark.requirement("AM-RTE-2")
async def test_a_messages_own_priority_counts_where_it_is_higher(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await ada.say("STATUS_UPDATE", "bob", words.status("ada", stage.at))
    await ada.say("HEARTBEAT", "bob", {"agent_id": "ada"}, priority="high")
    assert [one["message"]["type"] for one in await bob.poll(1)] == ["HEARTBEAT"]


@pytest.mark.requirement("AM-RTE-2", "agentmsg-D3", "agentmsg-D4")
@pytest.mark.parametrize(
    ("said", "told", "kept"),
    [("low", "normal", False), ("normal", "normal", False), ("high", "high", True), ("critical", "critical", True)],
)
async def test_an_update_about_a_task_of_the_hub_has_its_priority_and_what_that_promises(
    stage: Stage, pair: tuple[Speaker, Speaker], said: str, told: str, kept: bool
) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    async with ada.link() as link:
        update = await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 10}, priority=said)
        first = await link.hears("TASK_UPDATE")
        assert (first["id"], first["metadata"]["priority"]) == (update["id"], told)
        await stage.pass_time(1.1)
        if kept:
            again = await link.hears("TASK_UPDATE")
            assert (again["id"], again["metadata"]["retry_count"]) == (first["id"], 1)
            await link.ack(again)
        await stage.pass_time(30)
        assert [one for one in (await link.told()).values() if one["type"] == "TASK_UPDATE"] == []
    assert [row for row in stage.store.rows(Delivery) if row.receiver == "ada"] == []


@pytest.mark.requirement("agentmsg-D5")
async def test_what_stands_before_an_urgent_update_is_as_urgent(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    await ada.hear()
    await ada.say("TASK_COMPLETE", "ada", {"task_id": "a matter of ours", "result": 1})
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 1})
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 2}, priority="critical")
    heard = [one["message"]["payload"].get("progress") for one in await ada.poll(3)]
    assert heard == [1, 2, None]


@pytest.mark.requirement("agentmsg-D5")
async def test_nobody_starves(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    """A critical letter overtakes whatever is at most an hour older; what waited longer comes first."""
    ada, bob = pair
    old = await ada.say("STATUS_UPDATE", "bob", words.status("ada", stage.at))
    await stage.pass_time(3601)
    new = await ada.say("ERROR_REPORT", "bob", note(ada, "fire"))
    heard = [one["message"]["id"] for one in await bob.poll(2)]
    assert heard == [old["id"], new["id"]]


@pytest.mark.requirement("AM-DLV-3", "agentmsg-D5")
async def test_the_messages_of_one_task_arrive_in_order_whatever_their_priority(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    """A poll takes consecutive messages of a lane, in order, and the lane goes by the most urgent that waits in it."""
    ada, bob = pair
    await ada.say("TASK_UPDATE", "bob", {"task_id": "lane", "progress": 1})
    await ada.say("TASK_COMPLETE", "bob", {"task_id": "lane", "result": 2})
    await ada.say("ERROR_REPORT", "bob", note(ada, "3", "lane"))
    await ada.say("TASK_COMPLETE", "bob", {"task_id": "other", "result": 4})
    rounds = []
    for _ in range(2):
        got = await bob.poll()
        rounds.append([(one["message"]["type"], one["message"]["payload"].get("task_id")) for one in got])
        await bob.ack(*got)
    lane = [("TASK_UPDATE", "lane"), ("TASK_COMPLETE", "lane"), ("ERROR_REPORT", "lane")]
    assert rounds == [[*lane, ("TASK_COMPLETE", "other")], []]


@pytest.mark.requirement("AM-DLV-3", "agentmsg-D5")
async def test_over_a_connection_only_the_head_of_a_lane_is_under_way(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    async with bob.link() as link:
        said = [await ada.say("ERROR_REPORT", "bob", note(ada, str(n), "lane")) for n in range(3)]
        for message in said:
            heard = await link.told()
            assert list(heard) == [message["id"]]
            await link.ack(heard[message["id"]])
        assert await link.told() == {}


@pytest.mark.requirement("AM-DLV-3")
async def test_an_assignment_its_progress_and_its_result_come_in_order(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    for n in (10, 50, 90):
        await bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": n})
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": "ok"})
    heard = [one["payload"].get("progress", one["payload"].get("result")) for one in await ada.hear()]
    assert heard == [10, 50, 90, "ok"]


# -- again, and never again


@pytest.mark.requirement("AM-DLV-7", "agentmsg/all-D5")
@pytest.mark.parametrize("max_retries", [0, 1, 3])
async def test_what_is_never_acknowledged_ends_among_the_dead_letters(
    stage: Stage, pair: tuple[Speaker, Speaker], max_retries: int
) -> None:
    ada, bob = pair
    async with bob.link() as link:
        said = await ada.say("ERROR_REPORT", "bob", note(ada, "?"), max_retries=max_retries)
        for attempt in range(max_retries + 1):
            heard = (await link.told())[said["id"]]
            assert heard["metadata"]["retry_count"] == attempt
            assert heard["payload"] == said["payload"]
            await stage.pass_time(2**attempt)
        assert await link.told() == {}
    [dead] = await stage.store.dead_letters(limit=10)
    assert dead.direct_message is not None
    assert (dead.receiver, dead.attempts, dead.direct_message.message_id) == ("bob", max_retries + 1, said["id"])
    told = await ada.hears("ERROR_REPORT")
    assert (told["from"], told["metadata"]["correlation_id"]) == ("hub", said["id"])
    assert told["payload"]["error_type"] == "NETWORK_ERROR"


@pytest.mark.requirement("AM-RTY-2")
async def test_a_message_waits_as_it_says_itself_and_others_as_the_policy_says(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    status, report = await ada.refused("ERROR_REPORT", "bob", note(ada, "?"), retry_config={"max_attempts": 9})
    assert (status, report["error_type"]) == (422, "VALIDATION_ERROR")
    assert report["context"]["details"]["field"] == "metadata.retry_config.max_attempts"
    config = {"base_delay_ms": 200, "max_delay_ms": 500, "backoff_multiplier": 2, "jitter": False, "max_attempts": 4}
    async with bob.link() as link:
        own = await ada.say("ERROR_REPORT", "bob", note(ada, "own"), retry_config=config)
        for wait in (0, 0.2, 0.4, 0.5):
            await stage.pass_time(wait)
            heard = await link.told()
            assert heard[own["id"]]["metadata"]["retry_config"] == config
        await link.ack(heard[own["id"]])
        other = await ada.say("ERROR_REPORT", "bob", note(ada, "other"))
        assert list(await link.told()) == [other["id"]]
        await stage.policy(retry_config={"base_delay_ms": 300})
        await stage.pass_time(0.3)
        assert list(await link.told()) == [other["id"]]
        await stage.pass_time(0.6)
        assert list(await link.told()) == [other["id"]]
    shown = (await stage.get("/state")).json()["policy_state"]
    assert shown["retry_config"] == {"base_delay_ms": 300}


@pytest.mark.requirement("AM-RTY-2", "AM-MTA-5")
async def test_the_work_order_of_an_assignment_is_sent_again_as_the_assignment_says(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    config = {"base_delay_ms": 200, "backoff_multiplier": 3, "jitter": False}
    async with bob.link() as link:
        given = await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"), retry_config=config, max_retries=2)
        for retry, wait in enumerate((0, 0.2, 0.6)):
            await stage.pass_time(wait)
            assert {id: one["metadata"]["retry_count"] for id, one in (await link.told()).items()} == {
                given["id"]: retry
            }
        await stage.pass_time(2.5)
        assert await link.told() == {}  # that was the last one; the task's own clocks go on
        assert (await stage.named("t-1")).status is Status.ASSIGNED


@pytest.mark.requirement("AM-RTY-2")
async def test_a_hub_that_died_over_a_change_of_the_policy_waits_as_it_says(
    stage: Stage, pair: tuple[Speaker, Speaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = pair
    await stage.policy(retry_config={"base_delay_ms": 60_000, "max_delay_ms": 60_000})
    said = await ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    assert len(await bob.poll()) == 1
    with monkeypatch.context() as broken:
        broken.setitem(hub.DECISIONS, WaitAgain, lambda work, command: 0)  # it died before this
        await stage.policy(retry_config={"base_delay_ms": 500})
        await stage.rest()
    await stage.restart()
    await stage.pass_time(1)
    assert [outgoing.direct_message.message_id for outgoing in await stage.poll("bob")] == [said["id"]]


@pytest.mark.requirement("AM-DLV-7")
async def test_a_lane_goes_on_behind_a_dead_letter(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await ada.say("ERROR_REPORT", "bob", note(ada, "1", "lane"), max_retries=0)
    second = await ada.say("ERROR_REPORT", "bob", note(ada, "2", "lane"))
    assert len(await bob.poll()) == 2
    await stage.pass_time(2)
    assert [one["message"]["id"] for one in await bob.poll()] == [second["id"]]


@pytest.mark.requirement("AM-DLV-7")
async def test_messages_to_a_removed_agent_are_dead_letters_and_their_senders_get_a_report(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, _ = pair
    said = await ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    await ada.say("HEARTBEAT", "bob", {"agent_id": "ada"})
    await stage.ask(RemoveAgent(principal=ADMIN, agent=AgentId("bob")))
    await stage.pass_time(1)
    assert (await ada.hears("ERROR_REPORT"))["metadata"]["correlation_id"] == said["id"]
    assert stage.store.rows(Delivery) == []
    assert [dead.direct_message and dead.direct_message.message_id for dead in stage.store.rows(DeadLetter)] == [
        said["id"]
    ]


@pytest.mark.requirement("AM-DLV-6")
async def test_an_expired_message_is_on_record_and_reported_to_its_sender(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    kept = await ada.say("ERROR_REPORT", "bob", note(ada, "now or never"), ttl_ms=2000)
    once = await ada.say("HEARTBEAT", "bob", {"agent_id": "ada"}, ttl_ms=2000)
    await stage.pass_time(3)
    assert await bob.hear() == []
    told = await ada.hears("ERROR_REPORT")  # and nobody speaks of the heartbeat
    assert (told["payload"]["error_type"], told["metadata"]["correlation_id"]) == ("TIMEOUT", kept["id"])
    records = [r.subject for r in await stage.store.audit(after=0, limit=1000) if r.action == "letter.expire"]
    assert set(records) == {kept["id"], once["id"]}
    assert stage.store.rows(Delivery) == []
    assert stage.store.rows(DeadLetter) == []


@pytest.mark.requirement("AM-MTA-3", "AM-DLV-6", "agentmsg-D6")
async def test_what_asks_for_something_expires_like_everything_else(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    said = {
        (await ada.say(kind, "bob", payload, ttl_ms=2000))["id"]: answer
        for kind, payload, answer in (
            ("TASK_ASSIGNMENT", words.assignment("t-1"), "TASK_FAILED"),
            ("HELP_REQUEST", words.help_request("ada", "t-2"), "HELP_RESPONSE"),
            ("TASK_HANDOFF", words.handoff("t-3", "ada", "bob"), "TASK_HANDOFF"),
        )
    }
    await stage.pass_time(3)
    assert await bob.hear() == []
    heard = await ada.hear()
    told = [(one["metadata"]["correlation_id"], one["type"]) for one in heard]
    assert sorted(told) == sorted((id, type) for id, answer in said.items() for type in ("ERROR_REPORT", answer))
    reports = [one["payload"]["context"]["details"]["type"] for one in heard if one["type"] == "ERROR_REPORT"]
    assert sorted(reports) == ["HELP_REQUEST", "TASK_ASSIGNMENT", "TASK_HANDOFF"]
    failed = await stage.named("t-1")
    assert failed.outcome.fault is not None
    assert (failed.status, failed.outcome.fault.kind) == (Status.FAILED, Kind.TIMEOUT)


@pytest.mark.requirement("AM-MTA-3")
async def test_an_assignment_that_its_agent_has_does_not_expire(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"), ttl_ms=2000)
    await bob.hears("TASK_ASSIGNMENT")
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-2"), ttl_ms=2000)
    assert len(await bob.poll()) == 1  # received, not acknowledged: it does not come again, but may be done
    await stage.pass_time(3)
    assert await bob.poll() == []
    for name in ("t-1", "t-2"):
        await bob.say("TASK_COMPLETE", "ada", {"task_id": name, "result": 1})
    assert {one["type"] for one in await ada.hear()} == {"TASK_COMPLETE"}


@pytest.mark.requirement("AM-DLV-6")
async def test_what_expired_on_its_way_to_the_hub_is_refused(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    late = ada.message("ERROR_REPORT", "bob", note(ada, "?"), ttl_ms=1)
    await stage.pass_time(1)
    answer = await ada.send(late)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "TIMEOUT")
    assert await bob.hear() == []
    status, report = await ada.refused("TASK_ASSIGNMENT", "bob", words.assignment("t"), ttl_ms=1, at=stage.after(-1))
    assert (status, report["error_type"]) == (422, "TIMEOUT")


@pytest.mark.requirement("AM-DLV-5")
async def test_what_was_accepted_outlives_the_hub(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    """Nothing but the store survives (a real kill: `tests/faults/test_agentmsg.py`)."""
    ada, _ = pair
    letter = await ada.say("ERROR_REPORT", "bob", note(ada, "kept"))
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    await stage.restart()
    waits = await stage.poll("bob")
    assert {getattr(outgoing.content, "message_id", None) or outgoing.task.origin.called for outgoing in waits} == {
        letter["id"], "t-1",
    }  # fmt: skip


# -- HTTP and WebSocket


@pytest.mark.requirement("AM-LNK-7")
async def test_both_transports_carry_the_same_messages(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    payload = note(ada, "the same", "t-9", x_extra=[1, {"a": None}])
    polled, heard = [], []
    await ada.say("ERROR_REPORT", "bob", payload, traceparent=None)
    [one] = await bob.poll()
    polled.append(one["message"])
    assert one["delivery_id"] == one["message"]["metadata"]["delivery_id"]
    assert await bob.ack(one) == 1
    async with bob.link() as link, ada.link() as other:
        said = await other.say("ERROR_REPORT", "bob", payload)
        ack = await other.hears("ACK")
        assert said["id"] in (ack["metadata"]["correlation_id"], *ack["payload"].get("message_ids", ()))
        heard.append(await link.hears("ERROR_REPORT"))
        await link.ack(heard[0])
        await link.told()
    changing = {"id", "timestamp", "metadata"}
    one, two = ({k: v for k, v in m.items() if k not in changing} for m in (polled[0], heard[0]))
    assert one == two
    assert set(polled[0]["metadata"]) - {"traceparent"} == set(heard[0]["metadata"])
    assert stage.store.rows(Delivery) == []


@pytest.mark.requirement("AM-LNK-7")
@pytest.mark.parametrize("how", ["by its delivery", "an ACK at /ack", "an ACK as a message", "an ACK over the link"])
async def test_every_way_to_acknowledge_counts(stage: Stage, pair: tuple[Speaker, Speaker], how: str) -> None:
    ada, bob = pair
    said = await ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    [one] = await bob.poll(1)
    ack = bob.message("ACK", "hub", {}, correlation_id=said["id"].upper())
    if how == "by its delivery":
        assert await bob.ack(one) == 1
    elif how == "an ACK at /ack":
        answer = await stage.post("/ack", ack, bob.token)
        assert (answer.status_code, answer.json()["acknowledged"]) == (200, 1)
    elif how == "an ACK as a message":
        assert (await bob.send(ack)).status_code == 202
    else:
        async with bob.link() as link:
            await link.socket.send(json.dumps(ack))
            await link.told()
    assert stage.store.rows(Delivery) == []
    await stage.pass_time(60)
    assert await bob.hear() == []


@pytest.mark.requirement("AM-LNK-7", "AM-DLV-5")
async def test_a_poll_that_is_not_acknowledged_gets_the_same_message_again(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    said = await ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    [first] = await bob.poll(1)
    assert await bob.poll(1) == []  # it is being looked at
    await stage.pass_time(1.1)
    [again] = await bob.poll(1)
    assert first["delivery_id"] == again["delivery_id"]
    assert (again["message"]["id"], again["message"]["metadata"]["retry_count"]) == (said["id"], 1)


@pytest.mark.requirement("AM-LNK-7")
async def test_an_agent_may_speak_at_once_with_any_names_and_forms(stage: Stage) -> None:
    """As a stranger would try it: no REGISTER, ids in capitals, other offsets, names that are no UUIDs."""
    ada, bob = await stage.join("Ada.Lovelace_1"), await stage.join("bob 2/ö")
    zone = stage.at.replace("Z", "").split(".")[0]
    hour = int(zone[11:13])
    local = f"{zone[:11]}{(hour + 2) % 24:02d}{zone[13:]}+02:00"
    id = stage.uuid().upper()
    sent = ada.message("TASK_ASSIGNMENT", bob.id, words.assignment("größer/Als & alles"), id=id, at=local, ttl_ms=9e9)
    sent["x_extra"] = {"kept": True}
    answer = await ada.send(sent)
    assert (answer.status_code, answer.json()["message_id"]) == (202, id.lower())
    order = await bob.hears("TASK_ASSIGNMENT")
    assert (order["payload"]["task"]["task_id"], order["x_extra"]) == ("größer/Als & alles", {"kept": True})
    for type in ("TASK_UPDATE", "TASK_COMPLETE"):
        body: dict[str, Any] = {"task_id": "größer/Als & alles"}
        await bob.say(type, "*", {**body, "progress": 1} if type == "TASK_UPDATE" else {**body, "result": None})
    done = await ada.hears("TASK_COMPLETE")
    assert (done["payload"]["task_id"], done["payload"]["result"]) == ("größer/Als & alles", None)
    assert (await stage.get("/state/TASK/gr%C3%B6%C3%9Fer/Als%20&%20alles")).status_code == 200
