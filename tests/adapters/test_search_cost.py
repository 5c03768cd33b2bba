"""What a list of tasks costs, counted by SQLite itself: nothing is sorted, no table is walked through, and a page
visits as much of a large store as of a small one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.tasks import Status
from dragoman.core.ports import TaskSearch
from dragoman.stores.sqlite import schema, search, text_index
from tests.adapters.records import agent, task

TYPES, AGENTS, CALLERS = 3, 4, 2

FILTERS: dict[str, dict[str, Any]] = {
    "status": {"statuses": (Status.FAILED,)},
    "type": {"type": "type-1"},
    "agent": {"agent": AgentId("agent-1")},
    "caller": {"principal": AgentId("caller-1")},
    "since": {"since": Instant(1_000)},
    "until": {"before": Instant(1_000_000)},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "statuses": {"statuses": (Status.FAILED, Status.CANCELLED)},
    "protocol": {"protocol": "forge"},
}
"""Filters of several parts of an index: of two of them, SQLite sorts the second, a step's entries at a time."""

COMBINED = [
    names
    for count in (0, 1, 2, 3)
    for names in itertools.combinations({**FILTERS, **SEVERAL}, count)
    if not {"status", "statuses"} <= set(names)
]

FILL = """
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
    INSERT INTO task (no, id, principal, request_id, created_at, status, type, owner, rank, body, protocol)
    SELECT n, 't' || n, 'caller-' || (n / 5 % 2), 'r' || n, 1000 * n,
        CASE n % 2 WHEN 0 THEN 'completed' ELSE CASE n / 2 % 3 WHEN 0 THEN 'cancelled' ELSE 'failed' END END,
        'type-' || (n % 3), 'agent-' || (n / 3 % 4), 0, ?, CASE n % 7 WHEN 0 THEN 'chiffon' ELSE 'coven' END
    FROM number
"""
"""Tasks with an odd number did not complete; those of `type-none` are of none of the types above."""


def filled(path: Path, tasks: int) -> apsw.Connection:
    connection = schema.connect(str(path))
    with connection:
        connection.execute(FILL, (tasks, msgspec.json.encode(task("t")).decode()))
        for n in range(AGENTS):
            body = msgspec.json.encode(agent(f"agent-{n}", protocol="forge" if n % 2 else "coven")).decode()
            connection.execute("INSERT INTO agent (id, body) VALUES (?, ?)", (f"agent-{n}", body))
        connection.execute("ANALYZE")  # with them or without, the statements name their indexes
        connection.execute("DELETE FROM sqlite_stat1")
    return connection


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> apsw.Connection:
    return filled(tmp_path_factory.mktemp("store") / "hub.sqlite", 3_000)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bounded here are visits, not seconds."""
    monkeypatch.setattr(search, "SECONDS", 60.0)


class Counters:
    """What SQLite did for all statements while it is open."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.sorts = self.scans = self.steps = 0
        self.statements: list[str] = []

    def __enter__(self) -> Counters:
        self._connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.trace_v2(0)

    def _seen(self, event: dict[str, Any]) -> None:
        status = event["stmt_status"]
        self.statements.append(event["sql"])
        self.sorts += status["SQLITE_STMTSTATUS_SORT"]
        self.steps += status["SQLITE_STMTSTATUS_VM_STEP"]


def combination(names: tuple[str, ...]) -> TaskSearch:
    given: dict[str, Any] = {}
    for name in names:
        given |= {**FILTERS, **SEVERAL}[name]
    return TaskSearch(**given)


