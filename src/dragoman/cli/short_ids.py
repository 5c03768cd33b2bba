"""A thing by a part of its id: its beginning, or its end, where that means one thing only.

The hub finds tasks, open questions and dead letters by the beginning of an id. Ids that the hub makes begin with the
time, so what a person remembers is their end, as `trace --sequence` shows it (`…29d7`): that is looked for here, among
the first things of the hub's lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.refusals import LISTS

T = TypeVar("T")

WHOLE = 36
"""Characters of an id that the hub made."""
SHORTEST = 4
PAGE = 500
PAGES = 4
"""So many pages of a list are looked through."""
SHOWN = 5

NOUNS = {"tasks": "task", "questions": "question", "deadletters": "dead letter", "contracts": "contract"}


def found(hub: Hub, what: str, typed: str) -> Any:
    """The thing that is meant."""
    return meant(hub, what, typed, lambda whole: hub.get(what, whole))


def meant(hub: Hub, what: str, typed: str, ask: Callable[[str], T]) -> T:
    """What `ask` gets of the thing that is meant: by what was typed, or where the hub finds nothing by that, by the
    whole id. Raises `CommandError` if there is no such thing, or if there are several, with the first of them."""
    part = typed.lstrip("…").strip()
    try:
        if part == typed:
            return ask(typed)
    except CommandError as failure:
        if failure.code is not Exit.NOT_FOUND or not SHORTEST <= len(part) < WHOLE:
            raise
        missing = failure
    else:
        missing = CommandError(Exit.NOT_FOUND, f"no {NOUNS[what]} ends with {line(part)!r}", next=LISTS[what])
    matches = [one for one in _newest(hub, what) if _is_meant(str(one.get("id")), part)]
    if not matches:
        raise missing
    if len(matches) > 1:
        raise CommandError(Exit.USAGE, _several(what, part, matches), next=LISTS[what])
    return ask(str(matches[0]["id"]))


def whole(hub: Hub, what: str, typed: str) -> str:
    """The whole id of the thing that is meant; one that is whole is not asked for."""
    return typed if len(typed) >= WHOLE else str(found(hub, what, typed).get("id") or typed)


def _is_meant(id: str, part: str) -> bool:
    return id.lower().startswith(part.lower()) or id.lower().endswith(part.lower())


def _newest(hub: Hub, what: str) -> Iterator[Mapping[str, Any]]:
    cursor = None
    for _ in range(PAGES):
        page = hub.get(what, limit=PAGE, cursor=cursor)
        yield from page.get(what) or ()
        cursor = page.get("next")
        if not cursor:
            return


def _several(what: str, part: str, matches: list[Mapping[str, Any]]) -> str:
    shown = [f"\n  - {_summary(one)}" for one in matches[:SHOWN]]
    more = [f"\n  - and {len(matches) - SHOWN} more"] if len(matches) > SHOWN else []
    return "".join((f"{len(matches)} {NOUNS[what]}s begin or end with {line(part)!r}:", *shown, *more))


def _summary(one: Mapping[str, Any]) -> str:
    facts = (one.get(name) for name in ("id", "type", "intent", "question", "status", "standing", "receiver"))
    return "  ".join(line(str(fact)[:60]) for fact in facts if fact)
