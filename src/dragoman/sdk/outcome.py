"""How a handler's end becomes an outcome.

    the handler            exit_code   output                          result
    ---------------------  ----------  ------------------------------  -----------------
    returns a str          0           the text                        -
    returns None           0           empty                           -
    returns anything else  0           its JSON, for whoever only      the same, as JSON
                                       reads text
    and said task.text()   0           all of that, joined             the same, as JSON
    raises task.reject()   1           the reason                      -
    raises a CallFailed    1           its message, and its code       -
    raises anything        1           the last line of the traceback  -
    takes too long         124         how long it took                -

The traceback itself goes to the agent's own log and no further: it may hold what others must not see.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.sdk.errors import Rejected, TaskFailed
from dragoman.sdk.links import NO_RESULT

SUCCESS, FAILURE, TIMED_OUT = 0, 1, 124  # 124 is what timeout(1) says

LARGEST_RESULT = 4 * 1024 * 1024
LONGEST_MESSAGE = 4_000


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    output: str = ""
    result: msgspec.Raw = NO_RESULT
    error: dict[str, Any] | None = None


def _portable(value: Any) -> Any:
    """What msgspec does not know: models of pydantic and their like say themselves what they are."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a handler cannot return {type(value).__name__}: it has no JSON form")
    return dump(mode="json")


_encode = msgspec.json.Encoder(enc_hook=_portable).encode


def clean(text: str) -> str:
    """Text that can be written down and sent: half a character (a lone surrogate) becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def returned(value: Any) -> Ending:
    """The handler came to its end."""
    if value is None:
        return Ending(exit_code=SUCCESS)
    if isinstance(value, str):
        return Ending(exit_code=SUCCESS, output=clean(value))
    try:
        data = _encode(value)
    except (TypeError, ValueError) as error:
        return raised(error)
    if len(data) > LARGEST_RESULT:
        return raised(
            ValueError(
                f"a result of {len(data)} bytes is more than the {LARGEST_RESULT} that travel in one piece;"
                " return text, which is split, or store it and return where"
            )
        )
    return Ending(exit_code=SUCCESS, output=data.decode(), result=msgspec.Raw(data))


def raised(error: BaseException) -> Ending:
    """The handler failed."""
    if isinstance(error, Rejected):
        reason = clean(error.reason)
        return Ending(exit_code=FAILURE, output=reason, error={"type": "Rejected", "message": reason})
    name = type(error).__name__
    if isinstance(error, TaskFailed) and not error.task_id and error.kind:  # the handler's own verdict
        return Ending(
            exit_code=FAILURE,
            output=clean(error.message),
            error={
                "type": name,
                "message": clean(error.message),
                "code": error.kind,
                "details": error.facts,
                "retry_after": getattr(error, "retry_after", None),
            },
        )
    message = next(iter(clean(str(error)).strip().splitlines()[-1:]), "")[:LONGEST_MESSAGE]
    text = f"{name}: {message}" if message else name
    return Ending(exit_code=FAILURE, output=text, error={"type": name, "message": message})


def overdue(seconds: float) -> Ending:
    """The handler took longer than it may."""
    message = f"not done within {seconds:g} s"
    return Ending(exit_code=TIMED_OUT, output=message, error={"type": "TimeoutError", "message": message})
