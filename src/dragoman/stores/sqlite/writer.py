"""The writer process: the only one that writes to the database.

A thread would starve on the hub's GIL (commits took seconds when the event loop was busy), so this is a fresh
interpreter, started early, that imports apsw and msgspec and little else. It reads one frame (see `frames`) per
unit of work from a socket pair, runs it in one transaction, and answers when the commit is on the disk. It ends
when the hub's end of the pair closes. It ignores the signals that ask the hub to stop: the hub drains first.

After an I/O error the writer closes the connection and opens another before the next unit: what SQLite holds in memory
may differ from the disk, and a failed fsync must not be repeated.

A removed task may leave many events. So the transaction that removes the task records their range (`remains`), and the
writer deletes them in small steps: some with every commit, and the rest when it has nothing else to do.

`wal` keeps the write-ahead log short. The writer also makes backups, one step at a time between two units. What this
connection commits meanwhile goes into the copy as well, so the copy never has to begin again, and between two steps
there is no reader.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import apsw
import msgspec

from dragoman import durable
from dragoman.security.private import leave_no_dumps
from dragoman.stores import layout
from dragoman.stores.crash_points import crash_point
from dragoman.stores.sqlite import frames, schema
from dragoman.stores.sqlite.backups import Copy
from dragoman.stores.sqlite.frames import AuditColumns, DeliveryColumns, TaskColumns, TaskUpdates
from dragoman.stores.sqlite.schema import StoreRefused
from dragoman.stores.sqlite.sent_messages import SentMessages, beside
from dragoman.stores.sqlite.used import UsedIds
from dragoman.stores.sqlite.wal import CAP, LogIsFull, WriteAheadLog

AT_ONCE = (1024, 1 << 20)
"""The most events, and bytes of them, deleted in a transaction that removes tasks, or in one of its own."""

ALONG = (64, 256 << 10)
"""The most events, and bytes of them, deleted in any other transaction."""

IDLE = 0.05
"""After so many seconds without a unit the writer deletes more of them."""

REOPEN_AFTER = (
    apsw.IOError,
    apsw.FullError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.ProtocolError,
)


class Answer(msgspec.Struct, array_like=True):
    """The answer to the hub: no error, or its sentence, which says what to do where the writer cannot use the database
    at all. `because`: the name of the error. `log`: bytes in the write-ahead log. `left`: pages that a backup has still
    to copy."""

    error: str | None = None
    because: str = ""
    advice: str = ""
    log: int = 0
    left: int = 0


class Disk:
    """The database and its write-ahead log."""

    def __init__(self, path: str, log_cap: int = CAP) -> None:
        self.path = path
        self.connection = schema.connect(path)
        self.updates = TaskUpdates()
        self.remains = True
        """Whether there may be events of removed tasks."""
        self.log = WriteAheadLog(self.connection, path, log_cap)
        self.passed = SentMessages(beside(path))
        self.passed.read()
        self.used = UsedIds(self.connection)
        self.copy: Copy | None = None

    def settle(self) -> None:
        """After a start: check the database, then empty the log of a dead writer, whose pages may not be synced."""
        try:
            schema.check_at_start(self.connection, self.path)
            sync(f"{self.path}-wal")
            durable.sync_directory(Path(self.path).parent)  # SQLite does that for its log, not for the database
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            pass  # the hub still reads, so only the writer died, and its log is on the disk by now
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
                self._clear(*(AT_ONCE if any(code == frames.TASKS_REMOVED for code, *_ in operations) else ALONG))
            crash_point("writer:before_commit")
            connection.execute("COMMIT")
        except BaseException:
            self.updates.forget()
            self.used.forget()
            self.remains = True
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        crash_point("writer:after_commit")

    def _run(self, operation: list[Any]) -> None:
        connection = self.connection
        match operation[0]:
            case frames.ROWS:
                _, number, rows = operation
                self._all(frames.STATEMENTS[number], rows)
            case frames.TASKS_ADDED:
                rows, pairs = TaskColumns.added(operation[1], operation[2], self.updates)
                connection.executemany(TaskColumns.INSERT, rows)
                for statement, two in pairs.items():
                    connection.executemany(statement, two)
            case frames.TASKS_CHANGED:
                for statement, rows in self.updates.sort(operation[1], operation[2]):
                    if statement in TaskColumns.PAIRS:
                        connection.executemany(statement, rows)
                    else:
                        self._all(statement, rows)
            case frames.DELIVERIES_ADDED:
                connection.executemany(DeliveryColumns.INSERT, DeliveryColumns.rows(operation[1]))
            case frames.DELIVERIES_CHANGED:
                self._all(DeliveryColumns.UPDATE, DeliveryColumns.rows(operation[1]))
            case frames.AUDIT:
                connection.executemany(AuditColumns.INSERT, AuditColumns.rows(operation[1]))
                connection.execute(AuditColumns.NEWEST, AuditColumns.newest(operation[1]))
            case frames.TASKS_REMOVED:
                self._remove(operation[1])
            case frames.USED:
                self.used.add(operation[1])
            case frames.FORGET:
                connection.execute(frames.FORGET_CHANGES, (operation[1],))
            case unknown:
                raise ValueError(f"operation {unknown} is not known")

    def _remove(self, tasks: list[Any]) -> None:
        connection = self.connection
        self._all(frames.STATEMENTS[frames.TASK_REMOVED], [(no,) for no, *_ in tasks])
        connection.executemany(TaskColumns.UNBLOCK, [(other, no) for no, others, *_ in tasks for other in others])
        connection.executemany(TaskColumns.DETACH, [(file, no) for no, _, files, _ in tasks for file in files])
        connection.executemany(TaskColumns.RELEASE, [under for *_, under in tasks if under is not None])
        ranges = [(no << layout.SEQ_BITS, ((no + 1) << layout.SEQ_BITS) - 1) for no, *_ in tasks]
        connection.executemany("INSERT INTO remains (first, last) VALUES (?, ?)", ranges)
        self.remains = True
        for no, *_ in tasks:
            self.updates.removed(no)

    def _clear(self, events: int, size: int) -> None:
        """Delete events of removed tasks: at most so many, and hardly more than so many bytes."""
        connection = self.connection
        while events > 0 and size > 0:
            row: Any = connection.execute("SELECT first, last FROM remains ORDER BY first LIMIT 1").fetchone()
            if row is None:
                self.remains = False
                return
            first, last = row
            found: list[Any] = connection.execute(frames.SIZES, (first, last, events)).fetchall()
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
        """Delete events of removed tasks while no unit waits."""
        with self.connection:
            self._clear(*AT_ONCE)

    def _all(self, statement: str, rows: list[Any]) -> None:
        """Each row that is changed or removed must be there. Inserts fail by themselves, and what a trigger deletes
        along with one is not counted."""
        before = self.connection.total_changes()
        self.connection.executemany(statement, rows)
        if not statement.startswith("INSERT") and self.connection.total_changes() - before != len(rows):
            raise ValueError(f"a row that should be changed or removed does not exist ({statement.split(' SET')[0]})")

    def step(self, operation: list[Any]) -> int:
        """Do one step of a backup; gives how many pages are left."""
        match operation:
            case [frames.COPY_BEGIN, part]:
                self._end_copy()
                self.copy = Copy(self.connection, part)
                return self.copy.left
            case [frames.COPY_STEP, pages] if self.copy is not None:
                return self.copy.step(pages)
            case [frames.COPY_END]:
                self._end_copy()
                return 0
            case _:
                raise ValueError("no backup has begun")

    def _end_copy(self) -> None:
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.close()

    def close(self, *, orderly: bool) -> None:
        self._end_copy()
        self.log.stop_moving()
        if orderly:
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self.connection.close()
        self.log.close()
        self.passed.close()


def sync(path: str) -> None:
    """Sync a file, if it exists. SQLite locks the database, never its log, so closing the log cancels no lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def serve(link: socket.socket, path: str, log_cap: int = CAP) -> None:
    try:
        started = Disk(path, log_cap)
        started.settle()
    except StoreRefused as error:
        answer(link, Answer(error.problem, because=error.because, advice=error.advice))
        return
    except (apsw.Error, OSError) as error:
        answer(link, Answer(str(error), because=schema.name_of(error)))
        return
    disk: Disk | None = started
    answer(link, Answer())
    decode = msgspec.msgpack.Decoder(list[list[Any]]).decode
    while True:
        if disk is not None and disk.remains and not select.select([link], [], [], IDLE)[0]:
            try:
                disk.log.make_room(AT_ONCE[1])
                disk.clear()
                disk.log.keep_bounded()
            except LogIsFull:
                pass
            except apsw.Error:
                disk.close(orderly=False)
                disk = None
            continue
        if (frame := receive(link)) is None:
            break
        try:
            if disk is None:
                disk = Disk(path, log_cap)
            operations = decode(frame)
            if operations and operations[0][0] in frames.COPYING:
                answer(link, backup_step(disk, operations[0]))
                continue
            if operations and operations[0][0] == frames.NOTED:
                disk.passed.note(operations[0][1])
                answer(link, Answer(log=disk.log.size))
                continue
            disk.log.make_room(len(frame))
            disk.write(operations)
        except BaseException as error:
            answer(link, failed(error, 0 if disk is None else disk.log.size))
            if disk is not None and isinstance(error, REOPEN_AFTER):
                disk.close(orderly=False)
                disk = None
            continue
        crash_point("writer:before_answer")
        answer(link, Answer(log=disk.log.size))
        try:
            disk.log.keep_bounded()
        except apsw.Error:
            disk.close(orderly=False)
            disk = None
    if disk is not None:
        disk.close(orderly=True)


