"""Chiffon over one WebSocket: pipelined in order, answered, acknowledged, closed with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from dragoman.core.commands import Acknowledge, CloseLink, Finish, OpenLink, PaceLink, ReportProgress, Submit
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.messages.faults import Fault, Kind
from dragoman.server.chiffon.websocket import ChiffonWebSocket
from dragoman.wire.closing import CloseReason

Connect = Callable[..., Any]


@pytest.fixture
def connect(serving: Any, kit: Any) -> Connect:
    @asynccontextmanager
    async def make(
        query: str = "", token: str | None = kit.tokens["infra-1"], to: Any = serving, **more: Any
    ) -> AsyncIterator[ClientConnection]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = f"{to.url.replace('http', 'ws')}/api/agent/ws{query}"
        async with websockets.connect(url, additional_headers=headers, proxy=None, **more) as socket:
            yield socket

    return make


async def received(socket: ClientConnection, kit: Any) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(await kit.soon(socket.recv()))
    return frame


async def link(hub: Any) -> Any:
    """The end of the one connection that is open."""
    await hub.until(lambda: bool(hub.asked_for(OpenLink)))
    return hub.ends[hub.asked_for(OpenLink)[-1].session]


async def test_a_connection_is_opened_and_closed(connect: Connect, hub: Any) -> None:
    async with connect(subprotocols=["chiffon.v1"]) as socket:
        assert socket.subprotocol == "chiffon.v1"
        await link(hub)
        (opened,) = hub.asked_for(OpenLink)
        assert (opened.principal, opened.ordered, opened.acknowledges) == ("infra-1", True, True)
    await hub.until(lambda: bool(hub.detached))
    assert hub.asked_for(CloseLink) == [CloseLink(principal=opened.principal, session=opened.session)]


async def test_a_subprotocol_need_not_be_offered_but_another_is_refused(connect: Connect) -> None:
    async with connect() as socket:
        assert socket.subprotocol is None
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with connect(subprotocols=["forge.v1.json"]):
            pass
    assert refused.value.response.status_code == 400


async def test_another_version_of_websockets_is_refused_with_the_one_that_is_spoken(serving: Any, kit: Any) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    writer.write(
        b"GET /api/agent/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 12\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    head, _, body = (await kit.soon(reader.read())).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert {b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"} < set(head.split(b"\r\n"))
    assert b"use version 13" in body


@pytest.mark.requirement("CH-AUT-3")
@pytest.mark.requirement("CH-AUT-4")
@pytest.mark.parametrize(("token", "status"), [(None, "missing"), ("f" * 32, "invalid")])
async def test_a_handshake_without_a_good_token_is_401_with_5004(
    token: str | None, status: str, connect: Connect, hub: Any
) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with connect(token=token):
            pass
    response = refused.value.response
    assert response.status_code == 401
    payload = json.loads(response.body)["payload"]
    assert (payload["error_code"], payload["error_context"]["token_status"]) == (5004, status)
    assert [note.what for note in hub.noted] == ["agent.connect"]
    assert hub.asked == []


@pytest.mark.requirement("chiffon-D10")
async def test_messages_leave_in_order_as_bare_envelopes(connect: Connect, hub: Any, kit: Any) -> None:
    async with connect() as socket:
        outgoing_messages = [kit.outgoing(1, MessageKind.WORK), *(kit.outgoing(number) for number in range(2, 50))]
        (await link(hub)).deliver(outgoing_messages)
        frames = [await received(socket, kit) for _ in outgoing_messages]
    assert [frame["x_custom_fields"]["delivery_id"] for frame in frames] == [p.delivery.id for p in outgoing_messages]
    assert (frames[0]["type"], frames[0]["x_custom_fields"]["agent_id"]) == ("work_request", "infra-1")


async def test_frames_are_pipelined_in_order_and_receipts_are_gathered(connect: Connect, hub: Any, kit: Any) -> None:
    hub.held = []
    messages = [kit.message("work_status", progress_percent=number) for number in range(100)]
    async with connect("?receipts=1") as socket:
        for message in messages:
            await socket.send(json.dumps(message))
        await hub.until(lambda: len(hub.asked_for(ReportProgress)) == 100)  # none of them is committed yet
        hub.commit()
        assert await received(socket, kit) == {"accepted": [message["message_id"] for message in messages]}
    assert [report.percent for report in hub.asked_for(ReportProgress)] == list(range(100))


@pytest.mark.requirement("CH-WS-2")
async def test_receipts_go_only_to_clients_that_asked_for_them(connect: Connect, hub: Any, kit: Any) -> None:
    async with connect() as socket:
        await socket.send(json.dumps(kit.message("work_status")))
        await socket.send("nonsense")
        assert (await received(socket, kit))["type"] == "error"  # and nothing before it


@pytest.mark.requirement("CH-WS-4")
async def test_beyond_its_bound_a_sender_is_read_no_further(opened: Any, connect: Connect, hub: Any, kit: Any) -> None:
    hub.held = []
    frame = json.dumps(kit.message("work_status", step={"number": 1, "name": "x", "output": "y" * 50_000}))
    async with opened(unanswered_frames=8) as serving, connect(to=serving) as socket:
        sender = asyncio.ensure_future(_pour(socket, frame, 1000))  # 50 MB: more than any buffer on the way
        await hub.until(lambda: len(hub.asked_for(ReportProgress)) >= 8)
        done, _ = await asyncio.wait({sender}, timeout=0.3)
        assert not done
        stuck = len(hub.asked_for(ReportProgress))
        assert stuck < 32  # and what had been read with the last of them
        sender.cancel()
        hub.release()
        await hub.until(lambda: len(hub.asked_for(ReportProgress)) > stuck)


async def _pour(socket: ClientConnection, frame: str, times: int) -> None:
    for _ in range(times):
        await socket.send(frame)


@pytest.mark.requirement("CH-WS-3")
@pytest.mark.parametrize("frame", ["nonsense", "[]", "{}", "[" * 90_000, '{"ack": 7}', '{"ack":[1]}', " " * 100_001])
async def test_a_broken_frame_is_answered_recorded_and_the_connection_goes_on(
    frame: str, connect: Connect, hub: Any, kit: Any
) -> None:
    async with connect("?receipts=1") as socket:
        await socket.send(frame)
        answer = await received(socket, kit)
        assert (answer["type"], answer["payload"]["error_code"]) == ("error", 5003)
        good = kit.message("work_result")
        await socket.send(json.dumps(good))
        assert await received(socket, kit) == {"accepted": [good["message_id"]]}
    assert [(note.what, note.principal) for note in hub.noted] == [("chiffon.frame", "infra-1")]
    assert len(hub.asked_for(Finish)) == 1


@pytest.mark.requirement("CH-WS-3")
@pytest.mark.parametrize("broken", [{"progress_percent": 101}, {"status": "done"}, {"task_id": "7"}])
async def test_the_answer_to_a_broken_message_names_it(
    broken: dict[str, Any], connect: Connect, hub: Any, kit: Any
) -> None:
    message = kit.message("work_status", **broken)
    async with connect() as socket:
        await socket.send(json.dumps(message))
        answer = await received(socket, kit)
    assert answer["x_custom_fields"]["refused_message_id"] == message["message_id"]
    assert (answer["request_id"], answer["trace_id"]) == (message["request_id"], message["trace_id"])


async def test_bytes_are_read_like_text(connect: Connect, kit: Any) -> None:
    async with connect("?receipts=1") as socket:
        message = kit.message("work_status")
        await socket.send(json.dumps(message).encode())
        assert await received(socket, kit) == {"accepted": [message["message_id"]]}


@pytest.mark.requirement("chiffon-D11")
async def test_what_the_hub_refuses_is_answered_with_the_ids_of_the_message(
    connect: Connect, hub: Any, kit: Any
) -> None:
    hub.script[Submit] = Fault(kind=Kind.MISMATCH, message="other content", field="request_id")
    async with connect(token=kit.tokens["orch-1"]) as socket:
        message = kit.message()
        await socket.send(json.dumps(message))
        answer = await received(socket, kit)
    assert (answer["request_id"], answer["trace_id"]) == (message["request_id"], message["trace_id"])
    assert answer["payload"]["error_context"] == {"validation_error": "other content", "field_name": "request_id"}
    assert hub.noted == []


@pytest.mark.requirement("all-D1")
async def test_a_spoofed_sender_is_refused_on_a_connection_too(connect: Connect, hub: Any, kit: Any) -> None:
    async with connect() as socket:
        await socket.send(json.dumps(kit.message("work_status") | {"from_agent": "code"}))
        assert (await received(socket, kit))["payload"]["error_code"] == 5004
    assert [note.fault.kind for note in hub.noted] == [Kind.FORBIDDEN]
    assert hub.asked_for(ReportProgress) == []


@pytest.mark.requirement("CH-WS-1")
@pytest.mark.parametrize("frame", ['{"ack":["d1","d2"]}', ' { "ack" : ["d1", "d2"] }'])
async def test_a_client_acknowledges_deliveries(frame: str, connect: Connect, hub: Any) -> None:
    async with connect() as socket:
        await socket.send(frame)
        await hub.until(lambda: bool(hub.asked_for(Acknowledge)))
        (ack,) = hub.asked_for(Acknowledge)
        (opened,) = hub.asked_for(OpenLink)
    assert (ack.principal, ack.deliveries, ack.session) == ("infra-1", ("d1", "d2"), opened.session)


async def test_the_pong_of_a_silent_client_acknowledges_notices_but_no_work(
    connect: Connect, hub: Any, kit: Any
) -> None:
    async with connect() as socket:
        end = await link(hub)
        end.deliver([kit.outgoing(1, MessageKind.WORK), kit.outgoing(2), kit.outgoing(3)])
        await hub.until(lambda: bool(hub.asked_for(Acknowledge)))
        end.deliver([kit.outgoing(4)])
        await hub.until(lambda: len(hub.asked_for(Acknowledge)) == 2)
        acks = [ack.deliveries for ack in hub.asked_for(Acknowledge)]
        assert acks == [(kit.outgoing(2).delivery.id, kit.outgoing(3).delivery.id), (kit.outgoing(4).delivery.id,)]
        await socket.close()


@pytest.mark.parametrize("query", ["?receipts=1", ""])
async def test_a_client_that_acknowledges_itself_is_not_acknowledged_for(
    query: str, connect: Connect, hub: Any, kit: Any
) -> None:
    async with connect(query) as socket:
        end = await link(hub)
        if not query:
            await socket.send('{"ack":["d0"]}')
            await hub.until(lambda: bool(hub.asked_for(Acknowledge)))
        end.deliver([kit.outgoing(2)])
        await received(socket, kit)
        await (await socket.ping())
        await socket.send('{"ack":["d1"]}')
        await hub.until(
            lambda: hub.asked_for(Acknowledge)[-1:] != [] and hub.asked_for(Acknowledge)[-1].deliveries == ("d1",)
        )
    assert [ack.deliveries for ack in hub.asked_for(Acknowledge)] == ([("d1",)] if query else [("d0",), ("d1",)])


@pytest.mark.parametrize("end", ["dies", "closes", "acknowledges"])
async def test_the_first_notices_of_a_connection_wait_for_the_clients_own_acknowledgment(
    end: str, connect: Connect, hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be one that acknowledges, and die over them: then they must come again."""
    monkeypatch.setattr(ChiffonWebSocket, "acknowledgment_seconds", 1000.0)
    async with connect() as socket:
        pump = await link(hub)
        pump.deliver([kit.outgoing(2)])
        await received(socket, kit)
        await (await socket.ping())  # the pong to the hub's ping is there, too
        assert hub.asked_for(Acknowledge) == []
        if end == "dies":
            socket.transport.abort()
        elif end == "acknowledges":
            await socket.send('{"ack":["d1"]}')
    await hub.until(lambda: bool(hub.detached))
    pump._none_came()
    acks = [ack.deliveries for ack in hub.asked_for(Acknowledge)]
    assert acks == {"dies": [], "closes": [(kit.outgoing(2).delivery.id,)], "acknowledges": [("d1",)]}[end]


