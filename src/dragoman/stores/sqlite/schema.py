"""The tables, their versions, and what must be true of a database before it is used.

A row has its indexed columns and the record itself, which is JSON in `body`: a person can read it with the sqlite3
shell, and a new field of the model needs no migration. Costs must not grow with history, so the indexes that decisions
use are partial: they hold what is queued, has a wake time, or is being delivered. A task has a number, `no`, in the
order of acceptance, and its events have the keys `no << 24 | seq`: new rows go to the end of a table, whatever ids
clients choose. Only the two unique indexes over ids are in the client's order.

Imported by the writer: apsw, msgspec and the standard library only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from dragoman.stores.sqlite import master_keys


class StoreRefused(Exception):
    """The hub cannot use the data as they are, and changed nothing. `because`: the name of SQLite's error, if any."""

    def __init__(self, problem: str, advice: str = "", *, because: str = "") -> None:
        super().__init__(f"{problem}: {advice}" if advice else problem)
        self.problem = problem
        self.advice = advice
        self.because = because


class StoreInUse(StoreRefused):
    """Another hub uses this data directory."""

    def __init__(self, directory: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the data directory {directory} is in use by {who}",
            "one hub at a time may use it; stop that hub or choose another data directory",
        )
        self.directory = directory
        self.pid = pid


APPLICATION_ID = 0x44524147  # "DRAG"
PAGE_SIZE = 4096
OLDEST_SQLITE = 3_051_003
WAL_KEPT = 64 << 20
"""Bytes of the write-ahead log file that SQLite keeps when the log restarts."""

QUICK_CHECK_BELOW = 64 << 20
"""Files smaller than this are checked whole at every start; larger ones by `doctor`."""

