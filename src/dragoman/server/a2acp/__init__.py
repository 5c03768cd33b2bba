"""A2acp's endpoints on the HTTP port: the broker of the document.

handler        the way of a message, for both transports      http       HTTP: messages, polls, tokens, declarations
judge          contract, task and payload of a message        session    WebSocket
inbound        message → command (pure)                       outbound   outgoing message → message (pure)
contracts      rows ⇄ the document's values (pure)            tokens     the auth service
correlation    what agents were asked, and its names          contract_keys   terms and keys of contracts in use
"""

from __future__ import annotations

from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.http import A2acpHttp
from dragoman.server.a2acp.session import A2acpWebSocket
from dragoman.server.handler import Endpoint


def endpoints(handler: A2acpHandler, *, ttl: int) -> tuple[Endpoint, ...]:
    return A2acpHttp(handler, ttl=ttl), A2acpWebSocket(handler)
