"""The operations that the hub sends to the writer, and their frames.

A frame is a 4-byte length and msgpack: a list of operations, run in this order in one transaction. Tasks,
deliveries and audit records travel as one JSON text per kind, encoded in one call: the hub's CPU time is scarce, so
the writer cuts the text into rows and extracts the indexed columns. Everything else travels as parameters of a numbered
statement.

The writer cuts such a text into rows without parsing more than the columns need: each row's `body` is a slice of the
text. The defaults of the columns must be those of the model, which leaves them out of the text; a test compares them.

Imported by both ends: msgspec and the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, ClassVar

import msgspec

from dragoman.stores.layout import LEASED, POLLED, WAITING_HEAD

HEADER = 4

# Operations: (code, …)
TASKS_ADDED, TASKS_CHANGED = 0, 1  # numbers, JSON
DELIVERIES_ADDED, DELIVERIES_CHANGED = 2, 3  # JSON
AUDIT = 4  # JSON
ROWS = 5  # statement number, parameters of each row
FORGET = 6  # rows of the log of the shared state up to this number: some of them
TASKS_REMOVED = 7  # of each its number, what it depends on, its files, its contract with its id

USED = 9  # message ids with the content that each stands for, packed (`used`)

NOTED = 8  # direct messages that leave at most once, with their digests: alone in its frame, and in no transaction

# Steps of a backup, each alone in its frame: (code, …)
COPY_BEGIN = 16  # the file
COPY_STEP = 17  # so many pages
COPY_END = 18
COPYING = frozenset((COPY_BEGIN, COPY_STEP, COPY_END))

FORGET_CHANGES = (
    "DELETE FROM changed WHERE cursor IN (SELECT cursor FROM changed WHERE cursor <= ?1 ORDER BY cursor LIMIT 64)"
)

SIZES = (
    "SELECT key, octet_length(body) + ifnull(octet_length(raw), 0) FROM event WHERE key BETWEEN ? AND ?"
    " ORDER BY key LIMIT ?"
)

STATEMENTS: tuple[str, ...] = (
    "INSERT INTO event (key, at, kind, agent, body, protocol, raw, personal)"
    " VALUES (?1, ?2, ?3, ?4, CAST(?5 AS TEXT), ?6, ?7, ?8)",
    "UPDATE event SET at = ?2, kind = ?3, agent = ?4, body = CAST(?5 AS TEXT), protocol = ?6, raw = ?7, personal = ?8"
    " WHERE key = ?1",
    "DELETE FROM event WHERE key = ?1",
    "DELETE FROM task WHERE no = ?1",
    "DELETE FROM delivery WHERE id = ?1",
    "INSERT INTO agent (id, wake_at, body) VALUES (?1, ?2, CAST(?3 AS TEXT))",
    "UPDATE agent SET wake_at = ?2, body = CAST(?3 AS TEXT) WHERE id = ?1",
    "DELETE FROM agent WHERE id = ?1",
    "INSERT INTO dead_letter (id, task, body) VALUES (?1, ?2, CAST(?3 AS TEXT))",
    "UPDATE dead_letter SET task = ?2, body = CAST(?3 AS TEXT) WHERE id = ?1",
    "DELETE FROM dead_letter WHERE id = ?1",
    "INSERT INTO question (id, task, status, wake_at, body) VALUES (?1, ?2, ?3, ?4, CAST(?5 AS TEXT))",
    "UPDATE question SET task = ?2, status = ?3, wake_at = ?4, body = CAST(?5 AS TEXT) WHERE id = ?1",
    "DELETE FROM question WHERE id = ?1",
    "INSERT INTO entity (id, registry, name, body) VALUES (?1, ?2, ?3, CAST(?4 AS TEXT))",
    "UPDATE entity SET registry = ?2, name = ?3, body = CAST(?4 AS TEXT) WHERE id = ?1",
    "DELETE FROM entity WHERE id = ?1",
    "INSERT INTO changed (cursor, body) VALUES (?1, CAST(?2 AS TEXT))",
    "UPDATE changed SET body = CAST(?2 AS TEXT) WHERE cursor = ?1",
    "DELETE FROM changed WHERE cursor = ?1",
    "INSERT INTO heard (id, digest, at) VALUES (?1, ?2, ?3)",
    "UPDATE heard SET digest = ?2, at = ?3 WHERE id = ?1",
    "DELETE FROM heard WHERE id = ?1",
    "INSERT INTO contract (id, collaboration, created_at, source, target, body)"
    " VALUES (?1, ?2, ?3, ?4, ?5, CAST(?6 AS TEXT))",
    "UPDATE contract SET collaboration = ?2, created_at = ?3, source = ?4, target = ?5, body = CAST(?6 AS TEXT)"
    " WHERE id = ?1",
    "DELETE FROM contract WHERE id = ?1",
    "INSERT INTO master_key (id) VALUES (?1) ON CONFLICT DO UPDATE SET given_up = NULL",
    "INSERT INTO person (id, body) VALUES (?1, CAST(?2 AS TEXT))",
    "UPDATE person SET body = CAST(?2 AS TEXT) WHERE id = ?1",
    "DELETE FROM person WHERE id = ?1",
    "INSERT OR REPLACE INTO series (step, at, body) VALUES (?1, ?2, CAST(?3 AS TEXT))",
)

EVENT, TASK_REMOVED, DELIVERY_REMOVED, AGENT, DEAD_LETTER, QUESTION = 0, 3, 4, 5, 8, 11
ENTITY, CHANGED, SEEN, CONTRACT = 14, 17, 20, 23
"""The first statement of each kind: added, changed, removed follow each other."""
MASTER_KEY, PERSON, SERIES = 26, 27, 30

slices = msgspec.json.Decoder(list[msgspec.Raw]).decode


class OriginColumns(msgspec.Struct, gc=False):
    principal: str
    request_id: str
    protocol: str


class FileColumns(msgspec.Struct, gc=False):
    id: str


class LineageColumns(msgspec.Struct, gc=False):
    parent: str | None = None
    dependencies: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()


class OutputColumns(msgspec.Struct, gc=False):
    files: tuple[FileColumns, ...] = ()


class AgreementColumns(msgspec.Struct, gc=False):
    contract: str | None = None


class TaskColumns(msgspec.Struct, gc=False):
    id: str
    type: str
    status: str
    origin: OriginColumns
    lineage: LineageColumns
    created_at: int
    rank: int
    queue: str | None = None
    wake_at: int | None = None
    owner: str | None = None
    output: OutputColumns | None = None
    agreement: AgreementColumns | None = None

    INSERT: ClassVar = (
        "INSERT INTO task (no, status, queue, rank, wake_at, owner, id, principal, request_id, created_at, type,"
        " parent, protocol, body) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
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
        """Rows to insert, and their pairs with dependencies, files and contracts."""
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
        """Add the pairs of a task: with its dependencies while it is unfinished, with its files and contract always."""
        lineage = self.lineage
        if lineage.dependencies or lineage.blocked_by:
            statement = self.UNBLOCK if self.status in TaskUpdates.FINAL else self.BLOCK
            needed = {*lineage.dependencies, *lineage.blocked_by}
            pairs.setdefault(statement, []).extend((dependency, no) for dependency in needed)
        if self.output is not None and self.output.files:
            pairs.setdefault(self.ATTACH, []).extend((file.id, no) for file in self.output.files)
        if self.agreement is not None and self.agreement.contract is not None:
            pairs.setdefault(self.BIND, []).append((self.agreement.contract, self.id))

    def moving(self) -> tuple[Any, ...]:
        """The columns, those that change most first."""
        origin = self.origin
        return (
            self.status, self.queue, self.rank, self.wake_at, self.owner,
            self.id, origin.principal, origin.request_id, self.created_at, self.type, self.lineage.parent,
            origin.protocol,
        )  # fmt: skip


task_columns = msgspec.json.Decoder(TaskColumns).decode


class TaskUpdates:
    """Which columns a changed task changes.

    SQLite rewrites the entries of every index over a column that an UPDATE names, changed or not. So the writer
    remembers the columns of the last few thousand tasks and names only the groups that differ.
    """

    GROUPS: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1, 2), (3,), (4,), (5, 6, 7, 8, 9, 10, 11))
    NAMES: ClassVar[tuple[str, ...]] = (
        "status", "queue", "rank", "wake_at", "owner", "id", "principal", "request_id", "created_at", "type", "parent",
        "protocol",
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
        """The statements, each with its rows."""
        found: dict[str, list[Any]] = {}
        for no, body in zip(numbers, slices(text), strict=True):
            task = task_columns(body)
            new = task.moving()
            old = self._known.get(no)
            if old == new:
                changed: tuple[int, ...] = ()
            elif old is None:
                changed = tuple(range(len(self.NAMES)))
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
        """The last of the audit records in `text`, which are in order."""
        *_, body = slices(text)
        row = audit_columns(body)
        return row.chain, row.seq, row.hash


audit_columns = msgspec.json.Decoder(AuditColumns).decode
