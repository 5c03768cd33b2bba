"""A world with a clock of its own, and a hub that is nothing but chiffon's codec at the end of a pipe.

Nothing here sleeps: the clock is moved by hand (`runtime.advance`), and a test waits for what the agent says
(`hub.next`), never longer than `PATIENCE` real seconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dragoman import Agent
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.types import (
    Correlation,
    Envelope,
    ErrorPayload,
    Payload,
    Registered,
    Stamp,
    WorkRequest,
    WorkStatus,
)
from dragoman.sdk.chiffon.link import ChiffonLink
from dragoman.sdk.links import Bring, Frame, Link, LinkDown
from dragoman.sdk.messages import Accepted

PATIENCE = 60.0


class FakeRuntime:
    """Time stands still until it is advanced."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return datetime(2026, 1, 19, tzinfo=UTC) + timedelta(seconds=self.time)

    def monotonic(self) -> float:
        return self.time

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.time + seconds, next(self._order), call))

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self.later(seconds, lambda: None if woken.done() else woken.set_result(None))
        await woken

    def mint(self) -> str:
        return str(uuid.uuid4())

    def chance(self) -> float:
        return 0.0

    async def advance(self, seconds: float) -> None:
        """Let so much time pass; whatever is due happens in its order."""
        await settle()
        until = self.time + seconds
        while self._due and self._due[0][0] <= until:
            self.time, _, call = heapq.heappop(self._due)
            call()
            await settle()
        self.time = until
        await settle()


async def for_ever() -> None:
    """A handler that never ends."""
    await asyncio.Event().wait()


async def settle() -> None:
    """Let everybody have their turns."""
    for _ in range(30):
        await asyncio.sleep(0)


class FakePipe:
    """One connection to the fake hub."""

    def __init__(self, hub: FakeHub) -> None:
        self._hub = hub
        self._arrivals: asyncio.Queue[Sequence[Frame | Accepted] | None] = asyncio.Queue()
        self.is_quiet = False
        self.ended: set[str] = set()

    async def open(self, registration: bytes | None) -> bytes:
        self._hub.dialled += 1
        if self._hub.is_down:
            raise LinkDown("nobody there")
        self._hub.pipe = self
        if registration is None:
            return b""
        said = codec.decode_registration(registration)
        self._hub.registrations.append(said)
        return codec._encode(Registered(agent_id=said.agent_id, agent_type=said.agent_type, protocol_version="1.0"))

    async def receive(self) -> Sequence[Frame | Accepted]:
        arrival = await self._arrivals.get()
        if arrival is None:
            raise LinkDown("the line went dead")
        return arrival

    def deliver(self, arrival: Frame | Accepted) -> None:
        self._arrivals.put_nowait((arrival,))

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._hub.hear(self, frame)

    def acknowledge(self, receipt: str) -> None:
        self._hub.acked.append(receipt)

    async def drain(self) -> None: ...

    def quiesce(self) -> None:
        self.is_quiet = True

    async def close(self) -> None:
        self._arrivals.put_nowait(None)

    def cut(self) -> None:
        self._arrivals.put_nowait(None)


class FakeHub:
    """Says what the test wants, and keeps what the agent says."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.pipe: FakePipe | None = None
        self.registrations: list[Any] = []
        self.acked: list[str] = []
        self.said: list[Envelope[Payload]] = []
        self.is_down = False
        self.accepts = True
        self.dialled = 0
        self._news: asyncio.Queue[Envelope[Payload]] = asyncio.Queue()

    def dial(self) -> Link:
        return ChiffonLink(FakePipe(self), self.runtime)

    def dial_pipe(self) -> FakePipe:
        return FakePipe(self)

    # --- what the agent says ---

    def hear(self, pipe: FakePipe, frame: bytes) -> None:
        message = codec.decode(frame)
        if message.type == "work_status":
            assert message.request_id not in pipe.ended, "a status came after the result"
        elif message.type == "work_result":
            pipe.ended.add(message.request_id)
        self.said.append(message)
        self._news.put_nowait(message)
        if self.accepts:
            pipe.deliver(Accepted((message.message_id,)))

    async def next(self, type: str | None = None) -> Envelope[Any]:
        """The next message of the agent, of this type: earlier ones of other types are passed over."""
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await self._news.get()
                if type in (None, message.type):
                    return message

    def nothing_more(self) -> bool:
        return self._news.empty()

    def count(self, type: str) -> int:
        return sum(message.type == type for message in self.said)

    # --- what the hub says ---

    def request(
        self,
        work_type: str,
        parameters: dict[str, Any] | None = None,
        *,
        task_id: str | None = None,
        request_id: str | None = None,
        trace_id: str | None = None,
        custom: dict[str, Any] | None = None,
    ) -> Envelope[WorkRequest]:
        envelope = codec.envelope(
            WorkRequest(task_id=task_id or self.runtime.mint(), work_type=work_type, parameters=parameters or {}),
            Stamp(self.runtime.mint(), self.runtime.now()),
            Correlation(request_id or self.runtime.mint(), trace_id or self.runtime.mint()),
            from_agent="orchestrator",
            to_agent="worker",
            x_custom_fields={"delivery_id": self.runtime.mint(), **(custom or {})},
        )
        self.say(envelope)
        return envelope

    def say(self, envelope: Envelope[Any]) -> None:
        assert self.pipe is not None
        if envelope.type == "work_request":
            self.pipe.ended.discard(envelope.request_id)
        self.pipe.deliver(Frame(codec.encode(envelope)))

    def control(self, request: Envelope[WorkRequest], payload: Payload, **custom: Any) -> str:
        delivery_id = self.runtime.mint()
        self.say(
            codec.envelope(
                payload,
                Stamp(self.runtime.mint(), self.runtime.now()),
                Correlation(request.request_id, request.trace_id),
                from_agent="orchestrator",
                to_agent="worker",
                x_custom_fields={"delivery_id": delivery_id, **custom},
            )
        )
        return delivery_id

    def cancel(self, request: Envelope[WorkRequest]) -> str:
        context = {"task_id": request.payload.task_id, "reason": "enough"}
        return self.control(
            request, ErrorPayload(error_code=5900, error_message="Task Cancelled", error_context=context)
        )

    def steer(self, request: Envelope[WorkRequest], status: Any) -> str:
        return self.control(request, WorkStatus(task_id=request.payload.task_id, status=status, progress_percent=0))

    def cut(self) -> None:
        """The connection breaks."""
        assert self.pipe is not None
        self.pipe.cut()


class Running:
    """`async with Running(agent, hub):` the agent serves inside, and is stopped at the end."""

    def __init__(self, agent: Agent, hub: FakeHub, bring: Bring | None = None) -> None:
        self.agent = agent
        self.hub = hub
        self._bring = bring

    async def __aenter__(self) -> Running:
        self.serving = asyncio.ensure_future(self.agent.serve_over(self.hub.dial, bring=self._bring))
        await settle()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
