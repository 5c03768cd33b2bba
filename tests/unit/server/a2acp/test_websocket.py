"""A2acp over a WebSocket: order, and when something counts as arrived."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.heads import changed

from dragoman.core.commands import Acknowledge, Cancel, EndContract, ReportFault, Submit
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES


async def test_a_message_counts_as_arrived_after_it_was_read_and_sent(connect: Any, hub: Any, kit: Any) -> None:
    hub.slow = asyncio.Event()
    async with connect() as link:
        end = await link.end()
        first, second = kit.outgoing(1), kit.outgoing(2, contract=None)
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
        (await link.end()).deliver([kit.outgoing(1, MessageKind.WORK)])
        told = await link.hear()
        assert (told["message_type"], told["payload"]["rows"], told["payload"]["contract_id"]) == ("request", 1, "c-1")


@pytest.mark.parametrize("form", ['{"ack": ["%s"]}', ' {\n"ack" :["%s"]}', '{"at": 1, "ack": ["%s"]}'])
async def test_an_agent_may_acknowledge_by_message_ids(connect: Any, hub: Any, kit: Any, form: str) -> None:
    async with connect() as link:
        outgoing = kit.outgoing(1, contract=None)
        (await link.end()).deliver([outgoing])
        told = await link.hear()
        await link.say(form % told["message_id"])
        await hub.until(lambda: any(outgoing.delivery.id in ack.deliveries for ack in hub.asked_for(Acknowledge)))
        await link.say('{"ack": 1}')
        assert (await link.hear())["payload"]["error"]["code"] == "SCHEMA_MISMATCH"


@pytest.mark.parametrize("at_hand", [True, False])
async def test_work_that_no_message_holds_has_failed_for_that(connect: Any, hub: Any, kit: Any, at_hand: bool) -> None:
    outgoing = kit.outgoing(1, MessageKind.WORK, contract=None if at_hand else "c-1")
    body = msgspec.Raw(msgspec.json.encode({"input": {"rows": "x" * (PAYLOAD_BYTES + 1000)}}))
    event = msgspec.structs.replace(outgoing.event, body=body)
    async with connect("bob") as link:
        (await link.end()).deliver([Outgoing(outgoing.delivery, outgoing.task, event)])
        await hub.until(lambda: bool(hub.asked_for(ReportFault)))
    assert hub.asked_for(ReportFault)[0].fault.kind is Kind.TOO_LARGE


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
    assert [one.content.input["rows"] == number for number, one in enumerate(hub.asked_for(Submit))] == [True] * 20
    assert not any(one.reply.awaited for one in hub.asked_for(Submit))


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


async def test_a_cancel_finds_the_request_before_it_on_the_same_connection(
    connect: Any, hub: Any, store: Any, client: Any, kit: Any
) -> None:
    """Also while that is still being committed. Requests themselves wait for nothing."""
    committed: list[Any] = []

    def submitted(command: Submit) -> Any:
        origin = msgspec.structs.replace(kit.task().origin, principal=command.principal, called="k")
        committed.append(changed(kit.task(), origin=origin, contract="c-1"))
        return committed[-1]

    async def tasks(where: Any, *, after: Any, limit: int) -> Any:
        return list(committed), None

    store.tasks, hub.script[Submit] = tasks, submitted
    async with connect() as link:
        await link.end()
        hub.held = []
        for rows in range(3):
            asked = {"rows": rows, "contract_id": "c-1", "correlation_id": "k"}
            await link.say(client.message("request", "provision", asked))
        await link.say(client.message("event", "cancel", {"correlation_id": "k"}))
        await hub.until(lambda: len(hub.asked_for(Submit)) == 3)
        await kit.soon(await link.socket.ping())  # all of it was heard
        hub.release()
        await hub.until(lambda: bool(hub.asked_for(Cancel)))
    assert hub.asked_for(Cancel)[0].task_id == committed[0].id
    assert hub.noted == []
