"""The raw limit of the transport: a bare echo on the same HTTP server and the same WebSocket implementation.

HTTP: read the body, answer 202 with what the hub answers (`{"status":"accepted","message_id":…}`). WebSocket:
send every message back. No routing, no parsing, no storing: nothing on this server can be faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench import procs
from bench.figures import Figure, Settings
from bench.load import measure as load
from bench.serving import serve

ANSWER = b'{"status":"accepted","message_id":"550e8400-e29b-41d4-a716-446655440001"}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 202, "headers": HEADERS})
        await send({"type": "http.response.body", "body": ANSWER})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def measure(settings: Settings) -> Iterable[Figure]:
    body = '{"id":"%(id)s","text":"' + "x" * (settings.body - 36) + '"}'
    with procs.python("bench.raw_echo") as server:
        url = server.ready()["http"]
        for in_flight in settings.levels:
            yield load(
                "bench.load:HttpPost",
                {"url": url, "path": "/", "body": body, "status": 202},
                suite="echo-http",
                in_flight=in_flight,
                settings=settings,
                server=server,
            )
        for in_flight in settings.levels:
            # One connection per operation in flight is what HTTP forces; a WebSocket carries many. Both,
            # because the hub is measured with few connections and its agents may be many.
            for suite, connections in (("echo-ws", min(in_flight, 8)), ("echo-ws-each", in_flight)):
                yield load(
                    "bench.load:WsEcho",
                    {"url": url, "path": "/", "size": settings.body, "connections": connections},
                    suite=suite,
                    in_flight=in_flight,
                    settings=settings,
                    server=server,
                )


if __name__ == "__main__":
    serve(app)
