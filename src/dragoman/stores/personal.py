"""Personal data at rest: what a personal event says is kept encrypted, and whoever has only the file reads nothing.

The key is not in the store (`core.ports.Vault`). Without one, nothing personal is taken, and what is there stays shut.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.core.lookups import Row
from dragoman.core.ports import Changes, StoreFailed, Vault
from dragoman.core.tasks.model import Event

SHUT = msgspec.Raw(b'{"personal":true}')
"""What is shown of it without a key."""


def shut(changes: Changes, vault: Vault | None) -> Changes:
    """The changes as they are written."""
    if not any(type(row) is Event and row.personal for row in changes.added):
        return changes
    return msgspec.structs.replace(changes, added=[_shut(row, vault) for row in changes.added])


def opened(rows: Sequence[Event], vault: Vault | None) -> list[Event]:
    """Events as they are read."""
    return [_opened(row, vault) if row.personal else row for row in rows]


def _shut(row: Row, vault: Vault | None) -> Row:
    if type(row) is not Event or not row.personal:
        return row
    if vault is None:
        raise StoreFailed("there is no key to keep personal data with; start the hub with its master key")
    body = msgspec.json.encode(vault.lock(bytes(row.body), _about(row, "body")))
    raw = None if row.raw is None else vault.lock(row.raw, _about(row, "raw"))
    return msgspec.structs.replace(row, body=msgspec.Raw(body), raw=raw)


def _opened(row: Event, vault: Vault | None) -> Event:
    if vault is None:
        return msgspec.structs.replace(row, body=SHUT, raw=None)
    body = vault.unlock(msgspec.json.decode(row.body, type=bytes), _about(row, "body"))
    raw = None if row.raw is None else vault.unlock(row.raw, _about(row, "raw"))
    return msgspec.structs.replace(row, body=msgspec.Raw(body), raw=raw)


def _about(row: Event, part: str) -> dict[str, str]:
    return {"task": row.task, "seq": str(row.seq), "part": part}
