"""One agent's life as a child process: started, listened to, told things, started again, stopped.

    start ──▶ initializing ──▶ idle ⇄ busy ──▶ (ended) ──▶ initializing, after a pause      restarts.py decides
                                 │                └──────▶ stopped | crashed
                                 └─ stop ─▶ stopping ──▶ stopped

While it runs it has a link to the hub like any other agent: a `Pump` with forge's words. The link *vouches* for the
agent: as long as the process lives, silence is work. Its end takes what it held along, as a retryable fault (D6).

Stopping (D10): `notify:shutdown`, the grace period, SIGTERM and the end of its stdin, 5 s, SIGKILL, each to the whole
process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from dragoman.core.agents.model import BreakerState
from dragoman.core.commands import CloseLink, OpenLink
from dragoman.core.errors import Fault, Kind, Refused
from dragoman.core.ids import SECOND, AgentId, Instant, SessionId, TaskId
from dragoman.core.ports import Intake
from dragoman.transports.driver import Pump, Tongue
from dragoman.transports.stdio import pace, restarts
from dragoman.transports.stdio.channel import Ended, Handle, Launch, Nursery
from dragoman.transports.stdio.logbook import Entry, Log, Scribe
from dragoman.transports.stdio.pipes import Crowd, Inlet, Outlet
from dragoman.transports.stdio.recipe import PROTOCOL, Recipe, State, environment
from dragoman.transports.stdio.vault import Vault
from dragoman.wire.lines import Line, Overlong

log = structlog.get_logger("dragoman.children")

TERM_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""
LAST_WORDS_SECONDS = 10.0
"""What an ended child printed last is read for so long."""
UNANSWERED = 64
STUCK_BYTES = 64 * 1024
"""A child that leaves this much unread beyond what its pipe holds is not well."""


class Words(Tongue, Protocol):
    """Forge's words, as a child needs them."""

    def shutdown(self, grace_ms: int, reason: str, now: Instant, message_id: str) -> bytes: ...


LogSink = Callable[[str, str, dict[str, Any]], None]
"""Level, message, context: for what an agent logs in the protocol's own words."""


class Surroundings(msgspec.Struct, frozen=True, eq=False):
    """What all children share."""

    hub: Intake
    nursery: Nursery
    vault: Vault
    crowd: Crowd
    homes: Path
    tongue: Callable[[AgentId, LogSink], Words]
    environ: dict[str, str]


