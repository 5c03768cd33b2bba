"""A chiffon agent on RabbitMQ that shares nothing with the hub: aio-pika and the document."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

PATIENCE = 60.0
TIME = "2026-01-19T04:21:04Z"
QUORUM = {"x-queue-type": "quorum"}


def envelope(type: str, payload: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A message of the document; `fields` replace its own."""
    return {
        "protocol_version": "1.0",
        "message_id": str(uuid.uuid4()),
        "from_agent": "orchestrator",
        "to_agent": "infra",
        "timestamp": TIME,
        "trace_id": str(uuid.uuid4()),
        "request_id": str(uuid.uuid4()),
        "type": type,
        "payload": payload,
        "x_custom_fields": {},
        **fields,
    }


def work(to: str = "infra", sender: str = "orchestrator", /, **parameters: Any) -> dict[str, Any]:
    payload = {"task_id": str(uuid.uuid4()), "work_type": "run_playbook", "parameters": parameters}
    return envelope("work_request", payload, from_agent=sender, to_agent=to)


def about(request: dict[str, Any], type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """What the agent that got a request sends about it."""
    return envelope(
        type,
        {"task_id": request["payload"]["task_id"], **payload},
        from_agent=request["to_agent"],
        to_agent=request["from_agent"],
        request_id=request["request_id"],
        trace_id=request["trace_id"],
    )


def status(request: dict[str, Any], percent: int) -> dict[str, Any]:
    return about(request, "work_status", {"status": "running", "progress_percent": percent})


def result(request: dict[str, Any], output: str = "done") -> dict[str, Any]:
    return about(request, "work_result", {"status": "success", "exit_code": 0, "output": output})


@asynccontextmanager
async def within(what: str) -> AsyncIterator[None]:
    """A bound for what a broker answers only when it can: one without memory or disk takes nothing, and is silent."""
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except TimeoutError:
        raise AssertionError(f"the broker did not answer within {PATIENCE:g} s: {what}") from None


class QueueAgent:
    """Consumes `chiffon.agent.<id>`, publishes to the exchange `chiffon`. `in_field`: its token goes in the message."""

    def __init__(self, url: str, id: str, token: str, *, in_field: bool = False) -> None:
        self.id = id
        self.token = token
        self._url = url
        self._in_field = in_field
        self.came: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        self.answers: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

    async def __aenter__(self) -> QueueAgent:
        async with within(f"{self.id} connects"):
            self.connection = await aio_pika.connect(self._url)
            self.channel = await self.connection.channel(publisher_confirms=True, on_return_raises=True)
            self._answers = await self.channel.declare_queue("amq.rabbitmq.reply-to", passive=True)
            await self._answers.consume(self.answers.put, no_ack=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        async with within(f"{self.id} closes its connection"):
            await self.connection.close()

    async def consume(self) -> QueueAgent:
        async with within(f"{self.id} consumes"):
            channel = await self.connection.channel()
            self.queue = await channel.declare_queue(f"chiffon.agent.{self.id}", durable=True, arguments=QUORUM)
            self.consumer = await self.queue.consume(self.came.put)
        return self

    async def registered(self, kind: str) -> QueueAgent:
        """Consume, and register as an agent of this kind."""
        await self.consume()
        answer = await self.ask("register", {"agent_id": self.id, "agent_type": kind, "supported_versions": ["1.0"]})
        assert answer["status"] == "registered", answer
        return self

    async def send(
        self, message: Any, *, key: str | None = None, answer: bool = False, token: str | None = None
    ) -> None:
        """Returns when the broker has it."""
        token = self.token if token is None else token
        headers: dict[str, Any] = {}
        if isinstance(message, dict):
            key = key or message.get("type")
            if self._in_field:
                message = {**message, "x_custom_fields": {**message.get("x_custom_fields", {}), "token": token}}
            message = json.dumps(message).encode()
        if not self._in_field:
            headers["authorization"] = f"Bearer {token}"
        exchange = await self.channel.get_exchange("chiffon", ensure=False)
        made = aio_pika.Message(
            message,
            headers=headers,
            message_id=str(uuid.uuid4()),
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            reply_to="amq.rabbitmq.reply-to" if answer else None,
        )
        async with within(f"{self.id} publishes hub.{key}"):
            await exchange.publish(made, f"hub.{key}", mandatory=True)

    async def ask(self, key: str | None, message: Any, **options: Any) -> dict[str, Any]:
        """Send, and wait for the hub's answer."""
        await self.send(message, key=key, answer=True, **options)
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        async with within(f"an answer to {self.id}"):
            return dict(json.loads((await self.answers.get()).body))

    async def hear(self) -> dict[str, Any]:
        """The next message of the hub, acknowledged."""
        async with within(f"a message for {self.id}"):
            message = await self.came.get()
            await message.ack()
        return dict(json.loads(message.body))
