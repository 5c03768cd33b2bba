"""Lists for people: read in threads, on read-only connections of their own, each from one snapshot of the database.

A snapshot keeps the write-ahead log from beginning anew (see `log`). So while the log waits for readers, a list that
takes long is interrupted, and whoever asked for it may ask again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw

from dragoman.core.ports import StoreFailed
from dragoman.stores.sqlite import answers

T = TypeVar("T")


class Lists:
    def __init__(self, path: str, *, threads: int, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dragoman-read")
        self._idle: list[apsw.Connection] = []
        self._reading: dict[apsw.Connection, float] = {}
        """The connections that read, and since when."""

    async def read(self, read: Callable[[apsw.Connection], T]) -> T:
        """Raises `StoreFailed`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, read)
        except apsw.InterruptError as error:
            raise StoreFailed(
                f"the list took longer than {self._seconds:g} s while much was written; ask for less, or later"
            ) from error
        except apsw.Error as error:
            raise unreadable(error) from error

    def _read(self, read: Callable[[apsw.Connection], T]) -> T:
        connection = self._idle.pop() if self._idle else answers.connect(self._path)
        self._reading[connection] = time.monotonic()
        try:
            connection.execute("BEGIN")  # one snapshot, however many statements
            found = read(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()  # and with it, whatever it held
            raise
        finally:
            del self._reading[connection]
        self._idle.append(connection)
        return found

    def interrupt_long_ones(self) -> None:
        begun_by = time.monotonic() - self._seconds
        for connection, since in list(self._reading.items()):
            if since <= begun_by:
                connection.interrupt()

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.shutdown)
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def unreadable(error: apsw.Error) -> StoreFailed:
    return StoreFailed(f"the store could not read: {error}")
