"""The changes of a unit as the arguments of the function that commits it (`functions`).

This is on the hub's hot path, for every row there is: one pass for each column of each hot table.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.contracts import Contract, Standing
from dragoman.core.model.deliveries import DeadLetter, Delivery, DeliveryState, MessageKind, SeenMessage
from dragoman.core.model.people import Person
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.ports import Changes
from dragoman.stores.layout import LEASED, POLLED, WAITING_HEAD
from dragoman.stores.postgres.functions import HOT, RARE
from dragoman.stores.postgres.names import written
from dragoman.stores.records import Number, by_table, encode, event_key
from dragoman.stores.shared import search_text, search_words

LONGEST_WORD = 64
"""Longer words are found by their beginnings of so many characters."""
MOST_WORDS = 10_000

Columns = list[list[Any]]

EMPTY: dict[tuple[str, str], Columns] = {(table, step): [[] for _ in columns] for table, step, columns in HOT}


def pack(changes: Changes, number: Number, key: str | None = None) -> tuple[list[Any], list[Any]]:
    """The audit chain, its newest hash, what to forget and the rare rows; and all arrays. `number` knows the numbers of
    all tasks. `key`: a master key that the store is to record."""
    arrays = dict(EMPTY)
    rare: dict[str, list[dict[str, Any]]] = {}
    for step, rows in (("removed", changes.removed), ("added", changes.added), ("changed", changes.changed)):
        if not rows:
            continue
        for kind, found in by_table(rows).items():
            name = TABLES[kind]
            if kind is Task:
                numbers = [number(row.id) for row in found]
                arrays[name, step] = [numbers] if step == "removed" else tasks(numbers, found)
                if step == "added":
                    arrays["words", step] = [numbers, [words_of(row) for row in found]]
                for row, no in zip(found, numbers, strict=True):
                    _pair(row, no, step, rare)
            elif kind is Delivery:
                arrays[name, step] = [_texts(found, "id")] if step == "removed" else deliveries(found)
            elif kind is SeriesRow:
                rare["series_added"] = [{"step": r.step, "at": r.at, "body": _text(r.body)} for r in found]
            elif step == "added" and kind in ADDED:
                arrays[name, step] = ADDED[kind](found, number)
            else:
                rare[f"{name}_{step}"] = _rare(kind, name, step, found, number)
    if key is not None:
        rare["master_key_added"] = [{"id": key}]
    audit = changes.audit
    chain = newest = None
    if audit:
        arrays["audit", "added"] = _audit(audit)
        chain, newest = audit[-1].chain, audit[-1].hash
    if rare_texts := _changed_texts(changes):
        arrays["words", "added"] = [
            [*arrays["words", "added"][0], *(number(id) for id, _ in rare_texts)],
            [*arrays["words", "added"][1], *(text for _, text in rare_texts)],
        ]
    packed = encode(rare).decode() if rare else None
    flat = [column for table, step, _ in HOT for column in arrays[table, step]]
    return [chain, newest, changes.forget, packed], flat


def words_of(task: Task) -> str:
    """What can be found of a task, as its distinct words: letters and digits only, as `tsvector` reads them."""
    words = {word[:LONGEST_WORD] for word in search_words(search_text(task))}
    return " ".join(list(words)[:MOST_WORDS] if len(words) > MOST_WORDS else words)


def _changed_texts(changes: Changes) -> list[tuple[Any, str]]:
    """Of the changed tasks, only those with an error can be found by other words than before."""
    return [(row.id, words_of(row)) for row in changes.changed if type(row) is Task and row.outcome.fault is not None]


_task_columns = attrgetter(
    "id", "origin.principal", "origin.request_id", "created_at", "status", "type", "owner", "lineage.parent", "queue",
    "rank", "wake_at", "origin.protocol", "origin.bytes",
)  # fmt: skip


def tasks(numbers: list[int], rows: list[Task]) -> Columns:
    ids, principals, requests, created, status, types, owners, parents, queues, ranks, wakes, protocols, sizes = (
        list(column) for column in zip(*map(_task_columns, rows), strict=True)
    )
    bodies = [str(encode(row), "utf-8") for row in rows]
    return [
        numbers, _names(ids), _names(principals), _names(requests), created, status, _names(types), _names(owners),
        _names(parents), _names(queues), ranks, wakes, protocols, sizes, bodies,
    ]  # fmt: skip


_delivery_columns = attrgetter("id", "task", "receiver", "seq", "rank", "wake_at")


def deliveries(rows: list[Delivery]) -> Columns:
    ids, tasks, receivers, seqs, ranks, wakes = (
        list(column) for column in zip(*map(_delivery_columns, rows), strict=True)
    )
    slots: list[int | None] = []
    senders: list[str | None] = []
    sizes: list[int | None] = []
    for row in rows:
        if row.state is DeliveryState.LEASED:
            slots.append(LEASED if row.ordered or row.wake_at is None else POLLED)
        else:
            slots.append(WAITING_HEAD if row.head else None)
        if row.direct_message is not None and row.kind is MessageKind.DIRECT_MESSAGE:
            senders.append(written(row.direct_message.sender))
            sizes.append(row.size)
        else:
            senders.append(None)
            sizes.append(None)
    bodies = [str(encode(row), "utf-8") for row in rows]
    return [_names(ids), _names(tasks), _names(receivers), seqs, ranks, slots, wakes, senders, sizes, bodies]


def _events(rows: list[Event], number: Number) -> Columns:
    keys = [event_key(number(row.task), row.seq) for row in rows]
    return [
        keys,
        [row.at for row in rows],
        [row.kind for row in rows],
        _names([row.agent for row in rows]),
        [_text(row.body) for row in rows],
        _names([row.protocol for row in rows]),
        [row.raw for row in rows],
        [row.personal or None for row in rows],
    ]


def _seen_messages(rows: list[SeenMessage], _: Number) -> Columns:
    return [_texts(rows, "id"), _texts(rows, "digest"), [row.at for row in rows]]


def _changed(rows: list[Changed], _: Number) -> Columns:
    return [[row.cursor for row in rows], [str(encode(row), "utf-8") for row in rows]]


def _audit(rows: Sequence[AuditRecord]) -> Columns:
    return [
        [row.seq for row in rows],
        _texts(rows, "principal"),
        _texts(rows, "subject"),
        [row.outcome for row in rows],
        [str(encode(row), "utf-8") for row in rows],
    ]


def _names(names: list[Any]) -> list[Any]:
    """The names as PostgreSQL can hold them. Hardly any has a NUL, so all are looked at in one go."""
    try:
        joined = "".join(filter(None, names))
    except TypeError:
        joined = "\x00"
    return names if "\x00" not in joined and "\x01" not in joined else [written(name) for name in names]


def _texts(rows: Sequence[Any], field: str) -> list[Any]:
    return _names([getattr(row, field) for row in rows])


def _text(body: msgspec.Raw) -> str:
    return str(memoryview(body), "utf-8")


def _pair(task: Task, no: int, step: str, rare: dict[str, list[dict[str, Any]]]) -> None:
    """The pairs of a task: with its dependencies while it is unfinished, with its files and contract always."""
    lineage, gone = task.lineage, step == "removed"
    if lineage.dependencies or lineage.blocked_by:
        pairs = rare.setdefault("blocked_removed" if gone or task.final else "blocked_added", [])
        needed = {*lineage.dependencies, *lineage.blocked_by}
        pairs += [{"dependency": written(dependency), "no": no} for dependency in needed]
    if task.output.files:
        pairs = rare.setdefault("attached_removed" if gone else "attached_added", [])
        pairs += [{"file": written(file.id), "no": no} for file in task.output.files]
    if task.agreement.contract is not None:
        pairs = rare.setdefault("under_removed" if gone else "under_added", [])
        pairs.append({"contract": written(task.agreement.contract), "task": written(task.id)})


def _rare(kind: type[Any], table: str, step: str, rows: list[Any], number: Number) -> list[dict[str, Any]]:
    found: list[list[Any]]
    if kind is Event and step == "removed":
        found = [[event_key(number(row.task), row.seq)] for row in rows]
    elif kind is Event:
        given = zip(*_events(rows, number), strict=True)
        found = [[_base64(value) if type(value) is bytes else value for value in row] for row in given]
    elif kind is Changed:
        found = [[row.cursor, str(encode(row), "utf-8")] for row in rows]
    elif step == "removed":
        found = [[written(row.id)] for row in rows]
    elif kind is SeenMessage:
        found = [[written(row.id), written(row.digest), row.at] for row in rows]
    else:
        found = [[*OTHERS[kind](row), str(encode(row), "utf-8")] for row in rows]
    names = [name for name, _ in RARE[table]]
    return [dict(zip(names, values, strict=False)) for values in found]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


TABLES: dict[type[Any], str] = {
    Task: "task",
    Event: "event",
    Delivery: "delivery",
    Agent: "agent",
    Person: "person",
    DeadLetter: "dead_letter",
    Question: "question",
    Entity: "entity",
    SeenMessage: "heard",
    Contract: "contract",
    Changed: "changed",
    SeriesRow: "series",
}

ADDED: dict[type[Any], Callable[[list[Any], Number], Columns]] = {
    Event: _events,
    SeenMessage: _seen_messages,
    Changed: _changed,
}

OTHERS: dict[type[Any], Callable[[Any], list[Any]]] = {
    Agent: lambda row: [written(row.id), row.wake_at, row.protocol],
    Person: lambda row: [written(row.id)],
    DeadLetter: lambda row: [written(row.id), written(row.task)],
    Question: lambda row: [
        written(row.id), written(row.task or ""), row.status, row.wake_at, row.created_at, written(row.agent),
        written(row.asked_of),
    ],
    Entity: lambda row: [written(row.id), row.registry, written(row.name)],
    Contract: lambda row: [
        written(row.id), written(row.collaboration), row.created_at, written(row.source.agent),
        written(row.target.agent), row.expires_at, row.standing is Standing.ACTIVE,
    ],
}  # fmt: skip
"""The columns of a row before its body."""
