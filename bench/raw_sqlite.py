"""The raw limit of the disk: SQLite group commit through apsw, and nothing else.

N producers each walk through the durable steps of a round trip and wait for the commit of each step. Whatever
waits is committed together: with N in flight, N steps make one transaction with one real fsync. All of it in
one plain loop of one process, rows grouped by statement, values nearly free to make: a hub that does the same
with sockets, parsing and decisions can only be slower.

The mix is data: a list of steps, each a list of (op, table, body bytes). Give the hub's own mix to compare like
with like:

    measure(settings, mix=hub_mix, suite="sqlite-hub")
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from bench import procs
from bench.figures import Figure, Settings, median_run, percentile

Row = tuple[str, str, int]
"""(op, table, body bytes); op is insert, update or delete."""
Step = Sequence[Row]
"""What is durable together, before somebody is told about it."""

MIX: Sequence[Step] = (
    # the client submits: the task, what happened, the request for the agent, the audit record
    (
        ("insert", "tasks", 700),
        ("insert", "events", 200),
        ("insert", "deliveries", 700),
        ("insert", "audit", 300),
    ),
    # the agent answers: result, what happened, the request is done with, the result for the client, audit
    (
        ("update", "tasks", 700),
        ("insert", "events", 700),
        ("delete", "deliveries", 0),
        ("insert", "deliveries", 700),
        ("insert", "audit", 300),
    ),
    # the client acknowledges
    (("delete", "deliveries", 0), ("insert", "audit", 300)),
)
"""Eleven rows in three commits: what a durable round trip needs at the least, before the hub says otherwise."""

SCHEMA = """
CREATE TABLE tasks (
  id TEXT PRIMARY KEY, status TEXT NOT NULL, agent TEXT NOT NULL, request_id TEXT NOT NULL,
  updated INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX tasks_by_status ON tasks (status, updated);
CREATE UNIQUE INDEX tasks_by_request ON tasks (request_id);
CREATE TABLE events (
  task_id TEXT NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (task_id, seq)) WITHOUT ROWID;
CREATE TABLE deliveries (
  id INTEGER PRIMARY KEY, receiver TEXT NOT NULL, due INTEGER NOT NULL, task_id TEXT NOT NULL,
  body BLOB NOT NULL);
CREATE INDEX deliveries_by_receiver ON deliveries (receiver, due);
CREATE TABLE audit (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, hash BLOB NOT NULL, body BLOB NOT NULL);
"""

STATEMENTS = {
    ("insert", "tasks"): "INSERT INTO tasks VALUES (?, 'working', 'infra', ?, ?, ?)",
    ("update", "tasks"): "UPDATE tasks SET status = 'done', updated = ?, body = ? WHERE id = ?",
    ("insert", "events"): "INSERT INTO events VALUES (?, ?, ?)",
    ("insert", "deliveries"): "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?)",
    ("delete", "deliveries"): "DELETE FROM deliveries WHERE id = ?",
    ("insert", "audit"): "INSERT INTO audit VALUES (NULL, ?, ?, ?)",
}

PRAGMAS = {
    "page_size": 8192,
    "journal_mode": "wal",
    "synchronous": "full",
    "wal_autocheckpoint": 4096,  # 32 MB, then the log is copied back: large, but bounded
    "cache_size": -65536,
    "temp_store": "memory",
}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    suite: str
    in_flight: int
    seconds: float
    warmup: float
    directory: str
    mix: list[list[Row]]
    random_keys: bool = False


class Producer:
    """One round trip after another; gives the rows of its next step, grouped by statement."""

    def __init__(self, number: int, mix: Sequence[Step], random_keys: bool) -> None:
        self._number = number
        self._mix = mix
        self._random = random_keys
        self._step = 0
        self._trip = 0
        self._task = ""
        self._seq = 0
        self._open: list[int] = []
        self._delivery = number << 40

    def next(self, rows: dict[tuple[str, str], list[tuple]], now: int) -> bool:
        """Add the rows of the next step; True when that step ends a round trip."""
        if self._step == 0:
            self._trip += 1
            self._seq = 0
            # The shape of a UUIDv7, time first; or of a v4, to see what random keys cost.
            tail = f"7000-8000-{self._number:04x}{self._trip:08x}"
            head = os.urandom(6).hex() if self._random else f"{now // 1_000_000:012x}"
            self._task = f"{head[:8]}-{head[8:]}-{tail}"
        for op, table, size in self._mix[self._step]:
            rows[op, table].append(self._values(op, table, BODIES[:size], now))
        self._step = (self._step + 1) % len(self._mix)
        return self._step == 0

    def _values(self, op: str, table: str, body: bytes, now: int) -> tuple:
        match op, table:
            case "insert", "tasks":
                return self._task, f"r{self._task}", now, body
            case "update", "tasks":
                return now, body, self._task
            case "insert", "events":
                self._seq += 1
                return self._task, self._seq, body
            case "insert", "deliveries":
                self._delivery += 1
                self._open.append(self._delivery)
                return self._delivery, "infra", now, self._task, body
            case "delete", "deliveries":
                return (self._open.pop(0),)
            case "insert", "audit":
                return now, HASH, body
        raise ValueError(f"no statement for {op} {table}: add it to STATEMENTS")


BODIES = os.urandom(65536)
HASH = os.urandom(32)


def group_commit(order: Order) -> Figure:
    """The loop itself, in this process."""
    path = Path(order.directory, "raw.sqlite")
    db = apsw.Connection(str(path))
    for name, value in PRAGMAS.items():
        db.execute(f"PRAGMA {name} = {value}")
    assert db.pragma("journal_mode") == "wal"
    assert db.pragma("synchronous") == 2
    assert db.pragma("page_size") == PRAGMAS["page_size"]
    db.execute(SCHEMA)
    producers = [Producer(n, order.mix, order.random_keys) for n in range(order.in_flight)]
    # Producers start at different steps of their trip, as they would be after a while.
    rows: dict[tuple[str, str], list[tuple]] = {key: [] for key in STATEMENTS}
    for number, producer in enumerate(producers):
        for _ in range(number % len(order.mix)):
            producer.next(rows, time.time_ns())

    trips = 0
    written = 0
    batches: list[float] = []
    commits: list[float] = []
    measured_from = time.perf_counter() + order.warmup
    until = measured_from + order.seconds
    cpu = time.process_time()
    measuring = False
    started = measured_from
    while (began := time.perf_counter()) < until:
        if not measuring and began >= measured_from:
            measuring, started, cpu = True, began, time.process_time()
            trips = written = 0
            batches.clear()
            commits.clear()
        now = time.time_ns()
        for producer in producers:
            trips += producer.next(rows, now)
        db.execute("BEGIN IMMEDIATE")
        for key, values in rows.items():
            if values:
                written += len(values)
                db.executemany(STATEMENTS[key], values)
                values.clear()
        before_commit = time.perf_counter()
        db.execute("COMMIT")
        ended = time.perf_counter()
        commits.append(ended - before_commit)
        batches.append(ended - began)
    seconds = time.perf_counter() - started
    cpu = time.process_time() - cpu
    size = path.stat().st_size
    db.close()
    commits.sort()
    # A producer's round trip is as many batches as the mix has steps, one after the other.
    width = len(order.mix)
    latencies = sorted(sum(batches[at : at + width]) for at in range(len(batches) - width + 1))
    return Figure(
        suite=order.suite,
        in_flight=order.in_flight,
        rate=trips / seconds,
        p50=percentile(latencies, 0.50) * 1e6,
        p99=percentile(latencies, 0.99) * 1e6,
        server_cpu=cpu / max(1, trips) * 1e6,
        operations=trips,
        extra={
            "rows_rate": written / seconds,
            "rows": written / max(1, trips),
            "durable_steps": float(len(order.mix)),
            "commits_rate": len(commits) / seconds,
            "commit_p50": percentile(commits, 0.50) * 1e6,
            "commit_p99": percentile(commits, 0.99) * 1e6,
            "file_mb": size / 1e6,
        },
    )


def fsync_alone(directory: str, seconds: float = 1.0) -> Figure:
    """Append 500 bytes, fdatasync, again: what one durable step costs at the very least here."""
    times = []
    until = time.perf_counter() + seconds
    with open(Path(directory, "fsync"), "wb", buffering=0) as file:
        while (began := time.perf_counter()) < until:
            file.write(BODIES[:500])
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    times.sort()
    return Figure(
        suite="fdatasync",
        in_flight=1,
        rate=len(times) / sum(times),
        p50=percentile(times, 0.50) * 1e6,
        p99=percentile(times, 0.99) * 1e6,
        operations=len(times),
    )


@contextmanager
def scratch(settings: Settings) -> Iterator[str]:
    """A directory on the disk of the repository (or settings.data), gone afterwards."""
    parent = Path(settings.data) if settings.data else procs.ROOT / "bench" / "results"
    parent.mkdir(parents=True, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="scratch-", dir=parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(
    settings: Settings, mix: Sequence[Step] = MIX, suite: str = "sqlite", random_keys: bool = False
) -> Iterable[Figure]:
    if suite == "sqlite":
        with scratch(settings) as directory:
            yield fsync_alone(directory)
    for in_flight in settings.levels:
        runs = []
        for _ in range(settings.repeats):
            with scratch(settings) as directory:
                order = Order(
                    suite=suite,
                    in_flight=in_flight,
                    seconds=settings.seconds,
                    warmup=settings.warmup,
                    directory=directory,
                    mix=[list(step) for step in mix],
                    random_keys=random_keys,
                )
                timeout = settings.seconds + settings.warmup + 30
                answer = procs.ask("bench.raw_sqlite", order, timeout=timeout)
                runs.append(msgspec.convert(answer, Figure))
        yield median_run(runs)


if __name__ == "__main__":
    figure = group_commit(msgspec.json.decode(sys.argv[1], type=Order))
    print(msgspec.json.encode(figure).decode(), flush=True)
