"""Agentmsg over one WebSocket: acknowledged after commits, refused by ERROR_REPORTs, watched without a gap."""

from __future__ import annotations

import json
from typing import Any

import pytest
import websockets

from dragoman.core.commands import (
    Acknowledge,
    Beat,
    ChangeState,
    CloseLink,
    Finish,
    OpenLink,
    ReportProgress,
    ReportStatus,
    Tell,
)
from dragoman.core.model.state import Registry
from dragoman.messages.faults import Fault, Kind
from dragoman.wire.closing import CloseReason


async def test_a_connection_speaks_agentmsg_and_vouches_for_nothing(connect: Any, hub: Any) -> None:
    async with connect(subprotocols=["agentmsg.v1"]) as peer:
        assert peer.socket.subprotocol == "agentmsg.v1"
        await peer.link()
        (opened,) = hub.asked_for(OpenLink)
        assert (opened.principal, opened.protocol, opened.ordered) == ("ada", "agentmsg", True)
        assert (opened.acknowledges, opened.vouches) == (True, False)
    await hub.until(lambda: bool(hub.detached))
    assert hub.asked_for(CloseLink) == [CloseLink(principal=opened.principal, session=opened.session)]


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("f" * 32, 401), ("chi", 403)])
async def test_a_handshake_without_a_good_token_is_refused_by_a_report(
    token: str | None, status: int, connect: Any, hub: Any, kit: Any
) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with connect(token=kit.tokens.get(token, token)):
            pass
    response = refused.value.response
    assert (response.status_code, json.loads(response.body)["error_type"]) == (status, "AUTHENTICATION_ERROR")
    assert [note.what for note in hub.noted] == ["agent.connect"]


async def test_each_message_has_an_ack_of_its_own(connect: Any, hub: Any, kit: Any) -> None:
    hub.held_tasks["ada"] = [kit.task]
    async with connect() as peer:
        await peer.link()
        kept = [kit.message("TASK_COMPLETE") for _ in range(3)]
        await peer.say(*kept)
        acks = [await peer.hear() for _ in kept]
        assert [ack["metadata"]["correlation_id"] for ack in acks] == [one["id"] for one in kept]
        assert [ack["payload"] for ack in acks] == [{}, {}, {}]


async def test_a_client_that_asks_for_it_gets_one_ack_for_all_messages_of_a_commit(
    connect: Any, hub: Any, kit: Any
) -> None:
    hub.held_tasks["ada"] = [kit.task]
    async with connect(query="?acks=many") as peer:
        await peer.link()
        hub.held = []
        kept = [kit.message("TASK_COMPLETE") for _ in range(3)]
        await peer.say(kept[0], kit.message("TASK_UPDATE"), kept[1], kit.message("HEARTBEAT"), kept[2])
        await hub.until(lambda: bool(hub.asked_for(Finish)[2:]))
        assert [type(one) for one in hub.asked[1:]] == [Finish, ReportProgress, Finish, Beat, Finish]
        hub.release()
        ack = await peer.hear()
        assert (ack["type"], ack["from"], ack["to"]) == ("ACK", "hub", "ada")
        assert ack["metadata"]["correlation_id"] == kept[0]["id"]
        assert ack["payload"] == {"message_ids": [one["id"] for one in kept]}
        await peer.say(kept[1])  # the ACK was lost
        again = await peer.hear()
        assert (again["type"], again["metadata"]["correlation_id"]) == ("ACK", kept[1]["id"])
        assert len(hub.asked_for(Finish)) == 3


async def test_a_query_sees_what_was_written_before_it_on_the_same_connection(
    connect: Any, hub: Any, state: Any, kit: Any
) -> None:
    """Also while that is still being committed; and also if it is refused: then it waits for nothing more."""
    hub.script[ChangeState] = lambda command: state.put(Registry.RESOURCE, "ada:tokens", limit=5)
    query = kit.message("STATE_QUERY", {"entity_type": "RESOURCE", "entity_id": "ada:tokens"})
    async with connect() as peer:
        await peer.link()
        hub.held = []
        await peer.say(kit.message("STATE_UPDATE"), query)
        await kit.soon(await peer.socket.ping())  # both were heard
        hub.release()
        written, answer = await peer.hear(), await peer.hear()
        assert (written["type"], answer["type"]) == ("ACK", "STATE_QUERY")
        assert [one["value"] for one in answer["payload"]["entities"]] == [{"limit": 5}]
        hub.held, hub.script[ChangeState] = [], Fault(kind=Kind.CONFLICT, message="somebody was faster")
        await peer.say(kit.message("STATE_UPDATE"), {**query, "id": kit.message("ACK")["id"]})
        await kit.soon(await peer.socket.ping())
        hub.release()
        assert [(await peer.hear())["type"] for _ in range(2)] == ["ERROR_REPORT", "STATE_QUERY"]


