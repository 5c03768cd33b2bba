"""One agent's life as a child process: started, listened to, told things, started again, stopped.

    start ──▶ initializing ──▶ idle ⇄ busy ──▶ (ended) ──▶ initializing, after a pause      restarts.py decides
                                 │                └──────▶ stopped | crashed
                                 └─ stop ─▶ stopping ──▶ stopped

While it runs it has a link to the hub like any other agent: a `ConnectionLoop` with forge's words. The link *vouches*
for the agent: as long as the process lives, silence is work. Its end takes what it held along, as a retryable fault
(D6).

One that nobody vouches for runs behind `walls` or not at all; the level in force stands in its row before it is given
any work, and it is ended when it works on one task for too long (a2acp-D17).

Stopping (D10): `notify:shutdown`, the grace period, SIGTERM and the end of its stdin, 5 s, SIGKILL, each to the whole
process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from dragoman.core.commands import RegisterAgent
from dragoman.core.ids import SECOND, AgentId, Instant, TaskId
from dragoman.core.model.agents import BreakerState
from dragoman.core.queries.tasks import PERSONAL
from dragoman.messages.faults import Refused
from dragoman.sandbox.model import Workload
from dragoman.supervisor import restarts
from dragoman.supervisor.channel import Ended, Handle, Launch
from dragoman.supervisor.logbook import Log, Scribe
from dragoman.supervisor.recipe import DETAIL, PROTOCOL, Recipe, State, environment
from dragoman.supervisor.run import LAST_WORDS_SECONDS, TERM_SECONDS, Run, Surroundings
from dragoman.supervisor.walls import NoWalls

log = structlog.get_logger("dragoman.children")


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
        self.sandbox: str | None = None
        self._around = around
        self._hub = around.hub
        self._gone = gone
        self._scribe = Scribe(around.hub, agent)
        self._phase = State.INITIALIZING
        self._exits: tuple[restarts.Exit, ...] = ()
        self._stop = asyncio.Event()
        self._farewell = ("stopping", 0.0)
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

    async def stop(self, reason: str, most: float | None = None) -> None:
        """Until nothing of it runs any more. It has its grace period, but not more than `most` seconds."""
        if self._life is None:
            return
        if not self._life.done():
            self._move(State.STOPPING)
        grace = self.recipe.grace(busy=bool(self._hub.load_of(self.agent)))
        if most is not None:
            grace = min(grace, most)
        self._farewell = (reason, grace)
        self._stop.set()
        if self._run is not None:
            await self._run.end(reason, grace)
        await asyncio.wait({self._life}, timeout=grace + 2 * TERM_SECONDS + LAST_WORDS_SECONDS)

    def kill(self) -> None:
        """At once."""
        self._stop.set()
        if self._run is not None:
            self._run.signal(signal.SIGKILL)

    async def ended(self, seconds: float) -> None:
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=seconds)

    # -- life

    async def _live(self) -> None:
        while not self._stop.is_set():
            self._move(State.INITIALIZING)
            try:
                how = await self._once()
            except OSError as error:  # no descriptor, no memory: that may pass
                how = Ended(failed=f"it cannot be started now: {error.strerror}")
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
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        self._move(State.STOPPED)

    async def _once(self) -> Ended:
        recipe = self.recipe
        try:
            values = await asyncio.to_thread(self._around.vault.fetch, recipe.vault) if recipe.vault else {}
            own = recipe.cwd is None or recipe.confined
            home = str(await asyncio.to_thread(self._home)) if own else str(recipe.cwd)
        except (OSError, ValueError) as error:
            return Ended(failed=f"it cannot be prepared: {error}", hopeless=True)
        seconds: float | None = None
        if recipe.confined:
            env = environment(recipe, self.agent, values, self._around.environ, home=home)
            try:
                walled = await self._around.walls.around(recipe, home, env)
                await self._held_by(walled.level)
            except (NoWalls, Refused) as refused:
                with contextlib.suppress(Refused):
                    await self._held_by(None)
                return Ended(failed=str(refused), hopeless=True)
            launch, seconds = walled.launch, walled.task_seconds
        else:
            launch = Launch(
                argv=recipe.command,
                env=environment(recipe, self.agent, values, self._around.environ),
                cwd=home,
                limits=recipe.limits.for_the_kernel(),
                privileges=recipe.privileges,
            )
        is_module = self.recipe.workload is Workload.WASM
        self._run = run = Run(self, self._around, task_seconds=seconds, is_module=is_module)
        try:
            return await self._oversee(run, await run.begin(launch))
        except BaseException:  # nobody would look after it
            run.scrap()
            raise

    async def _held_by(self, level: str | None) -> None:
        """The level in force goes into the agent's row: what it is given from now on is given at this level."""
        self.sandbox = level
        agent = self._hub.agent(self.agent)
        if agent is None or agent.sandbox == level:
            return
        child = {name: value for name, value in agent.details[DETAIL].items() if name != "sandbox"}
        if level is not None:
            child["sandbox"] = str(level)
        await self._hub.execute(
            RegisterAgent(
                principal=self.agent,
                protocol=PROTOCOL,
                work_types=agent.work_types,
                callback_url=agent.callback_url,
                details={**agent.details, DETAIL: child},
            )
        )

    async def _oversee(self, run: Run, handle: Handle) -> Ended:
        self.pid = await handle.started
        if self.pid is None:
            run.abandon()
            return await handle.ended
        self._move(State.STOPPING if self._stop.is_set() else State.IDLE)
        log.info("child started", agent=self.agent, pid=self.pid)
        await run.serve()
        if self._stop.is_set():  # asked to stop while it was about to start
            await run.end(*self._farewell)
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

    def keep(self, message: str, stream: str, *, level: str, context: dict[str, Any] | None = None) -> None:
        named = context.get("taskId") if context else None
        task = TaskId(named) if isinstance(named, str) else self._scribe.current()
        agent = self._hub.agent(self.agent)
        private = stream != "hub" and agent is not None and agent.does_personal_work
        shown, around = (PERSONAL, None) if private else (message, context)
        entry = self.log.add(self._hub.now(), stream, shown, level=level, task=task, context=around)
        if task is not None:
            self._scribe.add(task, msgspec.structs.replace(entry, message=message, context=context or {}))

    def flush(self) -> None:
        self._scribe.flush()

    def let_go(self) -> None:
        """The hub hung up: the agent was removed."""
        if not self._stop.is_set():
            self._gone(self.agent)