MIGRATIONS: tuple[str, ...] = (
    # 1
    """
    CREATE TABLE agent (id TEXT PRIMARY KEY, wake_at INTEGER, body TEXT NOT NULL) WITHOUT ROWID;
    CREATE INDEX agent_wake ON agent (wake_at) WHERE wake_at IS NOT NULL;

    CREATE TABLE task (
        no INTEGER PRIMARY KEY, id TEXT NOT NULL, principal TEXT NOT NULL, request_id TEXT NOT NULL,
        created_at INTEGER NOT NULL, status TEXT NOT NULL, type TEXT NOT NULL, owner TEXT, parent TEXT,
        queue TEXT, rank INTEGER NOT NULL, wake_at INTEGER, body TEXT NOT NULL
    );
    CREATE UNIQUE INDEX task_id ON task (id);
    CREATE UNIQUE INDEX task_request ON task (principal, request_id);
    CREATE INDEX task_created ON task (created_at);
    CREATE INDEX task_status ON task (status, created_at);
    CREATE INDEX task_type ON task (type, created_at);
    CREATE INDEX task_principal ON task (principal, created_at);
    CREATE INDEX task_owner ON task (owner, created_at) WHERE owner IS NOT NULL;
    CREATE INDEX task_parent ON task (parent, status) WHERE parent IS NOT NULL;
    CREATE INDEX task_queue ON task (queue, rank, id) WHERE queue IS NOT NULL;
    CREATE INDEX task_wake ON task (wake_at, id) WHERE wake_at IS NOT NULL;

    CREATE TABLE blocked (dependency TEXT, no INTEGER, PRIMARY KEY (dependency, no)) WITHOUT ROWID;

    CREATE TABLE event (
        key INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, agent TEXT, body TEXT NOT NULL,
        protocol TEXT, raw BLOB
    );

    CREATE TABLE delivery (
        id TEXT PRIMARY KEY, task TEXT NOT NULL, receiver TEXT NOT NULL, seq INTEGER NOT NULL, rank INTEGER NOT NULL,
        slot INTEGER, wake_at INTEGER, body TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX delivery_task ON delivery (task);
    CREATE INDEX delivery_slot ON delivery (receiver, slot, rank, id) WHERE slot IS NOT NULL;
    CREATE INDEX delivery_wake ON delivery (wake_at, id) WHERE wake_at IS NOT NULL;

    CREATE TABLE dead_letter (id TEXT PRIMARY KEY, task TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
    CREATE INDEX dead_letter_task ON dead_letter (task);

    CREATE TABLE question (
        id TEXT PRIMARY KEY, task TEXT NOT NULL, status TEXT NOT NULL, wake_at INTEGER, body TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX question_task ON question (task, status);
    CREATE INDEX question_status ON question (status);
    CREATE INDEX question_wake ON question (wake_at, id) WHERE wake_at IS NOT NULL;

    CREATE TABLE audit (
        seq INTEGER PRIMARY KEY, principal TEXT NOT NULL, subject TEXT, outcome TEXT NOT NULL, body TEXT NOT NULL
    );
    CREATE INDEX audit_refused ON audit (seq) WHERE outcome = 'refused';

    CREATE VIEW history AS
        SELECT task.id AS task, event.key & 16777215 AS seq, event.at, event.kind, event.agent, event.body
        FROM event JOIN task ON task.no = event.key >> 24;
    """,
    # 2: direct messages. They are too long for a table without row ids, and most have a lane of their own that is never
    # looked up. `heard` holds the ids of accepted ones for a while, to recognise repetitions.
    """
    CREATE TABLE longer (
        no INTEGER PRIMARY KEY, id TEXT NOT NULL, task TEXT NOT NULL, receiver TEXT NOT NULL, seq INTEGER NOT NULL,
        rank INTEGER NOT NULL, slot INTEGER, wake_at INTEGER, body TEXT NOT NULL
    );
    INSERT INTO longer (id, task, receiver, seq, rank, slot, wake_at, body)
        SELECT id, task, receiver, seq, rank, slot, wake_at, body FROM delivery ORDER BY id;
    DROP TABLE delivery;
    ALTER TABLE longer RENAME TO delivery;
    CREATE UNIQUE INDEX delivery_id ON delivery (id);
    CREATE INDEX delivery_lane ON delivery (task, receiver, seq) WHERE task <> id;
    CREATE INDEX delivery_slot ON delivery (receiver, slot, rank, id) WHERE slot IS NOT NULL;
    CREATE INDEX delivery_wake ON delivery (wake_at, id) WHERE wake_at IS NOT NULL;

    CREATE TABLE heard (id TEXT PRIMARY KEY, digest TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX heard_at ON heard (at);
    """,
    # 3: what agents share, and the log of its changes.
    """
    CREATE TABLE entity (id TEXT PRIMARY KEY, registry TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL)
        WITHOUT ROWID;
    CREATE UNIQUE INDEX entity_name ON entity (registry, name);

    CREATE TABLE changed (cursor INTEGER PRIMARY KEY, body TEXT NOT NULL);
    """,
    # 4: contracts, and what is personal.
    """
    CREATE TABLE contract (
        id TEXT PRIMARY KEY, collaboration TEXT NOT NULL, created_at INTEGER NOT NULL, source TEXT NOT NULL,
        target TEXT NOT NULL, body TEXT NOT NULL
    );
    CREATE INDEX contract_terms ON contract (collaboration, created_at);
    CREATE INDEX contract_source ON contract (source, created_at);
    CREATE INDEX contract_target ON contract (target, created_at);

    ALTER TABLE event ADD COLUMN personal INTEGER;
    """,
    # 5: old tasks are removed. `remains` are their events, deleted in small steps; `attached` are the tasks of a file.
    # A pair in `blocked` stays while the dependent task is unfinished, so that its dependency is kept.
    """
    CREATE TABLE remains (first INTEGER PRIMARY KEY, last INTEGER NOT NULL);

    CREATE TABLE attached (file TEXT, no INTEGER, PRIMARY KEY (file, no)) WITHOUT ROWID;
    INSERT OR IGNORE INTO attached (file, no)
        SELECT json_extract(each.value, '$.id'), task.no FROM task, json_each(task.body, '$.files') AS each;

    INSERT OR IGNORE INTO blocked (dependency, no)
        SELECT each.value, task.no FROM task, json_each(task.body, '$.dependencies') AS each
        WHERE task.status IN ('queued', 'assigned', 'running', 'waiting');
    """,
    # 6: the newest audit record, beside the records: without it, records missing at the end would not be noticed.
    """
    CREATE TABLE audit_newest (chain TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash TEXT NOT NULL) WITHOUT ROWID;
    INSERT INTO audit_newest (chain, seq, hash)
        SELECT 'main', seq, json_extract(body, '$.hash') FROM audit ORDER BY seq DESC LIMIT 1;
    """,
    # 7: old contracts, and old questions without a task, are removed. `under`: the tasks of a contract.
    """
    CREATE TABLE under (contract TEXT, task TEXT, PRIMARY KEY (contract, task)) WITHOUT ROWID;
    INSERT INTO under (contract, task)
        SELECT json_extract(body, '$.contract'), id FROM task WHERE json_extract(body, '$.contract') IS NOT NULL;

    CREATE INDEX contract_created ON contract (created_at, id);
    CREATE INDEX question_loose ON question (json_extract(body, '$.created_at'), id) WHERE task = '';
    """,
    # 8: contracts end when an agent is removed. A contract in force has no `standing` in its body: it is the default.
    """
    CREATE INDEX contract_bound_source ON contract (source, json_extract(body, '$.expires_at'), id)
        WHERE json_extract(body, '$.standing') IS NULL;
    CREATE INDEX contract_bound_target ON contract (target, json_extract(body, '$.expires_at'), id)
        WHERE json_extract(body, '$.standing') IS NULL;
    """,
    # 9: under which master keys something is sealed.
    f"""
    CREATE TABLE master_key (id TEXT PRIMARY KEY, given_up INTEGER) WITHOUT ROWID;
    INSERT INTO master_key (id) SELECT id FROM ({master_keys.FOUND}) WHERE id IS NOT NULL;
    """,
    # 10: the last message ids that were used, with their content (`used`); `until`: how many there were so far.
    """
    CREATE TABLE used (until INTEGER PRIMARY KEY, messages BLOB NOT NULL);
    """,
    # 11: the head of a task consists of parts. `REWRITES` changes the rows before this step counts as done.
    "",
    # 12: people with their roles; the figures of the plots; events by their time, for streams that resume.
    """
    CREATE TABLE person (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;

    CREATE TABLE series (step INTEGER, at INTEGER, body TEXT NOT NULL, PRIMARY KEY (step, at)) WITHOUT ROWID;

    CREATE TRIGGER series_kept AFTER INSERT ON series BEGIN
        DELETE FROM series WHERE step = NEW.step AND at < NEW.at
            - CASE NEW.step WHEN 15 THEN 21600 WHEN 300 THEN 172800 ELSE 2678400 END;
    END;

    CREATE INDEX event_at ON event (at);
    """,
    # 13: the protocol that a task came by. It is written once, with the task.
    """
    ALTER TABLE task ADD COLUMN protocol TEXT;
    """,
    # 14: tasks by that protocol. `REWRITES` fills the column before.
    """
    CREATE INDEX task_protocol ON task (protocol, created_at);
    """,
)

