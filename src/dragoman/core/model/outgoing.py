"""A delivery with its content, as a link gets it after the commit."""

from __future__ import annotations

import msgspec

from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Delivery, DirectMessage
from dragoman.core.model.tasks import Event, Question, Task

AROUND = 512
"""Bytes of a message beside its content."""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A delivery with its content. The kind of the delivery determines the content: a question for an answer, a
    proposal and a handoff, a direct message, a contract, and an event for everything else; None if the question is gone
    meanwhile. Only direct messages, questions and contracts may belong to no task."""

    delivery: Delivery
    about_task: Task | None
    content: Event | Question | DirectMessage | Contract | None

    @property
    def task(self) -> Task:
        assert self.about_task is not None
        return self.about_task

    @property
    def event(self) -> Event:
        assert type(self.content) is Event
        return self.content

    @property
    def question(self) -> Question:
        assert isinstance(self.content, Question)
        return self.content

    @property
    def direct_message(self) -> DirectMessage:
        assert isinstance(self.content, DirectMessage)
        return self.content

    @property
    def contract(self) -> Contract:
        assert isinstance(self.content, Contract)
        return self.content

    @property
    def personal(self) -> bool:
        """Whether its content is personal: then nothing of it may be logged."""
        content, task = self.content, self.about_task
        if isinstance(content, Event | Question | DirectMessage) and content.personal:
            return True
        return task is not None and task.agreement.personal

    @property
    def weight(self) -> int:
        """About how many bytes it will be: its content, in the hub's form or raw, and a little around it."""
        content = self.content
        if type(content) is Event:
            return AROUND + max(len(content.body), len(content.raw or b""))
        return AROUND + (len(content.raw) if type(content) is DirectMessage else 0)
