"""A2acp's endpoints on the HTTP port: the broker of the document.

tokens         the auth service: issues, verifies, speaks for the broker      auth       /auth/token, the published keys
handler        who sends, how to answer, how to encode a refusal              agents     /a2acp/agents
interpreter    what a message means: its contract, its task, its payload
correlation    what agents were asked, and by which names they may answer it
contract_keys  contracts in use: their terms, and the keys of payloads        http       messages, polls, ACKs
session        messages on a WebSocket, /a2acp/ws
"""

from __future__ import annotations

from dragoman.server.a2acp.agents import A2acpAgents
from dragoman.server.a2acp.auth import A2acpAuth
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.http import A2acpHttp
from dragoman.server.a2acp.session import A2acpWebSocket
from dragoman.server.endpoint import Endpoint


def endpoints(handler: A2acpHandler, *, ttl: int) -> tuple[Endpoint, ...]:
    http = A2acpHttp(handler)
    auth = A2acpAuth(handler, http, ttl=ttl)
    return (http, A2acpWebSocket(handler), auth, A2acpAgents(handler, http))
