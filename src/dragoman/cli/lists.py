"""Lists of the hub as a person wants them: not older than `--since`, the newest first, one entry by a part of its id.

The hub lists tasks, dead letters and contracts from the newest on, so a page is cut where the older ones begin. It
lists questions and audit records from the oldest on; those are reversed here.

The hub finds tasks, open questions and dead letters by the beginning of an id. Ids that the hub makes begin with the
time, so what a person remembers is their end, as `trace --sequence` shows it (`…29d7`): that is looked for here, among
the first entries of the hub's lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from dragoman.cli.errors import LISTS, CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import PAGE, Hub
from dragoman.cli.printing import moment

Since = Annotated[str | None, Parameter(help="Not older than this: an age (90s, 15m, 1h, 2d, 1w), or a UTC time.")]

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
MOST_PAGES = 20
"""At most this many pages of questions are read, to reverse their order."""
WHOLE = 36
"""Characters of an id that the hub made."""
SHORTEST = 4
PAGES = 4
"""At most this many pages of a list are searched for the end of an id."""
SHOWN = 5
NOUNS = {"tasks": "task", "questions": "question", "deadletters": "dead letter", "contracts": "contract"}

T = TypeVar("T")


def begin(since: str | None, now: datetime | None = None) -> datetime | None:
    """The moment from which on things are listed; None if all are."""
    if since is None:
        return None
    age = _AGE.fullmatch(since.strip())
    if age and age[2].lower() in UNITS:
        return (now or datetime.now(UTC)) - timedelta(seconds=float(age[1]) * UNITS[age[2].lower()])
    if not age and (at := moment(since)) is not None:
        return at
    raise CommandError(
        Exit.USAGE,
        f"--since {line(since)!r} is not a time",
        next="write an age (90s, 15m, 1h, 2d, 1w) or 2026-01-31T09:00",
    )


def cut(answer: dict[str, Any], key: str, field: str, since: str | None) -> dict[str, Any]:
    """A page that is ordered from the newest on, without what is older; where the older ones begin there is no next."""
    start = begin(since)
    if start is None:
        return answer
    items = answer.get(key) or []
    young = [one for one in items if _at(one, field) >= start]
    return {**answer, key: young, "next": answer.get("next") if len(young) == len(items) else None}


def newest_first(
    hub: Hub, what: str, *, limit: int, cursor: str | None, since: str | None, **filters: Any
) -> dict[str, Any]:
    """A list that the hub has from the oldest on, from the newest on; its cursor is the last id of a page."""
    if not 1 <= limit <= PAGE:
        raise CommandError(Exit.USAGE, f"--limit: expected 1 to {PAGE}, got {limit}")
    start = begin(since)
    found = [
        one for one in hub.pages(what, most=MOST_PAGES, **filters) if start is None or _at(one, "created_at") >= start
    ]
    found.sort(key=lambda one: (_at(one, "created_at"), str(one["id"])), reverse=True)
    if cursor is not None:
        ids = [str(one["id"]) for one in found]
        if cursor not in ids:
            raise CommandError(Exit.USAGE, f"--cursor {line(cursor)!r} is not a cursor of this list", next=LISTS[what])
        found = found[ids.index(cursor) + 1 :]
    page = found[:limit]
    return {what: page, "next": page[-1]["id"] if page and len(found) > limit else None}


def _at(one: Mapping[str, Any], field: str) -> datetime:
    return moment(one.get(field)) or datetime.max.replace(tzinfo=UTC)


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
    low = part.lower()
    ids = ((str(one.get("id")).lower(), one) for one in hub.pages(what, most=PAGES))
    matches = [one for id, one in ids if id.startswith(low) or id.endswith(low)]
    if not matches:
        raise missing
    if len(matches) > 1:
        raise CommandError(Exit.USAGE, _several(what, part, matches), next=LISTS[what])
    return ask(str(matches[0]["id"]))


def post(hub: Hub, what: str, typed: str, verb: str, body: Mapping[str, Any] | None = None) -> Any:
    """The hub's answer to a change of the thing that is meant."""
    return meant(hub, what, typed, lambda whole: hub.post(what, whole, verb, body=body))


def whole(hub: Hub, what: str, typed: str) -> str:
    """The whole id of the thing that is meant; one that is whole is not asked for."""
    return typed if len(typed) >= WHOLE else str(found(hub, what, typed).get("id") or typed)


def _several(what: str, part: str, matches: list[Mapping[str, Any]]) -> str:
    shown = [f"\n  - {_summary(one)}" for one in matches[:SHOWN]]
    more = [f"\n  - and {len(matches) - SHOWN} more"] if len(matches) > SHOWN else []
    return "".join((f"{len(matches)} {NOUNS[what]}s begin or end with {line(part)!r}:", *shown, *more))


def _summary(one: Mapping[str, Any]) -> str:
    facts = (one.get(name) for name in ("id", "type", "intent", "question", "status", "standing", "receiver"))
    return "  ".join(line(str(fact)[:60]) for fact in facts if fact)
