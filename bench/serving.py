"""The one way in which the peer and the echo are served, with the settings of the hub's own wiring.

uvicorn on uvloop + httptools + websockets-sansio, one process, no access log. It binds a free loopback port
and says `{"http": "http://127.0.0.1:PORT"}` on stdout when it serves.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        port = sockets[0].getsockname()[1]
        sys.stdout.write(f'{{"http": "http://127.0.0.1:{port}"}}\n')
        sys.stdout.flush()


def serve(app: Any) -> None:
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        access_log=False,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    _Announcing(config).run(sockets=[listener])
