"""After an error of the disk nothing that SQLite holds in memory is believed: the database is opened anew, and an fsync
that failed is never tried again."""

from __future__ import annotations

import socket
import threading
from typing import Any

import apsw
import msgspec
import pytest

from dragoman.stores.sqlite import frames, writer

OF_THE_DISK = (apsw.IOError, apsw.FullError, apsw.CorruptError)
OF_THE_UNIT = (apsw.ConstraintError, ValueError)


class WriteAheadLog:
    size = 0

    def make_room(self, unit: int) -> None: ...

    def keep_bounded(self) -> None: ...


class Disk:
    """Counts how often it was opened and how often it was asked to write."""

    fails: type[Exception] | None = None
    opened: list[Disk]

    def __init__(self, path: str, log_cap: int) -> None:
        self.opened.append(self)
        self.log = WriteAheadLog()
        self.written = 0
        self.closed: bool | None = None
        self.remains = False

    def settle(self) -> None: ...

    def write(self, operations: list[Any]) -> None:
        self.written += 1
        if self.fails is not None:
            raise self.fails("injected")

    def close(self, *, orderly: bool) -> None:
        self.closed = orderly


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> type[Disk]:
    kind = type("Disk", (Disk,), {"opened": []})
    monkeypatch.setattr(writer, "Disk", kind)
    return kind


class Hub:
    """The other end of the writer's socket."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(10)
        self._thread = threading.Thread(target=writer.serve, args=(theirs, "hub.sqlite"), daemon=True)
        self._thread.start()
        assert self.answer() is None

    def answer(self) -> str | None:
        head = self._ours.recv(frames.HEADER, socket.MSG_WAITALL)
        body = self._ours.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        return msgspec.msgpack.decode(body, type=writer.Answer).error

    def commit(self) -> str | None:
        frame = msgspec.msgpack.encode([])
        self._ours.sendall(len(frame).to_bytes(frames.HEADER, "big") + frame)
        return self.answer()

    def close(self) -> None:
        self._ours.close()
        self._thread.join(10)


@pytest.mark.parametrize("error", OF_THE_DISK)
def test_after_an_error_of_the_disk_the_database_is_opened_again(disk: type[Disk], error: type[Exception]) -> None:
    hub = Hub()
    assert hub.commit() is None
    disk.fails = error
    assert "injected" in (hub.commit() or "")
    disk.fails = None
    assert hub.commit() is None
    hub.close()
    assert [(one.written, one.closed) for one in disk.opened] == [(2, False), (1, True)]


@pytest.mark.parametrize("error", OF_THE_UNIT)
def test_a_unit_that_is_wrong_costs_nobody_the_database(disk: type[Disk], error: type[Exception]) -> None:
    hub = Hub()
    disk.fails = error
    assert "injected" in (hub.commit() or "")
    disk.fails = None
    assert hub.commit() is None
    hub.close()
    assert [(one.written, one.closed) for one in disk.opened] == [(2, True)]