async def test_a_refusal_is_sent_and_the_connection_goes_on(connect: Any, hub: Any, kit: Any) -> None:
    async with connect() as peer:
        await peer.say(
            {"id": "no"}, kit.message("TASK_UPDATE", {"progress": 500}), {**kit.message("TASK_UPDATE"), "from": "bob"}
        )
        hub.script[Finish] = Fault(kind=Kind.CONFLICT, message="it is over", facts={"version": 7})
        over = kit.message("TASK_COMPLETE")
        await peer.say(over)
        reports = [await peer.hear() for _ in range(4)]
        assert [one["type"] for one in reports] == ["ERROR_REPORT"] * 4
        assert [one["payload"]["context"]["details"].get("field") for one in reports] == [
            "id", "payload.progress", "from", None,
        ]  # fmt: skip
        assert reports[3]["metadata"]["correlation_id"] == over["id"]
        assert reports[3]["payload"]["context"]["details"]["version"] == 7
        hub.script[Finish] = None
        await peer.say(over)
        assert (await peer.hear())["metadata"]["correlation_id"] == over["id"]


async def test_a_broken_error_report_or_ack_is_not_answered(connect: Any, hub: Any, kit: Any) -> None:
    async with connect() as peer:
        await peer.say({"type": "ERROR_REPORT"}, kit.message("ACK"), kit.message("TASK_COMPLETE"))
        assert (await peer.hear())["type"] == "ACK"
        assert len(hub.noted) == 2


async def test_a_message_may_be_two_commands_and_is_refused_if_either_is(connect: Any, hub: Any, kit: Any) -> None:
    hub.script[Tell] = Fault(kind=Kind.UNAVAILABLE, message="nobody of that name", field="to_agent")
    async with connect() as peer:
        await peer.say(kit.message("STATUS_UPDATE", to="nobody"))
        report = await peer.hear()
        assert (report["type"], report["payload"]["context"]["details"]["field"]) == ("ERROR_REPORT", "to")
        assert [type(one) for one in hub.asked[1:]] == [ReportStatus, Tell]


async def test_a_report_about_no_task_of_the_hub_is_a_direct_message(connect: Any, hub: Any, kit: Any) -> None:
    hub.script[Finish] = Fault(kind=Kind.NOT_FOUND, message="no such task", field="task_id")
    async with connect() as peer:
        said = kit.message("TASK_COMPLETE", to="bob")
        await peer.say(said)
        assert (await peer.hear())["metadata"]["correlation_id"] == said["id"]
        assert [type(one) for one in hub.asked[1:]] == [Finish, Tell]


async def test_an_ack_by_message_id_settles_the_delivery(connect: Any, hub: Any, kit: Any) -> None:
    async with connect() as peer:
        link = await peer.link()
        outgoing_messages = [
            kit.work(1),
            kit.direct_message(2),
            kit.direct_message(3),
            kit.direct_message(4, once=True),
        ]
        link.deliver(outgoing_messages)
        heard = [await peer.hear() for _ in outgoing_messages]
        await peer.say(kit.message("ACK", {"message_ids": [one["id"] for one in heard[:3]]}))
        await hub.until(lambda: bool(hub.asked_for(Acknowledge)))
        (ack,) = hub.asked_for(Acknowledge)
        assert ack.deliveries == tuple(one.delivery.id for one in outgoing_messages[:3])
        assert ack.session == hub.asked_for(OpenLink)[0].session


async def test_registering_is_welcomed(connect: Any, hub: Any, kit: Any) -> None:
    async with connect() as peer:
        said = kit.message("REGISTER")
        await peer.say(said)
        welcome = await peer.hear()
        assert (welcome["type"], welcome["metadata"]["correlation_id"]) == ("WELCOME", said["id"])


