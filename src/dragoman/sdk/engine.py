"""What keeps an agent going: the link up, the hub heard, everybody's heart beating, and an orderly end.

Between the link (`links`, any protocol) and the desk (`desk`, any handlers) it only passes words on. When a link
breaks it makes the next one, with growing pauses; over every new link first goes what the hub has not got yet, then
a sign of life for everything in hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.sdk.conversation.peer_handlers import Listeners
from dragoman.sdk.conversation.peer_requests import Exchange
from dragoman.sdk.conversation.status import Bulletin
from dragoman.sdk.links import Bring, Fetch, Introduction, Link, LinkDown
from dragoman.sdk.messages import (
    Accepted,
    Cancel,
    Dismiss,
    Hold,
    Mail,
    Proposal,
    Refused,
    Release,
    Reply,
    Welcomed,
    Work,
)
from dragoman.sdk.runtime import World, backoff
from dragoman.sdk.work.journal import Journal
from dragoman.sdk.work.outbox import Mailbox
from dragoman.sdk.work.signature import Handler
from dragoman.sdk.work.task_runner import Desk

log = logging.getLogger("dragoman.sdk")

HEARTBEAT = 10.0
PULSE = 1.0
STOOD_STILL = 5.0
"""Seconds that the event loop may stand still before we say something."""
STEADY = 10.0
"""A link that lasted so long was a good one: the next try comes soon again."""
SAY_AGAIN = 1.0
"""Before what the hub could not take at the moment is said again."""
BEATS_A_STATUS = 3
"""Every so many signs of life the agent tells how it is, where its protocol has a word for that."""


class Engine:
    """One agent at work, from `run` to its end. Made inside the event loop it runs in."""

    def __init__(
        self,
        who: Introduction,
        handlers: Mapping[str, Handler],
        dial: Callable[[], Link],
        journal: Journal,
        world: World,
        *,
        grace: float = 30.0,
        heartbeat: float = HEARTBEAT,
        listeners: Listeners | None = None,
        fetch: Fetch | None = None,
        bring: Bring | None = None,
    ) -> None:
        self._fetch = fetch
        self._who = who
        self._handlers = handlers
        self._dial = dial
        self._journal = journal
        self._world = world
        self._grace = grace
        self._heartbeat = heartbeat
        self._link: Link | None = None
        self._mailbox = Mailbox(world)
        self._desk = Desk(who, handlers, self._mailbox, journal, world, bring)
        self.exchange = Exchange(who, listeners or Listeners(), self._desk, self._mailbox, journal, world)
        self.bulletin = Bulletin(who, self.exchange, self._desk, world)
        self._beating: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._is_heard = True
        self._loop = asyncio.get_running_loop()
        self._later: set[asyncio.Task[None]] = set()
        self._hear: dict[type, Callable[[Any], None]] = {
            Work: self._on_work,
            Accepted: self._on_accepted,
            Cancel: self._on_cancel,
            Refused: self._on_refused,
            Hold: self._on_hold,
            Release: self._on_release,
            Reply: self._desk.reply,
            Mail: self.exchange.hear,
            Proposal: self.exchange.consider,
            Welcomed: self._on_welcomed,
            Dismiss: self._on_dismiss,
        }

    async def run(self) -> None:
        """Work until `stop`, or until the hub says that trying again is no use."""
        for unsent in self._journal.open():
            self._mailbox.keep(unsent)
        self.exchange.resume()
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
            await self._desk.close()
            await self.exchange.close()
            await _end(online, pulse, stopping, *self._later)
            await self._journal.close()

    def stop(self) -> None:
        """Take no more work, let what runs come to its end for the grace time, then hang up."""
        self._stopping.set()
        if self._link is not None:
            self._link.quiesce()

    def stop_soon(self) -> None:
        """The same, from any thread."""
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
        tasks = self._desk.tasks.values()
        return [self._handlers[task.type] for task in tasks if task.asking is None and not task.waits]

    async def _come_to_rest(self, online: asyncio.Task[None]) -> None:
        quiet = self._loop.create_task(self._until_quiet())
        grace = self._loop.create_task(self._world.sleep(self._grace))
        await asyncio.wait({quiet, grace, online}, return_when=asyncio.FIRST_COMPLETED)
        await _end(quiet, grace)
        if self._desk.tasks:
            log.warning("%d tasks are left; the hub will see to them", len(self._desk.tasks))

    async def _until_quiet(self) -> None:
        """Nothing runs and everything said has arrived. Who waits for a person can do so without us."""
        while (
            (self._is_heard and self._mailbox.owes)
            or self.exchange.is_busy
            or not all(task.asking for task in self._desk.tasks.values())
        ):
            await self._world.sleep(0.02)

    # --- the link ---

    async def _stay_online(self) -> None:
        failures, delay = 0, 0.0
        while True:
            link = self._dial()
            began = self._world.monotonic()
            try:
                await link.open(self._who)
                began = self._world.monotonic()
                log.info("%s is connected", self._who.agent_id)
                self._greet(link)
                while True:
                    for said in await link.receive():
                        if type(said) is Work and said.attached and self._fetch is not None:
                            files = await self._fetch(said)
                            said = msgspec.structs.replace(said, files=(*said.files, *files), attached=())
                        self._hear[type(said)](said)
                    failures = 0
            except LinkDown as down:
                if self._world.monotonic() - began > STEADY:
                    failures = 0
                delay = max(backoff(failures, self._world.chance()), down.retry_after or 0.0)
                failures += 1
                log.warning("no link to the hub (%s); next try in %.1f s", down, delay)
            finally:
                self._link = None
                self._mailbox.detach()
                if self._beating is not None:
                    self._beating.cancel()
                await link.close()
            await self._world.sleep(delay)

    def _greet(self, link: Link) -> None:
        self._link = link
        if self._stopping.is_set():
            link.quiesce()
        self._mailbox.attach(link)
        for task in self._desk.tasks.values():
            self._desk.speech.sign_of_life(task)

    # --- what the hub says ---

    def _on_work(self, work: Work) -> None:
        self._desk.take(work, closing=self._stopping.is_set())

    def _on_accepted(self, accepted: Accepted) -> None:
        for id in accepted.ids:
            self._desk.speech.accepted(id)

    def _on_cancel(self, cancel: Cancel) -> None:
        self._mailbox.acknowledge(cancel.receipt)
        task = self._desk.tasks.get(cancel.task_id)
        if task is not None:
            log.info("task %s is cancelled: %s", task.id, cancel.reason)
            self._desk.drop(task)

    def _on_hold(self, hold: Hold) -> None:
        self._mailbox.acknowledge(hold.receipt)
        task = self._desk.tasks.get(hold.task_id)
        if task is not None:
            task.hold()

    def _on_release(self, release: Release) -> None:
        self._mailbox.acknowledge(release.receipt)
        task = self._desk.tasks.get(release.task_id)
        if task is not None:
            task.release()

    def _on_refused(self, refused: Refused) -> None:
        """What we said about a request was refused. For good: then whatever we hold of it is void."""
        self._mailbox.acknowledge(refused.receipt)
        kept = list(self._mailbox.about(request_id=refused.request_id))
        if refused.retryable:
            for task_id in dict.fromkeys(message.errand.task_id for message in kept):
                if self._mailbox.hold(task_id):
                    later = self._loop.create_task(self._say_again(task_id))
                    self._later.add(later)
                    later.add_done_callback(self._later.discard)
            return
        task = self._desk.of_request(refused.request_id)
        if task is None and not kept:
            log.info("the hub says: %s", refused.reason)
            return
        log.warning("the hub refuses what was said about request %s: %s", refused.request_id, refused.reason)
        if task is not None:
            self._desk.drop(task)
        for message in kept:
            self._desk.speech.accepted(message.id)

    def _on_welcomed(self, welcomed: Welcomed) -> None:
        if self._beating is not None:
            self._beating.cancel()
        self._beating = self._loop.create_task(self._beat(welcomed.interval))
        self._later.add(self._beating)
        self._beating.add_done_callback(self._later.discard)

    def _on_dismiss(self, dismiss: Dismiss) -> None:
        log.info("%s ends: %s", self._who.agent_id, dismiss.reason)
        self._is_heard = self._is_heard and dismiss.hears
        if dismiss.grace is not None:
            self._grace = min(self._grace, dismiss.grace)
        self.stop()

    async def _say_again(self, task_id: str) -> None:
        await self._world.sleep(SAY_AGAIN)
        self._mailbox.say_again(task_id)

    # --- the heart ---

    async def _beat(self, interval: float) -> None:
        """The agent's own signs of life, where the hub wants them: as often as it said."""
        beats = 0
        while True:
            if beats % BEATS_A_STATUS == 0:
                self.bulletin.tell_status()
            else:
                self.bulletin.beat()
            beats += 1
            await self._world.sleep(interval)

    async def _pulse(self) -> None:
        """Every second while there is work: who was silent for long shows that he lives, who is late is stopped."""
        while True:
            if not self._desk.tasks:
                self._desk.busy.clear()
                await self._desk.busy.wait()
            before = self._world.monotonic()
            await self._world.sleep(PULSE)
            now = self._world.monotonic()
            if now - before > PULSE + STOOD_STILL:  # the hub may have taken the silence for our end
                log.warning(
                    "nothing could run for %.0f s: a handler that is a coroutine blocked the event loop, or the machine"
                    " slept. Let it await what takes long, or declare it with def: then it runs in a thread",
                    now - before - PULSE,
                )
            for task in list(self._desk.tasks.values()):
                is_waiting = task.asking is not None or task.waits > 0
                if task.deadline is not None and now >= task.deadline and not is_waiting:
                    self._desk.stop_late(task)
                elif now - task.last_sign >= self._heartbeat:
                    self._desk.speech.sign_of_life(task)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel these and wait until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