def backup_step(disk: Disk, operation: list[Any]) -> Answer:
    """An error here concerns only the copy: the writer goes on with the database."""
    try:
        return Answer(log=disk.log.size, left=disk.step(operation))
    except Exception as error:
        return failed(error, disk.log.size)


def failed(error: BaseException, log: int) -> Answer:
    name = schema.name_of(error)
    return Answer(f"{name}: {error}", because=name, log=log)


def receive(link: socket.socket) -> bytearray | None:
    """The next frame, or None when the hub is gone."""
    try:
        head = link.recv(frames.HEADER, socket.MSG_WAITALL)
    except ConnectionResetError:  # the hub died before it read the last answer
        return None
    if len(head) < frames.HEADER:
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
        link.sendall(len(body).to_bytes(frames.HEADER, "big") + body)
    except BrokenPipeError:
        pass  # the hub is gone; the next read notices it


def die_with_parent(parent: int) -> None:
    """End with the hub. Its closed socket shows that as well, but not while a commit hangs."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(0)


def main(arguments: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor, parent, log_cap, path = arguments
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # a writer that wakes up must not preempt the hub
    die_with_parent(int(parent))
    leave_no_dumps()
    with socket.socket(fileno=int(descriptor)) as link:
        serve(link, path, int(log_cap))


if __name__ == "__main__":
    main(sys.argv[1:])
