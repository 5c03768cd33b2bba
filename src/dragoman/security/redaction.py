"""Keeps personal data out of logs, errors and traces (a2acp-D13).

Nothing here looks for data that *seems* personal: no pattern recognises a name. The intent's `pii` mark declares what
is personal, and from there on the code handles it in ways that cannot leak:

    where it could leak                             what prevents it
    ----------------------------------------------  ---------------------------------------------------------------
    an exception that quotes its input              `handling()`, where a payload is opened; `disclosed()`, where an
                                                    exception becomes text: only its type and place are left
    a log line written while it is handled          `blot_personal` keeps `PLAIN` names; other texts become the mark
    a field that carries contents by its name       `blot_personal`: the names in `CONTENTS`, always

`blot_personal` is a structlog processor for the head of the chain, before tracebacks become text. (What keeps secrets
out, `app.logs.blot_secrets`, stands at its end and stays.)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from structlog.typing import EventDict, WrappedLogger

MARK = "[personal]"
CONTENTS = frozenset({"payload", "plaintext", "ciphertext", "personal", "pii", "instance"})
"""Names of fields that hold the content of messages, or a validator's copy of it."""

PLAIN = frozenset({
    "event", "level", "logger", "timestamp", "agent", "agent_id", "source_agent", "target_agent", "domain", "intent",
    "message_id", "correlation_id", "collaboration_id", "contract_id", "task", "task_id", "trace_id", "kid", "code",
    "reason", "protocol", "error_type", "error_at",
})  # fmt: skip
"""Names whose texts are the hub's own texts or ids: they stay while personal data is handled."""

DEEPEST = 6
_handled: ContextVar[bool] = ContextVar("handling personal data", default=False)


class Undisclosed(Exception):
    """An error while personal data was handled: its type and its place, without its message."""

    def __init__(self, error: BaseException) -> None:
        self.error_type = type(error).__name__
        self.error_at = place(error.__traceback__)
        super().__init__(f"{self.error_type} at {self.error_at}, while personal data was handled")


class handling:
    """Around every step that sees personal data in clear. An error leaves as `Undisclosed`, with no way back to the
    original; `passing` are types whose sentences are known to quote nothing. Cancellations pass."""

    def __init__(self, *passing: type[BaseException]) -> None:
        self._passing = passing
        self._token: Token[bool] | None = None

    def __enter__(self) -> None:
        self._token = _handled.set(True)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._token is not None:
            _handled.reset(self._token)
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return
        hidden = Undisclosed(error)
        try:
            raise hidden from None
        finally:
            hidden.__context__ = None  # removed, because some handlers print suppressed contexts


def disclosed(error: Exception, *, personal: bool) -> Exception:
    """An error as it may be logged, where personal data may have caused it."""
    return Undisclosed(error) if personal else error


def place(traceback: TracebackType | None) -> str:
    """File and line of the innermost frame, without the path on this machine."""
    if traceback is None:
        return "an unknown place"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = traceback.tb_frame.f_code.co_filename.replace("\\", "/")
    return f"{'/'.join(file.split('/')[-2:])}:{traceback.tb_lineno}"


def blot_personal(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The event without personal data. It must be the first processor: it reduces exceptions before others format
    them."""
    handled = _handled.get()
    if handled:
        event = _without_exception(event)
    return {name: _under(name, value, handled, 0) for name, value in event.items()}


def _without_exception(event: EventDict) -> EventDict:
    kept = {name: value for name, value in event.items() if name not in ("exc_info", "exception", "stack_info")}
    given = event.get("exc_info")
    if isinstance(given, BaseException):
        error: BaseException | None = given
    elif isinstance(given, tuple) and len(given) == 3:
        error = given[1]
    else:
        error = sys.exc_info()[1] if given else None
    if error is not None:
        kept |= {"error_type": type(error).__name__, "error_at": place(error.__traceback__)}
    return kept


def _under(name: str, value: Any, handled: bool, depth: int) -> Any:
    if name in CONTENTS and value is not None:
        return MARK
    return _blot(value, handled and name not in PLAIN, depth)


def _blot(value: Any, hide: bool, depth: int) -> Any:
    if isinstance(value, (bool, type(None))):
        return value
    if isinstance(value, Mapping):
        if depth >= DEEPEST:
            return MARK
        # The names of a logged event are the hub's own; those within its values may come from outside.
        return {
            MARK if hide and name not in PLAIN else str(name): _under(str(name), inner, hide, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return MARK if depth >= DEEPEST else [_blot(inner, hide, depth + 1) for inner in value]
    return MARK if hide else value
