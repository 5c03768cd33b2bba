"""Following a call whose events are kept as they come, whatever protocol brought them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

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
