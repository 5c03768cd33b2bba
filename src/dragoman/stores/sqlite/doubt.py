"""Whether a unit is in the database whose writer died before it said so.

Nobody else writes, and a unit is there as a whole or not at all, so one sign of it is enough. A record of the audit
chain is like no other; what a unit added was not there before, and what it removed was. Only of a unit that does
nothing but change rows each is held against what is there: if they are equal, it makes no difference which it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, Heard
from dragoman.core.model.state import Changed, Entity
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.ports import Changes
from dragoman.stores.sqlite import answers, rows, used

BODIES: dict[type[Any], tuple[str, str, Callable[[Any], Any]]] = {
    Agent: ("agent", "id", rows.agent_from),
    Task: ("task", "id", rows.task_from),
    Delivery: ("delivery", "id", rows.delivery_from),
    DeadLetter: ("dead_letter", "id", rows.dead_letter_from),
    Question: ("question", "id", rows.question_from),
    Contract: ("contract", "id", rows.contract_from),
    Entity: ("entity", "id", rows.entity_from),
    Changed: ("changed", "cursor", rows.changed_from),
}
"""Where a row of a kind lies, what it goes by, and how it is read."""


def is_there(connection: apsw.Connection, written: Changes) -> bool:
    """`written`: the changes as the writer was given them, with what is personal shut."""
    if written.audit:
        newest = written.audit[-1]
        found: Any = connection.execute("SELECT body FROM audit WHERE seq = ?", (newest.seq,)).fetchone()
        return found is not None and rows.audit_from(found[0]).hash == newest.hash
    for row in written.added:
        return _kept(connection, row) is not None
    for row in written.removed:
        return _kept(connection, row) is None
    if written.used:
        newest_ids = connection.execute("SELECT messages FROM used ORDER BY until DESC LIMIT 1").fetchone()
        return newest_ids is not None and newest_ids[0] == used.pack(written.used)
    return all(rows.encode(_kept(connection, row)) == rows.encode(row) for row in written.changed)


def _kept(connection: apsw.Connection, row: Any) -> Any:
    """What the database has under the name of this row, or None."""
    kind = type(row)
    if kind is Event:
        no = answers.number(connection, row.task)
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM event WHERE key = ?"
        found = None if no is None else connection.execute(sql, (rows.event_key(no, row.seq),)).fetchone()
        return None if found is None else rows.event_from(row.task, found)
    if kind is Heard:
        found = connection.execute("SELECT id, digest, at FROM heard WHERE id = ?", (row.id,)).fetchone()
        return None if found is None else Heard(id=found[0], digest=found[1], at=found[2])
    table, key, decode = BODIES[kind]
    found = connection.execute(f"SELECT body FROM {table} WHERE {key} = ?", (getattr(row, key),)).fetchone()
    return None if found is None else decode(found[0])
