"""Records as the hub sends them to the writer.

This is on the hub's hot path, for every row there is: a kind of record is encoded in one call where it can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.core.ids import TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, SeenMessage
from dragoman.core.model.people import Person
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.ports import Changes
from dragoman.stores import layout
from dragoman.stores.records import Number, by_table, encode, event_key
from dragoman.stores.sqlite import frames

EVENT_COLUMNS = "key, at, kind, agent, CAST(body AS BLOB), protocol, raw, personal"


def pack(changes: Changes, number: Number, new: dict[TaskId, int]) -> list[tuple[Any, ...]]:
    """The operations that write these changes. `new` has the numbers of the added tasks, in their order;
    `number` knows those of all others."""
    operations: list[tuple[Any, ...]] = []
    if changes.removed:
        for table, rows in by_table(changes.removed).items():
            if table is Task:
                operations.append((frames.TASKS_REMOVED, [_removed(row, number(row.id)) for row in rows]))
            else:
                operations.append((frames.ROWS, *REMOVERS[table](rows, number)))
    for step, changed in ((0, changes.added), (1, changes.changed)):
        if not changed:
            continue
        for table, rows in by_table(changed).items():
            if table is Task:
                numbers = [number(row.id) for row in rows] if step else list(new.values())
                operations.append((frames.TASKS_ADDED + step, numbers, encode(rows)))
            elif table is Delivery:
                operations.append((frames.DELIVERIES_ADDED + step, encode(rows)))
            else:
                first, parameters = BUILDERS[table]
                operations.append((frames.ROWS, first + step, parameters(rows, number)))
    if changes.audit:
        operations.append((frames.AUDIT, encode(changes.audit)))
    if changes.used:
        operations.append((frames.USED, layout.pack(changes.used)))
    if changes.forget > 0:
        operations.append((frames.FORGET, changes.forget))
    return operations


def _removed(task: Task, no: int) -> tuple[Any, ...]:
    under = None if task.agreement.contract is None else (task.agreement.contract, task.id)
    return no, (*task.lineage.dependencies, *task.lineage.blocked_by), [file.id for file in task.output.files], under


def _events(rows: list[Event], number: Number) -> list[tuple[Any, ...]]:
    return [
        (
            event_key(number(row.task), row.seq),
            row.at,
            row.kind,
            row.agent,
            memoryview(row.body),
            row.protocol,
            row.raw,
            row.personal or None,
        )
        for row in rows
    ]


def _agents(rows: list[Agent], _: Number) -> list[tuple[Any, ...]]:
    return [(row.id, row.wake_at, encode(row)) for row in rows]


def _people(rows: list[Person], _: Number) -> list[tuple[Any, ...]]:
    return [(row.id, encode(row)) for row in rows]


def _series(rows: list[SeriesRow], _: Number) -> list[tuple[Any, ...]]:
    return [(row.step, row.at, memoryview(row.body)) for row in rows]


def _dead_letters(rows: list[DeadLetter], _: Number) -> list[tuple[Any, ...]]:
    return [(row.id, row.task, encode(row)) for row in rows]


def _questions(rows: list[Question], _: Number) -> list[tuple[Any, ...]]:
    return [(row.id, row.task or "", row.status, row.wake_at, encode(row)) for row in rows]


def _contracts(rows: list[Contract], _: Number) -> list[tuple[Any, ...]]:
    return [
        (row.id, row.collaboration, row.created_at, row.source.agent, row.target.agent, encode(row)) for row in rows
    ]


def _seen_messages(rows: list[SeenMessage], _: Number) -> list[tuple[Any, ...]]:
    return [(row.id, row.digest, row.at) for row in rows]


def _entities(rows: list[Entity], _: Number) -> list[tuple[Any, ...]]:
    return [(row.id, row.registry, row.name, encode(row)) for row in rows]


def _changed(rows: list[Changed], _: Number) -> list[tuple[Any, ...]]:
    return [(row.cursor, encode(row)) for row in rows]


BUILDERS: dict[type[Any], tuple[int, Callable[[Any, Number], list[tuple[Any, ...]]]]] = {
    Event: (frames.EVENT, _events),
    Agent: (frames.AGENT, _agents),
    Person: (frames.PERSON, _people),
    SeriesRow: (frames.SERIES, _series),
    DeadLetter: (frames.DEAD_LETTER, _dead_letters),
    Question: (frames.QUESTION, _questions),
    Entity: (frames.ENTITY, _entities),
    SeenMessage: (frames.SEEN, _seen_messages),
    Contract: (frames.CONTRACT, _contracts),
    Changed: (frames.CHANGED, _changed),
}

REMOVERS: dict[type[Any], Callable[[Any, Number], tuple[int, list[tuple[Any, ...]]]]] = {
    Event: lambda rows, number: (frames.EVENT + 2, [(event_key(number(row.task), row.seq),) for row in rows]),
    Delivery: lambda rows, _: (frames.DELIVERY_REMOVED, [(row.id,) for row in rows]),
    Agent: lambda rows, _: (frames.AGENT + 2, [(row.id,) for row in rows]),
    Person: lambda rows, _: (frames.PERSON + 2, [(row.id,) for row in rows]),
    DeadLetter: lambda rows, _: (frames.DEAD_LETTER + 2, [(row.id,) for row in rows]),
    Question: lambda rows, _: (frames.QUESTION + 2, [(row.id,) for row in rows]),
    Contract: lambda rows, _: (frames.CONTRACT + 2, [(row.id,) for row in rows]),
    SeenMessage: lambda rows, _: (frames.SEEN + 2, [(row.id,) for row in rows]),
    Entity: lambda rows, _: (frames.ENTITY + 2, [(row.id,) for row in rows]),
    Changed: lambda rows, _: (frames.CHANGED + 2, [(row.cursor,) for row in rows]),
}
