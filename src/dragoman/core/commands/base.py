"""What all commands have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from dragoman.core.ids import AgentId
from dragoman.core.lookups import (
    Lookup,
)
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.people import Person
from dragoman.core.model.state import Entity
from dragoman.core.model.tasks import Question, Task


class Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    action: ClassVar[str | None] = None
    principal: AgentId
    protocol: str | None = None
    person: str | None = None
    """The person in whose name the administrator's command comes; the audit record names them."""
    seen: str | None = None
    """The id of the message, where it counts once and is refused when it comes again."""
    message: tuple[int, int] | None = None
    """The message and its content, as in `policy.replay.marks_of`, where an id stands for one content: the same message
    may come again, another one under its id is refused."""
    sealed_by: str | None = None
    """The key and nonce of an encrypted message that the hub opened: they count once, in any message."""

    def wants(self) -> tuple[Lookup[Any], ...]:
        """What the decision will surely look up: the intake loads it for the whole unit at once."""
        return ()

    @property
    def subject(self) -> str | None:
        """What the command is about, for the audit record."""
        return None

    @property
    def recorded(self) -> bool:
        """Whether it is audited when it is accepted. Refusals always are."""
        return self.action is not None


Outcome = Person | Task | Agent | Question | DeadLetter | Entity | Contract | int | None
"""The outcome of a decision."""