async def test_a_client_that_reads_late_gets_everything_in_order(connect: Connect, hub: Any, kit: Any) -> None:
    async with connect(max_queue=1) as socket:
        end = await link(hub)
        outgoing_messages = [kit.outgoing(number) for number in range(8000)]  # more than the buffers on the way take
        for start in range(0, 8000, 400):
            end.deliver(outgoing_messages[start : start + 400])
        for outgoing in outgoing_messages:
            assert (await received(socket, kit))["x_custom_fields"]["delivery_id"] == outgoing.delivery.id
        await hub.until(lambda: sum(len(ack.deliveries) for ack in hub.asked_for(Acknowledge)) == 8000)


async def test_the_hub_learns_how_far_writing_has_come_and_a_client_that_never_reads_is_cut(
    opened: Any, hub: Any, kit: Any
) -> None:
    async with opened(write_seconds=0.2) as serving:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.port, limit=1024)
        writer.write(
            b"GET /api/agent/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Authorization: Bearer " + kit.tokens["infra-1"].encode() + b"\r\n\r\n"
        )
        assert b"101" in await kit.soon(reader.readline())
        end = await link(hub)
        outgoing_messages = [long_news(kit, number) for number in range(100)]  # more than the buffers on the way take
        for outgoing in outgoing_messages:
            end.deliver([outgoing])
        await hub.until(lambda: bool(hub.asked_for(CloseLink)))
        writer.close()
    told = [pace.written for pace in hub.asked_for(PaceLink)]
    assert told == sorted(told)
    assert 0 < told[-1] < sum(outgoing.weight for outgoing in outgoing_messages)


