"""Records to put into stores: by hand with sensible defaults, and whole random worlds of them.

Ids come from small pools, so that random rows meet: in lanes, queues, as parents and dependencies.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, TaskId
from dragoman.core.lookups import (
    Agreed,
    AllChildren,
    AskedBy,
    Bound,
    Children,
    Claims,
    ContractById,
    DeadLetterById,
    DeadLettersOf,
    DeliveryById,
    Dependents,
    EntityById,
    EventOf,
    Finished,
    Inbox,
    Lane,
    LeasedTo,
    Lookup,
    Loose,
    OpenQuestions,
    PutTo,
    QuestionById,
    QuestionsOf,
    Ready,
    Relying,
    Row,
    SeenMessageById,
    Spent,
    TaskById,
    Unacknowledged,
    Under,
    Underway,
)
from dragoman.core.model.agents import Agent, Breaker, BreakerState, Offer
from dragoman.core.model.audit import GENESIS, AuditRecord, seal
from dragoman.core.model.contracts import Contract, Party, Standing
from dragoman.core.model.deliveries import DeadLetter, Delivery, DeliveryState, MessageKind, SeenMessage
from dragoman.core.model.people import Person, Role
from dragoman.core.model.state import Change, Changed, Entity, Operation, Registry
from dragoman.core.model.tasks import Event, EventKind, Origin, Question, QuestionStatus, Status, Task
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef
from tests.support.heads import task_head

TASKS = [TaskId(f"task-{n}") for n in range(6)] + [TaskId("01890a5d-ac96-774b-bcce-b302099a8057"), TaskId("träge ✓")]
AGENTS = [AgentId("ada"), AgentId("bob"), AgentId("cy")]
QUEUES = ["code", "text"]
MESSAGES = ["m1", "m2", "m3"]
CONTRACTS = ["contract-0", "contract-1", "contract-2"]
COLLABORATIONS = ["collaboration-0", "collaboration-1"]


def origin(request: str, principal: str = "ada") -> Origin:
    return Origin(principal=AgentId(principal), protocol="chiffon", request_id=request, digest="d")


def task(id: str, **fields: Any) -> Task:
    defaults: dict[str, Any] = {
        "type": "code",
        "status": Status.QUEUED,
        "origin": origin(f"request of {id}"),
        "created_at": 1_000,
        "updated_at": 1_000,
        "route": "kind:worker",
        "deadline": 9_000,
        "idle_limit": 60,
        "rank": 0,
        "trace_id": "t",
    }
    return task_head(id=TaskId(id), **{**defaults, **fields})


def event(task: str, seq: int, **fields: Any) -> Event:
    return Event(**{"task": TaskId(task), "seq": seq, "at": Instant(seq), "kind": EventKind.PROGRESS, **fields})


def file(id: str) -> FileRef:
    return FileRef(id=id, name="a.txt", mime_type="text/plain", size=1, sha256="0")


def delivery(id: str, task: str, receiver: str = "bob", **fields: Any) -> Delivery:
    defaults: dict[str, Any] = {"seq": 1, "kind": MessageKind.WORK, "event": 1, "rank": 0, "created_at": 1_000}
    return Delivery(id=DeliveryId(id), task=TaskId(task), receiver=AgentId(receiver), **{**defaults, **fields})


def dead_letter(id: str, task: str, **fields: Any) -> DeadLetter:
    reason = Fault(kind=Kind.TIMEOUT, message="nobody answered", facts={"attempts": 3})
    defaults: dict[str, Any] = {"kind": MessageKind.WORK, "event": 1, "attempts": 3, "at": 5, "reason": reason}
    return DeadLetter(id=DeliveryId(id), task=TaskId(task), **{"receiver": AgentId("bob"), **defaults, **fields})


def question(id: str, task: str | None, **fields: Any) -> Question:
    defaults: dict[str, Any] = {"agent": AgentId("bob"), "question": "which one?", "created_at": Instant(4)}
    return Question(id=QuestionId(id), task=None if task is None else TaskId(task), **{**defaults, **fields})


def contract(id: str, **fields: Any) -> Contract:
    defaults: dict[str, Any] = {
        "collaboration": COLLABORATIONS[0],
        "source": Party(AgentId("ada"), "default", "1.0.0"),
        "target": Party(AgentId("bob"), "default", "1.0.0"),
        "offer": Offer(intent="code"),
        "created_at": Instant(4),
        "expires_at": Instant(9),
        "since": Instant(4),
    }
    return Contract(id=id, **{**defaults, **fields})


def entity(name: str, registry: Registry = Registry.TASK, **fields: Any) -> Entity:
    defaults: dict[str, Any] = {
        "version": 1,
        "value": {"agent_id": "ada", "resource_type": "tokens"},
        "created_at": 1,
        "updated_at": 1,
        "created_by": AgentId("ada"),
        "updated_by": AgentId("ada"),
    }
    return Entity(registry=registry, name=name, **{**defaults, **fields})


def changed_state(cursor: int, count: int = 1) -> Changed:
    """A row of the log whose last change has this number."""
    one = Change(
        Operation.UPDATE, Registry.TASK, "t", cursor, {"status": "pending", "näher": [None, 1.5]}, AgentId("ada")
    )
    return Changed(cursor=cursor, at=Instant(cursor), entries=(one,) * count)


def agent(id: str, **fields: Any) -> Agent:
    return Agent(**{"id": AgentId(id), "protocol": "chiffon", "created_at": Instant(1), "token_hash": "h", **fields})


def person(name: str, role: Role = Role.VIEWER, **fields: Any) -> Person:
    return Person(id=name, role=role, created_at=Instant(1), **fields)


def chain(count: int, *, after: AuditRecord | None = None, **fields: Any) -> list[AuditRecord]:
    """The next records of the audit chain."""
    records: list[AuditRecord] = []
    seq, prev = (after.seq, after.hash) if after else (0, GENESIS)
    for _ in range(count):
        seq += 1
        defaults = {"principal": "ada", "action": "submit", "outcome": "accepted"}
        records.append(seal(AuditRecord(seq=seq, at=Instant(seq), prev=prev, **{**defaults, **fields})))
        prev = records[-1].hash
    return records


# Random ones.

small = st.integers(0, 5)
instants = st.integers(0, 10).map(Instant)
maybe_instant = st.none() | instants
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
some_tasks = st.lists(st.sampled_from(TASKS), max_size=3, unique=True).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def tasks(draw: st.DrawFn, id: TaskId) -> Task:
    return task(
        id,
        type=draw(st.sampled_from(["code", "text"])),
        status=draw(st.sampled_from(Status)),
        origin=origin(f"request of {id}", draw(st.sampled_from(AGENTS))),
        created_at=draw(instants),
        rank=draw(small),
        queue=draw(st.none() | st.sampled_from(QUEUES)),
        wake_at=draw(maybe_instant),
        owner=draw(st.none() | st.sampled_from(AGENTS)),
        parent=draw(st.none() | st.sampled_from(TASKS)),
        dependencies=draw(some_tasks),
        blocked_by=draw(some_tasks),
        seq=8,
        description=draw(st.none() | words),
        constraints=draw(st.dictionaries(words, json_values, max_size=2)),
        contract=draw(st.none() | st.sampled_from(CONTRACTS)),
    )


@st.composite
def deliveries(draw: st.DrawFn, id: str, task: TaskId, seq: int) -> Delivery:
    return delivery(
        id,
        task,
        draw(st.sampled_from(AGENTS)),
        seq=seq,
        rank=draw(small),
        state=draw(st.sampled_from(DeliveryState)),
        head=draw(st.booleans()),
        wake_at=draw(maybe_instant),
        kind=draw(st.sampled_from(MessageKind)),
    )


@st.composite
def events(draw: st.DrawFn, task: TaskId, seq: int) -> Event:
    return event(
        task,
        seq,
        kind=draw(st.sampled_from(EventKind)),
        agent=draw(st.none() | st.sampled_from(AGENTS)),
        body=msgspec.Raw(msgspec.json.encode(draw(json_values))),
        protocol=draw(st.none() | words),
        raw=draw(st.none() | st.binary(max_size=8)),
    )


@st.composite
def questions(draw: st.DrawFn, id: str, task: TaskId | None) -> Question:
    return question(
        id,
        task,
        created_at=draw(instants),
        status=draw(st.sampled_from(QuestionStatus)),
        wake_at=draw(maybe_instant),
        options=tuple(draw(st.lists(json_values, max_size=2))),
        answer=draw(json_values),
    )


@st.composite
def agents(draw: st.DrawFn, id: AgentId) -> Agent:
    breaker = Breaker(state=draw(st.sampled_from(BreakerState)), failures=draw(small))
    return agent(id, wake_at=draw(maybe_instant), breaker=breaker, details=draw(st.dictionaries(words, json_values)))


@st.composite
def entities(draw: st.DrawFn, name: str) -> Entity:
    return entity(name, version=draw(small), value=draw(st.dictionaries(words, json_values, max_size=2)))


@st.composite
def messages(draw: st.DrawFn, id: str) -> SeenMessage:
    return SeenMessage(id=id, digest=draw(words), at=Instant(draw(small)))


@st.composite
def contracts(draw: st.DrawFn, id: str) -> Contract:
    source, target = (Party(draw(st.sampled_from(AGENTS)), "default", "1.0.0") for _ in range(2))
    return contract(
        id,
        collaboration=draw(st.sampled_from(COLLABORATIONS)),
        source=source,
        target=target,
        created_at=draw(instants),
        expires_at=draw(instants),
        standing=draw(st.sampled_from(Standing)),
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[Row]:
    """Rows that can be added together."""
    ids = draw(st.lists(st.sampled_from(TASKS), min_size=1, max_size=len(TASKS), unique=True))
    rows: list[Row] = [draw(tasks(id)) for id in ids]
    rows += [draw(agents(id)) for id in draw(st.lists(st.sampled_from(AGENTS), unique=True))]
    for number, id in enumerate(draw(st.lists(st.sampled_from(ids), max_size=8))):
        rows.append(draw(deliveries(f"delivery-{number}", id, number)))
    for number, id in enumerate(draw(st.lists(st.sampled_from(ids), max_size=5))):
        rows.append(draw(events(id, number)))
    for number, id in enumerate(draw(st.lists(st.sampled_from(ids), max_size=4))):
        rows.append(draw(questions(f"question-{number}", id)))
        rows.append(dead_letter(f"dead-{number}", id))
    rows += [draw(questions(f"loose-{number}", None)) for number in range(draw(small))]
    rows += [draw(contracts(id)) for id in draw(st.lists(st.sampled_from(CONTRACTS), unique=True))]
    rows += [draw(entities(name)) for name in draw(st.lists(st.sampled_from(TASKS), unique=True, max_size=3))]
    rows += [draw(messages(name)) for name in draw(st.lists(st.sampled_from(MESSAGES), unique=True))]
    return draw(st.permutations(rows))


def changed(draw: st.DrawFn, row: Row) -> Row:
    """Another row with the same key."""
    match row:
        case Task():
            new = draw(tasks(row.id))
            return msgspec.structs.replace(new, origin=row.origin)
        case Delivery():
            return draw(deliveries(row.id, row.task, row.seq))
        case Question():
            return draw(questions(row.id, row.task))
        case Agent():
            return draw(agents(row.id))
        case Event():
            return draw(events(row.task, row.seq))
        case Entity():
            return draw(entities(row.name))
        case SeenMessage():
            return draw(messages(row.id))
        case Changed():
            return row
        case Contract():
            return draw(contracts(row.id))
        case DeadLetter():
            return msgspec.structs.replace(row, attempts=draw(small))


def every_lookup(rows: list[Row]) -> list[Lookup[Any]]:
    """Every question that could be asked about these rows, and some about rows that are not there."""
    lookups: list[Lookup[Any]] = [
        kind(id) for kind in (TaskById, Children, AllChildren, Dependents, DeadLettersOf, OpenQuestions) for id in TASKS
    ]
    for who in AGENTS:
        lookups += [Claims(who, f"request of {id}", other) for id in TASKS for other in (None, id, TASKS[0])]
        lookups += [Lane(id, who) for id in TASKS]
        lookups += [kind(who, limit) for kind in (Inbox, LeasedTo) for limit in (1, 2, 64)]
        lookups += [AskedBy(who), PutTo(who)]
        behind = [(-1, ""), (2, "delivery-3"), (5, "")]
        lookups += [Unacknowledged(who, rank, DeliveryId(id), limit) for rank, id in behind for limit in (1, 64)]
        lookups += [Bound(who, Instant(at), Instant(until), n) for at in (0, 5) for until in (4, 20) for n in (1, 64)]
    for kind in (Relying, Underway, QuestionsOf):
        lookups += [kind(id, limit) for id in TASKS for limit in (1, 64)]
    places = [(Instant(0), TaskId("")), (Instant(4), TASKS[2]), (Instant(7), TASKS[6])]
    for since, after in places:
        lookups += [Finished(since, after, Instant(before), limit) for before in (6, 20) for limit in (1, 3, 64)]
    for past, names in ((Loose, ["", "loose-1"]), (Agreed, ["", CONTRACTS[1]])):
        for since, name in ((since, name) for since in (0, 4) for name in names):
            lookups += [past(Instant(since), name, Instant(before), n) for before in (6, 20) for n in (1, 3, 64)]
    for id in CONTRACTS:
        lookups += [ContractById(id), Under(id, 1), Under(id, 64)]
    lookups += [Ready(queue, limit) for queue in QUEUES for limit in (1, 3, 64)]
    lookups += [EventOf(id, seq) for id in TASKS for seq in range(6)]
    lookups += [DeliveryById(DeliveryId(f"delivery-{n}")) for n in range(9)]
    lookups += [DeadLetterById(DeliveryId(f"dead-{n}")) for n in range(5)]
    lookups += [EntityById(f"TASK/{id}") for id in TASKS]
    lookups += [SeenMessageById(id) for id in MESSAGES]
    lookups += [Spent(Instant(before), limit) for before in (0, 2, 5) for limit in (1, 64)]
    lookups += [QuestionById(QuestionId(f"question-{n}")) for n in range(5)]
    return lookups
