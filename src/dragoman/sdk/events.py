"""What a client is told about tasks: values, whichever way they came."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.sdk.failures import failed

FINAL = frozenset({"completed", "failed", "cancelled"})


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened to a task; `data` is in the hub's form.

    Over the management API `seq` counts a task's events without gaps; over an agent protocol it counts what we heard.
    """

    task_id: str
    seq: int
    kind: str
    at: str | None = None
    agent: str | None = None
    data: dict[str, Any] = {}

    @property
    def is_final(self) -> bool:
        return self.kind in FINAL


class TaskInfo(Struct, frozen=True, kw_only=True):
    """A task as the hub sees it now."""

    id: str
    type: str
    status: str
    progress: int = 0
    step: str | None = None
    agent: str | None = None
    attempts: int = 0
    waiting: str | None = None
    question: str | None = None
    input: Any = None
    output: str = ""
    result: Any = None
    exit_code: int | None = None
    error: dict[str, Any] | None = None
    trace_id: str = ""
    created_at: str = ""
    updated_at: str = ""

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    def outcome(self) -> Any:
        """The result of a completed task; raises `TaskFailed` for one that is not."""
        if self.status == "completed":
            return value_of(self.result, self.output)
        error = self.error or {}
        message = str(error.get("message") or (f"it is {self.status}" if not self.is_final else "no reason given"))
        facts = error.get("facts") or {}
        raise failed(
            message,
            task_id=self.id,
            status=self.status,
            kind=error.get("kind"),
            exit_code=facts.get("exit_code") if self.exit_code is None else self.exit_code,
            output=self.output,
            facts={"attempts": self.attempts, "agent": self.agent, **facts},
        )


class Question(Struct, frozen=True, kw_only=True):
    """A question to a person."""

    id: str
    task_id: str
    agent: str
    question: str
    options: tuple[Any, ...] = ()
    status: str = "open"
    deadline: str | None = None
    answer: Any = None


def value_of(result: Any, output: str) -> Any:
    """What a caller gets: the structured result, or else the text, or None."""
    return result if result is not None else (output or None)