VERSION = len(MIGRATIONS)

TASK_PARTS: dict[str, dict[str, str]] = {
    "routing": {name: name for name in ("route", "kind", "pinned", "required_capabilities", "required_role")},
    "timing": {
        "deadline": "deadline", "idle_limit": "idle_limit", "total_limit": "total_limit", "firm": "firm",
        "limited": "limited", "retry": "retry", "expires_at": "expires_at", "last_sign_at": "last_sign_at",
        "lost_at": "lost_at",
    },
    "attempt": {
        "attempts": "count", "unreached": "unreached", "attempted_at": "at", "session": "session",
        "delivery": "delivery", "order": "order", "prefers": "prefers", "sandbox": "sandbox", "round": "round",
        "anew": "retried_round", "source": "source", "asks": "asks", "answered": "answered",
    },
    "output": {
        "progress": "progress", "step": "step", "recent": "recent", "output": "streams", "output_bytes": "bytes",
        "files": "files", "files_before": "files_before",
    },
    "outcome": {"fault": "fault", "result_digest": "digest", "outcome": "event"},
    "lineage": {
        "trace_id": "trace_id", "parent": "parent", "heir": "subtask_owner", "thread": "thread", "hops": "hops",
        "dependencies": "dependencies", "called_dependencies": "called_dependencies", "blocked_by": "blocked_by",
        "has_dependents": "has_dependents", "has_children": "has_children", "asked": "has_questions",
        "handed": "handed", "helps": "helps",
    },
    "agreement": {name: name for name in ("constraints", "contract", "personal", "approved")},
    "spending": {"reserved": "reserved", "spent": "spent"},
}  # fmt: skip
"""Schema version 11: the part of each field of the flat head, and its name there."""

Members = dict[str, msgspec.Raw]
_members = msgspec.json.Decoder(Members).decode


