"""A task's account, put together from its events as they lie in the store."""

from __future__ import annotations

from dragoman.core.ids import TaskId
from dragoman.core.ports import Store
from dragoman.core.queries.transcript import MOST_OUTPUT, Account, Transcript

PAGE = 200


async def account(store: Store, task: TaskId, last: int, most: int = MOST_OUTPUT) -> Account:
    """Up to event `last`; an output of more than `most` characters is cut."""
    transcript = Transcript(most)
    after = 0
    while after < last:
        page = await store.events(task, after=after, limit=PAGE)
        for event in page:
            transcript.feed(event)
        if not page:
            break
        after = page[-1].seq
    return transcript.account
