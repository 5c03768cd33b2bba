"""How a command ends: the exit codes, the one exception that carries them to `main`, and the hub's refusals as such.

A problem of the API says what went wrong (`message`), why (`reason`) and what to do next (`next`); only what concerns
the command's own environment is added here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from dragoman.cli import escaping

BETWEEN = "   ·   "
"""Between two commands that may come next."""


class Exit(enum.IntEnum):
    OK = 0
    FAILED = 1  # the task failed; also a check that failed (`audit verify`, `doctor`)
    USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4  # no or a wrong token, or the state of things does not allow it
    UNREACHABLE = 5  # no hub there, or it cannot take anything now
    TIMEOUT = 6


BY_STATUS = {
    400: Exit.USAGE,
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    405: Exit.USAGE,
    408: Exit.TIMEOUT,
    409: Exit.NOT_ALLOWED,
    410: Exit.NOT_FOUND,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
    429: Exit.UNREACHABLE,
    504: Exit.TIMEOUT,
}
"""What an HTTP status of the hub means for the command; anything else from 500 on is UNREACHABLE."""

ADVICE = {
    401: "set DRAGOMAN_TOKEN to the hub's admin token (it is in admin.token of its data directory)",
    429: "wait a moment, then try again",
    503: "the hub is stopping or cannot write: look at its log, then try again",
}
"""What to do about a status that is about the command's credential or the hub's load."""

CHECK_URL = "check --hub / DRAGOMAN_URL"


class CommandError(Exception):
    """The command ends here: with a sentence for stderr, what to do next, and an exit code."""

    def __init__(self, code: Exit, sentence: str, *, next: str | None = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.next = next


class NotAHub(CommandError):
    """Another program answers where a hub was expected."""

    def __init__(self, url: str) -> None:
        sentence = f"the server at {url} is not a Dragoman hub"
        super().__init__(Exit.UNREACHABLE, sentence, next=CHECK_URL)


LISTS = {
    "agents": "dragoman agent ls",
    "tasks": "dragoman task ls",
    "questions": "dragoman ask ls --status all",
    "deadletters": "dragoman dlq ls",
    "contracts": "dragoman contract ls",
}
"""How to list what there is, where a command finds out by itself that something is missing."""


def from_problem(status: int, problem: Any) -> CommandError:
    """A problem document (RFC 9457) as a sentence; anything else by its status."""
    code = BY_STATUS.get(status, Exit.UNREACHABLE if status >= 500 else Exit.USAGE)
    if not isinstance(problem, Mapping):
        return CommandError(code, f"the hub answered with status {status}", next=ADVICE.get(status))
    if problem.get("reason") == "no_route":
        return CommandError(code, "the server at this URL does not have this address", next=CHECK_URL)
    field = escaping.line(problem.get("field") or "")
    sentence = escaping.line(_message(problem) or f"the hub answered with status {status}")
    if field and problem.get("reason") == "invalid_query":
        sentence = f"--{field}: {sentence}"
    elif field and problem.get("reason") == "invalid_body":
        sentence = f"{field}: {sentence}"
    elif field:
        sentence = f"{sentence} (field {field})"
    return CommandError(code, sentence, next=_next(problem, status))


def _message(problem: Mapping[str, Any]) -> object:
    payload = problem.get("payload")  # chiffon's form of a refusal
    refusal = payload.get("error_message") if isinstance(payload, Mapping) else None
    return problem.get("message") or problem.get("detail") or problem.get("title") or refusal


def _next(problem: Mapping[str, Any], status: int) -> str | None:
    """The command that the hub recommends, or its advice where no command does it."""
    advice = problem.get("next")
    if status in ADVICE or not isinstance(advice, Mapping):
        return ADVICE.get(status)
    return escaping.line(advice.get("command") or advice.get("text") or "") or None