def in_parts(head: str) -> str | None:
    """The head of a task as schema version 11 stores it; None if it is stored so already. Values are copied as they
    are."""
    flat = _members(head)
    if "routing" in flat:
        return None
    parts = {
        part: {new: flat.pop(old) for old, new in names.items() if old in flat} for part, names in TASK_PARTS.items()
    }
    whole: dict[str, Any] = {**flat, **{part: members for part, members in parts.items() if members}}
    if "request_bytes" in whole:
        whole["origin"] = {**_members(whole["origin"]), "bytes": whole.pop("request_bytes")}
    return msgspec.json.encode(whole).decode()


def rewrite_task_heads(connection: apsw.Connection) -> None:
    """Bring the head of every task into parts, one batch after the other, so that the log stays short. A rewrite that
    was interrupted goes on where it stopped."""
    batch = "SELECT no, body FROM task WHERE no > ? ORDER BY no LIMIT ?"
    rows: list[Any] = [(-1, "")]
    while rows := connection.execute(batch, (rows[-1][0], REWRITTEN_AT_ONCE)).fetchall():
        with connection:
            changed = [(head, no) for no, body in rows if (head := in_parts(str(body))) is not None]
            connection.executemany("UPDATE task SET body = ? WHERE no = ?", changed)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)


def fill_protocols(connection: apsw.Connection) -> None:
    """Write the protocol of every task into its column, one batch after the other."""
    batch = "SELECT max(no) FROM (SELECT no FROM task WHERE no > ? ORDER BY no LIMIT ?)"
    fill = (
        "UPDATE task SET protocol = json_extract(body, '$.origin.protocol')"
        " WHERE no > ? AND no <= ? AND protocol IS NULL"
    )
    done = -1
    while (row := connection.execute(batch, (done, REWRITTEN_AT_ONCE)).fetchone()) is not None and row[0] is not None:
        with connection:
            connection.execute(fill, (done, row[0]))
        done = int(row[0])
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)


REWRITTEN_AT_ONCE = 5000

REWRITES: dict[int, Callable[[apsw.Connection], None]] = {11: rewrite_task_heads, 14: fill_protocols}
"""Changes that Python makes to the rows before a schema version counts as reached: repeatable, in own transactions."""


