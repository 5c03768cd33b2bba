"""Chiffon's endpoints on the HTTP port.

handler    who sends, what a message means, how to encode a refusal: the same over HTTP and WebSocket
http       messages, polls, acknowledgments, steering of tasks        websocket  `/api/agent/ws`
callbacks  envelopes posted to callback URLs                          files      `/api/agent/files`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dragoman.security.urls import Network, Resolve
from dragoman.server.chiffon.callbacks import CallbackSender
from dragoman.server.chiffon.files import AgentFiles
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.chiffon.http import ChiffonHttp
from dragoman.server.chiffon.websocket import ChiffonWebSocket
from dragoman.server.handler import Endpoint


def endpoints(
    handler: ChiffonHandler,
    *,
    negotiation: Literal["lowest", "highest"] = "lowest",
    callback_networks: Sequence[Network] = (),
    resolve: Resolve | None = None,
) -> tuple[Endpoint, ...]:
    callbacks = CallbackSender(handler.hub, handler.encode, allowed=callback_networks, resolve=resolve)
    http = ChiffonHttp(handler, callbacks=callbacks, negotiation=negotiation)
    files = () if handler.files is None else (AgentFiles(handler, handler.files),)
    return (http, ChiffonWebSocket(handler), callbacks, *files)
