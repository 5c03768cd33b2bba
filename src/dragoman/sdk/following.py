"""Following a call whose events are kept as they come, whatever protocol brought them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, Protocol, TypeVar

from dragoman.sdk.events import Event


class Followed(Protocol):
    """`events` only grows, `news` is set when it did, `done` ends it."""

    events: list[Event]
    news: asyncio.Event
    done: asyncio.Future[Any]


async def follow(call: Followed, after: int) -> AsyncIterator[Event]:
    """Every event behind the first `after`, until the last; raises what ended a call that has no last event."""
    while True:
        while after < len(call.events):
            after += 1
            event = call.events[after - 1]
            yield event
            if event.is_final:
                return
        if call.done.done():
            call.done.result()
            return
        call.news.clear()
        await call.news.wait()


C = TypeVar("C", bound=Followed)


class Calls(Generic[C]):
    """A client that keeps its calls: how each is waited for and followed, and let go when it is over."""

    def _known(self, task_id: str) -> C:
        raise NotImplementedError

    def _forget(self, call: C) -> None:
        raise NotImplementedError

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
            async for event in follow(call, after):
                yield event
        finally:
            if call.done.done():
                call.done.exception()
                self._forget(call)
