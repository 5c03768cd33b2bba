"""A database that an earlier version wrote opens, and says the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.adapters.records import file, task

from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, SessionId, TaskId
from dragoman.core.model.deliveries import Backoff
from dragoman.core.model.series import KEPT
from dragoman.core.model.tasks import (
    Origin,
    OutputCursor,
    Priority,
    Reserved,
    Spent,
    Status,
    SubtaskOwner,
    Task,
    Waiting,
)
from dragoman.messages.faults import Fault, Kind
from dragoman.stores.records import encode, task_from
from dragoman.stores.sqlite import schema

FLAT = (
    '{"id":"t","type":"code","status":"failed","origin":{"principal":"ada","protocol":"chiffon","request_id":"r","dige'
    'st":"d"},"created_at":1,"updated_at":2,"route":"kind:worker","deadline":9,"idle_limit":60,"rank":3,"trace_id":"0a'
    '","total_limit":70,"name":"n","description":"é","priority":"high","kind":"worker","pinned":"bob","required_capabi'
    'lities":["py"],"required_role":"dev","waiting":"person","question":"q","queue":"kind:worker","wake_at":8,"owner":'
    '"bob","prefers":"cy","session":"s","delivery":"d1","order":"d2","round":2,"anew":1,"source":4,"attempts":3,"unrea'
    'ched":1,"attempted_at":5,"last_sign_at":6,"lost_at":7,"progress":40,"step":"build","parent":"p","heir":{"agent":"'
    'eve","since":4},"thread":"th","hops":1,"dependencies":["x"],"blocked_by":["x"],"has_dependents":true,"has_childre'
    'n":true,"fault":{"kind":"timeout","message":"late","facts":{"last":null}},"result_digest":"rd","outcome":7,"asked'
    '":true,"asks":2,"answered":true,"finished_at":9,"output":[{"stream":"step","received":3}],"output_bytes":12,"requ'
    'est_bytes":34,"files":[{"id":"f1","name":"a.txt","mime_type":"text/plain","size":1,"sha256":"0"}],"files_before":'
    '1,"recent":["m1"],"seq":8,"constraints":{"budget":1.5,"none":null},"version":5,"handed":[["ada","bob"]],"helps":"'
    'h","contract":"c1","personal":true,"shut":"eHl6","reserved":{"agent":"bob","amounts":{"budget":1.0}},"spent":{"be'
    'fore":{"budget":0.5}},"metadata":{"k":null},"approved":true,"called_dependencies":["X"],"sandbox":"wasm","firm":t'
    'rue,"limited":true,"retry":{"base":1.0},"expires_at":10}'
)
"""The head of a task as schema version 10 had it, with every field there was."""

WHOLE = task(
    "t", status=Status.FAILED, created_at=1, updated_at=2, deadline=9, idle_limit=60, rank=3, trace_id="0a",
    origin=Origin(principal=AgentId("ada"), protocol="chiffon", request_id="r", digest="d", bytes=34), total_limit=70,
    name="n", description="é", priority=Priority.HIGH, kind="worker", pinned=AgentId("bob"),
    required_capabilities=("py",), required_role="dev", waiting=Waiting.PERSON, question=QuestionId("q"),
    queue="kind:worker", wake_at=8, owner=AgentId("bob"), prefers=AgentId("cy"), session=SessionId("s"),
    delivery=DeliveryId("d1"), order=DeliveryId("d2"), round=2, retried_round=1, source=4, count=3, unreached=1, at=5,
    last_sign_at=6, lost_at=7, progress=40, step="build", parent=TaskId("p"),
    subtask_owner=SubtaskOwner(AgentId("eve"), Instant(4)), thread="th", hops=1, dependencies=(TaskId("x"),),
    blocked_by=(TaskId("x"),), has_dependents=True, has_children=True, has_questions=True,
    fault=Fault(kind=Kind.TIMEOUT, message="late", facts={"last": None}), digest="rd", event=7, asks=2, answered=True,
    finished_at=9, streams=(OutputCursor(stream="step", received=3),), bytes=12, files=(file("f1"),), files_before=1,
    recent=("m1",), seq=8, constraints={"budget": 1.5, "none": None}, version=5,
    handed=((AgentId("ada"), AgentId("bob")),), helps=QuestionId("h"), contract="c1", personal=True, shut=b"xyz",
    reserved=Reserved(AgentId("bob"), {"budget": 1.0}), spent=Spent({"budget": 0.5}), metadata={"k": None},
    approved=True, called_dependencies=("X",), sandbox="wasm", firm=True, limited=True, retry=Backoff(base=1.0),
    expires_at=10,
)  # fmt: skip


@contextmanager
def version(number: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[apsw.Connection]:
    """A new database of an earlier schema version."""
    with monkeypatch.context() as then:
        then.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:number])
        then.setattr(schema, "VERSION", number)
        connection = schema.connect(str(path))
    yield connection
    connection.close()


def flat(row: Task) -> str:
    """Its head as schema versions before 11 have it."""
    head: dict[str, Any] = msgspec.json.decode(encode(row))
    for part, names in schema.TASK_PARTS.items():
        members = head.pop(part, {})
        head |= {old: members[new] for old, new in names.items() if new in members}
    return msgspec.json.encode(head).decode()


def insert(connection: apsw.Connection, no: int, body: str) -> None:
    head = msgspec.json.decode(body)
    connection.execute(
        "INSERT INTO task (no, id, principal, request_id, created_at, status, type, rank, body)"
        " VALUES (?, ?, 'ada', ?, 1, ?, 'code', 0, ?)",
        (no, head["id"], head["origin"]["request_id"], head["status"], body),
    )


def test_every_field_of_a_flat_head_has_its_part() -> None:
    assert {old for names in schema.TASK_PARTS.values() for old in names} <= msgspec.json.decode(FLAT).keys()
    head = schema.in_parts(FLAT)
    assert head is not None
    assert task_from(head) == WHOLE
    assert schema.in_parts(head) is None


def test_tasks_of_before_get_their_parts_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [task(f"t{n}", attempts=n, thread="th") for n in range(5)]
    with version(10, tmp_path / "old.db", monkeypatch) as old:
        for no, row in enumerate(rows, 1):
            insert(old, no, flat(row))
    monkeypatch.setattr(schema, "REWRITTEN_AT_ONCE", 2)
    new = schema.connect(str(tmp_path / "old.db"))
    assert [task_from(str(body)) for (body,) in new.execute("SELECT body FROM task ORDER BY no")] == rows
    assert list(new.execute("PRAGMA user_version")) == [(schema.VERSION,)]


def test_a_rewrite_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [task("done already"), task("not yet", progress=7)]
    with version(10, tmp_path / "old.db", monkeypatch) as old:
        insert(old, 1, encode(rows[0]).decode())
        insert(old, 2, flat(rows[1]))
    new = schema.connect(str(tmp_path / "old.db"))
    assert [task_from(str(body)) for (body,) in new.execute("SELECT body FROM task ORDER BY no")] == rows


def test_a_database_of_before_learns_who_depends_on_whom_and_whose_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"files": (file("f1"), file("f2")), "dependencies": (TaskId("stays"),)}
    with version(4, tmp_path / "old.db", monkeypatch) as old:
        insert(old, 1, flat(task("long", **parts)))
        insert(old, 3, flat(task("other", status=Status.FAILED, **parts)))
    new = schema.connect(str(tmp_path / "old.db"))
    assert set(new.execute("SELECT file, no FROM attached")) == {("f1", 1), ("f2", 1), ("f1", 3), ("f2", 3)}
    assert set(new.execute("SELECT dependency, no FROM blocked")) == {("stays", 1)}


def test_a_database_of_before_learns_which_tasks_were_asked_on_a_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with version(6, tmp_path / "old.db", monkeypatch) as old:
        insert(old, 1, flat(task("on it", contract="c1")))
        insert(old, 3, flat(task("other")))
    new = schema.connect(str(tmp_path / "old.db"))
    assert list(new.execute("SELECT contract, task FROM under")) == [("c1", "on it")]


def test_a_database_of_before_has_room_for_people_and_figures_and_finds_its_events_by_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with version(11, tmp_path / "old.db", monkeypatch) as old:
        insert(old, 1, encode(task("t")).decode())
        old.executemany("INSERT INTO event (key, at, kind, body) VALUES (?, ?, 'progress', '{}')", [(25, 7), (26, 5)])
    new = schema.connect(str(tmp_path / "old.db"))
    new.execute("INSERT INTO person (id, body) VALUES ('eve', '{}')")
    for step, kept in KEPT.items():
        new.executemany("INSERT INTO series (step, at, body) VALUES (?, ?, '{}')", [(step, 0), (step, kept + 1)])
        assert list(new.execute("SELECT at FROM series WHERE step = ?", (step,))) == [(kept + 1,)]
    by_time = "SELECT key FROM event WHERE at > 0 ORDER BY at"
    assert list(new.execute(by_time)) == [(26,), (25,)]
    assert "USING COVERING INDEX event_at" in str(list(new.execute(f"EXPLAIN QUERY PLAN {by_time}")))
    assert list(new.execute("PRAGMA user_version")) == [(schema.VERSION,)]


def test_tasks_of_before_are_found_by_the_protocol_they_came_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with version(12, tmp_path / "old.db", monkeypatch) as old:
        for no in range(1, 6):
            insert(old, no, encode(task(f"t{no}")).decode())
    monkeypatch.setattr(schema, "REWRITTEN_AT_ONCE", 2)
    new = schema.connect(str(tmp_path / "old.db"))
    assert list(new.execute("SELECT protocol, count(*) FROM task GROUP BY protocol")) == [("chiffon", 5)]
    assert list(new.execute("PRAGMA user_version")) == [(schema.VERSION,)]
