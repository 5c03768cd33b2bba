"""Agentmsg over HTTP: answered after the commit, refused by an ErrorReport, polled, acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.core.commands import (
    Acknowledge,
    ChangeState,
    Finish,
    OpenLink,
    RegisterAgent,
    ReportProgress,
    ReportStatus,
    Tell,
)
from dragoman.core.model.state import Registry
from dragoman.messages.faults import Fault, Kind


async def test_a_message_is_accepted_after_its_commit(client: Any, hub: Any, kit: Any) -> None:
    hub.held = []
    said = kit.message("TASK_COMPLETE")
    sending = asyncio.ensure_future(client.send(said))
    await hub.until(lambda: bool(hub.asked_for(Finish)))
    assert not sending.done()
    hub.commit()
    answer = await kit.soon(sending)
    assert (answer.status_code, answer.json()) == (202, {"status": "accepted", "message_id": said["id"]})


async def test_one_message_may_be_two_commands_in_order(client: Any, hub: Any, kit: Any) -> None:
    assert (await client.send(kit.message("STATUS_UPDATE", to="bob"))).status_code == 202
    assert [type(command) for command in hub.asked] == [ReportStatus, Tell]
    assert hub.asked[1].to == "bob"


async def test_a_report_about_no_task_of_the_hub_is_a_direct_message(client: Any, hub: Any, kit: Any) -> None:
    hub.script[Finish] = Fault(kind=Kind.NOT_FOUND, message="no such task", field="task_id")
    assert (await client.send(kit.message("TASK_COMPLETE", to="bob"))).status_code == 202
    assert [type(command) for command in hub.asked] == [Finish, Tell]
    refused = await client.send(kit.message("TASK_COMPLETE"))
    assert (refused.status_code, refused.json()["error_type"]) == (404, "VALIDATION_ERROR")


@pytest.mark.parametrize(
    ("token", "status", "error_type"),
    [
        (None, 401, "AUTHENTICATION_ERROR"),
        ("f" * 32, 401, "AUTHENTICATION_ERROR"),
        ("chi", 403, "AUTHENTICATION_ERROR"),
    ],
)
async def test_without_a_good_token_nothing_is_taken(
    token: str | None, status: int, error_type: str, client: Any, hub: Any, kit: Any
) -> None:
    for method, path in (
        ("POST", "/messages"), ("GET", "/messages"), ("POST", "/ack"), ("GET", "/state"), ("POST", "/state"),
        ("GET", "/state/watch"), ("GET", "/state/AGENT/ada"),
    ):  # fmt: skip
        answer = await client(method, path, token=kit.tokens.get(token, token))
        assert (answer.status_code, answer.json()["error_type"]) == (status, error_type), path
        assert answer.json()["suggested_actions"]
    assert hub.asked == []
    assert len(hub.noted) == 7


async def test_a_broken_message_is_refused_with_field_and_status(client: Any, hub: Any, kit: Any) -> None:
    for content, status, field in (
        (b"{", 400, None),
        (b'{"id":1,"id":2}', 400, "id"),
        (b"[]", 400, None),
        (b"x" * 200_000, 413, None),
    ):
        answer = await client("POST", "/messages", content=content)
        assert (answer.status_code, answer.json()["context"]["details"].get("field")) == (status, field), content[:20]
    for change, status, field in (
        ({"from": "bob"}, 403, "from"),
        ({"type": "WELCOME", "payload": {"agent_id": "ada"}}, 422, "type"),
        ({"payload": {"task_id": "t"}}, 422, "payload"),
        ({"timestamp": "2026-01-19T04:21:04"}, 400, "timestamp"),
    ):
        answer = await client.send({**kit.message("TASK_UPDATE"), **change})
        assert (answer.status_code, answer.json()["context"]["details"].get("field")) == (status, field), change
    assert hub.asked == []
    assert len(hub.noted) == 8
    assert (await client("DELETE", "/messages")).status_code == 405


async def test_what_is_promised_at_most_once_is_done_once(client: Any, hub: Any, kit: Any) -> None:
    hub.held_tasks["ada"] = [kit.task]
    said = kit.message("TASK_UPDATE")
    first, again = (
        await client.send(said),
        await client.send({**said, "metadata": {**said["metadata"], "retry_count": 1}}),
    )
    assert first.json() == again.json()
    assert len(hub.asked_for(ReportProgress)) == 1
    other = await client.send({**said, "payload": {**said["payload"], "progress": 51}})
    assert (other.status_code, other.json()["context"]["details"]["field"]) == (409, "id")


async def test_retry_after_is_what_the_refusal_says(client: Any, hub: Any, kit: Any) -> None:
    hub.held_tasks["ada"] = [kit.task]
    facts = {"scope": "principal", "limit": 20, "retry_after": 42}
    hub.script[ReportProgress] = Fault(kind=Kind.RATE_LIMITED, message="too many", retryable=True, facts=facts)
    refused = await client.send(kit.message("TASK_UPDATE"))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "42")


async def test_what_was_refused_may_be_sent_again(client: Any, hub: Any, kit: Any) -> None:
    hub.held_tasks["ada"] = [kit.task]
    said = kit.message("TASK_UPDATE")
    hub.script[ReportProgress] = Fault(kind=Kind.OVERLOADED, message="not now", retryable=True)
    refused = await client.send(said)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    hub.script[ReportProgress] = None
    assert (await client.send(said)).status_code == 202
    assert len(hub.asked_for(ReportProgress)) == 2


async def test_a_message_that_comes_twice_at_once_is_decided_once(client: Any, hub: Any, state: Any, kit: Any) -> None:
    hub.held = []
    hub.script[ChangeState] = state.put(Registry.RESOURCE, "ada:tokens", limit=5)
    said = kit.message("STATE_UPDATE")
    both = [asyncio.ensure_future(client.send(said)) for _ in range(2)]
    await hub.until(lambda: bool(hub.asked_for(ChangeState)))
    hub.release()
    answers = [(await kit.soon(one)).json() for one in both]
    assert [one["answer"]["payload"] for one in answers] == [{"version": 1}, {"version": 1}]
    assert len(hub.asked_for(ChangeState)) == 1


async def test_what_a_connection_is_being_asked_is_left_to_the_store(
    client: Any, hub: Any, connect: Any, kit: Any
) -> None:
    async with connect() as peer:
        await peer.link()
        hub.held = []
        said = kit.message("TASK_COMPLETE")
        await peer.say(said)
        await hub.until(lambda: bool(hub.asked_for(Finish)))
        sending = asyncio.ensure_future(client.send(said))
        await hub.until(lambda: len(hub.asked_for(Finish)) == 2)
        hub.release()
        assert (await kit.soon(sending)).status_code == 202
        assert (await peer.hear())["type"] == "ACK"
    again = await client.send(said)
    assert again.json()["answer"]["type"] == "ACK"
    assert len(hub.asked_for(Finish)) == 2


async def test_what_the_hub_answers_itself_is_in_the_body(client: Any, hub: Any, state: Any, kit: Any) -> None:
    said = kit.message("REGISTER")
    for _ in range(2):  # whoever asked may ask again
        welcome = (await client.send(said)).json()["answer"]
        assert (welcome["type"], welcome["metadata"]["correlation_id"]) == ("WELCOME", said["id"])
        assert welcome["payload"]["heartbeat_interval_ms"] == 7000
        assert welcome["payload"]["capabilities"] == ["review"]
    assert len(hub.asked_for(RegisterAgent)) == 2

    hub.script[ChangeState] = state.put(Registry.RESOURCE, "ada:tokens", limit=5)
    update = kit.message("STATE_UPDATE")
    for _ in range(2):  # the ACK was lost: the same again, without writing twice
        ack = (await client.send(update)).json()["answer"]
        assert (ack["type"], ack["payload"], ack["metadata"]["correlation_id"]) == ("ACK", {"version": 1}, update["id"])
    assert len(hub.asked_for(ChangeState)) == 1

    query = kit.message("STATE_QUERY", {"entity_type": "RESOURCE"})
    found = (await client.send(query)).json()["answer"]
    assert found["metadata"]["correlation_id"] == query["id"]
    assert found["payload"]["entities"] == [
        {"entity_type": "RESOURCE", "entity_id": "ada:tokens", "version": 1, "value": {"limit": 5}}
    ]
    watch = await client.send(kit.message("STATE_QUERY", {"watch": True}))
    assert (watch.status_code, watch.json()["context"]["details"]["field"]) == (422, "payload.watch")


async def test_a_poll_gets_messages_with_their_delivery_ids(client: Any, hub: Any, kit: Any) -> None:
    polling = asyncio.ensure_future(client("GET", "/messages?wait=5&max=3"))
    await hub.until(lambda: bool(hub.asked_for(OpenLink)))
    (opened,) = hub.asked_for(OpenLink)
    assert (opened.principal, opened.ordered, opened.credit) == ("ada", False, 3)
    outgoing_messages = [kit.work(1), kit.direct_message(2)]
    hub.ends[opened.session].deliver(outgoing_messages)
    messages = (await kit.soon(polling)).json()["messages"]
    assert [one["delivery_id"] for one in messages] == [outgoing.delivery.id for outgoing in outgoing_messages]
    assert [one["message"]["metadata"]["delivery_id"] for one in messages] == [one["delivery_id"] for one in messages]
    assert [one["message"]["type"] for one in messages] == ["TASK_ASSIGNMENT", "TASK_COMPLETE"]
    assert [one["message"]["from"] for one in messages] == ["hub", "bob"]

    hub.script[Acknowledge] = 1
    acked = await client("POST", "/ack", json={"delivery_ids": [messages[0]["delivery_id"]]})
    assert acked.json() == {"acknowledged": 1}
    named = [one["message"]["id"] for one in messages]
    assert (await client.send(kit.message("ACK", correlation_id=named[1]))).status_code == 202
    assert (await client.send(kit.message("ACK", {"message_ids": [named[0]]}))).status_code == 202
    exact = outgoing_messages[1].delivery.id
    assert (await client.send(kit.message("ACK", correlation_id=named[1], delivery_id=exact))).status_code == 202
    ids = [outgoing.delivery.id for outgoing in outgoing_messages]
    assert [one.deliveries for one in hub.asked_for(Acknowledge)] == [(ids[0],), (ids[1],), (ids[0],), (exact,)]


async def test_two_messages_of_one_name_are_acknowledged_one_after_the_other(client: Any, hub: Any, kit: Any) -> None:
    same = "11111111-1111-4111-8111-111111111111"
    polling = asyncio.ensure_future(client("GET", "/messages?wait=5"))
    await hub.until(lambda: bool(hub.asked_for(OpenLink)))
    outgoing_messages = [kit.direct_message(1, id=same), kit.direct_message(2, id=same)]
    hub.ends[hub.asked_for(OpenLink)[0].session].deliver(outgoing_messages)
    await kit.soon(polling)
    for _ in outgoing_messages:
        await client.send(kit.message("ACK", correlation_id=same))
    assert [one.deliveries for one in hub.asked_for(Acknowledge)] == [(one.delivery.id,) for one in outgoing_messages]


async def test_a_result_in_pieces_arrives_whole(client: Any, hub: Any, store: Any, kit: Any, connect: Any) -> None:
    events, outgoing = kit.pieces()

    async def read(task: str, *, after: int, limit: int) -> Any:
        return [event for event in events if event.seq > after][:limit]

    store.events = read
    polling = asyncio.ensure_future(client("GET", "/messages?wait=5"))
    await hub.until(lambda: bool(hub.asked_for(OpenLink)))
    hub.ends[hub.asked_for(OpenLink)[0].session].deliver([outgoing])
    (polled,) = (await kit.soon(polling)).json()["messages"]
    assert (polled["message"]["type"], polled["message"]["payload"]["result"]) == ("TASK_COMPLETE", "abc")
    hub.asked.clear()
    async with connect() as peer:
        (await peer.link()).deliver([outgoing])
        assert (await peer.hear())["payload"] == polled["message"]["payload"]


async def test_a_stop_answers_parked_polls(client: Any, hub: Any, serving: Any, kit: Any) -> None:
    polling = asyncio.ensure_future(client("GET", "/messages?wait=60"))
    await hub.until(lambda: bool(hub.asked_for(OpenLink)))
    await kit.soon(serving.stop(1.0))
    assert (await kit.soon(polling)).json() == {"messages": []}
