"""The long poll: what waits leaves at once, what comes leaves when it comes, and nothing is lost in between."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from dragoman.core.commands import Acknowledge, CloseLink, OpenLink, ReportFault
from dragoman.core.ids import TaskId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind
from dragoman.server.chiffon import outbound
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.wire.closing import CloseReason

POLL = "/api/agent/messages"


def opened(hub: Any) -> Any:
    (link,) = hub.asked_for(OpenLink)
    return link


@pytest.mark.requirement("chiffon-D10")
async def test_what_waits_is_answered_at_once(client: Any, hub: Any, kit: Any) -> None:
    outgoing_messages = [kit.outgoing(1), kit.outgoing(2)]

    def give(link: OpenLink) -> int:
        hub.ends[link.session].deliver(outgoing_messages)
        return len(outgoing_messages)

    hub.script[OpenLink] = give
    response = await client("GET", f"{POLL}?wait=30&max=5")
    assert response.status_code == 200
    messages = response.json()["messages"]
    assert [entry["delivery_id"] for entry in messages] == [outgoing.delivery.id for outgoing in outgoing_messages]
    assert [entry["message"]["payload"]["progress_percent"] for entry in messages] == [1, 2]
    assert messages[0]["message"]["x_custom_fields"]["delivery_id"] == outgoing_messages[0].delivery.id
    link = opened(hub)
    assert (link.principal, link.ordered, link.credit) == ("orch-1", False, 5)
    assert hub.asked_for(CloseLink) == []  # a poll takes outgoing messages once: the hub has let go of it
    assert hub.ends == {}
    assert hub.asked_for(Acknowledge) == []


@pytest.mark.requirement("chiffon-D13-polls")
async def test_a_poll_acknowledges_what_came_before(client: Any, hub: Any, kit: Any) -> None:
    """Before it takes anything, so that what stood behind may leave."""
    hub.script[OpenLink] = lambda link: hub.ends[link.session].deliver([kit.outgoing(3)])
    response = await client("GET", f"{POLL}?max=5&ack=d-1,d-2&ack=d-3,")
    assert [entry["message"]["payload"]["progress_percent"] for entry in response.json()["messages"]] == [3]
    acknowledged, polled = hub.asked
    assert (type(polled), acknowledged) == (
        OpenLink,
        Acknowledge(principal=polled.principal, protocol="chiffon", deliveries=("d-1", "d-2", "d-3")),
    )
    many = ",".join("d" for _ in range(10_001))
    refused = await client("GET", f"{POLL}?ack={many}")
    assert (refused.status_code, refused.json()["payload"]["error_context"]["field_name"]) == (400, "ack")


async def test_what_stands_behind_a_message_that_cannot_be_read_now_is_not_handed_over(
    client: Any, hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would overtake it: both are offered again. Another task's message is handed over."""
    other = kit.outgoing(9, task=TaskId("550e8400-e29b-41d4-a716-446655440009"))
    hub.script[OpenLink] = lambda link: hub.ends[link.session].deliver([kit.outgoing(1), other, kit.outgoing(2)])
    carry = ChiffonHandler.encode

    async def sometimes(handler: Any, outgoing: Any, *given: Any) -> Any:
        if outgoing.delivery.id == kit.outgoing(1).delivery.id:
            raise StoreFailed("no disk")
        return await carry(handler, outgoing, *given)

    monkeypatch.setattr(ChiffonHandler, "encode", sometimes)
    told = (await client("GET", POLL)).json()["messages"]
    assert [entry["message"]["payload"]["progress_percent"] for entry in told] == [9]


@pytest.mark.requirement("chiffon-D4")
async def test_only_the_last_block_of_a_split_output_is_acknowledged_as_the_delivery(
    client: Any, hub: Any, kit: Any
) -> None:
    """Whoever acknowledged a block that came before it, and died, had lost the rest."""
    split = kit.split_result()
    hub.script[OpenLink] = lambda link: hub.ends[link.session].deliver([split])
    messages = (await client("GET", POLL)).json()["messages"]
    ids = [entry["delivery_id"] for entry in messages]
    assert (len(ids), len(set(ids)), ids.index(split.delivery.id)) == (5, 5, 4)
    assert [entry["message"]["x_custom_fields"]["delivery_id"] for entry in messages] == ids


