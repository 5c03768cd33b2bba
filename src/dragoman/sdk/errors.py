"""What the SDK raises: one meaning for each exception.

    raised            to         when
    ----------------  ---------  ------------------------------------------------------------------------------
    Misconfigured     both       the program is wrong; nothing was sent
    NotSupported      both       the protocol of this address cannot do it; nothing was sent
    NotAllowed        both       the hub does not accept the token, or not for this
    HubUnreachable    both       the hub does not answer, and waiting longer than `give_up_after` is not wanted
    Conflict          both       the state of things does not allow it: already answered, a second process of an agent
    NotFound          callers    there is no such task, or it is another caller's
    RequestRefused    callers    the hub did not take the request
    TaskFailed        callers    the task ended without success; `failures` has a subclass for each kind
    TaskCancelled     callers    the task was cancelled
    StillRunning      callers    the task goes on after the seconds that the caller waits for it
    BadResult         callers    the result does not fit the type that the caller gave as `returns`

    Reject            by handlers   the agent does not want to do it; the task fails with the reason
    Retry             by handlers   the agent cannot do it now: the SDK runs the handler again

Every error says what happened in a sentence and keeps the facts as attributes; one that a person can do something
about ends with what to do.
"""

from __future__ import annotations

from typing import Any


class DragomanError(Exception):
    """The root: catch this to catch every exception of the SDK."""


class Misconfigured(DragomanError):
    """The program is wrong: no address, no token, an unknown option, a handler that cannot be called. Nothing was
    sent."""


class NotSupported(DragomanError):
    """The protocol of this address cannot do it; the message names one that can. Nothing was sent."""


class HubUnreachable(DragomanError):
    """The hub does not answer, or its answer cannot be read. Trying again later can help."""


class NotAllowed(DragomanError):
    """The hub does not accept the token, or not for this."""


class NotFound(DragomanError):
    """There is no such thing, or it is not yours."""


class Conflict(DragomanError):
    """The state of things does not allow it: already answered, already finished, already there."""


class RequestRefused(DragomanError):
    """The hub did not take a request. `kind` and `facts` are the hub's own."""

    def __init__(self, message: str, *, kind: str | None = None, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.facts = facts or {}


class TaskFailed(DragomanError):
    """A task that the caller asked for has ended without success."""

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
    """A task that the caller asked for was cancelled."""


class StillRunning(DragomanError, TimeoutError):
    """A task was not over in the time that its caller waits for it. It goes on: ask for its result again."""

    def __init__(self, task_id: str, seconds: float) -> None:
        super().__init__(
            f"task {task_id} still runs after {seconds:g} s, and goes on: ask for its result again, or cancel it"
        )
        self.task_id = task_id
        self.seconds = seconds


class Reject(DragomanError):
    """A handler's "no", and why. A handler of work raises it, and its task fails with this reason; a handler of
    handoffs or handshakes raises or returns it. The caller gets a `TaskFailed` with the reason as its message."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason)


Rejected = Reject
"""The name of `Reject` in versions before 0.2, when handlers raised one and returned the other."""


class Retry(DragomanError):
    """Raised by a handler: run it again, after so many seconds; without `after`, as its `RetryPolicy` says."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason or "the handler asked for another run")
        self.reason = reason
        self.after = after


class BadResult(DragomanError):
    """The task is done, and its `result` does not fit the type that the caller gave as `returns`."""

    def __init__(self, task_id: str, what: str, result: Any) -> None:
        super().__init__(f"the result of task {task_id} does not fit: {what}")
        self.task_id = task_id
        self.result = result


class BadInput(DragomanError):
    """The input does not fit the handler; `field` is a dotted path where one is known."""

    def __init__(self, what: str, field: str | None = None) -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.what = what
        self.field = field
