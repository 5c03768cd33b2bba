"""The hub as everybody on it sees it: its addresses, and the management API for whoever looks on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(kw_only=True)
class Stage:
    """`http` speaks to the hub without a credential; `admin` with the administrator's."""

    url: str
    grpc: str
    http: httpx2.AsyncClient
    admin: httpx2.AsyncClient

    @property
    def ws(self) -> str:
        return self.url.replace("http://", "ws://")

    async def add(self, id: str, protocol: str) -> str:
        """Let an agent in; its token."""
        answer = await self.admin.post("/api/v1/agents", json={"agent_id": id, "protocol": protocol})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.admin.get(f"/api/v1/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def task(self, id: str, *, wait: float = 0, **query: Any) -> dict[str, Any]:
        """The task as the management API tells of it."""
        return dict(await self.get(f"tasks/{id}", wait=wait, **query))

    async def answer(self, question: str, answer: Any) -> int:
        """Answer a question; the status."""
        replied = await self.admin.post(f"/api/v1/questions/{question}/answer", json={"answer": answer})
        return int(replied.status_code)
