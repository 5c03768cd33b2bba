"""The thread on which the hub and its agents run, whether anything happens there, and the errors that a test gets.

A test is plain code, or runs on a loop of its own: neither may block the hub, nor the hub the test. All messages of
the hub and its agents pass through the kernel, so the selector sees them: a loop that was not woken for some
milliseconds has no message under way.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")

END_SECONDS = 10.0
"""How long tasks that are left on the loop may take to end."""
BLOCKED_SECONDS = 20.0
"""Without a turn of the loop: a handler blocks it."""
BLOCKED = (
    f"the hub's loop has stood still for {BLOCKED_SECONDS:g} s: a handler that is a coroutine blocks it. Let it await"
    " what takes long, or make it a plain function, which runs in a thread"
)


class Misused(Exception):
    """The test asks for something that is not possible."""


class Stuck(AssertionError):
    """A task does not end: nothing is due that could end it, or the test's `patience` is over."""


class Listener(selectors.DefaultSelector):
    """Counts the turns of the loop, and how often something came."""

    activity = 0
    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        self.turns += 1
        if found:
            self.activity += 1
        return found


class LoopThread:
    def __init__(self) -> None:
        self.listener = Listener()
        self.loop = asyncio.SelectorEventLoop(self.listener)
        self._thread = threading.Thread(target=self.loop.run_forever, name="dragoman-hub", daemon=True)
        self._thread.start()

    def post(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the coroutine on the loop."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise Misused(
                "this is the hub's own thread, which cannot wait for itself: in a handler, use"
                " `await hub.clock.sleep(…)` and `async with hub.client() as client`, or make it a plain function"
            )
        if self.loop.is_closed():
            coroutine.close()
            raise Misused("this hub has ended: it lives as long as the test that it was made for")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the loop, and wait for it as long as the loop is not blocked."""
        future = self.post(coroutine)
        try:
            while True:
                turns = self.listener.turns
                try:
                    return future.result(BLOCKED_SECONDS)
                except TimeoutError:
                    if future.done():  # its own
                        raise
                    if self.listener.turns == turns:
                        raise Stuck(BLOCKED) from None
        except CancelledError:
            raise Misused("this hub ended while a request was running") from None
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        try:
            self.do(self._last())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(END_SECONDS)
            if not self._thread.is_alive():
                self.loop.close()

    async def _last(self) -> None:
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
