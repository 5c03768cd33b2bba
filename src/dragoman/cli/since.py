"""`--since`: a list as far back as a time, given as an age (`1h`) or as a moment; and the newest first.

The hub lists tasks, dead letters and contracts from the newest on, so a page is cut where the older ones begin. It
lists questions and audit records from the oldest on; those are turned round here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from cyclopts import Parameter

from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import moment
from dragoman.cli.refusals import LISTS

Since = Annotated[str | None, Parameter(help="Not older than this: an age (90s, 15m, 1h, 2d, 1w), or a UTC time.")]

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
PAGE = 500
MOST = 10_000
"""So many questions are read at most, to turn their order round."""


def begin(since: str | None, now: datetime | None = None) -> datetime | None:
    """The moment from which on things are listed; None if all are."""
    if since is None:
        return None
    age = _AGE.fullmatch(since.strip())
    if age and age[2].lower() in UNITS:
        return (now or datetime.now(UTC)) - timedelta(seconds=float(age[1]) * UNITS[age[2].lower()])
    if not age and (told := moment(since)) is not None:
        return told
    raise CommandError(
        Exit.USAGE,
        f"--since {line(since)!r} is no time",
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


def turned(hub: Hub, what: str, *, limit: int, cursor: str | None, since: str | None, **filters: Any) -> dict[str, Any]:
    """A list that the hub has from the oldest on, from the newest on; its cursor is the last id of a page."""
    if not 1 <= limit <= PAGE:
        raise CommandError(Exit.USAGE, f"--limit: expected 1 to {PAGE}, got {limit}")
    start = begin(since)
    found: list[Mapping[str, Any]] = []
    after = None
    while len(found) < MOST:
        page = hub.get(what, limit=PAGE, cursor=after, **filters)
        found += page.get(what) or ()
        after = page.get("next")
        if not after:
            break
    found = [one for one in found if start is None or _at(one, "created_at") >= start]
    found.sort(key=lambda one: (_at(one, "created_at"), str(one["id"])), reverse=True)
    if cursor is not None:
        ids = [str(one["id"]) for one in found]
        if cursor not in ids:
            raise CommandError(Exit.USAGE, f"--cursor {line(cursor)!r} is no cursor", next=LISTS[what])
        found = found[ids.index(cursor) + 1 :]
    page = found[:limit]
    return {what: page, "next": page[-1]["id"] if page and len(found) > limit else None}


def _at(one: Mapping[str, Any], field: str) -> datetime:
    return moment(one.get(field)) or datetime.max.replace(tzinfo=UTC)
