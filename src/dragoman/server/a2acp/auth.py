"""The auth service's two endpoints (a2acp-D5).

    POST /auth/token              {"agent_id", "target_agent_id", "requested_capabilities", "ttl"}
                                  → 200 {"token", "expires_at"}; the agent's own secret by HTTP Basic or as a bearer
    GET  /.well-known/jwks.json   the public keys, for whoever verifies tokens itself

What is refused is an error message like everywhere in this protocol.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.core.commands import NoteRead
from dragoman.core.ids import SECOND, AgentId, Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Fault, Kind, Refused, owned_by, refuse
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.types import LONGEST_TTL, Id, Name
from dragoman.security import tokens
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.http import A2acpHttp
from dragoman.server.a2acp.names import PROTOCOL
from dragoman.server.asgi import ASGIApp, Disconnected, Receive, Scope, Send, answer, header, read_body
from dragoman.server.authentication import UNKNOWN
from dragoman.server.endpoint import Endpoint
from dragoman.wire.errors import RemoteProtocolError

LONGEST_BODY = 64 * 1024
FRESH = ((b"cache-control", b"no-store"),)
CACHED = ((b"cache-control", b"public, max-age=300"),)


class TokenWish(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: Id
    target_agent_id: Id
    requested_capabilities: tuple[Name, ...] = ()
    ttl: Annotated[int, Meta(ge=1, le=LONGEST_TTL)] | None = None


class A2acpAuth(Endpoint):
    def __init__(self, handler: A2acpHandler, http: A2acpHttp, *, ttl: int) -> None:
        self._handler = handler
        self._http = http
        self._ttl = ttl

    def routes(self) -> Mapping[str, ASGIApp]:
        by_method = self._http.by_method
        return {"/auth/token": by_method({"POST": self.token}), "/.well-known/jwks.json": by_method({"GET": self.keys})}

    async def keys(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, msgspec.json.encode(self._handler.auth.published()), headers=CACHED)

    async def token(self, scope: Scope, receive: Receive, send: Send) -> None:
        agent: Agent | None = None
        try:
            agent = self.holder(scope)
            wish = codec.body(self._handler.json(await read_body(scope, receive, LONGEST_BODY, agent.id)), TokenWish)
            if wish.agent_id != agent.id:
                message = f"{owned_by(agent.id, wish.agent_id)}; ask for tokens of your own"
                raise refuse(Kind.UNAUTHENTICATED, message, field="agent_id", rule="subject")
            granted = self._handler.auth.issue(
                agent, wish.target_agent_id, wish.requested_capabilities, wish.ttl or self._ttl
            )
            about = wish.target_agent_id
            await self._handler.hub.execute(
                NoteRead(principal=agent.id, protocol=PROTOCOL, what="auth.token", about=about)
            )
        except Disconnected:
            return
        except (Refused, RemoteProtocolError) as error:
            await self._http.refuse(send, "auth.token", self._http.fault(error), agent=agent)
            return
        expires = rfc3339(Instant(granted.expires_at * SECOND))
        body = msgspec.json.encode({"token": granted.token, "expires_at": expires})
        await answer(send, 200, body, headers=FRESH)

    def holder(self, scope: Scope) -> Agent:
        """Whose secret it is: a bearer's, or HTTP Basic's with the agent's id as the name; raises `Refused`."""
        said = header(scope, b"authorization")
        if said is None or said[:6].lower() != b"basic ":
            return self._handler.agent(scope)
        name, secret = _basic(said)
        agent = self._handler.hub.agent_of(tokens.token_hash(secret))
        if agent is None or agent.id != AgentId(name) or agent.protocol != PROTOCOL:
            facts = {"agent_id": UNKNOWN, "token_status": "invalid", "rule": "secret"}
            message = "no a2acp agent of that name has this secret; `dragoman agent token ID` makes a new one"
            raise Refused(Fault(kind=Kind.UNAUTHENTICATED, message=message, facts=facts))
        return agent


def _basic(said: bytes) -> tuple[str, str]:
    """The name and the secret. An agent's id may have colons in it, its secret has none."""
    try:
        plain = base64.b64decode(said[6:].strip(), validate=True) if len(said) <= 2 * tokens.LONGEST else b""
        name, _, secret = plain.decode().rpartition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, secret
