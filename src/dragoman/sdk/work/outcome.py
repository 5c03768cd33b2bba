"""How a handler's end becomes an outcome.

    the handler            exit_code   output                          result
    ---------------------  ----------  ------------------------------  -----------------
    returns a str          0           the text                        -; of an empty one, `""`
    returns None           0           empty                           -
    returns anything else  0           its JSON, for callers that      the same, as JSON
                                       reads text
    after task.text()      0           all of that, joined             the same, as JSON
    raises task.reject()   1           the reason                      -
    raises Retry, too      1           the reason                      -
    often
    raises a CallFailed    1           its message, and its code       -
    raises anything        1           the last line of the traceback  -
    takes too long         124         how long it took                -

The traceback itself goes only to the agent's own log: it may hold data that others must not see.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import msgspec

from dragoman.messages.tasks import Failure, Result
from dragoman.sdk.errors import Reject, Retry, TaskFailed
from dragoman.sdk.messages import failure
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError

TIMED_OUT = 124
"""The exit code of timeout(1)."""

LARGEST_RESULT = 4 * 1024 * 1024
LONGEST_MESSAGE = 4_000
READABLE = guard.Limits(bytes=LARGEST_RESULT, depth=56, containers=99_000)
"""The limits of a result that every hub reads, with room for the envelope around it."""


def _itself(value: Any) -> Any:
    """Encodes types that msgspec does not know: models of pydantic and similar ones have a method for it."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encode = msgspec.json.Encoder(enc_hook=_itself).encode


def clean(text: str) -> str:
    """Text that can be written down and sent: half a character (a lone surrogate) becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def text_of(what: str, text: Any) -> str:
    """Text of a handler; raises `TypeError` for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is text, not {type(text).__name__}")
    return clean(text)


def encoded(what: str, value: Any) -> bytes:
    """The JSON of a handler's data; raises if it has none that every protocol can carry."""
    try:
        data = _encode(value)
        if len(data) > LARGEST_RESULT:
            raise ValueError(
                f"{what} has {len(data)} bytes, more than the {LARGEST_RESULT} that travel in one piece;"
                " return text, which is split, or store it and return where"
            )
        guard.check(data, READABLE)
    except TypeError as error:
        raise TypeError(f"{what} cannot be sent: {error}") from None
    except RemoteProtocolError as error:
        place = f" at {error.field}" if error.field else ""
        raise ValueError(f"{what} cannot be sent: {error.what}{place}") from None
    return data


def data_of(what: str, value: Any) -> Any:
    """A handler's data as plain JSON."""
    return msgspec.json.decode(encoded(what, value))


def returned(value: Any) -> Result:
    """The outcome of a handler that returned this."""
    if value is None:
        return Result(exit_code=0)
    if isinstance(value, str):
        if not value:  # only the result tells it from None
            return Result(exit_code=0, result=msgspec.Raw(b'""'))
        return Result(exit_code=0, output=clean(value))
    if inspect.iscoroutine(value):
        value.close()
        return raised(TypeError("the handler returned a coroutine: declare it, and what decorates it, with async def"))
    try:
        data = encoded("the result", value)
    except (TypeError, ValueError) as error:  # else the hub would refuse the outcome, and the task would never end
        return raised(error)
    return Result(exit_code=0, output=data.decode(), result=msgspec.Raw(data))


def raised(error: BaseException) -> Failure:
    """The outcome of a handler that raised this."""
    if isinstance(error, Reject):
        reason = clean(error.reason)
        return failure(reason, {"type": "Rejected", "message": reason})
    if isinstance(error, Retry):
        reason = clean(str(error))
        return failure(reason, {"type": "Retry", "message": reason})
    name = type(error).__name__
    if isinstance(error, TaskFailed) and not error.task_id and error.code:  # the handler chose the error code
        try:
            details = data_of("the details of an error", error.facts)
        except (TypeError, ValueError, RecursionError) as unfit:
            details = {"details": clean(str(unfit))}
        message = clean(error.message)
        retry_after = getattr(error, "retry_after", None)
        return failure(
            message,
            {"type": name, "message": message, "code": error.code, "details": details, "retry_after": retry_after},
        )
    try:
        text = clean(str(error))
    except Exception:  # an exception whose __str__ fails
        text = ""
    message = next(iter(text.strip().splitlines()[-1:]), "")[:LONGEST_MESSAGE]
    return failure(f"{name}: {message}" if message else name, {"type": name, "message": message})


def error_text(error: BaseException) -> str:
    """One line about an exception, for people."""
    return raised(error).output or ""


def overdue(seconds: float) -> Failure:
    """The outcome of a handler that took too long."""
    message = f"not done within {seconds:g} s"
    return failure(message, {"type": "TimeoutError", "message": message}, exit_code=TIMED_OUT)
