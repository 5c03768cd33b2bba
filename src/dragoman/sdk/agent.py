"""An agent in a few lines: what it does, declared by functions; how it lives, left to the engine.

agent = Agent("deployer", version="1.2.3")

@agent.on("run_playbook", timeout=300)
async def run(task: Task, playbook: str) -> dict: ...

agent.run("chiffon+ws://localhost:8420")
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dragoman.sdk.address import resolve_agent
from dragoman.sdk.engine import Engine
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.journal import Journal, path_for
from dragoman.sdk.links import Introduction, Link, dialler
from dragoman.sdk.signature import Handler
from dragoman.sdk.world import RealWorld, World

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("dragoman.sdk")


class Agent:
    """A worker at the hub, under one id.

    `concurrency` is how much it takes at once; `state_dir` where its results survive a restart; `grace` how many
    seconds running work may take to end when the agent is stopped. The token may also come from DRAGOMAN_TOKEN or
    from the address, and is never logged.
    """

    def __init__(
        self,
        id: str,
        *,
        version: str | None = None,
        kind: str | None = None,
        token: str | None = None,
        concurrency: int = 8,
        state_dir: str | Path | None = None,
        grace: float = 30.0,
        world: World | None = None,
    ) -> None:
        if not id or concurrency < 1:
            raise Misconfigured("an agent needs an id, and a concurrency of at least 1")
        self.id = id
        self.version = version
        self.kind = kind
        self.concurrency = concurrency
        self._token = token
        self._state_dir = state_dir
        self._grace = grace
        self._world = world or RealWorld()
        self._handlers: dict[str, Handler] = {}
        self._engine: Engine | None = None

    def __repr__(self) -> str:
        return f"Agent({self.id!r}, does {', '.join(self._handlers) or 'nothing yet'})"

    def on(self, work_type: str, *, timeout: float | None = None) -> Callable[[F], F]:
        """Declare the function that does this work. It may be a coroutine function or a plain one (run in a thread).

        `timeout` is how many seconds it may take; time spent waiting for a person does not count.
        """

        def declare(function: F) -> F:
            if work_type in self._handlers:
                raise Misconfigured(f"{self.id} already does {work_type}")
            self._handlers[work_type] = Handler(work_type, function, timeout=timeout)
            return function

        return declare

    def capabilities(self) -> list[dict[str, Any]]:
        """What the agent does, each with the JSON Schema of its input and output."""
        return [handler.capability() for handler in self._handlers.values()]

    def run(self, url: str | None = None) -> None:
        """Work until SIGINT or SIGTERM: then take no more, let running work end, and return. A second one ends it."""
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
            logging.getLogger("httpx2").setLevel(logging.WARNING)
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.run(self._run_until_signal(url))

    async def _run_until_signal(self, url: str | None) -> None:
        loop = asyncio.get_running_loop()
        serving = loop.create_task(self.serve(url))
        signals = 0

        def stop() -> None:
            nonlocal signals
            signals += 1
            if signals == 1:
                log.info("%s stops: no more work is taken, running work may end", self.id)
                self.stop()
            else:
                serving.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, stop)
            except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread: the caller stops us
                break
        try:
            await serving
        except asyncio.CancelledError:
            if signals < 2:
                raise

    async def serve(self, url: str | None = None) -> None:
        """Work until `stop` or cancellation. Reconnects by itself; returns or raises only when it is over."""
        address = resolve_agent(self.id, url, self._token)
        await self.serve_over(dialler(address, self._world))

    async def serve_over(self, dial: Callable[[], Link]) -> None:
        """As `serve`, over links of one's own making."""
        if self._engine is not None:
            raise Misconfigured(f"{self.id} is already at work")
        if not self._handlers:
            raise Misconfigured(f"{self.id} does nothing: declare a function with @agent.on(…)")
        who = Introduction(
            agent_id=self.id,
            kind=self.kind,
            version=self.version,
            work_types=tuple(self._handlers),
            concurrency=self.concurrency,
            capabilities=tuple(self.capabilities()),
        )
        journal = Journal(self._world, path_for(self._state_dir, self.id))
        self._engine = Engine(who, self._handlers, dial, journal, self._world, grace=self._grace)
        try:
            await self._engine.run()
        finally:
            self._engine = None

    def stop(self) -> None:
        """Ask a serving agent to come to its end, from its own event loop."""
        if self._engine is not None:
            self._engine.stop()


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
