"""What forgotten tasks leave in the database: deleted bit by bit, whatever happens meanwhile, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.adapters.records import event, file, task

from dragoman.core.ids import TaskId
from dragoman.core.model.tasks import Status
from dragoman.core.ports import Changes
from dragoman.stores.sqlite import lists, recovery, writer
from dragoman.stores.sqlite.rows import pack

LONG = 3000
NUMBERS = {"long": 1, "stays": 2, "other": 3}


def write(disk: writer.Disk, **changes: Any) -> None:
    new = {row.id: NUMBERS[row.id] for row in changes.get("added", ()) if type(row).__name__ == "Task"}
    disk.write([list(one) for one in pack(Changes(**changes), NUMBERS.__getitem__, new)])


def left(disk: writer.Disk) -> tuple[int, int]:
    """Events, and histories that are not deleted yet."""
    rows = disk.connection.execute("SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM remains)")
    return next(iter(rows))


@pytest.fixture
def disk(tmp_path: Path) -> writer.Disk:
    made = writer.Disk(str(tmp_path / "hub.db"))
    long, stays = task("long", seq=LONG), task("stays", seq=2)
    write(made, added=[long, stays, *(event("long", n + 1) for n in range(LONG)), event("stays", 1), event("stays", 2)])
    return made


def test_many_events_are_deleted_in_parts_along_with_other_commits(disk: writer.Disk) -> None:
    write(disk, removed=[task("long", seq=LONG)])
    assert left(disk) == (LONG - writer.AT_ONCE[0] + 2, 1)
    write(disk, changed=[task("stays", seq=2, progress=1)])
    assert left(disk) == (LONG - writer.AT_ONCE[0] - writer.ALONG[0] + 2, 1)
    while disk.remains:
        disk.clear()
    assert left(disk) == (2, 0)
    assert [row.seq for row in lists.events(disk.connection, TaskId("stays"), 0, 10)] == [1, 2]


def test_large_events_go_one_at_a_time(disk: writer.Disk) -> None:
    big = [event("other", n, raw=bytes(writer.AT_ONCE[1])) for n in (1, 2, 3)]
    write(disk, added=[task("other", seq=3), *big])
    write(disk, removed=[task("other", seq=3)])
    assert left(disk) == (LONG + 2 + 2, 1)
    disk.clear()
    assert left(disk) == (LONG + 2 + 1, 1)


def test_a_restart_in_the_middle_goes_on_and_gives_the_number_to_nobody_else(disk: writer.Disk) -> None:
    write(disk, removed=[task("stays", seq=2)])  # the highest number is free again
    assert recovery.recovered(disk.connection)[1] == 2
    write(disk, removed=[task("long", seq=LONG)])
    assert recovery.recovered(disk.connection)[1] == 2
    path = disk.path
    disk.close(orderly=False)
    again = writer.Disk(path)
    assert again.remains
    while again.remains:
        assert recovery.recovered(again.connection)[1] == 2
        again.clear()
    assert (left(again), recovery.recovered(again.connection)[1]) == ((0, 0), 1)


def test_a_unit_that_fails_leaves_the_events_whole(disk: writer.Disk) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        write(disk, removed=[task("long", seq=LONG), task("other")])
    assert left(disk) == (LONG + 2, 0)
    assert len(lists.events(disk.connection, TaskId("long"), 0, LONG + 1)) == LONG


def test_pairs_go_with_their_task(disk: writer.Disk) -> None:
    write(disk, added=[task("other", dependencies=(TaskId("long"),), files=(file("f"),))])
    both = "SELECT (SELECT count(*) FROM blocked), (SELECT count(*) FROM attached)"
    assert disk.connection.execute(both).fetchone() == (1, 1)
    over = task("other", dependencies=(TaskId("long"),), files=(file("f"),), status=Status.COMPLETED)
    write(disk, changed=[over])
    assert disk.connection.execute(both).fetchone() == (0, 1)
    write(disk, removed=[over])
    assert disk.connection.execute(both).fetchone() == (0, 0)
