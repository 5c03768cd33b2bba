"""Envelopes posted to callback URLs: 2xx acknowledges, failed work is reported, failed notices come again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.core.commands import Acknowledge, CloseLink, OpenLink, ReportFault
from dragoman.core.ids import TaskId
from dragoman.core.model.deliveries import MessageKind
from dragoman.messages.faults import Kind
from dragoman.security.urls import PRIVATE, UrlRefused
from dragoman.server.callbacks import CallbackSender
from dragoman.server.chiffon import outbound
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.limits import Limits
from dragoman.stores.memory import MemoryStore
from dragoman.wire.closing import CloseReason


def handler(hub: Any) -> ChiffonHandler:
    return ChiffonHandler(hub, MemoryStore(), limits=Limits())


class Callback:
    """An agent's own little server: answers with `status`, keeps what it got."""

    def __init__(self) -> None:
        self.status = 200
        self.extra = b""
        self.got: list[tuple[bytes, dict[str, Any]]] = []
        self.came = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                self.got.append((head, json.loads(await reader.readexactly(length))))
                self.came.set()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n%b\r\n" % (self.status, self.extra))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
async def callback() -> AsyncIterator[Callback]:
    callback = Callback()
    await callback.start()
    yield callback
    await callback.stop()


@pytest.fixture
async def push(hub: Any, callback: Callback) -> AsyncIterator[CallbackSender]:
    push = CallbackSender(handler(hub), allowed=PRIVATE, first_pause=0.01, seconds=60)
    url = f"http://localhost:{callback.port}/hook?x=1"
    hub.known["infra-1"] = msgspec.structs.replace(hub.known["infra-1"], callback_url=url)
    yield push
    await push.drain()


async def link(hub: Any, nth: int = 1) -> Any:
    await hub.until(lambda: len(hub.asked_for(OpenLink)) >= nth)
    return hub.ends[hub.asked_for(OpenLink)[nth - 1].session]


@pytest.mark.requirement("chiffon-D10")
async def test_a_message_is_posted_and_2xx_acknowledges_it(
    push: CallbackSender, hub: Any, callback: Callback, kit: Any
) -> None:
    push.start()
    outgoing = kit.outgoing(1, MessageKind.WORK)
    (await link(hub)).deliver([outgoing])
    await hub.until(lambda: bool(hub.asked_for(Acknowledge)))
    (opened,) = hub.asked_for(OpenLink)
    assert (opened.principal, opened.ordered, opened.acknowledges) == ("infra-1", True, True)
    assert [ack.deliveries for ack in hub.asked_for(Acknowledge)] == [(outgoing.delivery.id,)]
    ((head, message),) = callback.got
    assert head.startswith(b"POST /hook?x=1 HTTP/1.1\r\n")
    assert f"host: localhost:{callback.port}".encode() in head.lower()
    assert b"authorization" not in head.lower()
    assert f"traceparent: 00-{outgoing.task.lineage.trace_id}-".encode() in head.lower()
    assert (message["type"], message["x_custom_fields"]["delivery_id"]) == ("work_request", outgoing.delivery.id)


async def test_each_block_of_a_split_output_has_an_id_of_its_own(
    push: CallbackSender, hub: Any, callback: Callback, kit: Any
) -> None:
    push.start()
    split = kit.split_result()
    (await link(hub)).deliver([split])
    await hub.until(lambda: bool(hub.asked_for(Acknowledge)))
    assert [ack.deliveries for ack in hub.asked_for(Acknowledge)] == [(split.delivery.id,)]
    ids = [message["x_custom_fields"]["delivery_id"] for _, message in callback.got]
    assert (len(set(ids)), ids[-1]) == (5, split.delivery.id)
    assert all(f"x-delivery-id: {id}".encode() in head.lower() for id, (head, _) in zip(ids, callback.got, strict=True))


