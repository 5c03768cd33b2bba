"""What one stream reports, on its way into the hub: in order, many at once, never more than a bound.

Commands do not wait for each other's commits. Text is the exception that saves the store most of its work: pieces
that come while an earlier piece is being committed are put together, and go in as one when that is done. Whatever
is not plain text is a barrier: the text before it goes in first. So nothing is lost and nothing changes its place.

Nothing is accepted without an end: a report that the hub refuses comes back by `refused`, with the reason. What
follows one that the hub could not keep is refused with it, so no text has a hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from dragoman.bindings import coven
from dragoman.core.commands import Command, ReportFault
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.pipelining import Pipeline, Pipelined
from dragoman.core.ports import Intake
from dragoman.messages.faults import Refused
from dragoman.server.request_memory import room_for

STREAM = "stream"
"""All that one stream reports is one sequence: it has one task at a time."""

RefusedReport = Callable[[Command, Refused], None]
Answered = Callable[[Command, int, Any, Refused | None], None]


class Reports:
    """The way in of one stream."""

    def __init__(
        self, hub: Intake, agent: AgentId, *, unanswered: int, pending_bytes: int, refused: RefusedReport
    ) -> None:
        self._hub = hub
        self._agent = agent
        self._most = unanswered
        self._most_bytes = pending_bytes
        self._refused = refused
        self._under_way = 0
        self._pipeline = Pipeline()
        self._said = 0
        self._task: TaskId | None = None
        self._pieces: list[str] = []
        self._size = 0
        self._text_under_way = 0
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.coalesced = 0

    async def room(self) -> None:
        """Until there is room for more, here and in what the hub may hold of everybody's messages: who awaits this
        before reading slows the sender (D12)."""
        if not self._room.is_set():
            await self._room.wait()
        await room_for(self._hub.memory, self._agent)

    async def settled(self) -> None:
        """Until everything that was reported has its outcome."""
        self.flush()
        await self._idle.wait()

    def text(self, task: TaskId, text: str) -> None:
        """A piece of plain text."""
        if self._task is not None and self._task != task:
            self.flush()
        if not self._text_under_way and not self._pieces:
            self._hand_in_text(task, text)
            return
        self._task = task
        self._pieces.append(text)
        self._size += len(text)
        self.coalesced += 1
        self._mind_the_room()

    def other(self, command: Command, size: int = 0) -> None:
        """Anything else, which came in so many bytes: after the text that came before it."""
        self.flush()
        self._hand_in(command, self._answered, size)

    def flush(self) -> None:
        """Hand in the text that waits."""
        if self._pieces:
            assert self._task is not None
            task, text = self._task, "".join(self._pieces)
            self._task, self._pieces, self._size = None, [], 0
            self._hand_in_text(task, text)

    def _hand_in_text(self, task: TaskId, text: str) -> None:
        self._text_under_way += 1
        self._hand_in(coven.text_of(self._agent, task, text), self._text_answered, len(text))

    def _hand_in(self, command: Command, answered: Answered, size: int) -> None:
        self._under_way += 1
        self._idle.clear()
        self._mind_the_room()
        self._hub.memory.add(self._agent, size)
        then = partial(answered, command, size)
        if isinstance(command, ReportFault):  # how it ends is said whatever was refused before
            self._hub.enqueue_then(command, then)
            return
        self._said += 1
        self._hub.enqueue_then(command, Pipelined(self._pipeline, STREAM, str(self._said), then))

    def _text_answered(self, command: Command, size: int, outcome: Any, refusal: Refused | None) -> None:
        self._text_under_way -= 1
        if not self._text_under_way:
            self.flush()
        self._answered(command, size, outcome, refusal)

    def _answered(self, command: Command, size: int, outcome: Any, refusal: Refused | None) -> None:
        self._under_way -= 1
        self._hub.memory.give_back(self._agent, size)
        if not self._under_way and not self._pieces:
            self._idle.set()
        self._mind_the_room()
        if refusal is not None:
            self._refused(command, refusal)

    def _mind_the_room(self) -> None:
        if self._under_way >= self._most or self._size >= self._most_bytes:
            self._room.clear()
        else:
            self._room.set()
