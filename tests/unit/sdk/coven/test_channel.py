"""How a call ended: what the hub said counts, whatever gRPC makes of it."""

from __future__ import annotations

import contextlib
from typing import Any

from dragoman.sdk.coven.channel import BROKEN, Ending, grpc


async def test_a_write_after_the_end_hides_no_message_of_the_hub() -> None:
    async def refuse(_requests: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "nobody here has this token")

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(refuse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hub", {"stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(20):  # most of these end in gRPC's own INTERNAL
                call: Any = channel.stream_stream("/hub/stream")()
                ending = Ending(call)
                with contextlib.suppress(*BROKEN):
                    while True:
                        await call.write(b"a word")
                assert await ending.status() == (grpc.StatusCode.UNAUTHENTICATED, "nobody here has this token")
    finally:
        await server.stop(None)
