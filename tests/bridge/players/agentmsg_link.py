"""An agentmsg party on its WebSocket: what is kept is acknowledged both ways, and what comes again is heard once."""

from __future__ import annotations

import asyncio
import uuid
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.bridge.players.neutral import File, Party, soon
from tests.bridge.players.sockets import JsonSocket

HUB = "hub"
KEPT = ("high", "critical")
URGENT = {
    "TASK_UPDATE": "normal",
    "HEARTBEAT": "low",
    "ACK": "low",
    "STATUS_UPDATE": "normal",
    "ERROR_REPORT": "critical",
}
"""The priorities of types that are not high."""

Message = dict[str, Any]


def time(ahead: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()


class Refusal(AssertionError):
    """The ERROR_REPORT that answered a message."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__(report["message"], report)
        self.report = report


class AgentmsgParty(Party):
    protocol = "agentmsg"
    socket: JsonSocket

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._seen: set[str] = set()
        self._kept: dict[str, asyncio.Future[Message]] = {}
        self._answers: defaultdict[str, asyncio.Queue[Message]] = defaultdict(asyncio.Queue)
        self.direct_messages: asyncio.Queue[Message] = asyncio.Queue()
        """What others asked of this one: help, to take a task over."""

    async def connect(self) -> None:
        url = f"{self.stage.ws}/agentmsg/ws"
        self.socket = await JsonSocket.open(url, self._heard, subprotocol="agentmsg.v1", headers=self.bearer)

    async def leave(self) -> None:
        await self.socket.close()

    # -- out

    def message(
        self, type: str, payload: Mapping[str, Any], *, to: str = HUB, id: str = "", **metadata: Any
    ) -> Message:
        priority = URGENT.get(type, "high")
        return {
            "id": id or str(uuid.uuid4()),
            "timestamp": time(),
            "from": self.id,
            "to": to,
            "type": type,
            "payload": payload,
            "metadata": {"priority": priority, "retry_count": 0, "max_retries": 3} | metadata,
        }

    async def deliver(self, message: Message) -> Message:
        """Send what is kept; the ACK, once the hub has it. Raises `Refusal`."""
        taken = self._kept[message["id"]] = asyncio.get_running_loop().create_future()
        await self.socket.send(message)
        return await soon(taken)

    async def answer(self, about: str) -> Message:
        """The next answer to a message of ours."""
        return await soon(self._answers[about].get())

    # -- in

    async def _heard(self, message: Message) -> None:
        about = message["metadata"].get("correlation_id")
        match message["type"]:
            case "ACK":
                for id in {about, *message["payload"].get("message_ids", ())}:
                    self._taken(id, message)
                return
            case "ERROR_REPORT" if "delivery_id" not in message["metadata"]:
                self._refused(about, message["payload"])
                return
        if message["metadata"]["priority"] in KEPT:
            await self.socket.send(self.message("ACK", {}, correlation_id=message["id"]))
            if message["id"] in self._seen:
                return  # the ACK came too late
            self._seen.add(message["id"])
        match message["type"]:
            case "HELP_RESPONSE":
                self._answers[message["payload"]["request_id"]].put_nowait(message)
            case "TASK_HANDOFF" if "accepted" in message["payload"]:
                self._answers[about].put_nowait(message)
            case "HELP_REQUEST" | "TASK_HANDOFF" | "ERROR_REPORT":
                self.direct_messages.put_nowait(message)
            case _:
                await self.hear(message, message["payload"])

    def _taken(self, id: str | None, ack: Message) -> None:
        waiting = self._kept.pop(id or "", None)
        if waiting is not None and not waiting.done():
            waiting.set_result(ack)

    def _refused(self, about: str | None, report: Mapping[str, Any]) -> None:
        waiting = self._kept.pop(about or "", None)
        if waiting is None:
            self.refused.append(str(report))
        elif not waiting.done():
            waiting.set_exception(Refusal(report))

    @abstractmethod
    async def hear(self, message: Message, payload: Mapping[str, Any]) -> None: ...

    async def fetch(self, ref: Mapping[str, Any]) -> File:
        answer = await self.stage.http.get(ref["url"], headers=self.bearer)
        assert answer.status_code == 200, answer.text
        return File(ref["name"], answer.content)
