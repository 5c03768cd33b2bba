"""What a person does about what was given up."""

from __future__ import annotations

from typing import Any, ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.ids import DeliveryId
from dragoman.core.lookups import (
    DeadLetterById,
    Lookup,
)


class Redrive(Command, frozen=True, gc=False, kw_only=True):
    """Send a dead letter on its way again, with an edited input if one is given. Outcome: the task, or, where it was a
    dead letter between agents, the dead letter."""

    action: ClassVar = "deadletter.redrive"
    dead_letter: DeliveryId
    input: bytes | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.dead_letter),)

    @property
    def subject(self) -> str:
        return self.dead_letter


class Discard(Command, frozen=True, gc=False, kw_only=True):
    """Forget a dead letter; its task stays as it is. Outcome: the dead letter."""

    action: ClassVar = "deadletter.discard"
    dead_letter: DeliveryId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.dead_letter),)

    @property
    def subject(self) -> str:
        return self.dead_letter
