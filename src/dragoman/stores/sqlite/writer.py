"""The writer process: the only one that writes to the database.

A thread would starve on the hub's GIL (commits took seconds when the event loop was busy), so this is a fresh
interpreter, started early, that imports apsw and msgspec and little else. It reads one frame (see `ops`) per
unit of work from a socket pair, runs it in one transaction, and answers when the commit is on the disk. It ends
when the hub's end of the pair closes. Signals that ask the hub to stop are not for it: the hub drains first.

After an I/O error the connection is closed and opened anew before the next unit: what SQLite holds in memory may no
longer be what is on the disk, and an fsync that failed is never tried again.

What a forgotten task leaves, its events, may be much. So it is noted (`remains`) in the transaction that removes the
task, and deleted bit by bit: some with every commit, and the rest when there is nothing else to do.

The write-ahead log is moved into the database by a second thread (SQLite works outside the GIL), so commits do not
wait for it; only the rest, what was written meanwhile, is moved between two commits.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import msgspec

from dragoman import durable
from dragoman.stores.sqlite import ops, schema
from dragoman.stores.sqlite.columns import AuditColumns, DeliveryColumns, TaskColumns, TaskUpdates
from dragoman.stores.sqlite.errors import StoreRefused

CHECKPOINT_AT = 32 << 20
"""Bytes of write-ahead log after which it is moved into the database."""

SMALL_REST = 1 << 20
"""Bytes of it that may be moved between two commits."""

ROUNDS = 8

AT_ONCE = (1024, 1 << 20)
"""How many events, and bytes of them, are deleted in a transaction that removes tasks, or in one of its own;"""

ALONG = (64, 256 << 10)
"""and how many in any other."""

IDLE = 0.05
"""After so many seconds without a unit there is time for it."""

REOPEN_AFTER = (
    apsw.IOError,
    apsw.FullError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.ProtocolError,
)


class Answer(msgspec.Struct, array_like=True):
    """What the hub hears: nothing wrong, or a sentence. `refused`: the writer will not serve this database at all."""

    error: str | None = None
    refused: bool = False


class Disk:
    """The database and its write-ahead log."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.connection = schema.connect(path)
        self.updates = TaskUpdates()
        self.logged = 0
        self.remains = True
        """Whether there may be events of forgotten tasks."""
        self.connection.set_wal_hook(self._logged)
        self._checkpoint: threading.Thread | None = None
        # Opened once and kept: POSIX locks belong to the process, and closing any descriptor of a file cancels all of
        # them, those of SQLite's connections too.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _logged(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self.logged = pages * schema.PAGE_SIZE
        return apsw.SQLITE_OK

    def settle(self) -> None:
        """After a start: checks, then empties the log a dead writer left, for its pages may be in memory only."""
        try:
            schema.check_at_start(self.connection, self.path)
            sync(f"{self.path}-wal")
            durable.sync_directory(Path(self.path).parent)  # SQLite does that for its log, not for the database
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            pass  # the hub reads: it was only the writer that died, and what it left is on the disk by now
        except BaseException:
            self.connection.close()
            raise

    def write(self, operations: list[list[Any]]) -> None:
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            for operation in operations:
                self._run(operation)
            if self.remains:
                self._clear(*(AT_ONCE if any(code == ops.TASKS_REMOVED for code, *_ in operations) else ALONG))
            crash("writer:before_commit")
            connection.execute("COMMIT")
        except BaseException:
            self.updates.forget()
            self.remains = True
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        crash("writer:after_commit")

    def _run(self, operation: list[Any]) -> None:
        connection = self.connection
        match operation[0]:
            case ops.ROWS:
                _, number, rows = operation
                self._all(ops.STATEMENTS[number], rows)
            case ops.TASKS_ADDED:
                rows, pairs = TaskColumns.added(operation[1], operation[2], self.updates)
                connection.executemany(TaskColumns.INSERT, rows)
                for statement, two in pairs.items():
                    connection.executemany(statement, two)
            case ops.TASKS_CHANGED:
                for statement, rows in self.updates.sort(operation[1], operation[2]):
                    if statement in TaskColumns.PAIRS:
                        connection.executemany(statement, rows)
                    else:
                        self._all(statement, rows)
            case ops.DELIVERIES_ADDED:
                connection.executemany(DeliveryColumns.INSERT, DeliveryColumns.rows(operation[1]))
            case ops.DELIVERIES_CHANGED:
                self._all(DeliveryColumns.UPDATE, DeliveryColumns.rows(operation[1]))
            case ops.AUDIT:
                connection.executemany(AuditColumns.INSERT, AuditColumns.rows(operation[1]))
                connection.execute(AuditColumns.NEWEST, AuditColumns.newest(operation[1]))
            case ops.TASKS_REMOVED:
                self._remove(operation[1])
            case ops.FORGET:
                connection.execute(ops.FORGET_CHANGES, (operation[1],))
            case unknown:
                raise ValueError(f"operation {unknown} is not known")

    def _remove(self, tasks: list[Any]) -> None:
        connection = self.connection
        self._all(ops.STATEMENTS[ops.TASK_REMOVED], [(no,) for no, *_ in tasks])
        connection.executemany(TaskColumns.UNBLOCK, [(other, no) for no, others, *_ in tasks for other in others])
        connection.executemany(TaskColumns.DETACH, [(file, no) for no, _, files, _ in tasks for file in files])
        connection.executemany(TaskColumns.RELEASE, [under for *_, under in tasks if under is not None])
        ranges = [(no << ops.SEQ_BITS, ((no + 1) << ops.SEQ_BITS) - 1) for no, *_ in tasks]
        connection.executemany("INSERT INTO remains (first, last) VALUES (?, ?)", ranges)
        self.remains = True
        for no, *_ in tasks:
            self.updates.removed(no)

    def _clear(self, events: int, size: int) -> None:
        """Delete some of what forgotten tasks left: at most so many events, and hardly more than so many bytes."""
        connection = self.connection
        while events > 0 and size > 0:
            row: Any = connection.execute("SELECT first, last FROM remains ORDER BY first LIMIT 1").fetchone()
            if row is None:
                self.remains = False
                return
            first, last = row
            found: list[Any] = connection.execute(ops.SIZES, (first, last, events)).fetchall()
            until = last if len(found) < events else found[-1][0]
            for key, length in found:
                events -= 1
                size -= length
                if size <= 0 and key < found[-1][0]:
                    until = key
                    break
            connection.execute("DELETE FROM event WHERE key BETWEEN ? AND ?", (first, until))
            if until == last:
                connection.execute("DELETE FROM remains WHERE first = ?", (first,))
            else:
                connection.execute("UPDATE remains SET first = ? WHERE first = ?", (until + 1, first))

    def clear(self) -> None:
        """The same, when nobody waits."""
        with self.connection:
            self._clear(*AT_ONCE)

    def _all(self, statement: str, rows: list[Any]) -> None:
        """Each of the rows must be there."""
        before = self.connection.total_changes()
        self.connection.executemany(statement, rows)
        if self.connection.total_changes() - before != len(rows):
            raise ValueError(f"a row that should be changed or removed does not exist ({statement.split(' SET')[0]})")

    def keep_log_bounded(self) -> None:
        """Called after each commit, when the answer is out."""
        if self._checkpoint is not None and not self._checkpoint.is_alive():
            self._checkpoint = None
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)  # the rest: the log can start over
        elif self.logged > CHECKPOINT_AT and self._checkpoint is None:
            self._checkpoint = threading.Thread(target=self._move_log, name="checkpoint", daemon=True)
            self._checkpoint.start()

    def _move_log(self) -> None:
        """Most of it, in rounds: what came during one is moved in the next, until little is left.

        SQLite syncs the database only when it has caught up with the log, which would leave all of the sync to the
        commit that waits for the rest. So we sync what is there now.
        """
        try:
            connection = apsw.Connection(self.path)
            try:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.execute("PRAGMA synchronous = FULL")
                for _ in range(ROUNDS):
                    logged, _moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                    os.fdatasync(self._file)
                    if self.logged - logged * schema.PAGE_SIZE < SMALL_REST:
                        break
            finally:
                connection.close()
        except (apsw.Error, OSError):
            pass  # nothing is lost: the log is still there, and SQLite's own sync meets the same error

    def close(self, *, orderly: bool) -> None:
        if self._checkpoint is not None:
            self._checkpoint.join()
        if orderly:
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self.connection.close()
        os.close(self._file)