def long_news(kit: Any, number: int) -> Outgoing:
    outgoing: Outgoing = kit.outgoing(number)
    said = json.loads(outgoing.event.raw)
    said["payload"]["step"] = {"number": 1, "name": "log", "output": "x" * 250_000}
    event = msgspec.structs.replace(outgoing.event, raw=json.dumps(said).encode())
    return Outgoing(outgoing.delivery, outgoing.task, event)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (CloseReason.NEWER_CONNECTION, 4009),
        (CloseReason.AGENT_REMOVED, 4001),
        (CloseReason.TOKEN_REPLACED, 4001),
        (CloseReason.HUB_STOPS, 1012),
    ],
)
async def test_the_hub_hangs_up_with_a_code_that_says_why(
    reason: CloseReason, code: int, connect: Connect, hub: Any, kit: Any
) -> None:
    async with connect() as socket:
        (await link(hub)).hang_up(reason)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await kit.soon(socket.recv())
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, reason.sentence)


@pytest.mark.parametrize("begin", ['{"ack":[', ' { "ack" : ['])
async def test_too_many_acknowledgments_in_one_frame_are_refused(
    begin: str, connect: Connect, hub: Any, kit: Any
) -> None:
    async with connect() as socket:
        await socket.send(begin + ",".join(['"x"'] * 10_001) + "]}")
        said = await received(socket, kit)
    assert "send at most 10000" in said["payload"]["error_message"]


