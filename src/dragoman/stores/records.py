"""Records as the SQL stores write and read them: JSON, and the columns of events beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.ids import Instant, TaskId
from dragoman.core.lookups import Row
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.people import Person
from dragoman.core.model.state import Changed, Entity
from dragoman.core.model.tasks import Event, EventKind, Question, Task
from dragoman.core.ports import StoreFailed
from dragoman.stores.layout import SEQ_BITS, SEQ_MASK

encode = msgspec.json.Encoder().encode

task_from = msgspec.json.Decoder(Task).decode
delivery_from = msgspec.json.Decoder(Delivery).decode
agent_from = msgspec.json.Decoder(Agent).decode
dead_letter_from = msgspec.json.Decoder(DeadLetter).decode
question_from = msgspec.json.Decoder(Question).decode
contract_from = msgspec.json.Decoder(Contract).decode
person_from = msgspec.json.Decoder(Person).decode
entity_from = msgspec.json.Decoder(Entity).decode
changed_from = msgspec.json.Decoder(Changed).decode
audit_from = msgspec.json.Decoder(AuditRecord).decode

Number = Callable[[TaskId], int]


def event_from(task: TaskId, row: Sequence[Any]) -> Event:
    key, at, kind, agent, body, protocol, raw, personal = row
    return Event(
        task=task,
        seq=key & SEQ_MASK,
        at=at,
        kind=EventKind(kind),
        agent=agent,
        body=msgspec.Raw(body),
        protocol=protocol,
        raw=raw,
        personal=bool(personal),
    )


def event_key(no: int, seq: int) -> int:
    if not 0 <= seq <= SEQ_MASK:
        raise StoreFailed(f"an event's number is {seq}: at most {SEQ_MASK} events of a task can be kept")
    return no << SEQ_BITS | seq


def by_table(rows: Sequence[Row]) -> dict[type[Any], list[Any]]:
    tables: dict[type[Any], list[Any]] = {}
    for row in rows:
        table = type(row)
        if table in tables:
            tables[table].append(row)
        else:
            tables[table] = [row]
    return tables


def audit_row(seq: int, principal: str, subject: str | None, outcome: str, body: str) -> AuditRecord:
    """The record; without its hash if it or one of its columns was edited, even by a space."""
    try:
        record = audit_from(body)
    except (msgspec.MsgspecError, TypeError):
        return AuditRecord(
            seq=seq, at=Instant(0), principal=principal, action="", outcome=outcome, prev="", subject=subject
        )
    beside = (record.seq, record.principal, record.subject, record.outcome) == (seq, principal, subject, outcome)
    return record if beside and encode(record) == body.encode() else replace(record, seq=seq, hash="")
