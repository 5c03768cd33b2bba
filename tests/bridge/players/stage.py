"""The hub as its agents see it: its addresses, and the management API for people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from dragoman.app.endpoints import ENDPOINTS, HubParts
from dragoman.app.settings import (
    A2acpSettings,
    AmqpSettings,
    CovenSettings,
    RuleSettings,
    Server,
    Settings,
    StoreSettings,
)
from dragoman.app.wiring import hub
from dragoman.server.handler import Endpoint
from tests.bridge.players.sockets import PATIENCE

IN_MEMORY = StoreSettings(kind="memory")
WITHOUT_END = A2acpSettings(messages_per_broker=0)
"""All of these tests together say more in a minute than a broker hears."""


@dataclass(kw_only=True)
class Stage:
    """`http` speaks to the hub without a credential; `admin` with the administrator's."""

    url: str
    grpc: str
    http: httpx2.AsyncClient
    admin: httpx2.AsyncClient
    broker: str = ""
    """Where the hub's message queue is, if it has one."""

    @property
    def ws(self) -> str:
        return self.url.replace("http://", "ws://")

    async def add(
        self,
        id: str,
        protocol: str,
        *,
        seats: int | None = None,
        able: tuple[str, ...] = (),
        offers: tuple[Mapping[str, Any], ...] = (),
        domain: str | None = None,
    ) -> str:
        """Let an agent in; its token."""
        wish: dict[str, Any] = {"agent_id": id, "protocol": protocol, "capabilities": able, "offers": offers}
        if domain is not None:
            wish["domain"] = domain
        if seats is not None:
            wish["max_concurrent"] = seats
        answer = await self.admin.post("/api/v1/agents", json=wish)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    async def remove(self, id: str) -> None:
        """An agent that later scenes must not meet."""
        answer = await self.admin.delete(f"/api/v1/agents/{id}")
        assert answer.status_code == 204, answer.text

    async def allow(self, source: str, target: str, *, allow: bool = True) -> None:
        """Let agents of one domain ask those of another, or not."""
        said = {"source": source, "target": target, "allow": allow}
        answer = await self.admin.post("/api/v1/policies/domains", json=said)
        assert answer.status_code == 200, answer.text

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.admin.get(f"/api/v1/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def task(self, id: str, *, wait: float = 0, **query: Any) -> dict[str, Any]:
        """The task as the management API tells of it."""
        return dict(await self.get(f"tasks/{id}", wait=wait, **query))

    async def account(self, agent: str, resource: str = "budget") -> dict[str, Any]:
        """How an agent's account of a resource stands, and its version."""
        answer = await self.admin.get(f"/agentmsg/state/RESOURCE/{agent}:{resource}")
        assert answer.status_code == 200, answer.text
        told = answer.json()
        return {"version": told["version"], **told["value"]}

    async def allot(self, agent: str, limit: float, resource: str = "budget", *, version: int = 0) -> None:
        """Say how much an agent may use altogether; `version` is its account's, or 0 where it has none."""
        update = {
            "operation": "UPDATE" if version else "CREATE",
            "entity_type": "RESOURCE",
            "entity_id": f"{agent}:{resource}",
            "changes": {"agent_id": agent, "resource_type": resource, "limit": limit},
            "version": version,
            "timestamp": datetime.now(UTC).isoformat(),
        }
        answer = await self.admin.post("/agentmsg/state", json=update)
        assert answer.status_code == 200, answer.text

    async def answer(self, question: str, answer: Any) -> int:
        """Answer a question; the status."""
        replied = await self.admin.post(f"/api/v1/questions/{question}/answer", json={"answer": answer})
        return int(replied.status_code)


@asynccontextmanager
async def playing(
    data: Path,
    store: StoreSettings = IN_MEMORY,
    a2acp: A2acpSettings = WITHOUT_END,
    endpoints: Mapping[str, Callable[[HubParts], tuple[Endpoint, ...]]] = ENDPOINTS,
    amqp: str | None = None,
    amqp_ca: str | None = None,
) -> AsyncIterator[Stage]:
    """A hub."""
    settings = Settings(
        data=str(data),
        store=store,
        server=Server(port=0, grpc_port=0, drain_seconds=1),
        coven=CovenSettings(guests=True, shutdown_seconds=0.1),
        a2acp=a2acp,
        amqp=AmqpSettings(url=amqp, ca=amqp_ca, presence_seconds=0.2),
        rules=RuleSettings(grace_seconds=0.05, retry_delays_seconds=(0, 0, 0, 0)),
    )
    async with AsyncExitStack() as held:
        running = await held.enter_async_context(hub(settings, endpoints=endpoints))
        url = running.serving.url
        http, admin = [
            await held.enter_async_context(
                httpx2.AsyncClient(base_url=url, timeout=PATIENCE, headers=headers, verify=False)
            )
            for headers in ({}, {"Authorization": f"Bearer {running.admin_token}"})
        ]
        yield Stage(url=url, grpc=running.grpc, http=http, admin=admin, broker=amqp or "")
