"""What the hub may ask the writer to do: the vocabulary of the frames between them.

A frame is a 4-byte length and msgpack: a list of operations, run in this order in one transaction. Tasks,
deliveries and audit records travel as one JSON text per kind, encoded in one call: the hub's time is the scarce
one, so the writer cuts the text into rows and picks the indexed columns out. Everything else travels as parameters
of a numbered statement. Imported by both ends, so nothing is imported here.
"""

from __future__ import annotations

SEQ_BITS = 24
"""An event's key is its task's number, then its own in the low bits: one integer, in time order."""

HEADER = 4

# Operations: (code, …)
TASKS_ADDED, TASKS_CHANGED = 0, 1  # numbers, JSON
DELIVERIES_ADDED, DELIVERIES_CHANGED = 2, 3  # JSON
AUDIT = 4  # JSON
ROWS = 5  # statement number, parameters of each row
FORGET = 6  # rows of the log of the shared state up to this number: some of them
TASKS_REMOVED = 7  # of each its number, what it depends on, its files, its contract with its id

USED = 9  # message ids with the content that each stands for, packed (`used`)

NOTED = 8  # letters that leave at most once, each with what it said: alone in its frame, and in no transaction

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
)

EVENT, TASK_REMOVED, DELIVERY_REMOVED, AGENT, DEAD_LETTER, QUESTION = 0, 3, 4, 5, 8, 11
ENTITY, CHANGED, HEARD, CONTRACT = 14, 17, 20, 23
"""Where a kind's statements begin: added, changed, removed."""
MASTER_KEY = 26
