"""The shared state."""

from __future__ import annotations

from typing import Any, ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.ids import TaskId
from dragoman.core.model.state import Operation, Registry


class ChangeState(Command, frozen=True, gc=False, kw_only=True):
    """Write a shared entity. Outcome: the entity. `version` is what the writer read, 0 for one that is new.

    `changes` is a JSON merge patch. Refused with CONFLICT and the current version if somebody was faster, with
    FORBIDDEN if the table of who may write what says so. `task` is the id that a task of the hub has, where its
    writer calls it otherwise. `message_id` and `digest` are those of the message that asks it, if one does: the same
    one again has the first outcome.
    """

    action: ClassVar = "state.change"
    operation: Operation
    entity: Registry
    entity_id: str
    changes: dict[str, Any]
    version: int
    task: TaskId | None = None
    message_id: str | None = None
    digest: str = ""

    @property
    def subject(self) -> str:
        return f"{self.entity.value}/{self.entity_id}"
