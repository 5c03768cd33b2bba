"""How a command ends: the exit codes, and the one exception that carries them to `main`."""

from __future__ import annotations

import enum

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


class CommandError(Exception):
    """The command ends here: with a sentence for stderr, what to do next, and an exit code."""

    def __init__(self, code: Exit, sentence: str, *, next: str | None = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.next = next