@pytest.mark.parametrize("path", ["/api/agent/messages", "/api/tasks/x/cancel", "/nowhere"])
async def test_a_websocket_at_a_wrong_address_is_refused_with_the_right_ones(path: str, serving: Any, kit: Any) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await kit.soon(websockets.connect(f"ws://127.0.0.1:{serving.port}{path}", proxy=None))
    answer = refused.value.response
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert b"/api/agent/ws" in answer.body


async def test_a_hub_that_takes_no_connections_says_so(connect: Connect, hub: Any, kit: Any) -> None:
    hub.script[OpenLink] = Fault(kind=Kind.OVERLOADED, message="full")
    async with connect() as socket:
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await kit.soon(socket.recv())
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013


async def test_a_frame_far_too_large_ends_the_connection_and_is_recorded(connect: Connect, hub: Any, kit: Any) -> None:
    async with connect() as socket:
        await socket.send("x" * 500_000)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await kit.soon(socket.recv())
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    await hub.until(lambda: bool(hub.noted))
    assert hub.noted[0].fault.kind is Kind.TOO_LARGE


async def test_a_stop_answers_what_was_read_before_it_closes(
    connect: Connect, serving: Any, hub: Any, kit: Any
) -> None:
    hub.held = []
    async with connect("?receipts=1") as socket:
        message = kit.message("work_status")
        await socket.send(json.dumps(message))
        await hub.until(lambda: bool(hub.asked_for(ReportProgress)))
        stopping = asyncio.ensure_future(serving.stop(5))
        await asyncio.sleep(0)
        hub.commit()
        assert await received(socket, kit) == {"accepted": [message["message_id"]]}
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await kit.soon(socket.recv())
        await kit.soon(stopping)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
