"""One process of a child agent: its streams, its link to the hub, its end.

For the hub it is a link like any other: the wire of a `ConnectionLoop` with a forge session. For the process it is
three pipes (`pipes`): a line on stdout that is no message, and every line on stderr, goes to the child's log.

A process may close a pipe and live on. The hub leaves it alone, but closes its link, so it gets no work:

    stdout    it can answer nothing: the hub takes back its tasks at once
    stdin     it receives nothing: the hub takes back the tasks that it has not begun; it may still finish the others
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dragoman.core.commands import CloseLink, OpenLink, PartLink, ReportFault
from dragoman.core.ids import AgentId, SessionId, TaskId
from dragoman.core.model.tasks import Status, Task
from dragoman.core.ports import Intake
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.server.connection import ConnectionLoop
from dragoman.server.forge.session import ForgeSession
from dragoman.server.session import Connection
from dragoman.supervisor import pipes
from dragoman.supervisor.environment import Environments
from dragoman.supervisor.pipes import OutputPipe, StdinPipe, ThrottledPipes
from dragoman.supervisor.sandbox_policy import SandboxPolicy
from dragoman.supervisor.spawner_client import Ended, Handle, Launch, SpawnerClient
from dragoman.supervisor.spec import PROTOCOL
from dragoman.wire.closing import CloseReason
from dragoman.wire.framing import Line, Overlong

TERM_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""
PART_SECONDS = 5.0
"""How long the process waits for the hub to give the child no more work, before it asks the child to end."""
LAST_OUTPUT_SECONDS = 10.0
"""How long the hub reads the last output of an ended child."""
CLOSED_PIPE_SECONDS = 1.0
"""The pipes of a process close a moment before the hub learns of its end: so long it waits for that."""
BOM = b"\xef\xbb\xbf"
"""Some runtimes begin their output with it."""
REGISTERS = b'"request:register"'
"""Part of a line with which a child registers: such a child reads its stdin by lines."""
STUCK_BYTES = 64 * 1024
"""A child is unhealthy when it leaves so many bytes unread beyond what its pipe holds."""
SKIPPED_LOG_SECONDS = 1.0
"""The log says at most so often how many lines were not kept."""
CHECKS_PER_TASK = 20
CHECK_SECONDS = (0.05, 1.0)
"""How often the time of a task is checked while it runs, and the bounds of the pause between two checks."""


LogSink = Callable[[str, str, dict[str, Any]], None]
"""Takes level, message and context of a protocol's log message."""


class ChildContext(msgspec.Struct, frozen=True, eq=False):
    """What all children share."""

    hub: Intake
    spawner: SpawnerClient
    environments: Environments
    throttled: ThrottledPipes
    homes: Path
    session: Callable[[AgentId, Connection, LogSink, bool], ForgeSession]
    environ: dict[str, str]
    sandbox_policy: SandboxPolicy
    task: Callable[[TaskId], Awaitable[Task | None]]
    """Reads a task."""


class ProcessOwner(Protocol):
    """The owner of the process (`child.Child`)."""

    agent: AgentId

    def add_log_line(self, message: str, stream: str, *, level: str, context: dict[str, Any] | None = None) -> None:
        """Add a line to its log."""
        ...

    def flush(self) -> None:
        """Send the gathered lines before the child's next message."""
        ...

    def agent_removed(self) -> None:
        """The hub hung up: the agent was removed."""
        ...


