"""Faults between an agent and the hub, at the moment that the test chooses.

A message is lost together with its connection, as in reality: TCP loses nothing in the middle. The agent does not know
whether the message arrived; it connects again and recovers as its protocol and the SDK do. Each agent has a port of its
own that leads to the hub (`Relay`), whose connections a test can cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from dragoman.sdk.links import Introduction, Link, ProtocolCapabilities
from dragoman.sdk.messages import Assignment, Inbound, Outbound, Outcome
from dragoman.testing.loop import Misused

if TYPE_CHECKING:
    from dragoman.sdk.agent import Agent
    from dragoman.testing.environment import Environment
    from dragoman.testing.loop import LoopThread

What = Literal["request", "response"]


class Losses:
    """The messages that an agent will lose, and those that it lost."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.planned: Counter[What] = Counter()
        self.happened: Counter[What] = Counter()
        self._cut = cut

    def is_lost(self, what: What) -> bool:
        if not self.planned[what]:
            return False
        self.planned[what] -= 1
        self.happened[what] += 1
        self._cut()
        return True


class LossyLink:
    """An `sdk.links.Link` that loses the messages that the test wants it to lose."""

    def __init__(self, link: Link, losses: Losses) -> None:
        self._link = link
        self._losses = losses

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return self._link.protocol_capabilities

    async def open(self, who: Introduction) -> None:
        await self._link.open(who)

    async def receive(self) -> Sequence[Inbound]:
        while True:
            received = await self._link.receive()
            kept = [
                message
                for message in received
                if not (isinstance(message, Assignment) and self._losses.is_lost("request"))
            ]
            if kept:
                return kept

    def acknowledge(self, receipt: str) -> None:
        self._link.acknowledge(receipt)

    def send(self, message: Outbound) -> None:
        if not (isinstance(message, Outcome) and self._losses.is_lost("response")):
            self._link.send(message)

    async def drain(self) -> None:
        await self._link.drain()

    def quiesce(self) -> None:
        self._link.quiesce()

    async def close(self) -> None:
        await self._link.close()


class Faults:
    def __init__(self, thread: LoopThread, environment: Environment) -> None:
        self._thread = thread
        self._environment = environment

    def drop_response(self, agent: str | Agent, *, times: int = 1) -> None:
        """The next results of this agent do not reach the hub: the work was done, and the hub does not know."""
        self._plan(agent, "response", times)

    def drop_request(self, agent: str | Agent, *, times: int = 1) -> None:
        """The next work for this agent does not reach it."""
        self._plan(agent, "request", times)

    def disconnect(self, agent: str | Agent) -> None:
        """Break this agent's connections, without a goodbye. It comes back by itself."""
        self._thread.do(self._environment.disconnect(self._environment.runner(agent)))

    def restart_hub(self) -> None:
        """The hub stops at once, and starts again from its store. Its agents connect again."""
        self._thread.do(self._environment.restart())
        self._environment.raise_noted()

    def dropped(self, agent: str | Agent) -> dict[str, int]:
        """How many of the planned losses have happened: {"request": 0, "response": 2}."""
        happened = self._environment.runner(agent).losses.happened
        return {"request": happened["request"], "response": happened["response"]}

    def _plan(self, agent: str | Agent, what: What, times: int) -> None:
        if times < 1:
            raise Misused(f"times must be at least 1: drop_{what}(…, times=1), not times={times}")
        self._environment.runner(agent).losses.planned[what] += times


HOST = "127.0.0.1"


class Relay:
    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._copies: set[asyncio.Task[None]] = set()
        self._has_target = asyncio.Event()
        self._has_target.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._has_target.set()
        self.cut()
        await asyncio.gather(*self._copies, return_exceptions=True)

    def disconnect_target(self) -> None:
        """No hub is at the other end: new connections wait for `connect_to`."""
        self._has_target.clear()

    def connect_to(self, target: str) -> None:
        self.target = target
        self._has_target.set()

    def cut(self) -> None:
        """Every connection breaks, without a goodbye; what was on its way is lost. New ones may be made at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._copies.add(task)
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            await self._has_target.wait()
            host, _, port = self.target.rpartition(":")
            there, onward = await asyncio.open_connection(host, int(port))
            self._writers.add(onward)
            await asyncio.gather(_copy(reader, onward), _copy(there, writer))
        except OSError:
            pass
        finally:
            for end in (writer, onward):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
            self._copies.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (OSError, RuntimeError):
        writer.transport.abort()
