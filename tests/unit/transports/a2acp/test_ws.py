"""A2acp over a WebSocket: order, and when something counts as arrived."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.core.commands import Acknowledge, EndContract, Submit
from dragoman.core.delivery.model import Cargo
from dragoman.core.errors import Kind


async def test_a_parcel_counts_as_arrived_after_it_was_read_and_sent(connect: Any, hub: Any, kit: Any) -> None:
    hub.slow = asyncio.Event()
    async with connect() as link:
        end = await link.end()
        first, second = kit.parcel(1), kit.parcel(2, contract=None)
        end.deliver([first, second])  # the first needs its contract, which takes its time
        await kit.soon(await link.socket.ping())
        assert hub.asked_for(Acknowledge) == []
        hub.slow.set()
        heard = [await link.hear(), await link.hear()]
        assert [one["payload"]["n"] for one in heard] == [1, 2]
        await hub.until(lambda: {id for ack in hub.asked_for(Acknowledge) for id in ack.deliveries}
                        == {first.delivery.id, second.delivery.id})  # fmt: skip


async def test_with_its_contract_at_hand_it_leaves_at_once(connect: Any, hub: Any, store: Any, kit: Any) -> None:
    async def contracts(**where: Any) -> Any:
        return [hub.contracts["c-1"]]

    store.contracts = contracts
    hub.slow = asyncio.Event()  # nobody has to read it
    async with connect("bob") as link:
        (await link.end()).deliver([kit.parcel(1, Cargo.WORK)])
        told = await link.hear()
        assert (told["message_type"], told["payload"]["rows"], told["payload"]["contract_id"]) == ("request", 1, "c-1")


async def test_an_agent_may_acknowledge_by_message_ids(connect: Any, hub: Any, kit: Any) -> None:
    async with connect() as link:
        parcel = kit.parcel(1, contract=None)
        (await link.end()).deliver([parcel])
        told = await link.hear()
        await link.say({"ack": [told["message_id"]]})
        await hub.until(lambda: any(parcel.delivery.id in ack.deliveries for ack in hub.asked_for(Acknowledge)))
        await link.say('{"ack": 1}')
        assert (await link.hear())["payload"]["error"]["code"] == "SCHEMA_MISMATCH"


async def test_what_is_refused_before_the_hub_is_on_record_and_answered(connect: Any, hub: Any, client: Any) -> None:
    async with connect() as link:
        await link.say(client.message("request", "provision", {"rows": 1, "correlation_id": "k"}))
        refused = (await link.hear())["payload"]
        assert (refused["error"]["code"], refused["correlation_id"]) == ("CONTRACT_VIOLATION", "k")
        assert [(note.what, note.fault.kind) for note in hub.noted] == [("a2acp.message", Kind.CONTRACT)]
        error = {"error": {"code": "TIMEOUT", "message": "", "retry_after": 1}, "correlation_id": "nobody's"}
        await link.say(client.message("error", "provision", error))  # an error is never answered by one
        await link.say(client.message("request", "provision", {"rows": 2}))
        assert (await link.hear())["payload"]["error"]["code"] == "CONTRACT_VIOLATION"
        assert len(hub.noted) == 3


async def test_requests_reach_the_hub_in_their_order(connect: Any, hub: Any, client: Any, kit: Any) -> None:
    hub.script[Submit] = kit.task()
    async with connect() as link:
        for number in range(20):
            await link.say(client.message("request", "provision", {"rows": number, "contract_id": "c-1"}))
        await hub.until(lambda: len(hub.asked_for(Submit)) == 20)
    assert [b'"rows":%d}' % number in one.body for number, one in enumerate(hub.asked_for(Submit))] == [True] * 20
    assert not any(one.awaited for one in hub.asked_for(Submit))


async def test_the_brokers_answer_follows_the_commit(connect: Any, hub: Any, client: Any, kit: Any) -> None:
    hub.script[EndContract] = kit.contract(by="ada", reason="enough")
    async with connect() as link:
        payload = {"collaboration_id": "l-1", "correlation_id": "t"}
        await link.say(client.message("request", "terminate_collaboration", payload, to=kit.broker))
        told = await link.hear()
        assert (told["message_type"], told["payload"]["by"], told["payload"]["correlation_id"]) == (
            "response",
            "ada",
            "t",
        )
