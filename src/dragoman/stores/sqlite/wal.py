"""Keeps the write-ahead log of the database bounded.

SQLite appends commits to the log and can restart it only when all of it was moved into the database and no reader uses
it any more. A reader whose transaction stays open, or readers that overlap, keep it from that for ever. So:

    bytes in the log       what the writer does after a commit
    ---------------------  -----------------------------------------------------------------------------------
    an eighth of the cap   a second thread moves it (SQLite works outside the GIL), so commits do not wait; only
                           the rest, what was written meanwhile, is moved between two commits
    a quarter              waits for that thread, and then, while nothing new is written, for readers:
                           those that began before reach their end, new ones read the database alone
    each further eighth    waits for readers once more
    the cap                refuses units until it can restart the log

From a quarter on, the store interrupts the hub's own long reads (see `store`), and a backup reads in steps. So only
another program that keeps a transaction open can bring the log to the cap, and the log exceeds it by one unit at most.

Imported by the writer: apsw and the standard library only.
"""

from __future__ import annotations

import os
import threading

import apsw

from dragoman.stores.sqlite import schema

CAP = 256 << 20
"""Bytes that the log may hold, unless a setting says otherwise."""

SMALL_REST = 1 << 20
"""Bytes of the log that may be moved between two commits."""

ROUNDS = 8

READERS_MS = 500
"""How long a commit may wait for readers, at each step of the table."""
FULL_MS = 250
"""How long a unit waits before it is refused."""
BUSY_MS = 5000


class LogIsFull(Exception):
    """The log is at its cap and cannot restart."""

    def __init__(self, size: int, cap: int) -> None:
        super().__init__(
            f"the write-ahead log holds {size >> 20} MiB of at most {cap >> 20} (store.log_limit_bytes) and cannot"
            " restart while another program reads the database: end that program's transaction, or the program"
        )


def waits_at(cap: int) -> int:
    """The size from which the writer waits for readers and the hub interrupts its own."""
    return cap // 4


class WriteAheadLog:
    def __init__(self, connection: apsw.Connection, path: str, cap: int = CAP) -> None:
        self.cap = cap
        self.size = 0
        """Bytes of the log after the last commit."""
        self._connection = connection
        self._path = path
        self._moved = 0
        """Bytes of the log when it was last moved."""
        self._wait_at = waits_at(cap)
        self._mover: threading.Thread | None = None
        # Opened once and kept: POSIX locks belong to the process, and closing any descriptor of a file cancels all of
        # them, those of SQLite's connections too.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        connection.execute(f"PRAGMA journal_size_limit = {min(schema.WAL_KEPT, waits_at(cap))}")
        connection.set_wal_hook(self._grown)

    def _grown(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        size = pages * schema.PAGE_SIZE
        if size < self.size:  # it was restarted
            self._moved, self._wait_at = 0, waits_at(self.cap)
        self.size = size
        return apsw.SQLITE_OK

    def make_room(self, unit: int) -> None:
        """Wait for room for a unit of about so many bytes; raises `LogIsFull`. A unit above the cap needs an empty
        log."""
        if self.size and self.size + unit > self.cap:
            self._wait_for_mover()
            if not self._restart(FULL_MS):
                raise LogIsFull(self.size, self.cap)

    def keep_bounded(self) -> None:
        """Called after each commit, when the answer is out."""
        if self.size > self._wait_at:
            self._wait_for_mover()
            if not self._restart(READERS_MS):
                self._wait_at = self.size + self.cap // 8
        elif self._mover is not None:
            if not self._mover.is_alive():
                self._mover = None
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)  # the rest
                self._moved = self.size
        elif self.size - self._moved > self.cap // 8:
            self._mover = threading.Thread(target=self._move, name="checkpoint", daemon=True)
            self._mover.start()

    def _restart(self, patience_ms: int) -> bool:
        """Try to restart the log; gives whether the next unit is written to its beginning: all of it is in the database
        and no reader needs it. Nothing else is written meanwhile, because there is only this writer."""
        self._connection.set_busy_timeout(patience_ms)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.BusyError:
            return False
        finally:
            self._connection.set_busy_timeout(BUSY_MS)
        self.size = self._moved = 0
        self._wait_at = waits_at(self.cap)
        return True

    def _wait_for_mover(self) -> None:
        if self._mover is not None:
            self._mover.join()
            self._mover = None

    def _move(self) -> None:
        """Move most of the log, in rounds: what comes during one is moved in the next, until little is left.

        SQLite syncs the database only when it has moved the whole log, which would leave all of the sync to the commit
        that waits for the rest. So this syncs what was moved so far.
        """
        try:
            connection = apsw.Connection(self._path)
            try:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.execute("PRAGMA synchronous = FULL")
                for _ in range(ROUNDS):
                    logged, _moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                    os.fdatasync(self._file)
                    if self.size - logged * schema.PAGE_SIZE < SMALL_REST:
                        break
            finally:
                connection.close()
        except (apsw.Error, OSError):
            pass  # nothing is lost: the log is still there, and SQLite's own sync meets the same error

    def close(self) -> None:
        """Call it after the connection is closed."""
        os.close(self._file)

    def stop_moving(self) -> None:
        self._wait_for_mover()
