"""The raw limit of coven's transport: a bare `grpc.aio` echo over bidirectional streams, with the same messages.

The server parses what an agent would send (AgentMessage with a piece of text), takes the text out and sends it
back as a gateway would (ServerMessage with a SendMessage). No task, no queue, no store: nothing on `grpc.aio` can
be faster. The client is `grpc.aio`, too, as in the hub's own suite, one connection a stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
import uvloop

from bench import procs
from bench.figures import Figure, Settings
from bench.load import Meter
from bench.load import measure as load
from bench.streams import AGENT_STREAM, LARGEST, BidiStream, channel, coven_types

STREAMS = (1, 50)
"""Streams over which everything about coven is measured."""


class GrpcEcho:
    """Send a piece of text, await it back; the slot travels as the request id."""

    def __init__(self, address: str, size: int, streams: int) -> None:
        self._address = address
        self._count = streams
        self._text = "x" * size
        self._turn = 0
        self._streams: list[BidiStream] = []

    async def open(self, meter: Meter, in_flight: int) -> None:
        types = coven_types()
        self._types = types

        def hear(message: bytes) -> None:
            meter.finish(int(types.ServerMessage.FromString(message).send_message.request_id))

        for _ in range(self._count):
            self._streams.append(BidiStream(channel(self._address, alone=True), AGENT_STREAM, hear, meter.lose))

    def begin(self, slot: int) -> None:
        types = self._types
        message = types.AgentMessage(response=types.MessageResponse(request_id=str(slot), text=self._text))
        self._turn += 1
        self._streams[self._turn % self._count].send(message.SerializeToString())

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


def measure(settings: Settings) -> Iterable[Figure]:
    for streams in STREAMS:
        for in_flight in settings.levels:
            with procs.python("bench.raw_grpc") as server:
                yield load(
                    "bench.raw_grpc:GrpcEcho",
                    {"address": server.ready()["grpc"], "size": settings.body, "streams": streams},
                    suite=f"echo-grpc-{streams}",
                    in_flight=in_flight,
                    settings=settings,
                    server=server,
                )


async def serve() -> None:
    types = coven_types()

    async def stream(requests: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            heard = types.AgentMessage.FromString(message).response
            answer = types.SendMessage(request_id=heard.request_id, content=heard.text)
            await context.write(types.ServerMessage(send_message=answer).SerializeToString())

    handler = grpc.stream_stream_rpc_method_handler(stream)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", LARGEST)])
    service, method = AGENT_STREAM[1:].split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f'{{"grpc": "127.0.0.1:{port}"}}', flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve())
