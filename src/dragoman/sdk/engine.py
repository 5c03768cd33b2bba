"""Keeps an agent running: keeps the link up, dispatches the hub's messages, sends heartbeats, and ends in order.

It passes messages between the link (`links`, any protocol) and the task runner (`work.task_runner`, any handlers). When
a link breaks it makes the next one, with growing pauses. Over every new link it first sends what the hub has not
confirmed yet, then a sign of life for every running task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.sdk.calling.calls import gave_up
from dragoman.sdk.conversation.peer_handlers import PeerHandlers
from dragoman.sdk.conversation.peer_requests import PeerRequests
from dragoman.sdk.conversation.status import StatusReporter
from dragoman.sdk.links import Bring, Fetch, Introduction, Link, LinkDown
from dragoman.sdk.messages import (
    Accepted,
    Answer,
    Assignment,
    Cancel,
    IncomingMessage,
    Pause,
    Proposal,
    Refused,
    Resume,
    Shutdown,
    Welcomed,
)
from dragoman.sdk.runtime import Runtime, backoff
from dragoman.sdk.work.journal import Journal
from dragoman.sdk.work.outbox import Outbox
from dragoman.sdk.work.signature import Handler
from dragoman.sdk.work.task import Middleware
from dragoman.sdk.work.task_runner import TaskRunner

log = logging.getLogger("dragoman.sdk")

HEARTBEAT = 10.0
PULSE = 1.0
STOOD_STILL = 5.0
"""Seconds that the event loop may be blocked before the engine logs it."""
STEADY = 10.0
"""Seconds after which a link counts as good: when it breaks, the next try comes at once."""
SEND_AGAIN = 1.0
"""Seconds before the agent sends again what the hub could not take."""
BEATS_A_STATUS = 3
"""Every so many signs of life the agent sends a status report, where its protocol has one."""


class Engine:
    """One agent at work, from `run` to its end. Made inside the event loop it runs in."""

    def __init__(
        self,
        who: Introduction,
        handlers: Mapping[str, Handler],
        dial: Callable[[], Link],
        journal: Journal,
        runtime: Runtime,
        *,
        grace: float = 30.0,
        heartbeat: float = HEARTBEAT,
        peer_handlers: PeerHandlers | None = None,
        fetch: Fetch | None = None,
        bring: Bring | None = None,
        middleware: Sequence[Middleware] = (),
        give_up_after: float | None = None,
    ) -> None:
        self._give_up_after = give_up_after
        self._fetch = fetch
        self._who = who
        self._handlers = handlers
        self._dial = dial
        self._journal = journal
        self._runtime = runtime
        self._grace = grace
        self._heartbeat = heartbeat
        self._link: Link | None = None
        self._outbox = Outbox(runtime)
        self._runner = TaskRunner(
            who,
            handlers,
            self._outbox,
            journal,
            runtime,
            lambda runner: PeerRequests(who, peer_handlers or PeerHandlers(), runner, self._outbox, journal, runtime),
            bring,
            middleware,
        )
        self.peer_requests = self._runner.peer_requests
        self.status_reporter = StatusReporter(who, self.peer_requests, self._runner, runtime)
        self._beating: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._hub_reads = True
        self._loop = asyncio.get_running_loop()
        self._later: set[asyncio.Task[None]] = set()
        self._handlers_by_type: dict[type, Callable[[Any], None]] = {
            Assignment: self._on_work,
            Accepted: self._on_accepted,
            Cancel: self._on_cancel,
            Refused: self._on_refused,
            Pause: self._on_pause,
            Resume: self._on_resume,
            Answer: self._runner.reply,
            IncomingMessage: self.peer_requests.receive,
            Proposal: self.peer_requests.consider,
            Welcomed: self._on_welcomed,
            Shutdown: self._on_dismiss,
        }

    async def run(self) -> None:
        """Work until `stop`, or until an error that a retry cannot help."""
        for unsent in self._journal.open():
            self._outbox.keep(unsent)
        self.peer_requests.resume()
        online = self._loop.create_task(self._stay_online())
        pulse = self._loop.create_task(self._pulse())
        stopping = self._loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait({online, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not online.done():
                await self._come_to_rest(online)
            if online.done():
                online.result()
        finally:
            await self._runner.close()
            await self.peer_requests.close()
            await _end(online, pulse, stopping, *self._later)
            await self._journal.close()

    def stop(self) -> None:
        """Take no more work, let running work end within the grace time, then disconnect."""
        self._stopping.set()
        if self._link is not None:
            self._link.quiesce()

    def stop_soon(self) -> None:
        """`stop`, from any thread."""
        try:
            ours = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            ours = False
        if ours:
            self.stop()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stop)

    @property
    def at_work(self) -> list[Handler]:
        """The handlers that run now: without those that wait for a person, or for another agent's help."""
        tasks = self._runner.tasks.values()
        return [self._handlers[task.type] for task in tasks if not (task.asking or task.waits or task.is_between_runs)]

    @property
    def is_writing(self) -> bool:
        return self._journal.is_writing

    async def _come_to_rest(self, online: asyncio.Task[None]) -> None:
        quiet = self._loop.create_task(self._until_quiet())
        grace = self._loop.create_task(self._runtime.sleep(self._grace))
        await asyncio.wait({quiet, grace, online}, return_when=asyncio.FIRST_COMPLETED)
        await _end(quiet, grace)
        if self._runner.tasks:
            log.warning("%d tasks are left; the hub will see to them", len(self._runner.tasks))

    async def _until_quiet(self) -> None:
        """Wait until no handler runs and the hub has every message. A task can wait for a person without this
        process."""
        while (
            (self._hub_reads and self._outbox.owes)
            or self.peer_requests.is_busy
            or not all(task.asking for task in self._runner.tasks.values())
        ):
            await self._runtime.sleep(0.02)

    # --- the link ---

    async def _stay_online(self) -> None:
        failures, delay = 0, 0.0
        lost_at: float | None = self._runtime.monotonic()
        while True:
            link = self._dial()
            began = self._runtime.monotonic()
            try:
                await link.open(self._who)
                began, lost_at = self._runtime.monotonic(), None
                log.info("%s is connected", self._who.agent_id)
                self._greet(link)
                while True:
                    for message in await link.receive():
                        if type(message) is Assignment and message.request.attachments and self._fetch is not None:
                            files = await self._fetch(message)
                            message = msgspec.structs.replace(message, files=(*message.files, *files))
                        self._handlers_by_type[type(message)](message)
                    failures = 0
            except LinkDown as down:
                now = self._runtime.monotonic()
                lost_at = now if lost_at is None else lost_at
                if now - began > STEADY:
                    failures = 0
                if self._give_up_after is not None and now - lost_at >= self._give_up_after:
                    raise gave_up(down, self._give_up_after) from None
                delay = max(backoff(failures, self._runtime.chance()), down.retry_after or 0.0)
                failures += 1
                log.warning("no link to the hub (%s); next try in %.1f s", down, delay)
            finally:
                self._link = None
                self._outbox.detach()
                if self._beating is not None:
                    self._beating.cancel()
                await link.close()
            await self._runtime.sleep(delay)

    def _greet(self, link: Link) -> None:
        self._link = link
        if self._stopping.is_set():
            link.quiesce()
        self._outbox.attach(link)
        for task in self._runner.tasks.values():
            self._runner.reporter.sign_of_life(task)

    # --- messages of the hub ---

    def _on_work(self, work: Assignment) -> None:
        self._runner.take(work, closing=self._stopping.is_set())

    def _on_accepted(self, accepted: Accepted) -> None:
        for id in accepted.ids:
            self._runner.reporter.accepted(id)

    def _on_cancel(self, cancel: Cancel) -> None:
        self._outbox.acknowledge(cancel.receipt)
        task = self._runner.tasks.get(cancel.task_id)
        if task is not None:
            log.info("task %s is cancelled: %s", task.id, cancel.reason)
            self._runner.drop(task)

    def _on_pause(self, hold: Pause) -> None:
        self._outbox.acknowledge(hold.receipt)
        task = self._runner.tasks.get(hold.task_id)
        if task is not None:
            task.hold()

    def _on_resume(self, release: Resume) -> None:
        self._outbox.acknowledge(release.receipt)
        task = self._runner.tasks.get(release.task_id)
        if task is not None:
            task.release()

    def _on_refused(self, refused: Refused) -> None:
        """The hub refused a message about a request. If that is final, the agent drops the task and its messages."""
        self._outbox.acknowledge(refused.receipt)
        kept = list(self._outbox.about(request_id=refused.request_id))
        if refused.retryable:
            for task_id in dict.fromkeys(message.correlation.task_id for message in kept):
                if self._outbox.hold(task_id, refused.message_id):
                    later = self._loop.create_task(self._send_again(task_id))
                    self._later.add(later)
                    later.add_done_callback(self._later.discard)
            return
        task = self._runner.of_request(refused.request_id)
        if task is None and not kept:
            log.info("the hub says: %s", refused.reason)
            return
        log.warning("the hub refuses a message about request %s: %s", refused.request_id, refused.reason)
        if task is not None:
            self._runner.drop(task)
        for message in kept:
            self._runner.reporter.accepted(message.id)

    def _on_welcomed(self, welcomed: Welcomed) -> None:
        if self._beating is not None:
            self._beating.cancel()
        self._beating = self._loop.create_task(self._beat(welcomed.interval))
        self._later.add(self._beating)
        self._beating.add_done_callback(self._later.discard)

    def _on_dismiss(self, dismiss: Shutdown) -> None:
        log.info("%s ends: %s", self._who.agent_id, dismiss.reason)
        self._hub_reads = self._hub_reads and dismiss.hears
        if dismiss.grace is not None:
            self._grace = min(self._grace, dismiss.grace)
        self.stop()

    async def _send_again(self, task_id: str) -> None:
        await self._runtime.sleep(SEND_AGAIN)
        self._outbox.send_again(task_id)

    # --- heartbeats ---

    async def _beat(self, interval: float) -> None:
        """Send heartbeats, at the interval that the hub asked for."""
        beats = 0
        while True:
            if beats % BEATS_A_STATUS == 0:
                self.status_reporter.tell_status()
            else:
                self.status_reporter.beat()
            beats += 1
            await self._runtime.sleep(interval)

    async def _pulse(self) -> None:
        """Every second while there is work: send a sign of life for a silent task, stop a handler that is late."""
        while True:
            if not self._runner.tasks:
                self._runner.busy.clear()
                await self._runner.busy.wait()
            before = self._runtime.monotonic()
            await self._runtime.sleep(PULSE)
            now = self._runtime.monotonic()
            if now - before > PULSE + STOOD_STILL:  # the hub may have taken the agent for dead
                log.warning(
                    "nothing could run for %.0f s: a handler that is a coroutine blocked the event loop, or the machine"
                    " slept. Let it await what takes long, or declare it with def: then it runs in a thread",
                    now - before - PULSE,
                )
            for task in list(self._runner.tasks.values()):
                is_waiting = task.asking is not None or task.waits > 0
                if task.deadline is not None and now >= task.deadline and not is_waiting:
                    self._runner.stop_late(task)
                elif now - task.last_sign >= self._heartbeat:
                    self._runner.reporter.sign_of_life(task)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel these and wait until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
