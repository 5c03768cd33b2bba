"""The last used message ids, each with a hash of its message's content: one row for all of a unit.

They are written in the transaction of the unit that accepted the messages, and read once, at a start: the hub looks
them up in memory. A row is appended, whatever the ids are, so a unit costs one page of a table, not one of an index for
each message (ADR 40). `until` counts the ids, and is the row's key: so the oldest are found without counting rows.

Imported by the writer: the standard library and apsw only.
"""

from __future__ import annotations

from typing import Any

import apsw

from dragoman.stores.layout import PAIR

KEPT = 100_000
"""As many as `core.ports.USED`, at least."""

STEP = 1024
"""Rows that are too old are deleted when so many ids came."""


def read(connection: apsw.Connection) -> dict[int, int]:
    """All of them, the oldest first."""
    found: dict[int, int] = {}
    for (messages,) in connection.execute("SELECT messages FROM used ORDER BY until"):
        found.update(PAIR.iter_unpack(messages))
    return found


class UsedIds:
    """The writer's side: adds rows within its transaction, and deletes old ones."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._until: int | None = None

    def add(self, messages: bytes) -> None:
        before = self._newest() if self._until is None else self._until
        until = self._until = before + len(messages) // PAIR.size
        self._connection.execute("INSERT INTO used (until, messages) VALUES (?, ?)", (until, messages))
        if until // STEP != before // STEP:
            self._connection.execute("DELETE FROM used WHERE until <= ?", (until - KEPT,))

    def _newest(self) -> int:
        found: Any = self._connection.execute("SELECT max(until) FROM used").fetchone()
        return found[0] or 0

    def forget(self) -> None:
        """The transaction was rolled back: read the numbers again."""
        self._until = None