class ChildProcess:
    """One process: its streams, and its link to the hub. The connection loop's `Wire`. `task_seconds`: how long it may
    work on one task before it is killed; `is_module`: it can ask the hub for nothing."""

    def __init__(
        self, child: ProcessOwner, context: ChildContext, *, task_seconds: float | None = None, is_module: bool = False
    ) -> None:
        self._child = child
        self._context = context
        self._hub = context.hub
        self._spawner = context.spawner
        self._loop = asyncio.get_running_loop()
        self._logs = pipes.TokenBucket(pipes.LOG_RATE, pipes.LOG_BURST, self._loop.time())
        self._skipped = 0
        self._skipped_timer: asyncio.TimerHandle | None = None
        self.ending = False
        self._lost_a_pipe = False
        self._closing: list[asyncio.Task[None]] = []
        self._task_seconds = task_seconds
        self._overdue_task: TaskId | None = None
        self._task_limit: asyncio.Task[None] | None = None
        self._handle: Handle | None = None
        self._session = SessionId(self._hub.mint())
        self._connection = ConnectionLoop(
            self._hub,
            child.agent,
            self._session,
            lambda connection: context.session(child.agent, connection, self._on_log_message, is_module),
            self,
            hang_up=self._link_closed,
            measured=True,
        )
        self._ours: tuple[int, int, int] | None = None
        self._stdin: StdinPipe | None = None
        self._stdout: OutputPipe | None = None
        self._stderr: OutputPipe | None = None

    # -- life

    async def begin(self, launch: Launch) -> Handle:
        (stdin, to), (out, stdout), (err, stderr) = _pipes(3)
        self._ours = (to, out, err)
        self._handle = await self._spawner.start(launch, (stdin, stdout, stderr))
        return self._handle

    def close_pipes(self) -> None:
        for descriptor in self._ours or ():
            os.close(descriptor)
        self._ours = None

    def discard(self) -> None:
        """Release everything at once, in any state."""
        self._stop_waiting()
        self._log_skipped()
        self.signal(signal.SIGKILL)
        self.close_pipes()
        for pipe in (self._stdout, self._stderr):
            if pipe is not None:
                pipe.close()
        if self._stdin is not None:
            self._stdin.close()
            self._connection.close()
            closed = self._hub.enqueue(CloseLink(principal=self._child.agent, session=self._session))
            closed.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._hub.detach(self._session)

    async def serve(self) -> None:
        """Connect its streams, and open its link."""
        assert self._ours is not None
        (to, out, err), self._ours = self._ours, None
        throttled = self._context.throttled
        self._stdin = StdinPipe(
            to, drained=self._drained, arrived=self._connection.ponged, refused=self._stdin_closed, one_at_a_time=True
        )
        self._stdout = OutputPipe(out, self._on_stdout, throttled=throttled, ready=self._ready)
        self._stdout.ended.add_done_callback(self._stdout_closed)
        self._stderr = OutputPipe(err, self._on_stderr, throttled=throttled)
        self._hub.attach(self._session, self._connection)
        opened = self._hub.enqueue(
            OpenLink(
                principal=self._child.agent,
                protocol=PROTOCOL,
                session=self._session,
                ordered=True,
                acknowledges=True,
                paced=True,
                fresh=True,
                vouches=True,
            )
        )
        self._stdout.begin()
        self._stderr.begin()
        try:
            await opened
        except Refused as refused:
            self._child.add_log_line(f"no link to the hub: {refused.fault}", "hub", level="error")
            self.signal(signal.SIGKILL)
        if self._task_seconds is not None:
            self._task_limit = self._loop.create_task(self._enforce_task_limit(self._task_seconds))

    async def end(self, reason: str, grace: float) -> None:
        """Ask it to end, then make it end (D10). `Child` ends a process that is not connected yet once it is."""
        if self._handle is None or self._stdin is None or self.ending:
            return
        self.ending = True
        ended = self._handle.ended
        leaving = self._hub.enqueue(PartLink(principal=self._child.agent, session=self._session))
        leaving.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Until that is decided the hub may give it work: its link may be opening, or a unit may be under way.
        either: set[asyncio.Future[Any]] = {asyncio.ensure_future(leaving), ended}
        await asyncio.wait(either, timeout=PART_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._connection.write([self._connection.session.encode_shutdown(int(grace * 1000), reason)])
        await asyncio.wait({ended}, timeout=grace)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if ended.done():
                return
            self.signal(number)
            self._stdin.close()
            await asyncio.wait({ended}, timeout=TERM_SECONDS)

    def signal(self, number: int) -> None:
        if self._handle is not None:
            self._spawner.signal(self._handle, number)

    async def finish(self, how: Ended) -> None:
        """The process has ended: read its last output, then close the link. The hub takes back the tasks it held."""
        self._stop_waiting()
        outputs = [pipe for pipe in (self._stdout, self._stderr) if pipe is not None]
        if outputs:
            await asyncio.wait([pipe.ended for pipe in outputs], timeout=LAST_OUTPUT_SECONDS)
        for pipe in outputs:
            pipe.close()
        self._log_skipped()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_SECONDS):
                await self._connection.drain()
        if self._stdin is not None:
            self._stdin.close()
        agent = self._child.agent
        fault = Fault(
            kind=Kind.UNAVAILABLE,
            message=f"the process of {agent} ended ({how}) while it worked on the task",
            retryable=True,
            facts={"agent_id": agent, "exit_code": how.code, "signal": how.signal},
        )
        if self._overdue_task is not None:
            fault = Fault(
                kind=Kind.TIMEOUT,
                message=f"the sandbox of {agent} was ended: task {self._overdue_task} took longer than"
                f" {self._task_seconds:g} s",
                retryable=True,
                facts={"agent_id": agent},
            )
        self._connection.close()
        with contextlib.suppress(Refused):  # the hub stops; after a restart it has no open links
            await self._hub.execute(CloseLink(principal=agent, session=self._session, fault=fault))
        self._hub.detach(self._session)

    async def _enforce_task_limit(self, seconds: float) -> None:
        """Kill it when it has worked on one task for too long. Time in which a task waits for a person or for help does
        not count. Output does not extend the time: a malicious child prints a lot."""
        pause = min(max(seconds / CHECKS_PER_TASK, CHECK_SECONDS[0]), CHECK_SECONDS[1])
        worked: dict[TaskId, float] = {}
        last = self._loop.time()
        while True:
            await asyncio.sleep(pause)
            now = self._loop.time()
            passed, last = now - last, now
            held = self._hub.load_of(self._child.agent)
            worked = {task: worked[task] + passed if task in worked else 0.0 for task in held}
            for id in held:
                task = await self._context.task(id)
                if task is None or task.status not in (Status.ASSIGNED, Status.RUNNING):
                    worked[id] = max(0.0, worked[id] - passed)
                elif worked[id] > seconds:
                    self._overdue_task = id
                    self._child.add_log_line(f"killed: task {id} took longer than {seconds:g} s", "hub", level="error")
                    self.signal(signal.SIGKILL)
                    return

    def _stop_waiting(self) -> None:
        for waiting in (self._task_limit, *self._closing):
            if waiting is not None:
                waiting.cancel()

    def _link_closed(self, reason: CloseReason) -> None:
        if reason is not CloseReason.HUB_STOPS:  # then the supervisor ends its children itself
            self._child.agent_removed()

    # -- pipes that it closes

    def _stdout_closed(self, _: object) -> None:
        self._closing.append(self._loop.create_task(self._close_session("stdout", "it can answer nothing any more")))

    def _stdin_closed(self) -> None:
        self._closing.append(self._loop.create_task(self._close_session("stdin", "it can receive nothing any more")))

    async def _close_session(self, pipe: str, consequence: str) -> None:
        """Close the link, if the process lives on without one of its pipes: it gets no more work."""
        assert self._handle is not None
        await asyncio.wait({self._handle.ended}, timeout=CLOSED_PIPE_SECONDS)
        if self._handle.ended.done() or self.ending:
            return
        self._lost_a_pipe = True
        agent = self._child.agent
        message = f"it closed its {pipe}: {consequence}, and gets no work until it is restarted"
        self._child.add_log_line(message, "hub", level="error")
        fault = Fault(
            kind=Kind.UNAVAILABLE,
            message=f"{agent} closed its {pipe} while it had the task",
            retryable=True,
            facts={"agent_id": agent, "last_heartbeat": None},
        )
        closing = CloseLink(principal=agent, session=self._session, fault=fault if pipe == "stdout" else None)
        with contextlib.suppress(Refused):
            await self._hub.execute(closing)
            for id in self._hub.load_of(agent):
                task = await self._context.task(id)
                if task is not None and task.status is Status.ASSIGNED:
                    await self._hub.execute(ReportFault(principal=agent, protocol=PROTOCOL, task_id=id, fault=fault))

    # -- the wire, as the connection loop needs it

    @property
    def has_room(self) -> bool:
        return self._stdin is not None and self._stdin.has_room

    @property
    def is_stuck(self) -> bool:
        return self._lost_a_pipe or (self._stdin is not None and self._stdin.unwritten > STUCK_BYTES)

    def write(self, frames: Sequence[bytes]) -> None:
        if self._stdin is not None:
            self._stdin.write(frames)

    def ping(self) -> None:
        if self._stdin is not None:
            self._stdin.mark()

    def stop_reading(self) -> None:
        if self._stdout is not None and self._handle is not None and not self._handle.ended.done():
            self._stdout.stop()

    def resume_reading(self) -> None:
        if self._stdout is not None:
            self._stdout.resume()

    def _drained(self) -> None:
        self._connection.writable()
        if self._stdout is not None:
            self._stdout.look_again()

    # -- what it prints

    def _ready(self, line: Line) -> bool:
        """Whether a line may be read now. A child that does not read its answers may send no further request; the hub
        still reads its log lines and events."""
        return self.has_room or isinstance(line, Overlong) or b'"request:' not in line

    def _on_stdout(self, line: Line) -> float:
        if isinstance(line, bytes):
            line = line.removeprefix(BOM)
        if isinstance(line, bytes) and line.lstrip()[:1] in (b"{", b"["):
            self._child.flush()
            if self._stdin is not None and REGISTERS in line:
                self._stdin.allow_several()
            self._connection.receive(line)
            return pipes.MESSAGE
        return self._log(line, "stdout", "info")

    def _on_stderr(self, line: Line) -> float:
        return self._log(line, "stderr", "warn")

    def _log(self, line: Line, stream: str, level: str) -> float:
        if isinstance(line, Overlong):
            message = f"a line of {line.length} bytes was dropped; the most is 1 MiB"
            self._log_throttled(message, "hub", "error", {"type": "event:error", "length": line.length})  # D1
        else:
            self._log_throttled(line, stream, level)
        return pipes.LINE

    def _on_log_message(self, level: str, message: str, context: dict[str, Any]) -> None:
        """A log message of the protocol, or a line that turned out to be no message."""
        self._log_throttled(message, "event", level, context)

    def _log_throttled(
        self, message: str | bytes, stream: str, level: str, context: dict[str, Any] | None = None
    ) -> None:
        if not self._logs.take(self._loop.time()):
            self._skipped += 1
            if self._skipped_timer is None:
                self._skipped_timer = self._loop.call_later(SKIPPED_LOG_SECONDS, self._log_skipped)
            return
        text = message if isinstance(message, str) else message.decode("utf-8", "backslashreplace")
        self._child.add_log_line(text, stream, level=level, context=context)

    def _log_skipped(self) -> None:
        if self._skipped_timer is not None:
            self._skipped_timer.cancel()
            self._skipped_timer = None
        skipped, self._skipped = self._skipped, 0
        if skipped:
            self._child.add_log_line(f"{skipped} lines were not kept: they came too fast", "hub", level="warn")


def _pipes(number: int) -> list[tuple[int, int]]:
    """Open so many pipes, or none if descriptors run out."""
    made: list[tuple[int, int]] = []
    try:
        while len(made) < number:
            made.append(os.pipe())
    except OSError:
        for pair in made:
            for descriptor in pair:
                os.close(descriptor)
        raise
    return made
