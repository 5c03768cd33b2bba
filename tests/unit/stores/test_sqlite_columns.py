"""The writer's view of records agrees with the model, and every question has an index behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.adapters.records import every_lookup

from dragoman.core.ids import Instant
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.deliveries import Delivery
from dragoman.core.model.tasks import FINAL, Origin, Status, Task, TaskAgreement, TaskLineage, TaskOutput
from dragoman.core.ports import TaskFilter
from dragoman.stores.sqlite import frames, lists, queries, recovery, schema


@pytest.mark.parametrize(
    ("slim", "model"),
    [
        (frames.TaskColumns, Task),
        (frames.OriginColumns, Origin),
        (frames.LineageColumns, TaskLineage),
        (frames.OutputColumns, TaskOutput),
        (frames.AgreementColumns, TaskAgreement),
        (frames.DeliveryColumns, Delivery),
        (frames.AuditColumns, AuditRecord),
    ],
)
def test_columns_have_the_defaults_of_the_model(slim: type[Any], model: type[Any]) -> None:
    meant = {field.name: field.default for field in msgspec.structs.fields(model)}
    if model is Task:  # the text leaves out a part that has no value of its own
        meant |= {"output": None, "agreement": None}
    assert {field.name: field.default for field in msgspec.structs.fields(slim)} == {
        name: meant[name] for name in slim.__struct_fields__
    }


def test_the_writer_knows_which_statuses_are_final() -> None:
    assert {status.value for status in FINAL} == frames.TaskUpdates.FINAL


@pytest.fixture
def empty(tmp_path: Path) -> apsw.Connection:
    return schema.connect(str(tmp_path / "hub.db"))


def plans(connection: apsw.Connection, read: Any) -> list[str]:
    """What SQLite does for every statement that `read` runs."""
    statements: list[tuple[str, Any]] = []

    def note(_: Any, sql: str, bindings: Any) -> bool:
        statements.append((sql, bindings))
        return True

    connection.exec_trace = note
    read(connection)
    connection.exec_trace = None
    return [
        str(detail)
        for sql, bindings in statements
        for _, _, _, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)
    ]


def test_no_lookup_reads_a_whole_table(empty: apsw.Connection) -> None:
    for lookup in {type(lookup): lookup for lookup in every_lookup([])}.values():
        for step in plans(empty, lambda connection, lookup=lookup: queries.answer(connection, lookup)):
            assert not step.startswith("SCAN"), (lookup, step)


def test_the_best_come_from_the_index_without_sorting(empty: apsw.Connection) -> None:
    limited = {type(lookup): lookup for lookup in every_lookup([]) if hasattr(lookup, "limit")}
    for lookup in limited.values():
        for step in plans(empty, lambda connection, lookup=lookup: queries.answer(connection, lookup)):
            assert "TEMP B-TREE" not in step, (lookup, step)


def test_waking_up_reads_only_what_wakes(empty: apsw.Connection) -> None:
    for step in plans(empty, lambda connection: recovery.due(connection, Instant(5), 10)):
        assert "SEARCH" in step
        assert "_wake" in step


@pytest.mark.parametrize(
    "where",
    [
        TaskFilter(),
        TaskFilter(status=Status.FAILED),
        TaskFilter(type="code"),
        TaskFilter(agent="ada"),
        TaskFilter(principal="ada"),
        TaskFilter(parent="t"),
    ],
    ids=str,
)
def test_a_page_of_tasks_is_read_from_an_index(empty: apsw.Connection, where: TaskFilter) -> None:
    for after in (None, "5.t"):
        for step in plans(empty, lambda connection, after=after: lists.tasks(connection, where, after, 10)):
            assert "INDEX" in step or "LAST TERM OF ORDER BY" in step or where.parent, step