@pytest.mark.parametrize("names", COMBINED, ids="+".join)
def test_every_combination_of_filters_is_read_from_indexes_without_sorting(
    store: apsw.Connection, names: tuple[str, ...]
) -> None:
    where = combination(names)
    with Counters(store) as counters:
        first = search.search(store, where, None, 20)
        search.search(store, where, first.next or "3000000.3000", 20)
    several = len(set(names) & set(SEVERAL)) > 1
    assert counters.sorts == 0 or several
    # The agents of a protocol are looked for in all of them, and the numbers of the tasks of a page are a list.
    read = [sql for sql in counters.statements if "FROM task" in sql]
    explained = [store.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")) for sql in read]
    plans = [str(step[3]) for steps in explained for step in steps]
    walks = [
        step for step in plans if step.startswith("SCAN task") or ("SEARCH task" in step and "COVERING" not in step)
    ]
    assert read
    assert walks == []
    assert several or [step for step in plans if "TEMP B-TREE" in step] == []


@pytest.mark.parametrize("names", [names for names in COMBINED if names], ids="+".join)
def test_a_combination_of_filters_finds_what_a_walk_through_all_tasks_finds(
    store: apsw.Connection, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FIRST_STEP", 7)
    monkeypatch.setattr(search, "STEP", 60)
    monkeypatch.setattr(search, "DENSER", 2)
    monkeypatch.setattr(search, "MOST_VISITED", 200)
    where, found, cursor = combination(names), 0, None
    terms, values = search.bounds(where)
    for group in search.groups(store, where):
        term, given = group.of_task()
        terms, values = [*terms, term], [*values, *given]
    (expected,) = store.execute(f"SELECT count(*) FROM task WHERE {' AND '.join(terms)}", values).fetchone() or (0,)
    for _ in range(3_000):
        page = search.search(store, where, cursor, 50)
        found += len(page.tasks)
        if (cursor := page.next) is None:
            break
    assert (found, cursor) == (expected, None)


def test_a_page_visits_no_more_of_a_large_store_than_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst case: filters that many tasks fit, and none fits both."""
    monkeypatch.setattr(search, "FIRST_STEP", 100)
    monkeypatch.setattr(search, "STEP", 200)
    monkeypatch.setattr(search, "MOST_VISITED", 500)
    steps = {}
    for tasks in (6_000, 30_000):
        connection = filled(tmp_path / f"{tasks}.sqlite", tasks)
        connection.execute("UPDATE task SET type = CASE no % 2 WHEN 0 THEN 'even' ELSE 'odd' END")
        with Counters(connection) as counters:
            page = search.search(connection, TaskSearch(type="even", statuses=(Status.FAILED,)), None, 50)
        assert page.tasks == []
        assert page.next is not None
        steps[tasks] = counters.steps
        connection.close()
    assert steps[30_000] <= 1.1 * steps[6_000], steps


def test_with_an_age_beside_other_filters_no_index_is_walked_down_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes one bound of an index: that must be the end of the step, not the age."""
    monkeypatch.setattr(search, "MOST_VISITED", 1)
    connection = filled(tmp_path / "hub.sqlite", 20_000)
    steps = []
    for since in (None, Instant(1_000)):
        where = TaskSearch(type="type-1", statuses=(Status.FAILED,), agent=AgentId("agent-1"), since=since)
        with Counters(connection) as counters:
            search.search(connection, where, None, 20)
        steps.append(counters.steps)
    connection.close()
    assert steps[1] <= 1.2 * steps[0], steps


@pytest.mark.parametrize(
    ("word", "query"),
    [
        ("release", '("release" OR "releases")'),
        ("rel", '("relay" OR "release" OR "releases")'),
        ("relay", '("relay")'),
        ("nothing", '"nothing"*'),
        ("a", '"a"*'),
    ],
)
def test_the_beginning_of_few_words_is_looked_up_as_these_words(tmp_path: Path, word: str, query: str) -> None:
    """FTS5 gives the tasks of a word as they are wanted, and those of a beginning after it has gathered all."""
    connection = apsw.Connection(str(tmp_path / "words"))
    connection.execute(text_index.SCHEMA)
    connection.execute("CREATE TABLE agent (id TEXT, body TEXT)")
    texts = ["release relay", "releases", *(f"a{n}" for n in range(search.MOST_WORDS + 1))]
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(texts, 1))
    candidates = search.ByWords(connection, TaskSearch(text=word), [word])
    assert candidates._query == query
    found = connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (query,)).fetchall()
    beginning = connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (f'"{word}"*',)).fetchall()
    assert found == beginning
    connection.close()