@pytest.mark.requirement("chiffon-D10")
async def test_a_parked_poll_is_answered_when_something_comes(client: Any, hub: Any, kit: Any) -> None:
    poll = asyncio.ensure_future(client("GET", f"{POLL}?wait=30", token=kit.tokens["infra-1"]))
    await hub.until(lambda: bool(hub.ends))
    hub.ends[opened(hub).session].deliver([kit.outgoing(1, MessageKind.WORK)])
    (entry,) = (await poll).json()["messages"]
    assert entry["message"]["type"] == "work_request"
    assert entry["message"]["x_custom_fields"]["agent_id"] == "infra-1"


async def test_what_comes_while_an_empty_poll_is_closed_is_answered_with_it(client: Any, hub: Any, kit: Any) -> None:
    hub.script[CloseLink] = lambda link: hub.ends[link.session].deliver([kit.outgoing(2)])
    messages = (await client("GET", f"{POLL}?wait=0")).json()["messages"]
    assert [entry["message"]["payload"]["progress_percent"] for entry in messages] == [2]


async def test_what_cannot_be_encoded_holds_up_nothing_else(
    client: Any, hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a poll was answered 500, with everything else that it had taken."""
    odd, work, last = kit.outgoing(1), kit.outgoing(2, MessageKind.WORK), kit.outgoing(3)
    said = outbound.wire_of

    def say(outgoing: Any, *about: Any) -> Any:
        if outgoing is not last:
            raise OverflowError("date value out of range")
        return said(outgoing, *about)

    monkeypatch.setattr(outbound, "wire_of", say)
    hub.script[OpenLink] = lambda link: hub.ends[link.session].deliver([odd, work, last])
    (entry,) = (await client("GET", POLL)).json()["messages"]
    assert entry["delivery_id"] == last.delivery.id
    (failed,) = hub.asked_for(ReportFault)
    assert (failed.task_id, failed.fault.kind) == (work.delivery.task, Kind.INTERNAL)


async def test_nothing_within_the_time_is_an_empty_answer(client: Any, hub: Any) -> None:
    for wait in ("0", "0.01"):
        response = await client("GET", f"{POLL}?wait={wait}")
        assert (response.status_code, response.json()) == (200, {"messages": []})
    assert (await client("GET", POLL)).json() == {"messages": []}
    assert len(hub.asked_for(CloseLink)) == 3
    assert hub.ends == {}


async def test_a_client_that_goes_away_closes_its_poll(serving: Any, hub: Any, kit: Any) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    token = kit.tokens["orch-1"].encode()
    writer.write(b"GET /api/agent/messages?wait=30 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token + b"\r\n\r\n")
    await hub.until(lambda: bool(hub.ends))
    writer.close()
    await hub.until(lambda: bool(hub.detached))
    assert [link.lost for link in hub.asked_for(CloseLink)] == [False]


async def test_wait_and_max_are_capped(opened: Any, hub: Any, kit: Any) -> None:
    capped = opened(poll_seconds=0.01, poll_messages=3)
    async with (
        capped as serving,
        httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60) as http,
    ):
        headers = {"authorization": f"Bearer {kit.tokens['orch-1']}"}
        response = await kit.soon(http.get(f"{POLL}?wait=3600&max=1000", headers=headers))
    assert response.json() == {"messages": []}
    assert [link.credit for link in hub.asked_for(OpenLink)] == [3]


@pytest.mark.parametrize("query", ["wait=soon", "wait=-1", "wait=inf", "wait=nan", "max=0", "max=-1", "max=many"])
async def test_wishes_that_make_no_sense_are_refused(query: str, client: Any, hub: Any) -> None:
    response = await client("GET", f"{POLL}?{query}")
    assert (response.status_code, response.json()["payload"]["error_code"]) == (400, 5003)
    assert hub.asked == []


async def test_a_hub_that_takes_no_connections_says_so(client: Any, hub: Any) -> None:
    hub.script[OpenLink] = Fault(kind=Kind.OVERLOADED, message="full")
    assert (await client("GET", f"{POLL}?wait=5")).status_code == 503
    assert hub.ends == {}


async def test_a_hub_that_hangs_up_answers_the_poll(client: Any, hub: Any) -> None:
    poll = asyncio.ensure_future(client("GET", f"{POLL}?wait=30"))
    await hub.until(lambda: bool(hub.ends))
    hub.ends[opened(hub).session].hang_up(CloseReason.AGENT_REMOVED)
    assert (await poll).json() == {"messages": []}


async def test_a_hub_that_stops_answers_parked_polls(client: Any, serving: Any, hub: Any, kit: Any) -> None:
    poll = asyncio.ensure_future(client("GET", f"{POLL}?wait=30"))
    await hub.until(lambda: bool(hub.ends))
    await kit.soon(serving.stop(2))
    assert (await poll).json() == {"messages": []}
