"""Calls over a link: the states of a call, how a client keeps its calls, and how it stays connected meanwhile.

A call is *taken* when the hub has it, and *done* when it has ended; in between it has `events`. The `client` of a
protocol decides what a message means for a call, and when to send the call again.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from dragoman.sdk.calling.backend import named
from dragoman.sdk.errors import DragomanError, HubUnreachable, Misconfigured, NotSupported
from dragoman.sdk.events import Event, Question, TaskInfo, event_of
from dragoman.sdk.links import LinkDown
from dragoman.sdk.network.connect_errors import asks
from dragoman.sdk.runtime import Runtime, backoff

MOST_ENDED = 256
"""Calls that were followed to their end, and whose result is kept."""


class PendingCall:
    """A call that was sent, taken, or is done. `id` is the message id under which it was sent last."""

    def __init__(self, task_id: str, id: str) -> None:
        loop = asyncio.get_running_loop()
        self.task_id = task_id
        self.id = id
        self.taken: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[Any] = loop.create_future()
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def take(self) -> None:
        """The hub has the call."""
        if not self.taken.done():
            self.taken.set_result(None)

    def refuse(self, error: Exception) -> None:
        """The hub refused the call."""
        _raise_in(self.taken, error)

    def tell(self, kind: str, data: dict[str, Any], *, at: str | None, agent: str | None = None) -> None:
        seq = len(self.events) + 1
        self.events.append(event_of(self.task_id, seq, kind, data, at=at, agent=agent))
        self._news.set()

    @property
    def streamed(self) -> str:
        """The output that came in pieces: the answer of a handler that streams it, and of one whose text was too long
        for one message."""
        return "".join(event.data.get("output") or "" for event in self.events if event.kind == "progress")

    def finish(self, value: Any) -> None:
        if not self.done.done():
            self.done.set_result(value)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """The call ends without success, or no more events will come."""
        self.refuse(error)
        _raise_in(self.done, error)
        self._news.set()

    def abandon(self) -> None:
        """The caller waits no more."""
        for future in (self.taken, self.done):
            if not future.done():
                future.cancel()

    async def follow(self, after: int) -> AsyncIterator[Event]:
        """Every event behind the first `after`, until the last; raises what ended a call that has no last event."""
        while True:
            while after < len(self.events):
                after += 1
                event = self.events[after - 1]
                yield event
                if event.is_final:
                    return
            if self.done.done():
                self.done.result()
                return
            self._news.clear()
            await self._news.wait()


def _raise_in(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as seen: a caller that waits gets it, and without one asyncio would log it


C = TypeVar("C", bound=PendingCall)


class CallTracker(ABC, Generic[C]):
    """A client that keeps its calls: callers wait for each or follow it, and the client forgets it when it is over."""

    protocol: ClassVar[str]

    def __init__(self, runtime: Runtime, give_up_after: float | None = None) -> None:
        self._runtime = runtime
        self._give_up_after = give_up_after
        self._calls: dict[str, C] = {}
        self._untaken: dict[str, C] = {}
        self._ended: dict[str, C] = {}
        self._background: set[asyncio.Task[None]] = set()

    # --- for callers ---

    async def result(self, task_id: str) -> Any:
        call = self._known(task_id)
        try:
            return await asyncio.shield(call.done)
        finally:
            if call.done.done():
                self._forget(call)

    async def events(self, task_id: str, after: int) -> AsyncIterator[Event]:
        call = self._known(task_id)
        try:
            async for event in call.follow(after):
                yield event
        finally:
            if call.done.done():
                self._over(call)

    def _over(self, call: C) -> None:
        """A caller followed it to its end. Its result is kept until too many others have ended."""
        self._ended[call.task_id] = call
        while len(self._ended) > MOST_ENDED:
            self._forget(next(iter(self._ended.values())))

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        raise self._cannot("look at a task:")

    async def questions(self, status: str | None) -> list[Question]:
        raise self._cannot("list questions:")

    async def answer(self, question_id: str, answer: Any) -> None:
        raise self._cannot("answer a question:")

    def _cannot(self, what: str) -> NotSupported:
        other = "use a Client of the management API (an http:// address)"
        return NotSupported(f"{self.protocol} cannot {what} {other}")

    def _check(self, options: Iterable[str], known: Collection[str]) -> None:
        if unknown := set(options).difference(known):
            raise NotSupported(f"{self.protocol} has no option {named(unknown)}")

    # --- calls under way ---

    async def _until_taken(self, call: C) -> None:
        """Returns when the hub has it, durably."""
        try:
            await asyncio.shield(call.taken)
        except BaseException:
            self._forget(call)
            raise

    @abstractmethod
    def _say(self, call: C) -> None:
        """Send the call, if there is a link. Over the next link, the client sends all calls again that were not
        taken."""

    async def _say_later(self, call: C, delay: float) -> None:
        await self._runtime.sleep(delay)
        if not call.taken.done():
            self._say(call)

    def _known(self, task_id: str) -> C:
        call = self._calls.get(task_id)
        if call is None:
            raise Misconfigured(f"task {task_id} was not called for by this client, or its result was fetched already")
        return call

    def _taken(self, call: C) -> None:
        self._untaken.pop(call.id, None)
        call.take()

    def _refuse(self, call: C, error: Exception) -> None:
        self._untaken.pop(call.id, None)
        call.refuse(error)

    def _forget(self, call: C) -> None:
        self._untaken.pop(call.id, None)
        self._ended.pop(call.task_id, None)
        if self._calls.get(call.task_id) is call:
            del self._calls[call.task_id]
        call.abandon()

    def _fail_all(self, error: Exception) -> None:
        for call in [*self._untaken.values(), *self._calls.values()]:
            if not call.done.done():
                call.fail(error)
        self._untaken.clear()

    # --- background ---

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        started = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(started)
        started.add_done_callback(self._background.discard)
        return started

    async def end(self, error: Exception) -> None:
        """The link is gone for good."""
        for started in self._background:
            started.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._fail_all(error)


log = logging.getLogger("dragoman.sdk")


class Link(Protocol):
    async def close(self) -> None: ...


L = TypeVar("L", bound=Link)


def unreachable(down: LinkDown) -> HubUnreachable:
    """The error of a caller when no link could be made."""
    return HubUnreachable(asks(f"no link to the hub: {down}", "Is it running there?"))


def gave_up(down: LinkDown, seconds: float) -> HubUnreachable:
    """The error that ends an agent or a client after `give_up_after` seconds without a hub."""
    return HubUnreachable(asks(f"no link to the hub for {seconds:g} s, so it gives up: {down}", "Is it running there?"))


class ConnectedClient(CallTracker[C], Generic[C, L]):
    """A client with a link of its own. A protocol implements the five methods below `close`."""

    _online: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect. If no hub answers, raise at once; if the hub goes away later, the client waits for it."""
        link = self._new_link()
        try:
            await self._connect(link)
        except BaseException as error:
            await link.close()
            if isinstance(error, LinkDown):
                raise unreachable(error) from None
            raise
        self._attach(link)
        self._online = asyncio.get_running_loop().create_task(self._stay_online(link))

    async def close(self) -> None:
        if self._online is not None:
            self._online.cancel()
            await asyncio.gather(self._online, return_exceptions=True)
        await self.end(HubUnreachable("the client was closed"))

    @abstractmethod
    def _new_link(self) -> L: ...

    @abstractmethod
    async def _connect(self, link: L) -> None: ...

    @abstractmethod
    def _attach(self, link: L) -> None:
        """The link is open: send what the hub may not have again."""

    @abstractmethod
    def _detach(self) -> None: ...

    @abstractmethod
    async def _listen(self, link: L) -> None:
        """Wait for messages and handle them. Raises `LinkDown`."""

    async def _stay_online(self, link: L) -> None:
        failures, is_connected = 0, True
        lost_at: float | None = None
        try:
            while True:
                try:
                    if not is_connected:
                        await self._connect(link)
                        self._attach(link)
                        lost_at = None
                    while True:
                        await self._listen(link)
                        failures = 0
                except LinkDown as down:
                    now = self._runtime.monotonic()
                    lost_at = now if lost_at is None else lost_at
                    if self._give_up_after is not None and now - lost_at >= self._give_up_after:
                        raise gave_up(down, self._give_up_after) from None
                    delay = max(backoff(failures, self._runtime.chance()), down.retry_after or 0.0)
                    log.warning("no link to the hub (%s); next try in %.1f s", down, delay)
                    self._detach()
                    await link.close()
                    await self._runtime.sleep(delay)
                link, is_connected, failures = self._new_link(), False, failures + 1
        except DragomanError as error:
            self._fail_all(error)
        finally:
            self._detach()
            await link.close()
