"""How a command ends: the exit codes, the one exception that carries them to `main`, and the hub's refusals as such.

The API says what to do in terms of the API. Here its routes become commands, and its fields become options.
"""

from __future__ import annotations

import enum
import re
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
        super().__init__(Exit.UNREACHABLE, sentence, next="check --hub / DRAGOMAN_URL")


LISTS = {
    "agents": "dragoman agent ls",
    "tasks": "dragoman task ls",
    "questions": "dragoman ask ls --status all",
    "deadletters": "dragoman dlq ls",
    "contracts": "dragoman contract ls",
    "policies/domains": "dragoman policy ls",
}
"""Where to look for what is not there."""

SHOWN = {"tasks": "dragoman task show", "contracts": "dragoman contract show"}
"""How to look at one whose state stands in the way."""

_ABOUT = re.compile(r"/api/v1/(?P<what>[a-z]+)(?:/(?P<id>[^/]+))?")
_LISTED = re.compile(r"\.? List them with GET /api/v1/([a-z/]+)\.")
_SHAPE = re.compile(r"(?P<where>Query|Body): (?P<what>.*?)\.? Correct the message and send it again\.\Z", re.DOTALL)
_AGAIN = " Correct the message and send it again."
_TOKEN = re.compile(r"POST /api/v1/agents/([^/\s]+)/token")
_BEARER = re.compile(r" Send the admin token as `[^`]*`\.\Z")
_UNKNOWN = " Look at GET /openapi.json for what there is."


def from_problem(status: int, problem: Any) -> CommandError:
    """A problem document (RFC 9457) as a sentence; anything else by its status."""
    code = BY_STATUS.get(status, Exit.UNREACHABLE if status >= 500 else Exit.USAGE)
    if not isinstance(problem, Mapping):
        return CommandError(code, f"the hub answered with status {status}", next=ADVICE.get(status))
    payload = problem.get("payload")  # chiffon's own form of a refusal
    message = payload.get("error_message") if isinstance(payload, Mapping) else None
    sentence = str(problem.get("detail") or problem.get("title") or message or f"the hub answered with status {status}")
    field, next = problem.get("field"), ADVICE.get(status)
    if status == 409:
        next = _look(str(problem.get("instance") or ""))
    elif problem.get("kind") == "unavailable" and field:  # it is about whom was asked for, not about the hub
        next = LISTS["agents"]
    elif status == 404:
        next = _list(problem)
    facts = problem.get("facts")
    if isinstance(facts, Mapping) and isinstance(matches := facts.get("matches"), list):
        sentence = f"{sentence.removesuffix('.')}, as in {', '.join(map(str, matches))}"
        next = _list(problem)
    if sentence.endswith(_UNKNOWN):
        sentence, next = "the server at this URL does not have this address", "check --hub / DRAGOMAN_URL"
    sentence = _TOKEN.sub(r"`dragoman agent token \1`", _BEARER.sub("", sentence))
    if listed := _LISTED.search(sentence):
        what, more = sentence[: listed.start()], sentence[listed.end() :]
        sentence, next = f"{what}.{more}" if more else what, LISTS.get(listed[1], next)
    elif (shape := _SHAPE.match(sentence)) and field:
        name = f"--{field}" if shape["where"] == "Query" else field
        sentence, field = f"{name}: {shape['what'][:1].lower()}{shape['what'][1:]}", None
    sentence = escaping.line(sentence.removesuffix(_AGAIN))
    return CommandError(code, f"{sentence} (field {escaping.line(field)})" if field else sentence, next=next)


def _list(problem: Mapping[str, Any]) -> str | None:
    """The command that lists what there is of the sort that was asked for."""
    about = _ABOUT.match(str(problem.get("instance") or ""))
    return None if about is None else LISTS.get(about["what"])


def _look(instance: str) -> str | None:
    """Where to see what stands in the way."""
    about = _ABOUT.match(instance)
    if about is None:
        return None
    if about["id"] and (show := SHOWN.get(about["what"])):
        return f"{show} {escaping.line(about['id'])}"
    return LISTS.get(about["what"])
