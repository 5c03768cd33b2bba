"""What the hub refused, told to somebody at a terminal: the same facts, in the words of the command line.

The API says what to do in terms of the API. Here its routes become commands, and its fields become options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.cli import escaping
from dragoman.cli.errors import ADVICE, BY_STATUS, CommandError, Exit

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


def told(status: int, problem: Any) -> CommandError:
    """A problem document (RFC 9457) as a sentence; anything else by its status."""
    code = BY_STATUS.get(status, Exit.UNREACHABLE if status >= 500 else Exit.USAGE)
    if not isinstance(problem, Mapping):
        return CommandError(code, f"the hub answered with status {status}", next=ADVICE.get(status))
    payload = problem.get("payload")  # chiffon's own form of a refusal
    said = payload.get("error_message") if isinstance(payload, Mapping) else None
    sentence = str(problem.get("detail") or problem.get("title") or said or f"the hub answered with status {status}")
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
        sentence, next = "what answers there has no such address", "check --hub / DRAGOMAN_URL"
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
