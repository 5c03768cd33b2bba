"""The endpoint itself: credentials, encodings, compression, batches, what is too large, the end."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from tests.support.forge import ForgeHub, soon
from websockets.exceptions import ConnectionClosed, InvalidStatus

JOB: dict[str, Any] = {"type": "x", "agent": "worker-1", "payload": {"text": "é" * 1000}}


@pytest.mark.requirement("FG-FUT-5", "forge-all-D1", "forge-all-D4")
async def test_a_connection_needs_the_token_of_a_forge_agent(hub: ForgeHub) -> None:
    other = await hub.add("mux-1", protocol="chiffon")
    for token, status in (("wrong", 401), (other, 403)):
        with pytest.raises(InvalidStatus) as caught:
            await hub.connect("worker-1", token=token)
        assert caught.value.response.status_code == status
        assert json.loads(caught.value.response.body or b"")["error"]["code"] == "UNAUTHORIZED"
    with pytest.raises(InvalidStatus) as caught:
        await hub.connect("worker-1", subprotocol="chiffon.v1")
    assert caught.value.response.status_code == 422
    told = await hub.world.store.audit()
    assert not any("wrong" in str(record) or other in str(record) for record in told)


@pytest.mark.requirement("FG-FUT-2", "FG-FUT-5", "forge-D12")
async def test_messagepack_by_subprotocol_beside_json(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1", subprotocol="forge.v1.msgpack")
    worker = await hub.connect("worker-1")
    assert (planner.ws.subprotocol, worker.ws.subprotocol) == ("forge.v1.msgpack", "forge.v1.json")
    task = (await planner.ask("submit-task", **JOB))["task"]
    assert (await worker.notice("task-assigned"))["task"]["payload"] == JOB["payload"]
    await worker.ask("update-task", taskId=task["id"], status="completed", result={"n": 1.5})
    told = await planner.notice("task-updated")
    assert (told["final"], told["result"]) == (True, {"n": 1.5})
    await planner.say(b"\xc1")
    refused = await planner.hear()
    assert (refused["type"], refused["correlationId"]) == ("response:error", None)


@pytest.mark.requirement("FG-FUT-2", "forge-D12")
async def test_a_binary_value_of_messagepack_is_read_as_base64_as_the_page_says(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1", subprotocol="forge.v1.msgpack")
    worker = await hub.connect("worker-1")
    file = {"filename": "a.bin", "mimeType": "application/octet-stream", "data": b"\0plot"}
    task = (await planner.ask("submit-task", **{**JOB, "payload": {"blob": b"\0\xff"}}, attachments=[file]))["task"]
    assert (await worker.notice("task-assigned"))["task"]["payload"] == {"blob": "AP8="}
    (attached,) = (await worker.ask("get-task", taskId=task["id"]))["task"]["files"]
    got = await worker.ask("get-file", taskId=task["id"], fileId=attached["id"])
    assert base64.b64decode(got["data"]) == b"\0plot"


@pytest.mark.requirement("FG-FUT-1", "forge-D12")
async def test_a_connection_that_agreed_to_it_is_compressed_and_others_are_not(hub: ForgeHub) -> None:
    plain = await hub.connect("worker-1")
    assert plain.ws.protocol.extensions == []
    squeezed = await hub.connect("planner-1", compression="deflate")
    assert [extension.name for extension in squeezed.ws.protocol.extensions] == ["permessage-deflate"]
    await squeezed.ask("submit-task", **JOB)
    assert (await plain.notice("task-assigned"))["task"]["payload"] == JOB["payload"]


@pytest.mark.requirement("FG-FUT-1")
async def test_a_bomb_ends_its_connection_and_nothing_else(hub: ForgeHub) -> None:
    plain = await hub.connect("worker-1")
    bomber = await hub.connect("planner-1", compression="deflate")
    await bomber.say(b"\0" * 64 * 1024 * 1024)
    with pytest.raises(ConnectionClosed) as caught:
        await bomber.hear()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009
    assert "agents" in await plain.ask("query-agents")


@pytest.mark.requirement("FG-FUT-3", "forge-D12")
@pytest.mark.parametrize("subprotocol", ["forge.v1.json", "forge.v1.msgpack"])
async def test_a_batch_is_answered_message_by_message_in_order(hub: ForgeHub, subprotocol: str) -> None:
    worker = await hub.connect("worker-1")
    planner = await hub.connect("planner-1", subprotocol=subprotocol)
    batch = [
        planner.message("request:submit-task", JOB),
        planner.message("request:query-tasks", {}),
        planner.message("request:make-coffee", {}),
        {"no": "message"},
        planner.message("event:log", {"level": "info", "message": "x"}),
        planner.message("request:query-agents", {}),
        [planner.message("request:query-agents", {})],
    ]
    await planner.say(*batch)
    answers = [await planner.hear() for _ in range(5)]
    [nested] = [answer for answer in answers if answer.get("correlationId") is None]
    assert nested["error"]["message"].startswith("An array inside a batch")
    by_id = {answer.get("correlationId"): answer for answer in answers}
    assert [by_id[batch[n]["id"]]["type"] for n in (0, 1, 2, 5)] == [
        "response:success", "response:success", "response:error", "response:success",
    ]  # fmt: skip
    await worker.notice("task-assigned")


async def test_a_message_above_the_limit_is_refused_by_name_and_the_connection_goes_on(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    message = planner.message("request:submit-task", {"type": "x", "payload": {"text": "x" * 1024 * 1024}})
    await planner.say(message)
    refused = await planner.response(message["id"])
    assert (refused["code"], "exceeds the limit" in refused["message"]) == ("INVALID_REQUEST", True)
    await planner.say("x" * (1024 * 1024 + 1))
    assert "agents" in await planner.ask("query-agents")


@pytest.mark.requirement("FG-MSG-1", "FG-ERR-2")
async def test_what_is_wrong_is_named(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    refused = await planner.ask("get-task")
    assert refused["details"].pop("fault") == {"kind": "invalid", "message": "missing required field"}
    assert (refused["code"], refused["details"]) == (
        "INVALID_REQUEST", {"reason": "invalid", "retryable": False, "field": "payload.taskId"},
    )  # fmt: skip
    assert refused["message"] == "payload.taskId: missing required field. Correct the message and send it again."
    await planner.say('{"type":"request:get-task","id":"nan","timestamp":NaN}')
    nan = (await planner.response("nan"))["details"]
    assert nan.pop("fault")["kind"] == "invalid"
    assert nan == {"reason": "invalid", "retryable": False}
    refused = await planner.ask("make-coffee")
    assert (refused["code"], refused["details"]["type"]) == ("INVALID_MESSAGE_TYPE", "request:make-coffee")
    await planner.say('{"type":"request:get-task","id":"r","id":"r","timestamp":"2026-02-04T14:30:00Z","payload":{}}')
    assert (await planner.response("r"))["details"]["field"] == "id"


@pytest.mark.requirement("FG-NOT-4")
async def test_a_hub_that_stops_says_so_and_closes(hub: ForgeHub) -> None:
    worker = await hub.connect("worker-1")
    await soon(hub.endpoint.drain(2.0))
    assert await worker.notice("shutdown") == {"gracePeriod": 2000, "reason": "Orchestrator stopping"}
    with pytest.raises(ConnectionClosed) as caught:
        await worker.hear()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012


async def test_a_caller_that_cannot_be_answered_before_the_hub_stops_is_asked_to_come_back(
    hub: ForgeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off without a word, and the log told of an error."""
    looked, ended = asyncio.Event(), asyncio.Event()

    async def look(*_: object) -> None:
        looked.set()
        await ended.wait()

    planner = await hub.connect("planner-1")
    monkeypatch.setattr(hub.handler.store, "task", look)
    await planner.say(planner.message("request:get-task", {"taskId": "t"}))
    await soon(looked.wait())
    await soon(hub.endpoint.drain(0.2))
    await planner.notice("shutdown")
    with pytest.raises(ConnectionClosed) as caught:
        await planner.hear()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012
    ended.set()


@pytest.mark.requirement("FG-NOT-4", "forge-D10")
async def test_a_working_agent_has_the_time_that_the_hub_announced(hub: ForgeHub) -> None:
    planner, worker = await hub.connect("planner-1"), await hub.connect("worker-1")
    task = (await planner.ask("submit-task", type="x", agent="worker-1"))["task"]["id"]
    await worker.notice("task-assigned")
    draining = asyncio.ensure_future(hub.endpoint.drain(10.0))
    assert (await worker.notice("shutdown"))["gracePeriod"] == 10_000
    done = await worker.ask("update-task", taskId=task, status="completed", result=1)
    assert done["task"]["status"] == "completed"
    await soon(draining)
    with pytest.raises(ConnectionClosed):
        await worker.hear()


async def test_a_newer_connection_of_the_same_agent_takes_over(hub: ForgeHub) -> None:
    first = await hub.connect("worker-1")
    second = await hub.connect("worker-1")
    with pytest.raises(ConnectionClosed) as caught:
        await first.hear()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 4009
    assert "agents" in await second.ask("query-agents")
