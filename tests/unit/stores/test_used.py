"""The rows of message ids that were used."""

from __future__ import annotations

from pathlib import Path

from dragoman.core.ports import USED
from dragoman.stores import layout
from dragoman.stores.sqlite import frames, used
from dragoman.stores.sqlite.writer import Disk


def add(disk: Disk, *messages: int) -> None:
    disk.write([[frames.USED, layout.pack({id: id + 1 for id in messages})]])


def test_the_store_keeps_at_least_as_many_as_the_port_promises() -> None:
    assert used.KEPT == USED


def test_the_oldest_rows_are_deleted_and_the_last_ids_stay(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path / "hub.sqlite"))
    every = 250
    for begin in range(0, USED + 20 * used.STEP, every):
        add(disk, *range(begin, begin + every))
    newest = begin + every
    kept = used.read(disk.connection)
    assert list(kept.items()) == [(id, id + 1) for id in range(newest - len(kept), newest)]
    assert USED <= len(kept) <= USED + used.STEP + every
    disk.close(orderly=True)


def test_a_writer_goes_on_where_the_one_before_ended_and_after_a_rollback(tmp_path: Path) -> None:
    path = str(tmp_path / "hub.sqlite")
    disk = Disk(path)
    add(disk, 1, 2)
    disk.close(orderly=True)
    disk = Disk(path)
    add(disk, (1 << 64) - 2)
    try:
        disk.write([[frames.USED, layout.pack({9: 9})], [frames.ROWS, frames.AGENT + 2, [("nobody",)]]])
    except ValueError:
        pass
    add(disk, 4)
    assert list(used.read(disk.connection)) == [1, 2, (1 << 64) - 2, 4]
    assert disk.connection.execute("SELECT until FROM used").fetchall() == [(2,), (3,), (4,)]
    disk.close(orderly=True)