async def test_a_write_is_acknowledged_with_its_version(connect: Any, hub: Any, state: Any, kit: Any) -> None:
    hub.script[ChangeState] = state.put(Registry.RESOURCE, "ada:tokens", limit=5)
    async with connect() as peer:
        said = kit.message("STATE_UPDATE")
        await peer.say(said, said)
        acks = [await peer.hear() for _ in range(1)]
        assert [(one["type"], one["payload"]) for one in acks] == [("ACK", {"version": 1})]
        await peer.say(said)
        assert (await peer.hear())["payload"] == {"version": 1}
        assert len(hub.asked_for(ChangeState)) == 1


async def test_a_watch_begins_with_the_state_and_goes_on_without_a_gap(connect: Any, state: Any, kit: Any) -> None:
    state.put(Registry.AGENT, "bob", state="IDLE")
    state.put(Registry.RESOURCE, "bob:tokens", limit=5)
    async with connect() as peer:
        query = kit.message("STATE_QUERY", {"entity_type": "AGENT", "watch": True})
        await peer.say(query)
        answer = await peer.hear()
        assert (answer["type"], answer["payload"]["cursor"]) == ("STATE_QUERY", 2)
        assert [one["entity_id"] for one in answer["payload"]["entities"]] == ["bob"]
        await state.change(Registry.RESOURCE, "bob:tokens", limit=6)
        await state.change(Registry.AGENT, "bob", state="BUSY")
        update = await peer.hear()
        assert (update["type"], update["from"], update["metadata"]["correlation_id"]) == (
            "STATE_UPDATE",
            "hub",
            query["id"],
        )
        payload = update["payload"]
        assert (payload["version"], payload["changes"], payload["cursor"]) == (2, {"state": "BUSY"}, 4)

        await peer.say(kit.message("STATE_QUERY", {"watch": True, "cursor": 1}))
        resumed = [await peer.hear() for _ in range(4)]
        assert resumed[0]["payload"]["entities"] == []
        assert [one["payload"]["cursor"] for one in resumed[1:]] == [2, 3, 4]
        state.first = 3
        await peer.say(kit.message("STATE_QUERY", {"watch": True, "cursor": 1}))
        refused = await peer.hear()
        assert (refused["type"], refused["payload"]["context"]["details"]["kind"]) == ("ERROR_REPORT", "conflict")
        assert state.watchers == 2


async def test_a_watch_goes_as_fast_as_it_is_read(connect: Any, state: Any, kit: Any) -> None:
    text, most = "x" * 200_000, 400
    for number in range(most):
        state.put(Registry.AGENT, "bob", number=number, text=text)
    async with connect(max_queue=1, max_size=None) as peer:
        await peer.say(kit.message("STATE_QUERY", {"watch": True, "cursor": 0}))
        assert (await peer.hear())["payload"]["entities"] == []
        said = kit.message("TASK_COMPLETE")
        await peer.say(said)
        held_up = state.told
        heard = [await peer.hear() for _ in range(most + 1)]
        numbers = [one["payload"]["changes"]["number"] for one in heard if one["type"] == "STATE_UPDATE"]
        assert numbers == list(range(most))
        assert [one["metadata"]["correlation_id"] for one in heard if one["type"] == "ACK"] == [said["id"]]
        assert held_up < most


async def test_watches_end_with_their_connection(connect: Any, state: Any, hub: Any, kit: Any) -> None:
    async with connect() as peer:
        await peer.say(kit.message("STATE_QUERY", {"watch": True}))
        await peer.hear()
        await state.change(Registry.AGENT, "bob", state="BUSY")
        await peer.hear()
        assert state.watchers == 1
    await hub.until(lambda: bool(hub.detached))
    assert state.watchers == 0


async def test_the_hub_hangs_up_with_a_reason(connect: Any, hub: Any, serving: Any, kit: Any) -> None:
    for reason, code in ((CloseReason.TOKEN_REPLACED, 4001), (CloseReason.NEWER_CONNECTION, 4009)):
        async with connect() as peer:
            (await peer.link()).hang_up(reason)
            with pytest.raises(websockets.ConnectionClosed):
                await peer.hear()
            assert peer.socket.close_code == code
        hub.asked.clear()
    async with connect() as peer:
        await peer.link()
        hub.held = []
        await peer.say(kit.message("TASK_COMPLETE"))
        await hub.until(lambda: bool(hub.asked_for(Finish)))
        hub.release()
        await kit.soon(serving.stop(1.0))
        assert (await peer.hear())["type"] == "ACK"
        with pytest.raises(websockets.ConnectionClosed):
            await peer.hear()
        assert peer.socket.close_code == 1012