async def test_messages_of_one_task_arrive_in_order(
    push: CallbackSender, hub: Any, callback: Callback, kit: Any
) -> None:
    push.start()
    end = await link(hub)
    end.deliver([kit.outgoing(number) for number in range(1, 6)])
    end.deliver([kit.outgoing(number) for number in range(6, 11)])
    await hub.until(lambda: len(hub.asked_for(Acknowledge)) == 10)
    assert [message["payload"]["progress_percent"] for _, message in callback.got] == list(range(1, 11))


REDIRECT = b"location: http://127.0.0.1:%d/elsewhere\r\n"


@pytest.mark.parametrize(("status", "extra"), [(500, b""), (404, b""), (302, REDIRECT), (307, REDIRECT)])
async def test_work_that_is_not_taken_is_a_failed_attempt(
    status: int, extra: bytes, push: CallbackSender, hub: Any, callback: Callback, kit: Any
) -> None:
    callback.status, callback.extra = status, extra % callback.port if extra else b""
    push.start()
    (await link(hub)).deliver([kit.outgoing(1, MessageKind.WORK)])
    await hub.until(lambda: bool(hub.asked_for(ReportFault)))
    (report,) = hub.asked_for(ReportFault)
    assert (report.principal, report.task_id, report.fault.kind) == ("infra-1", kit.task, Kind.UNAVAILABLE)
    assert report.fault.retryable
    assert len(callback.got) == 1
    assert hub.asked_for(CloseLink) == []


async def test_a_notice_that_is_not_taken_closes_the_connection_and_opens_it_again(
    push: CallbackSender, hub: Any, callback: Callback, kit: Any
) -> None:
    callback.status = 503
    push.start()
    (await link(hub)).deliver([kit.outgoing(1), kit.outgoing(2)])
    end = await link(hub, 2)
    assert [message["payload"]["progress_percent"] for _, message in callback.got] == [1]
    assert len(hub.asked_for(CloseLink)) == 1
    callback.status = 204
    end.deliver([kit.outgoing(1), kit.outgoing(2)])
    await hub.until(lambda: len(hub.asked_for(Acknowledge)) == 2)
    assert [message["payload"]["progress_percent"] for _, message in callback.got] == [1, 1, 2]


async def test_a_connection_that_is_gone_at_once_holds_nothing_up(
    push: CallbackSender, hub: Any, callback: Callback, kit: Any
) -> None:
    """What the library raised then ended the carrier, and with it everything else in its lane."""

    def gone(request: httpx2.Request) -> httpx2.Response:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'", name="getpeername", obj=None)

    push._client = httpx2.AsyncClient(transport=httpx2.MockTransport(gone))
    push.start()
    (await link(hub)).deliver([kit.outgoing(1, MessageKind.WORK)])
    await hub.until(lambda: bool(hub.asked_for(ReportFault)))
    assert hub.asked_for(ReportFault)[0].fault.kind is Kind.UNAVAILABLE
    (await link(hub)).deliver([kit.outgoing(2)])
    end = await link(hub, 2)
    push._client = None
    end.deliver([kit.outgoing(2)])
    await hub.until(lambda: len(hub.asked_for(Acknowledge)) == 1)


