"""One agent as a child process: the hub starts it, connects to it, starts it again, stops it.

    start ──▶ initializing ──▶ idle ⇄ busy ──▶ (ended) ──▶ initializing, after a pause      `spec.decide_restart`
                                 │                └──────▶ stopped | crashed
                                 └─ stop ─▶ stopping ──▶ stopped

While it runs it has a link to the hub like any other agent: a `ConnectionLoop` with a forge session. The link *vouches*
for the agent: as long as the process lives, silence is work. When it ends, its tasks fail with a retryable fault (D6).

An untrusted child runs in a sandbox (`sandbox_policy`) or not at all. The hub writes the level in force into the
agent's row before it gives it any work, and ends a child that works on one task for too long (a2acp-D17).

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
from dragoman.core.ports import StoreFailed
from dragoman.core.queries.tasks import PERSONAL
from dragoman.messages.faults import Refused
from dragoman.sandbox.model import Workload
from dragoman.supervisor.child_log import ChildLog, TaskLogWriter
from dragoman.supervisor.environment import environment
from dragoman.supervisor.process import LAST_OUTPUT_SECONDS, TERM_SECONDS, ChildContext, ChildProcess
from dragoman.supervisor.sandbox_policy import SandboxRefused
from dragoman.supervisor.spawner_client import Ended, Handle, Launch
from dragoman.supervisor.spec import (
    DETAIL,
    MOST_RESTARTS,
    PROTOCOL,
    ChildSpec,
    Exit,
    Restart,
    State,
    decide_restart,
    recent_exits,
)

log = structlog.get_logger("dragoman.children")


class Child:
    """`on_removed` is called when the hub removed the agent."""

    def __init__(
        self,
        agent: AgentId,
        spec: ChildSpec,
        log: ChildLog,
        context: ChildContext,
        *,
        on_removed: Callable[[AgentId], None],
    ) -> None:
        self.agent = agent
        self.spec = spec
        self.log = log
        self.pid: int | None = None
        self.since: Instant = context.hub.now()
        self.restarts = 0
        self.last_end: Ended | None = None
        self.sandbox: str | None = None
        self._context = context
        self._hub = context.hub
        self._on_removed = on_removed
        self._task_log = TaskLogWriter(context.hub, agent)
        self._phase = State.INITIALIZING
        self._exits: tuple[Exit, ...] = ()
        self._stop = asyncio.Event()
        self._stop_request = ("stopping", 0.0)
        self._run: ChildProcess | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        if self._phase is not State.IDLE:
            return self._phase
        agent = self._hub.agent(self.agent)
        if self._run is not None and self._run.is_stuck:
            return State.UNHEALTHY
        if agent is not None and agent.breaker.state is BreakerState.OPEN:
            return State.UNHEALTHY
        return State.BUSY if self._hub.load_of(self.agent) else State.IDLE

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_until_stopped(), name=f"child {self.agent}")

    async def stop(self, reason: str, most: float | None = None) -> None:
        """Returns when none of its processes runs any more. It has its grace period, but at most `most` seconds."""
        if self._task is None:
            return
        if not self._task.done():
            self._move(State.STOPPING)
        grace = self.spec.grace(busy=bool(self._hub.load_of(self.agent)))
        if most is not None:
            grace = min(grace, most)
        self._stop_request = (reason, grace)
        self._stop.set()
        if self._run is not None:
            await self._run.end(reason, grace)
        await asyncio.wait({self._task}, timeout=grace + 2 * TERM_SECONDS + LAST_OUTPUT_SECONDS)

    def kill(self) -> None:
        """End its processes at once."""
        self._stop.set()
        if self._run is not None:
            self._run.signal(signal.SIGKILL)

    async def ended(self, seconds: float) -> None:
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)

    # -- life

    async def _run_until_stopped(self) -> None:
        while not self._stop.is_set():
            self._move(State.INITIALIZING)
            try:
                how = await self._run_once()
            except OSError as error:  # no descriptor, no memory: a retry may work
                how = Ended(failed=f"it cannot be started now: {error.strerror}")
            except Exception as error:  # a defect of the hub must not end the agent for good, nor loop
                log.error("child failed to start", agent=self.agent, exc_info=error)
                how = Ended(failed="something broke inside the hub")
            self.pid, self._run, self.last_end = None, None, how
            if self._stop.is_set():
                break
            now = self._hub.now()
            last = Exit(at=now, clean=how.clean, permanent=how.permanent)
            self._exits = (*recent_exits(self._exits, now), last)
            verdict = decide_restart(self.spec.restart, self._exits, now)
            if not isinstance(verdict, Restart):
                self._log_from_hub(f"{how}; not started again", level="info" if verdict == "stopped" else "error")
                log.log(
                    logging.INFO if verdict == "stopped" else logging.ERROR,
                    "child ended for good", agent=self.agent, how=str(how), state=verdict,
                )  # fmt: skip
                self._move(State(verdict))
                return
            seconds = max(0.0, (verdict.at - now) / SECOND)
            self._log_from_hub(
                f"{how}; started again in {seconds:g} s ({verdict.number} of {MOST_RESTARTS})", level="warn"
            )
            self.restarts += 1
            self._move(State.INITIALIZING)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        self._move(State.STOPPED)

    async def _run_once(self) -> Ended:
        spec = self.spec
        try:
            values = await self._context.environments.fetch(spec.vault) if spec.vault else {}
            own = spec.cwd is None or spec.confined
            home = str(await asyncio.to_thread(self._home)) if own else str(spec.cwd)
        except (OSError, ValueError) as error:
            return Ended(failed=f"it cannot be prepared: {error}", permanent=True)
        except StoreFailed as error:
            return Ended(failed=f"it cannot be prepared: {error}")
        seconds: float | None = None
        if spec.confined:
            env = environment(spec, self.agent, values, self._context.environ, home=home)
            try:
                sandboxed = await self._context.sandbox_policy.start_plan(spec, home, env)
                await self._record_sandbox(sandboxed.level)
            except (SandboxRefused, Refused) as refused:
                with contextlib.suppress(Refused):
                    await self._record_sandbox(None)
                return Ended(failed=str(refused), permanent=True)
            launch, seconds = sandboxed.launch, sandboxed.task_seconds
        else:
            launch = Launch(
                argv=spec.command,
                env=environment(spec, self.agent, values, self._context.environ),
                cwd=home,
                limits=spec.limits.for_the_kernel(),
                privileges=spec.privileges,
            )
        is_module = self.spec.workload is Workload.WASM
        self._run = run = ChildProcess(self, self._context, task_seconds=seconds, is_module=is_module)
        try:
            return await self._supervise(run, await run.begin(launch))
        except BaseException:  # else no task would watch the process
            run.discard()
            raise

    async def _record_sandbox(self, level: str | None) -> None:
        """Write the level in force into the agent's row: the hub gives it tasks at this level from now on."""
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

    async def _supervise(self, run: ChildProcess, handle: Handle) -> Ended:
        self.pid = await handle.started
        if self.pid is None:
            run.close_pipes()
            return await handle.ended
        self._move(State.STOPPING if self._stop.is_set() else State.IDLE)
        log.info("child started", agent=self.agent, pid=self.pid)
        await run.serve()
        if self._stop.is_set():  # asked to stop while it was about to start
            await run.end(*self._stop_request)
        how = await handle.ended
        log.info("child ended", agent=self.agent, how=str(how))
        await run.finish(how)
        return how

    def _home(self) -> Path:
        home = self._context.homes / self.agent
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home

    def _move(self, state: State) -> None:
        if state is not self._phase:
            self._phase, self.since = state, self._hub.now()

    # -- what it prints

    def _log_from_hub(self, message: str, *, level: str) -> None:
        """Log a line of the hub's own."""
        self.add_log_line(message, "hub", level=level)

    def add_log_line(self, message: str, stream: str, *, level: str, context: dict[str, Any] | None = None) -> None:
        named = context.get("taskId") if context else None
        task = TaskId(named) if isinstance(named, str) else self._task_log.current()
        agent = self._hub.agent(self.agent)
        private = stream != "hub" and agent is not None and agent.does_personal_work
        shown, context = (PERSONAL, None) if private else (message, context)
        entry = self.log.add(self._hub.now(), stream, shown, level=level, task=task, context=context)
        if task is not None:
            self._task_log.add(task, msgspec.structs.replace(entry, message=message, context=context or {}))

    def flush(self) -> None:
        self._task_log.flush()

    def agent_removed(self) -> None:
        """The hub hung up: the agent was removed."""
        if not self._stop.is_set():
            self._on_removed(self.agent)