def connect(path: str) -> apsw.Connection:
    """A connection that writes, checked: raises `StoreRefused` unless everything is as it must be.

    Closing it does not move the log into the database: after an I/O error or a refusal, the files must stay as they
    are.
    """
    require_sqlite()
    fresh = not os.path.exists(path) or os.path.getsize(path) == 0
    try:
        connection = apsw.Connection(path)
    except apsw.CantOpenError as error:
        raise StoreRefused(
            f"{path} cannot be opened", "check that it is a file the hub may read and write", because=name_of(error)
        ) from error
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(5_000)
        if fresh:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        require(_pragma(connection, "journal_mode = wal") == "wal", path, "cannot be switched to write-ahead logging")
        connection.execute("PRAGMA synchronous = FULL")
        require(_pragma(connection, "synchronous") == 2, path, "cannot be switched to full synchronisation")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT}")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA temp_store = MEMORY")
        migrate(connection, path, fresh)
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
        connection.close()
        raise damaged(path, str(error)) from error
    except apsw.Error as error:
        connection.close()
        raise StoreRefused(
            f"{path} cannot be used ({error})", "check the disk it is on, and its free space", because=name_of(error)
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def require_sqlite() -> None:
    if apsw.SQLITE_VERSION_NUMBER < OLDEST_SQLITE or _library_version() < OLDEST_SQLITE:
        raise StoreRefused(
            f"SQLite {apsw.sqlite_lib_version()} can damage a database (a write-ahead log bug fixed in 3.51.3)",
            "install apsw 3.54 or newer",
        )


def _library_version() -> int:
    major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
    return major * 1_000_000 + minor * 1_000 + patch


def require(true: bool, path: str, complaint: str) -> None:
    if not true:
        raise StoreRefused(f"{path} {complaint}", "put the data directory on a local disk that supports it")


def damaged(path: str, why: str) -> StoreRefused:
    return StoreRefused(f"{path} is damaged ({why})", "restore from a backup, or move it aside to start empty")


def name_of(error: BaseException) -> str:
    """The name of an error for the writer, the hub and the command line (`StoreRefused.because`)."""
    return type(error).__name__


def known_version(connection: apsw.Connection, path: str) -> int:
    """The version of its schema. Raises `StoreRefused` if the file is another program's, or newer than this version."""
    version = _pragma(connection, "user_version")
    owner = _pragma(connection, "application_id")
    if owner != APPLICATION_ID and not (owner == 0 and version == 0 and not _tables(connection)):
        raise StoreRefused(f"{path} is not a Dragoman database", "name another data directory")
    if not isinstance(version, int) or version > VERSION:
        raise StoreRefused(
            f"{path} has schema version {version}, this Dragoman knows versions up to {VERSION}",
            "use the Dragoman that wrote it, or a newer one",
        )
    return version


def migrate(connection: apsw.Connection, path: str, fresh: bool) -> None:
    version = known_version(connection, path)
    for number in range(version, VERSION):
        if not fresh and (rewrite := REWRITES.get(number + 1)) is not None:
            rewrite(connection)
        with connection:
            connection.execute(MIGRATIONS[number])
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    expected = _expected_schema()
    if not fresh and _tables(connection) != expected:
        raise damaged(path, "its tables are not the ones this version makes")


def _tables(connection: apsw.Connection) -> set[str]:
    return {
        str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    }


def _expected_schema() -> set[str]:
    fresh = apsw.Connection(":memory:")
    for migration in MIGRATIONS:
        fresh.execute(migration)
    return _tables(fresh)


def _pragma(connection: apsw.Connection, text: str) -> object:
    row = connection.execute(f"PRAGMA {text}").fetchone()
    return None if row is None else row[0]


def check_at_start(connection: apsw.Connection, path: str) -> None:
    """The quick checks: that SQLite sees all of the write-ahead log, and, for a small file, its integrity."""
    connection.execute("SELECT 1 FROM sqlite_schema").fetchall()  # builds the index of the log, if there is one
    # Never by looking into the -shm file: to close it would cancel the locks SQLite holds on it for this process.
    valid, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if lost_frames(path, max(0, valid)):
        raise damaged(path + "-wal", "commits in it cannot be read")
    if os.path.getsize(path) < QUICK_CHECK_BELOW and (complaints := integrity(connection, quick=True)):
        raise damaged(path, complaints[0])


def integrity(connection: apsw.Connection, *, quick: bool = False) -> list[str]:
    """The errors that SQLite finds; empty if there are none."""
    try:
        rows = connection.execute(f"PRAGMA {'quick_check' if quick else 'integrity_check'}(10)").fetchall()
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return [str(error)]
    lines = [line for (text,) in rows for line in str(text).splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("*** in database")]


WAL_MAGIC = 0x377F0682
WAL_HEADER = struct.Struct(">8I")
FRAME_HEADER = struct.Struct(">4I")


def lost_frames(path: str, valid: int) -> bool:
    """Whether the write-ahead log holds commits behind the last frame that SQLite accepts.

    SQLite takes a frame whose checksum is wrong for the torn end of an unfinished commit and ignores all behind it.
    But every commit was synced before the next one began: frames of this log behind a *later* commit mean that a
    finished one was damaged. `valid` is the number of frames SQLite recovered.
    """
    wal = Path(path + "-wal")
    if not wal.exists():
        return False
    size = wal.stat().st_size
    with wal.open("rb") as file:
        head = file.read(WAL_HEADER.size)
        if len(head) < WAL_HEADER.size:
            return False
        if not any(head):
            return False
        magic, _, page, _, *salts, _, _ = words = WAL_HEADER.unpack(head)
        if magic & ~1 != WAL_MAGIC or _wal_checksum(head, big=bool(magic & 1)) != words[6:]:
            return size > WAL_HEADER.size
        step = 24 + page
        commits = 0
        for offset in range(32 + valid * step, size - step + 1, step):
            file.seek(offset)
            _, pages, *frame_salts = FRAME_HEADER.unpack(file.read(FRAME_HEADER.size))
            if frame_salts != salts:
                return False
            if commits:
                return True
            commits += pages != 0
    return False


def _wal_checksum(head: bytes, *, big: bool) -> tuple[int, int]:
    first = second = 0
    for a, b in struct.iter_unpack(">2I" if big else "<2I", head[:24]):
        first = (first + a + second) & 0xFFFFFFFF
        second = (second + b + first) & 0xFFFFFFFF
    return first, second
