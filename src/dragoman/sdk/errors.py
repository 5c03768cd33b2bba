"""What the SDK raises.

Every error says what happened in a sentence and keeps the facts as attributes; one that a person can do something
about ends with what to do.
"""

from __future__ import annotations

from typing import Any


class DragomanError(Exception):
    """The root: catch this to catch everything the SDK raises on its own account."""


class Misconfigured(DragomanError):
    """No address, no token, a handler that cannot be called: nothing was sent."""


class HubUnreachable(DragomanError):
    """The hub does not answer, or not in a way we understand. Trying again later can help."""


class NotAllowed(DragomanError):
    """The hub does not accept the token, or not for this."""


class NotFound(DragomanError):
    """There is no such thing, or it is not yours."""


class Conflict(DragomanError):
    """The state of things does not allow it: already answered, already finished, already there."""


class RequestRefused(DragomanError):
    """The hub did not take a request. `kind` and `facts` are the hub's own words."""

    def __init__(self, message: str, *, kind: str | None = None, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.facts = facts or {}


class TaskFailed(DragomanError):
    """A task that was called for has ended without success."""

    def __init__(
        self,
        message: str,
        *,
        task_id: str,
        status: str = "failed",
        kind: str | None = None,
        code: int | str | None = None,
        exit_code: int | None = None,
        output: str = "",
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"task {task_id} {status}: {message}")
        self.message = message
        self.task_id = task_id
        self.status = status
        self.kind = kind
        self.code = code
        self.exit_code = exit_code
        self.output = output
        self.facts = facts or {}


class TaskCancelled(TaskFailed):
    """A task that was called for has been cancelled."""


class StillRunning(DragomanError, TimeoutError):
    """A task was not over in the time that its caller waits for it. It goes on: ask for its result again."""

    def __init__(self, task_id: str, seconds: float) -> None:
        super().__init__(
            f"task {task_id} still runs after {seconds:g} s, and goes on: ask for its result again, or cancel it"
        )
        self.task_id = task_id
        self.seconds = seconds


class Rejected(DragomanError):
    """Raised by a handler to say no: the task fails with this reason. `task.reject("…")` makes one."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason)


class BadInput(DragomanError):
    """The input does not fit the handler; `field` is a dotted path where one is known."""

    def __init__(self, what: str, field: str | None = None) -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.what = what
        self.field = field
