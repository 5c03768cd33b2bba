"""Agentmsg's frames over HTTP and over a WebSocket.

Over HTTP the answer to a POST is the hub's receipt, and acknowledgments go by delivery id. A refusal is an ErrorReport
without a message around it; it is given one, so that it is heard like any other. Over a WebSocket both ends say ACK.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx2
import msgspec

from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg.records import ErrorReport
from dragoman.protocols.agentmsg.types import ANYONE, HUB, SUBPROTOCOL, Stamp
from dragoman.sdk.address import Address
from dragoman.sdk.agentmsg.session import MessagePipe
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.pipe import Frame
from dragoman.sdk.network.polling import PolledPipe
from dragoman.sdk.network.websocket import WebSocket
from dragoman.sdk.runtime import Runtime


class _Receipt(msgspec.Struct, frozen=True):
    """`answer` is the hub's message to a registration or a query."""

    answer: msgspec.Raw = msgspec.Raw()


PATH = "/agentmsg/ws?acks=many"
"""One ACK of the hub's may name several messages: `Session` reads them all."""

_receipt = msgspec.json.Decoder(_Receipt).decode
_report = msgspec.json.Decoder(ErrorReport).decode


def pipes(address: Address, runtime: Runtime) -> Callable[[], MessagePipe]:
    """Makes a pipe to the address, each time a new one."""
    if address.transport == "ws":
        return lambda: WebSocketMessages(address)
    return lambda: HttpMessages(address, runtime)


class HttpMessages(PolledPipe):
    """`pipe.Pipe` over HTTP."""

    INBOX = POST = "/agentmsg/messages"
    ACK = "/agentmsg/ack"
    REFUSED = PolledPipe.REFUSED | {429}
    confirms = True

    def __init__(
        self, address: Address, runtime: Runtime, *, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__(address, transport=transport)
        self._runtime = runtime

    async def _register(self, registration: bytes) -> bytes:
        return await self._greet()  # the registration is a message like any other

    def _answered(self, response: httpx2.Response, message_id: str) -> Sequence[Frame | Accepted]:
        if response.is_success:
            answer = _receipt(response.content).answer
            return (Accepted((message_id,)), *((Frame(bytes(answer)),) if answer else ()))
        report = _report(response.content)
        stamp = Stamp(self._runtime.mint(), self._runtime.now())
        said = codec.message(report, stamp, sender=HUB, to=ANYONE, correlation_id=message_id)
        return (Frame(codec.encode(said)),)

    def _refusal(self, content: bytes) -> str | None:
        return refusal(content)


class WebSocketMessages:
    """`pipe.Pipe` over a WebSocket."""

    confirms = False

    def __init__(self, address: Address) -> None:
        self._socket = WebSocket(address, PATH, [SUBPROTOCOL], largest=codec.LIMITS.bytes, refusal=refusal)

    async def open(self, registration: bytes | None) -> bytes:
        await self._socket.open()
        return b""

    async def receive(self) -> Sequence[Frame | Accepted]:
        return (Frame(await self._socket.receive()),)

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._socket.send(frame)

    def acknowledge(self, receipt: str) -> None:
        """Both ends say ACK here: it is a frame."""

    async def drain(self) -> None:
        await self._socket.drain()

    def quiesce(self) -> None:
        """The hub pushes; what comes now is left unacknowledged."""

    async def close(self) -> None:
        await self._socket.close()


def refusal(content: bytes) -> str | None:
    """The words of an ErrorReport, and what it says to do next."""
    try:
        report = _report(content)
        actions = [said for said in report.suggested_actions if said.rstrip(".").lower() not in report.message.lower()]
        return ". ".join(said.rstrip(".") for said in (report.message, *actions))
    except msgspec.DecodeError:
        return None