class Child:
    """`gone` is called when the hub itself let go of the agent."""

    def __init__(
        self, agent: AgentId, recipe: Recipe, log: Log, around: Surroundings, *, gone: Callable[[AgentId], None]
    ) -> None:
        self.agent = agent
        self.recipe = recipe
        self.log = log
        self.pid: int | None = None
        self.since: Instant = around.hub.now()
        self.restarts = 0
        self.last_end: Ended | None = None
        self._around = around
        self._hub = around.hub
        self._gone = gone
        self._scribe = Scribe(around.hub, agent)
        self._phase = State.INITIALIZING
        self._exits: tuple[restarts.Exit, ...] = ()
        self._stop = asyncio.Event()
        self._run: Run | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        if self._phase is not State.IDLE:
            return self._phase
        agent = self._hub.agent(self.agent)
        if self._run is not None and self._run.stuck:
            return State.UNHEALTHY
        if agent is not None and agent.breaker.state is BreakerState.OPEN:
            return State.UNHEALTHY
        return State.BUSY if self._hub.load_of(self.agent) else State.IDLE

    def start(self) -> None:
        self._life = asyncio.get_running_loop().create_task(self._live(), name=f"child {self.agent}")

    async def stop(self, reason: str, grace: float | None = None) -> None:
        """Until nothing of it runs any more."""
        if self._life is None:
            return
        if not self._life.done():
            self._move(State.STOPPING)
        self._stop.set()
        if self._run is not None:
            await self._run.end(reason, self.recipe.grace_seconds if grace is None else grace)
        await asyncio.wait({self._life})

    def kill(self) -> None:
        """At once."""
        self._stop.set()
        if self._run is not None:
            self._run.signal(signal.SIGKILL)

    async def ended(self) -> None:
        if self._life is not None:
            await asyncio.wait({self._life})

    # -- life

    async def _live(self) -> None:
        while not self._stop.is_set():
            self._move(State.INITIALIZING)
            try:
                how = await self._once()
            except Exception as error:  # a fault of ours must not end the agent for good, nor spin
                log.error("child failed to start", agent=self.agent, exc_info=error)
                how = Ended(failed="something broke inside the hub")
            self.pid, self._run, self.last_end = None, None, how
            if self._stop.is_set():
                break
            now = self._hub.now()
            last = restarts.Exit(at=now, clean=how.clean, hopeless=how.hopeless)
            self._exits = (*restarts.remembered(self._exits, now), last)
            verdict = restarts.verdict(self.recipe.restart, self._exits, now)
            if not isinstance(verdict, restarts.Again):
                self._say(f"{how}; not started again", level="info" if verdict == "stopped" else "error")
                log.log(
                    logging.INFO if verdict == "stopped" else logging.ERROR,
                    "child ended for good", agent=self.agent, how=str(how), state=verdict,
                )  # fmt: skip
                self._move(State(verdict))
                return
            seconds = max(0.0, (verdict.at - now) / SECOND)
            self._say(f"{how}; started again in {seconds:g} s ({verdict.number} of {restarts.MOST})", level="warn")
            self.restarts += 1
            self._move(State.INITIALIZING)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)
        self._move(State.STOPPED)

    async def _once(self) -> Ended:
        recipe = self.recipe
        try:
            values = await asyncio.to_thread(self._around.vault.fetch, recipe.vault) if recipe.vault else {}
            home = recipe.cwd or str(await asyncio.to_thread(self._home))
        except (OSError, ValueError) as error:
            return Ended(failed=f"it cannot be prepared: {error}", hopeless=True)
        launch = Launch(
            argv=recipe.command,
            env=environment(recipe, self.agent, values, self._around.environ),
            cwd=home,
            limits=recipe.limits.for_the_kernel(),
            privileges=recipe.privileges,
        )
        self._run = run = Run(self, self._around)
        handle = await run.begin(launch)
        self.pid = await handle.started
        if self.pid is None:
            how = await handle.ended
            run.abandon()
            return how
        self._move(State.STOPPING if self._stop.is_set() else State.IDLE)
        log.info("child started", agent=self.agent, pid=self.pid)
        await run.serve()
        if self._stop.is_set():  # asked to stop while it was about to start
            await run.end("stopping", 0)
        how = await handle.ended
        log.info("child ended", agent=self.agent, how=str(how))
        await run.finish(how)
        return how

    def _home(self) -> Path:
        home = self._around.homes / self.agent
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home

    def _move(self, state: State) -> None:
        if state is not self._phase:
            self._phase, self.since = state, self._hub.now()

    # -- what it prints

    def _say(self, message: str, *, level: str) -> None:
        """A line of the hub's own."""
        self.keep(message, "hub", level=level)

    def keep(self, message: str, stream: str, *, level: str, context: dict[str, Any] | None = None) -> Entry:
        named = context.get("taskId") if context else None
        task = TaskId(named) if isinstance(named, str) else self._scribe.current()
        entry = self.log.add(self._hub.now(), stream, message, level=level, task=task, context=context)
        if task is not None:
            self._scribe.add(task, entry)
        return entry

    def let_go(self) -> None:
        """The hub hung up: the agent was removed."""
        if not self._stop.is_set():
            self._gone(self.agent)


