"""`POST /a2acp/agents`: an agent says who it is and which intents it serves, on which terms (a2acp-D6).

    {"agent_id", "domain", "version", "capabilities": [{"intent", "version", "input_schema", "output_schema",
      "required_capabilities", "pii"?, "timeout_seconds"?, "description"?}]}
    → 200 the same as the hub understood it, and who the broker is

The newest declaration replaces the one before; contracts keep the terms that they were made with. Schemas are looked
through and compiled here, so that none is refused later. What an agent may ask of others is not declared here but
allowed by a person (`dragoman agent add --capability`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.core.commands import RegisterAgent
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Kind, owned_by, refuse
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.contracts import Capability
from dragoman.protocols.a2acp.intents import INTENTS
from dragoman.protocols.a2acp.types import PROTOCOL_VERSION, Id, Name, SemVer
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.server.a2acp import contracts, names
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.http import A2acpHttp
from dragoman.server.a2acp.interpreter import compiled
from dragoman.server.a2acp.names import PROTOCOL
from dragoman.server.asgi import ASGIApp, Receive, Scope, Send, answer, read_body
from dragoman.server.endpoint import Endpoint
from dragoman.server.http_endpoint import SMALL_BODY

MOST_INTENTS = 1000


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: Id
    domain: Name | None = None
    version: SemVer = "1.0.0"
    capabilities: Annotated[tuple[Capability, ...], Meta(max_length=MOST_INTENTS)] = ()
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    domain: str
    version: str
    capabilities: tuple[Capability, ...]
    grants: tuple[str, ...]
    broker: Party
    protocol_version: str = PROTOCOL_VERSION


class A2acpAgents(Endpoint):
    def __init__(self, handler: A2acpHandler, http: A2acpHttp) -> None:
        self._handler = handler
        self._http = http

    def routes(self) -> Mapping[str, ASGIApp]:
        return {"/a2acp/agents": self._http.guarded("POST", "agent.register", self.register)}

    async def register(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        said = declaration(self._handler.json(await read_body(scope, receive, SMALL_BODY, agent.id)))
        if said.agent_id != agent.id:
            message = owned_by(agent.id, said.agent_id)
            raise refuse(Kind.UNAUTHENTICATED, message, field="agent_id", rule="subject")
        if said.domain is not None and agent.domain not in (None, said.domain):
            message = f"{agent.id} was added to another domain; a person may add it anew"
            raise refuse(Kind.FORBIDDEN, message, field="domain")
        named: set[str] = set()
        for place, capability in enumerate(said.capabilities):
            at = f"capabilities[{place}]"
            if capability.intent in named or capability.intent in INTENTS:
                what = "is there twice" if capability.intent in named else "is an intent of the broker's own"
                raise refuse(Kind.INVALID, f"{capability.intent!r} {what}; choose another name", field=f"{at}.intent")
            named.add(capability.intent)
            compiled(capability.input_schema, f"{at}.input_schema")
            compiled(capability.output_schema, f"{at}.output_schema")
        registered: Agent = await self._http.execute(
            RegisterAgent(
                principal=agent.id,
                protocol=PROTOCOL,
                work_types=tuple(capability.intent for capability in said.capabilities),
                version=said.version,
                protocol_version=PROTOCOL_VERSION,
                domain=said.domain,
                offers=tuple(map(contracts.offer_of, said.capabilities)),
                max_concurrent=said.max_concurrent,
            )
        )
        told = Declared(
            agent_id=registered.id,
            domain=names.domain_of(registered),
            version=said.version,
            capabilities=said.capabilities,
            grants=registered.capabilities,
            broker=self._handler.broker,
        )
        await answer(send, 200, msgspec.json.encode(told))


def declaration(tree: dict[str, Any]) -> Declaration:
    """What an agent says of itself; what is null in a capability is not there, either."""
    capabilities = tree.get("capabilities")
    if isinstance(capabilities, list):
        tree = {**tree, "capabilities": [_present(one) for one in capabilities]}
    return codec.body(tree, Declaration)


def _present(capability: Any) -> Any:
    if not isinstance(capability, dict):
        return capability
    return {name: value for name, value in capability.items() if value is not None}
