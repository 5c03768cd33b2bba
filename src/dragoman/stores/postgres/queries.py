"""Lookups of decisions, as statements: one for each kind, each with an index behind it.

A statement takes the lookup's fields in their order, names as they are written, and gives a column `no` where the rows
are tasks, so that the store learns their numbers; then the body, or the columns of an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import astuple

from dragoman.core import lookups
from dragoman.core.ids import TaskId
from dragoman.core.lookups import Lookup
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, SeenMessage
from dragoman.core.model.state import Entity
from dragoman.core.model.tasks import FINAL, Event, Question, Task
from dragoman.stores.layout import LEASED, POLLED, SEQ_BITS, SEQ_MASK, WAITING_HEAD
from dragoman.stores.postgres.names import read, written
from dragoman.stores.records import (
    contract_from,
    dead_letter_from,
    delivery_from,
    entity_from,
    event_from,
    question_from,
    task_from,
)
from dragoman.stores.shared import IN_UNFINISHED

EVENT_COLUMNS = "event.key, event.at, event.kind, event.agent, event.body, event.protocol, event.raw, event.personal"


def event_of(task: TaskId, row: Sequence[Any]) -> Event:
    key, at, kind, agent, body, protocol, raw, personal = row
    return event_from(
        task, (key, at, kind, agent and read(agent), body.encode(), protocol and read(protocol), raw, personal)
    )


def _deliveries(slot: int) -> str:
    return f"SELECT body FROM delivery WHERE receiver = $1 AND slot = {slot} ORDER BY rank, id LIMIT $2"


_LANE = "SELECT body FROM delivery WHERE task = $1 AND receiver = $2 AND task <> id ORDER BY seq {} LIMIT $3"
_NO = f"(SELECT no FROM task WHERE id = $1) << {SEQ_BITS}"

_FINISHED = " UNION ALL ".join(
    f"(SELECT no, body, created_at, id FROM task WHERE status = '{status.value}' AND created_at >= $1"
    " AND (created_at, id) > ($1, $2) AND created_at < $3 ORDER BY created_at, id LIMIT $4)"
    for status in sorted(FINAL)
)

STATEMENTS: dict[type[Lookup[Any]], str] = {
    lookups.TaskById: "SELECT no, body FROM task WHERE id = $1",
    lookups.Claims: """SELECT no, body FROM task WHERE principal = $1 AND request_id = $2
               UNION ALL SELECT no, body FROM task WHERE id = $3 AND NOT (principal = $1 AND request_id = $2)""",
    lookups.Ready: "SELECT no, body FROM task WHERE queue = $1 ORDER BY rank, id LIMIT $2",
    lookups.Children: f"SELECT no, body FROM task WHERE parent = $1 AND status {IN_UNFINISHED} ORDER BY id",
    lookups.AllChildren: "SELECT no, body FROM task WHERE parent = $1 ORDER BY id",
    lookups.Dependents: f"""SELECT no, body FROM blocked JOIN task USING (no)
                    WHERE dependency = $1 AND status {IN_UNFINISHED} ORDER BY id""",
    lookups.Relying: f"""SELECT no, body FROM blocked JOIN task USING (no)
                 WHERE dependency = $1 AND status {IN_UNFINISHED} AND $2 > 0 ORDER BY id""",
    lookups.Finished: f"SELECT no, body FROM ({_FINISHED}) AS found ORDER BY created_at, id LIMIT $4",
    lookups.Under: """SELECT task.no, task.body FROM under JOIN task ON task.id = under.task
              WHERE under.contract = $1 AND $2 > 0 ORDER BY under.task""",
    lookups.EventOf: f"SELECT {EVENT_COLUMNS} FROM event WHERE key = ({_NO} | $2)",
    lookups.EventsOf: f"SELECT {EVENT_COLUMNS} FROM event WHERE key > ({_NO}) AND key <= ({_NO} | {SEQ_MASK})"
    " ORDER BY key DESC LIMIT $2",
    lookups.DeliveryById: "SELECT body FROM delivery WHERE id = $1",
    lookups.Lane: _LANE.format(""),
    lookups.LaneEnd: _LANE.format("DESC"),
    lookups.Underway: "SELECT body FROM delivery WHERE task = $1 AND task <> id ORDER BY receiver, seq LIMIT $2",
    lookups.ContractById: "SELECT body FROM contract WHERE id = $1",
    lookups.Terms: "SELECT body FROM contract WHERE collaboration = $1 ORDER BY created_at DESC, id LIMIT $2",
    lookups.Bound: "SELECT body FROM ("
    + " UNION ALL ".join(  # both from an index, in order
        f"(SELECT body, expires_at, id FROM contract WHERE {side} = $1 AND active AND expires_at > $2"
        f" AND created_at <= $3{but} ORDER BY expires_at, id LIMIT $4)"
        for side, but in (("source", ""), ("target", " AND source <> $1"))
    )
    + ") AS found ORDER BY expires_at, id LIMIT $4",
    lookups.Agreed: "SELECT body FROM contract WHERE (created_at, id) > ($1, $2) AND created_at < $3"
    " ORDER BY created_at, id LIMIT $4",
    lookups.SeenMessageById: "SELECT id, digest, at FROM heard WHERE id = $1",
    lookups.Spent: "SELECT id, digest, at FROM heard WHERE at < $1 ORDER BY at, id LIMIT $2",
    lookups.Inbox: _deliveries(WAITING_HEAD),
    lookups.LeasedTo: _deliveries(LEASED),
    lookups.Unacknowledged: "SELECT body FROM ("
    + " UNION ALL ".join(
        f"(SELECT body, rank, id FROM delivery WHERE receiver = $1 AND slot = {slot} AND (rank, id) > ($2, $3)"
        " ORDER BY rank, id LIMIT $4)"
        for slot in (LEASED, POLLED)
    )
    + ") AS found ORDER BY rank, id LIMIT $4",
    lookups.DeadLetterById: "SELECT body FROM dead_letter WHERE id = $1",
    lookups.DeadLettersOf: "SELECT body FROM dead_letter WHERE task = $1 ORDER BY id",
    lookups.EntityById: "SELECT body FROM entity WHERE id = $1",
    lookups.QuestionById: "SELECT body FROM question WHERE id = $1",
    lookups.OpenQuestions: "SELECT body FROM question WHERE task = $1 AND status IN ('open', 'with_agent') ORDER BY id",
    lookups.AskedBy: "SELECT body FROM question WHERE status = 'open' AND agent = $1 ORDER BY id",
    lookups.PutTo: "SELECT body FROM question WHERE status = 'with_agent' AND asked_of = $1 ORDER BY id",
    lookups.QuestionsOf: "SELECT body FROM question WHERE task = $1 ORDER BY status, id LIMIT $2",
    lookups.Loose: "SELECT body FROM question WHERE task = '' AND (created_at, id) > ($1, $2) AND created_at < $3"
    " AND status NOT IN ('open', 'with_agent') ORDER BY created_at, id LIMIT $4",
}
OF_TASK = "SELECT body FROM delivery WHERE task = $1 AND task <> id LIMIT $2"

DECODERS: dict[type[Any], Callable[[str], Any]] = {
    Task: task_from,
    Delivery: delivery_from,
    DeadLetter: dead_letter_from,
    Question: question_from,
    Contract: contract_from,
    Entity: entity_from,
}

LARGEST = (1 << 63) - 1
FILTERED = frozenset({lookups.Dependents, lookups.Relying, lookups.Under})
"""Lookups whose statement may find a little more: a pair may be outdated."""


def values_of(lookup: Lookup[Any]) -> list[Any]:
    """The arguments of its statement."""
    return [
        written(value) if isinstance(value, str) else value if value is None else max(-LARGEST, min(value, LARGEST))
        for value in astuple(lookup)
    ]


def can_be(lookup: Lookup[Any]) -> bool:
    """Whether there can be such a row at all."""
    return not isinstance(lookup, lookups.EventOf) or 0 <= lookup.seq <= SEQ_MASK


def rows_of(lookup: Lookup[Any], found: Sequence[Sequence[Any]]) -> list[Any]:
    """What a statement found, as the lookup gives it."""
    kind = lookup.row
    if kind is Event:
        return [event_of(lookup.task, row) for row in found]  # type: ignore[attr-defined]
    if kind is SeenMessage:
        return [SeenMessage(id=read(id), digest=read(digest), at=at) for id, digest, at in found]
    decode = DECODERS[kind]
    rows = [decode(row[-1]) for row in found]
    if type(lookup) in FILTERED:
        return sorted(filter(lookup.matches, rows), key=lookup.order)[: lookup.most]
    return rows