async def test_what_cannot_be_encoded_holds_nothing_up(
    push: CallbackSender, hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speechless(*_: object) -> list[bytes]:
        raise ValueError("no words")

    monkeypatch.setattr(outbound, "wire_of", speechless)
    push.start()
    (await link(hub)).deliver([kit.outgoing(1, MessageKind.WORK)])
    await hub.until(lambda: bool(hub.asked_for(ReportFault)))
    (await link(hub)).deliver([kit.outgoing(2)])
    await link(hub, 2)


async def test_tasks_do_not_wait_for_each_other(push: CallbackSender, hub: Any, callback: Callback, kit: Any) -> None:
    push.start()
    other = TaskId("550e8400-e29b-41d4-a716-4466554400ff")
    (await link(hub)).deliver([kit.outgoing(1), kit.outgoing(2, task=other)])
    await hub.until(lambda: len(hub.asked_for(Acknowledge)) == 2)


async def test_the_courier_stands_back_while_another_connection_serves(push: CallbackSender, hub: Any) -> None:
    push.start()
    end = await link(hub)
    hub.linked.add("infra-1")
    end.hang_up(CloseReason.NEWER_CONNECTION)
    await hub.until(lambda: hub.looked >= 3)
    assert len(hub.asked_for(OpenLink)) == 1
    hub.linked.clear()
    await link(hub, 2)


async def test_an_agent_that_registers_without_a_url_is_called_no_more(
    push: CallbackSender, hub: Any, kit: Any
) -> None:
    push.start()
    await link(hub)
    hub.known["infra-1"] = msgspec.structs.replace(hub.known["infra-1"], callback_url=None)
    push.follow(hub.known["infra-1"].id)
    await hub.until(lambda: bool(hub.asked_for(CloseLink)))
    assert len(hub.asked_for(OpenLink)) == 1


class Names:
    """A name server that says these, one after the other, and then the last for ever."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked = 0
        self.often = asyncio.Event()

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        if self.asked >= 3:
            self.often.set()
        return [self.addresses[min(self.asked, len(self.addresses)) - 1]]


def called_at(hub: Any, callback: Callback, name: str) -> None:
    url = f"http://{name}:{callback.port}/hook"
    hub.known["infra-1"] = msgspec.structs.replace(hub.known["infra-1"], callback_url=url)


async def test_a_name_that_leads_elsewhere_meanwhile_changes_nothing(hub: Any, callback: Callback, kit: Any) -> None:
    """Nobody but our own name server knows it: it is called at the address that was checked, or not at all."""
    called_at(hub, callback, "rebinding.invalid")
    names = Names("127.0.0.1", "169.254.169.254")
    push = CallbackSender(handler(hub), allowed=PRIVATE, resolve=names, first_pause=0.01, seconds=60)
    push.start()
    (await link(hub)).deliver([kit.outgoing(1), kit.outgoing(2)])
    await hub.until(lambda: len(hub.asked_for(Acknowledge)) == 2)
    assert names.asked == 1
    assert [f"host: rebinding.invalid:{callback.port}".encode() in head.lower() for head, _ in callback.got] == [
        True
    ] * 2
    await push.drain()


async def test_an_address_is_checked_whenever_a_connection_opens(hub: Any, callback: Callback, kit: Any) -> None:
    """It was registered when such addresses were allowed, or when its name led somewhere else."""
    called_at(hub, callback, "moved.invalid")
    names = Names("127.0.0.1")
    push = CallbackSender(handler(hub), resolve=names, first_pause=0.001)
    push.start()
    await kit.soon(names.often.wait())
    assert (hub.asked_for(OpenLink), callback.got) == ([], [])
    await push.drain()


async def test_a_proxy_of_the_environment_gets_nothing(
    push: CallbackSender, hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    push.start()
    (await link(hub)).deliver([kit.outgoing(1, MessageKind.WORK)])
    await hub.until(lambda: bool(hub.asked_for(Acknowledge) or hub.asked_for(ReportFault)))
    assert hub.asked_for(ReportFault) == []


async def test_private_addresses_are_refused_unless_opened(hub: Any) -> None:
    shut = CallbackSender(handler(hub))
    with pytest.raises(UrlRefused):
        await shut.check("http://127.0.0.1:1/")
    await CallbackSender(handler(hub), allowed=PRIVATE).check("http://127.0.0.1:1/")


async def test_a_registration_with_a_callback_opens_the_connection(
    opened: Any, hub: Any, callback: Callback, kit: Any
) -> None:
    body = {
        "agent_id": "infra-1",
        "agent_type": "infra",
        "supported_versions": ["1.0"],
        "callback_url": f"http://127.0.0.1:{callback.port}/",
    }
    headers = {"authorization": f"Bearer {kit.tokens['infra-1']}"}
    async with (
        opened(networks=PRIVATE) as serving,
        httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60) as http,
    ):
        response = await kit.soon(http.post("/api/agent/register", json=body, headers=headers))
        assert response.status_code == 200
        (await link(hub)).deliver([kit.outgoing(1, MessageKind.WORK)])
        await kit.soon(callback.came.wait())
