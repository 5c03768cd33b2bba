"""Records as the writer sees them: which of their fields are columns.

The hub sends a list of records as one JSON text. Here it is cut into rows without parsing more than the columns
need: each row's `body` is a slice of the text. The defaults must be those of the model, which leaves them out of the
text; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar

import msgspec

from dragoman.stores.sqlite.schema import LEASED, POLLED, WAITING_HEAD

slices = msgspec.json.Decoder(list[msgspec.Raw]).decode


class OriginColumns(msgspec.Struct, gc=False):
    principal: str
    request_id: str


class FileColumns(msgspec.Struct, gc=False):
    id: str


class TaskColumns(msgspec.Struct, gc=False):
    id: str
    type: str
    status: str
    origin: OriginColumns
    created_at: int
    rank: int
    queue: str | None = None
    wake_at: int | None = None
    owner: str | None = None
    parent: str | None = None
    dependencies: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    files: tuple[FileColumns, ...] = ()
    contract: str | None = None

    INSERT: ClassVar = (
        "INSERT INTO task (no, status, queue, rank, wake_at, owner, id, principal, request_id, created_at, type,"
        " parent, body) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
    )
    BLOCK: ClassVar = "INSERT OR IGNORE INTO blocked (dependency, no) VALUES (?, ?)"
    UNBLOCK: ClassVar = "DELETE FROM blocked WHERE dependency = ? AND no = ?"
    ATTACH: ClassVar = "INSERT OR IGNORE INTO attached (file, no) VALUES (?, ?)"
    DETACH: ClassVar = "DELETE FROM attached WHERE file = ? AND no = ?"
    BIND: ClassVar = "INSERT OR IGNORE INTO under (contract, task) VALUES (?, ?)"
    RELEASE: ClassVar = "DELETE FROM under WHERE contract = ? AND task = ?"
    PAIRS: ClassVar = frozenset({BLOCK, UNBLOCK, ATTACH, DETACH, BIND, RELEASE})

    @staticmethod
    def added(
        numbers: list[int], text: bytes, updates: TaskUpdates
    ) -> tuple[list[tuple[Any, ...]], dict[str, list[tuple[str, int | str]]]]:
        """Rows to insert, and the pairs of them with what they depend on, their files and their contracts."""
        rows = []
        pairs: dict[str, list[tuple[str, int | str]]] = {}
        for no, body in zip(numbers, slices(text), strict=True):
            task = task_columns(body)
            moving = task.moving()
            updates.remember(no, moving)
            rows.append((no, *moving, str(body, "utf-8")))
            task.pair(no, pairs)
        return rows, pairs

    def pair(self, no: int, pairs: dict[str, list[Any]]) -> None:
        """What it depends on is needed as long as it is unfinished, its files and contract as long as it is there."""
        if self.dependencies or self.blocked_by:
            statement = self.UNBLOCK if self.status in TaskUpdates.FINAL else self.BLOCK
            needed = {*self.dependencies, *self.blocked_by}
            pairs.setdefault(statement, []).extend((dependency, no) for dependency in needed)
        if self.files:
            pairs.setdefault(self.ATTACH, []).extend((file.id, no) for file in self.files)
        if self.contract is not None:
            pairs.setdefault(self.BIND, []).append((self.contract, self.id))

    def moving(self) -> tuple[Any, ...]:
        """The columns, those that change most first."""
        origin = self.origin
        return (
            self.status, self.queue, self.rank, self.wake_at, self.owner,
            self.id, origin.principal, origin.request_id, self.created_at, self.type, self.parent,
        )  # fmt: skip


task_columns = msgspec.json.Decoder(TaskColumns).decode


class TaskUpdates:
    """Which columns a changed task changes.

    SQLite rewrites the entries of every index over a column that an UPDATE names, changed or not. So we remember the
    columns of the last few thousand tasks and name only the groups that differ.
    """

    GROUPS: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1, 2), (3,), (4,), (5, 6, 7, 8, 9, 10))
    NAMES: ClassVar[tuple[str, ...]] = (
        "status", "queue", "rank", "wake_at", "owner", "id", "principal", "request_id", "created_at", "type", "parent",
    )  # fmt: skip
    REMEMBERED: ClassVar = 8192
    FINAL: ClassVar = frozenset({"completed", "failed", "cancelled"})

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, ...]] = {}
        self._statements: dict[tuple[int, ...], str] = {}

    def remember(self, no: int, columns: tuple[Any, ...]) -> None:
        known = self._known
        known[no] = columns
        if len(known) > self.REMEMBERED:
            for old in list(islice(known, self.REMEMBERED // 8)):
                del known[old]

    def forget(self) -> None:
        self._known.clear()

    def removed(self, no: int) -> None:
        self._known.pop(no, None)

    def sort(self, numbers: list[int], text: bytes) -> Iterable[tuple[str, list[Any]]]:
        """Statements with the rows each is for."""
        found: dict[str, list[Any]] = {}
        for no, body in zip(numbers, slices(text), strict=True):
            task = task_columns(body)
            new = task.moving()
            old = self._known.get(no)
            if old == new:
                changed: tuple[int, ...] = ()
            elif old is None:
                changed = tuple(range(11))
            else:
                changed = tuple(at for group in self.GROUPS if any(old[at] != new[at] for at in group) for at in group)
            if task.status in self.FINAL:
                self._known.pop(no, None)
            else:
                self.remember(no, new)
            statement = self._statements.get(changed) or self._statement(changed)
            found.setdefault(statement, []).append((*(new[at] for at in changed), str(body, "utf-8"), no))
            task.pair(no, found)
        return found.items()

    def _statement(self, changed: tuple[int, ...]) -> str:
        names = ", ".join(f"{self.NAMES[at]} = ?" for at in changed)
        text = f"UPDATE task SET {names}{', ' if names else ''}body = ? WHERE no = ?"
        self._statements[changed] = text
        return text


class DeliveryColumns(msgspec.Struct, gc=False):
    id: str
    task: str
    receiver: str
    seq: int
    rank: int
    state: str = "waiting"
    head: bool = True
    ordered: bool = False
    wake_at: int | None = None

    INSERT: ClassVar = (
        "INSERT INTO delivery (id, task, receiver, seq, rank, slot, wake_at, body) VALUES (?,?,?,?,?,?,?,?)"
    )
    UPDATE: ClassVar = (
        "UPDATE delivery SET task = ?2, receiver = ?3, seq = ?4, rank = ?5, slot = ?6, wake_at = ?7, body = ?8"
        " WHERE id = ?1"
    )

    @staticmethod
    def rows(text: bytes) -> list[tuple[Any, ...]]:
        rows = []
        for body in slices(text):
            row = delivery_columns(body)
            if row.state == "leased":
                slot: int | None = LEASED if row.ordered or row.wake_at is None else POLLED
            else:
                slot = WAITING_HEAD if row.head else None
            rows.append((row.id, row.task, row.receiver, row.seq, row.rank, slot, row.wake_at, str(body, "utf-8")))
        return rows


delivery_columns = msgspec.json.Decoder(DeliveryColumns).decode


class AuditColumns(msgspec.Struct, gc=False):
    seq: int
    principal: str
    outcome: str
    hash: str = ""
    subject: str | None = None
    chain: str = "main"

    INSERT: ClassVar = "INSERT INTO audit (seq, principal, subject, outcome, body) VALUES (?,?,?,?,?)"
    NEWEST: ClassVar = "INSERT OR REPLACE INTO audit_newest (chain, seq, hash) VALUES (?,?,?)"

    @staticmethod
    def rows(text: bytes) -> list[tuple[Any, ...]]:
        return [
            (row.seq, row.principal, row.subject, row.outcome, str(body, "utf-8"))
            for body in slices(text)
            for row in (audit_columns(body),)
        ]

    @staticmethod
    def newest(text: bytes) -> tuple[str, int, str]:
        """Of the records in `text`, which are in order, the last one."""
        *_, body = slices(text)
        row = audit_columns(body)
        return row.chain, row.seq, row.hash


audit_columns = msgspec.json.Decoder(AuditColumns).decode
