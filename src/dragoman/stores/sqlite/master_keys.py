"""Under which master keys something in this store, or beside it, is sealed: one row for each key.

The row is written in the commit that first brings something sealed, so a copy of the store says which key it needs. A
key is named by the first 12 characters of what it sealed, as base64: the version of the format and the key's id
(`security.masterkey`). `given_up`: a person declared this key lost; what it sealed stays encrypted.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Protocol

import apsw

FOUND = """
    SELECT substr(body, 2, 12) AS id FROM event WHERE personal
    UNION SELECT substr(json_extract(body, '$.shut'), 1, 12) FROM task
    UNION SELECT substr(json_extract(body, '$.letter.body'), 1, 12) FROM delivery
        WHERE json_extract(body, '$.letter.personal')
    UNION SELECT substr(json_extract(body, '$.letter.body'), 1, 12) FROM dead_letter
        WHERE json_extract(body, '$.letter.personal')
    UNION SELECT substr(json_extract(body, '$.details.sealed'), 1, 12) FROM question
        WHERE json_extract(body, '$.personal')
    UNION SELECT replace(replace(substr(json_extract(body, '$.secret.locked'), 1, 12), '-', '+'), '_', '/')
        FROM contract
"""
"""The keys that sealed the rows of a store from before this table. It reads every row: once, in a migration."""


class KeyHolder(Protocol):
    """The holder of the master keys (`app.keys.DataVault`)."""

    @property
    def in_use(self) -> str | None:
        """The id of the key that seals now; None before the first use of a key."""
        ...

    def check(self, sealed: Collection[str], given_up: Collection[str]) -> None:
        """Raises `StoreRefused` if something is sealed under a key that is not there."""
        ...


def keys(connection: apsw.Connection) -> tuple[frozenset[str], frozenset[str]]:
    """The ids of the keys that something is sealed under, and of those that were given up. Reads stores of older
    versions, too."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if "master_key" in tables:
        rows = connection.execute("SELECT id, given_up FROM master_key").fetchall()
    elif {"event", "task", "delivery", "dead_letter", "question", "contract"} <= tables:
        rows = [(id, None) for (id,) in connection.execute(FOUND)]
    else:
        rows = []
    found = [(id_of(str(label)), bool(gone)) for label, gone in rows if label]
    return frozenset(id for id, gone in found if not gone), frozenset(id for id, gone in found if gone)


def give_up(connection: apsw.Connection, ids: Collection[str]) -> None:
    with connection:
        connection.executemany(
            "INSERT INTO master_key (id, given_up) VALUES (?1, 1) ON CONFLICT DO UPDATE SET given_up = 1",
            [(label_of(id),) for id in ids],
        )


def id_of(label: str) -> str:
    return base64.b64decode(label)[1:].hex()


def label_of(id: str) -> str:
    return base64.b64encode(b"\x01" + bytes.fromhex(id)).decode()