class Run:
    """One process: its streams, and its link to the hub. The pump's `Wire`."""

    def __init__(self, child: Child, around: Surroundings) -> None:
        self._child = child
        self._around = around
        self._hub = around.hub
        self._nursery = around.nursery
        self._loop = asyncio.get_running_loop()
        self._logs = pace.Bucket(pace.LOG_RATE, pace.LOG_BURST, self._loop.time())
        self._skipped = 0
        self._handle: Handle | None = None
        self._session = SessionId(self._hub.mint())
        self._tongue = around.tongue(child.agent, self._logged)
        self._pump = Pump(
            self._hub, child.agent, self._session, self._tongue, self, hang_up=self._hung_up, unanswered=UNANSWERED
        )
        self._ours: tuple[int, int, int] | None = None
        self._stdin: Inlet | None = None
        self._stdout: Outlet | None = None
        self._stderr: Outlet | None = None

    # -- life

    async def begin(self, launch: Launch) -> Handle:
        (stdin, to), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        self._ours = (to, out, err)
        self._handle = await self._nursery.start(launch, (stdin, stdout, stderr))
        return self._handle

    def abandon(self) -> None:
        for descriptor in self._ours or ():
            os.close(descriptor)
        self._ours = None

    async def serve(self) -> None:
        """Connect its streams, and open its link."""
        assert self._ours is not None
        (to, out, err), self._ours = self._ours, None
        crowd = self._around.crowd
        self._stdin = Inlet(to, drained=self._drained, arrived=self._pump.marked)
        self._stdout = Outlet(out, self._printed, crowd=crowd, ready=self._ready)
        self._stderr = Outlet(err, self._grumbled, crowd=crowd)
        self._hub.attach(self._session, self._pump)
        opened = self._hub.post(
            OpenLink(
                principal=self._child.agent,
                protocol=PROTOCOL,
                session=self._session,
                ordered=True,
                acknowledges=True,
                fresh=True,
                vouches=True,
            )
        )
        self._stdout.begin()
        self._stderr.begin()
        try:
            await opened
        except Refused as refused:
            self._child.keep(f"no link to the hub: {refused.fault}", "hub", level="error")
            self.signal(signal.SIGKILL)

    async def end(self, reason: str, grace: float) -> None:
        """Ask it to end, then see to it (D10)."""
        if self._handle is None:
            return
        ended = self._handle.ended
        if self._stdin is not None:
            self._stdin.write([self._tongue.shutdown(int(grace * 1000), reason, self._hub.now(), self._hub.mint())])
            await asyncio.wait({ended}, timeout=grace)
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, None)):
            if ended.done():
                return
            self.signal(number)
            if self._stdin is not None:
                self._stdin.close()
            await asyncio.wait({ended}, timeout=seconds)

    def signal(self, number: int) -> None:
        if self._handle is not None:
            self._nursery.signal(self._handle, number)

    async def finish(self, how: Ended) -> None:
        """It has ended: hear its last words, then close the link. What it still held is given back."""
        outlets = [outlet for outlet in (self._stdout, self._stderr) if outlet is not None]
        if outlets:
            await asyncio.wait([outlet.ended for outlet in outlets], timeout=LAST_WORDS_SECONDS)
        for outlet in outlets:
            outlet.close()
        self._tell_skipped()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._pump.drain()
        if self._stdin is not None:
            self._stdin.close()
        agent = self._child.agent
        fault = Fault(
            kind=Kind.UNAVAILABLE,
            message=f"the process of {agent} ended ({how}) while it worked on the task",
            retryable=True,
            facts={"agent_id": agent, "exit_code": how.code, "signal": how.signal},
        )
        self._pump.part()
        with contextlib.suppress(Refused):  # the hub stops: the next one finds out by itself
            await self._hub.ask(CloseLink(principal=agent, session=self._session, fault=fault))
        self._hub.detach(self._session)

    def _hung_up(self, reason: str) -> None:
        self._child.let_go()

    # -- the wire, as the pump needs it

    @property
    def has_room(self) -> bool:
        return self._stdin is not None and self._stdin.has_room

    @property
    def stuck(self) -> bool:
        return self._stdin is not None and self._stdin.unwritten > STUCK_BYTES

    def write(self, frames: Sequence[bytes]) -> None:
        if self._stdin is not None:
            self._stdin.write(frames)

    def mark(self) -> None:
        if self._stdin is not None:
            self._stdin.mark()

    def stop_reading(self) -> None:
        if self._stdout is not None and self._handle is not None and not self._handle.ended.done():
            self._stdout.stop()

    def go_on_reading(self) -> None:
        if self._stdout is not None:
            self._stdout.resume()

    def _drained(self) -> None:
        self._pump.writable()
        if self._stdout is not None:
            self._stdout.look_again()

    # -- what it prints

    def _ready(self, line: Line) -> bool:
        """A child that does not read its answers may not ask more; what it logs and tells is heard all the same."""
        return self.has_room or isinstance(line, Overlong) or b'"request:' not in line

    def _printed(self, line: Line) -> float:
        if isinstance(line, bytes) and line.lstrip()[:1] in (b"{", b"["):
            self._pump.heard(line)
            return pace.MESSAGE
        return self._log(line, "stdout", "info")

    def _grumbled(self, line: Line) -> float:
        return self._log(line, "stderr", "warn")

    def _log(self, line: Line, stream: str, level: str) -> float:
        if isinstance(line, Overlong):
            message, level = f"a line of {line.length} bytes was dropped; the most is 1 MiB", "error"
            self._keep(message, "hub", level)
        else:
            self._keep(line, stream, level)
        return pace.LINE

    def _logged(self, level: str, message: str, context: dict[str, Any]) -> None:
        """In the protocol's own words, or what turned out to be none of them."""
        self._keep(message, "event", level, context)

    def _keep(self, message: str | bytes, stream: str, level: str, context: dict[str, Any] | None = None) -> None:
        if not self._logs.take(self._loop.time()):
            self._skipped += 1
            return
        self._tell_skipped()
        text = message if isinstance(message, str) else message.decode("utf-8", "backslashreplace")
        self._child.keep(text, stream, level=level, context=context)

    def _tell_skipped(self) -> None:
        skipped, self._skipped = self._skipped, 0
        if skipped:
            self._child.keep(f"{skipped} lines were not kept: they came too fast", "hub", level="warn")