def sync(path: str) -> None:
    """What a file holds is on the disk, if there. SQLite locks the database, never its log: that one may be closed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def serve(link: socket.socket, path: str) -> None:
    try:
        started = Disk(path)
        started.settle()
    except (StoreRefused, apsw.Error, OSError) as error:
        answer(link, Answer(str(error), refused=True))
        return
    disk: Disk | None = started
    answer(link, Answer())
    decode = msgspec.msgpack.Decoder(list[list[Any]]).decode
    while True:
        if disk is not None and disk.remains and not select.select([link], [], [], IDLE)[0]:
            try:
                disk.clear()
                disk.keep_log_bounded()
            except apsw.Error:
                disk.close(orderly=False)
                disk = None
            continue
        if (frame := receive(link)) is None:
            break
        try:
            if disk is None:
                disk = Disk(path)
            disk.write(decode(frame))
        except BaseException as error:
            answer(link, Answer(f"{type(error).__name__}: {error}"))
            if disk is not None and isinstance(error, REOPEN_AFTER):
                disk.close(orderly=False)
                disk = None
            continue
        crash("writer:before_answer")
        answer(link, Answer())
        try:
            disk.keep_log_bounded()
        except apsw.Error:
            disk.close(orderly=False)
            disk = None
    if disk is not None:
        disk.close(orderly=True)


def receive(link: socket.socket) -> bytearray | None:
    """The next frame, or None when the hub is gone."""
    try:
        head = link.recv(ops.HEADER, socket.MSG_WAITALL)
    except ConnectionResetError:  # it died with our last answer unread
        return None
    if len(head) < ops.HEADER:
        return None
    frame = bytearray(int.from_bytes(head, "big"))
    view = memoryview(frame)
    while view:
        got = link.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return frame


def answer(link: socket.socket, what: Answer) -> None:
    body = msgspec.msgpack.encode(what)
    try:
        link.sendall(len(body).to_bytes(ops.HEADER, "big") + body)
    except BrokenPipeError:
        pass  # the hub is gone; the next read says so


ALONE = "writer:before_answer"


class CrashPoint:
    """For fault tests: `DRAGOMAN_CRASH_AT=writer:before_commit[:N]` kills hub and writer there, the Nth time.
    `writer:before_answer` kills the writer alone, and so the next one."""

    def __init__(self, setting: str) -> None:
        process, _, rest = setting.partition(":")
        step, _, count = rest.partition(":")
        self.name = f"{process}:{step}"
        self.left = int(count or 1)

    def __call__(self, name: str) -> None:
        if name != self.name:
            return
        self.left -= 1
        if not self.left:
            if name != ALONE:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def _no_crash(name: str) -> None:
    pass


crash: Any = _no_crash


def die_with_parent(parent: int) -> None:
    """The hub's end of the socket says it too; this also holds while a commit hangs."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(0)


def main(arguments: list[str]) -> None:
    global crash
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor, parent, path = arguments
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # waking up must not push the hub off its core
    die_with_parent(int(parent))
    setting = os.environ.get("DRAGOMAN_CRASH_AT", "")
    if setting.startswith("writer:"):
        crash = CrashPoint(setting)
    with socket.socket(fileno=int(descriptor)) as link:
        serve(link, path)


if __name__ == "__main__":
    main(sys.argv[1:])
