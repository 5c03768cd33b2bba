"""The functions in PostgreSQL that write: one call commits one unit of work.

The first act of each is to touch the lease of the leader's epoch. Where that epoch is over there is no such row, and
nothing is written. A call is one statement, so no transaction is ever open while a node thinks, or sleeps.

The rows of the hot tables come as arrays, one for each column (`unnest`). The other tables come as one JSON text, with
an array of objects for each table and step; values that are JSON themselves are texts in it, and stay as they are.

The SQL is made from the tables of columns below; `rows` makes the arguments from them, too, in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dragoman.core.model.series import KEPT as SERIES_KEPT

Columns = tuple[tuple[str, str], ...]

TASK: Columns = (
    ("no", "bigint"), ("id", "text"), ("principal", "text"), ("request_id", "text"), ("created_at", "bigint"),
    ("status", "text"), ("type", "text"), ("owner", "text"), ("parent", "text"), ("queue", "text"), ("rank", "bigint"),
    ("wake_at", "bigint"), ("protocol", "text"), ("size", "bigint"), ("body", "text"),
)  # fmt: skip
EVENT: Columns = (
    ("key", "bigint"), ("at", "bigint"), ("kind", "text"), ("agent", "text"), ("body", "text"), ("protocol", "text"),
    ("raw", "bytea"), ("personal", "boolean"),
)  # fmt: skip
DELIVERY: Columns = (
    ("id", "text"), ("task", "text"), ("receiver", "text"), ("seq", "bigint"), ("rank", "bigint"), ("slot", "smallint"),
    ("wake_at", "bigint"), ("sender", "text"), ("size", "bigint"), ("body", "text"),
)  # fmt: skip
WORDS: Columns = (("no", "bigint"), ("words", "text"))
AUDIT: Columns = (
    ("seq", "bigint"), ("principal", "text"), ("subject", "text"), ("outcome", "text"), ("body", "text"),
)  # fmt: skip
SEEN: Columns = (("id", "text"), ("digest", "text"), ("at", "bigint"))
CHANGED: Columns = (("cursor", "bigint"), ("body", "text"))

RARE: dict[str, Columns] = {
    "agent": (("id", "text"), ("wake_at", "bigint"), ("protocol", "text"), ("body", "text")),
    "person": (("id", "text"), ("body", "text")),
    "dead_letter": (("id", "text"), ("task", "text"), ("body", "text")),
    "question": (
        ("id", "text"), ("task", "text"), ("status", "text"), ("wake_at", "bigint"), ("created_at", "bigint"),
        ("agent", "text"), ("asked_of", "text"), ("body", "text"),
    ),
    "entity": (("id", "text"), ("registry", "text"), ("name", "text"), ("body", "text")),
    "contract": (
        ("id", "text"), ("collaboration", "text"), ("created_at", "bigint"), ("source", "text"), ("target", "text"),
        ("expires_at", "bigint"), ("active", "boolean"), ("body", "text"),
    ),
    "heard": SEEN,
    "changed": CHANGED,
    "event": EVENT,
}  # fmt: skip
"""Tables that few units write to, or only to change or remove their rows. The first column is the key."""

PAIRS: dict[str, Columns] = {
    "blocked": (("dependency", "text"), ("no", "bigint")),
    "attached": (("file", "text"), ("no", "bigint")),
    "under": (("contract", "text"), ("task", "text")),
}

HOT: tuple[tuple[str, str, Columns], ...] = (
    ("task", "removed", TASK[:1]),
    ("delivery", "removed", DELIVERY[:1]),
    ("task", "added", TASK),
    ("words", "added", WORDS),
    ("event", "added", EVENT),
    ("delivery", "added", DELIVERY),
    ("heard", "added", SEEN),
    ("changed", "added", CHANGED),
    ("audit", "added", AUDIT),
    ("task", "changed", TASK),
    ("delivery", "changed", DELIVERY),
)
"""What comes as arrays, in the order in which it is written."""

SCALARS: Columns = (
    ("epoch", "bigint"), ("unit", "bigint"), ("instant", "bigint"), ("chain", "text"), ("hash", "text"),
    ("forget", "bigint"), ("used_until", "bigint"), ("used", "bytea"), ("rare", "json"),
)  # fmt: skip

KEPT = 100_000
"""As many message ids as `core.ports.USED` and `core.ports.PASSED`, at least."""
STEP = 1024
FORGOTTEN = 64
"""Rows of the log of the shared state that one commit deletes at most."""


def argument(table: str, step: str, column: str) -> str:
    return f"{table}_{step}_{column}"


def _list(columns: Columns, prefix: str = "") -> str:
    return ", ".join(prefix + name for name, _ in columns)


def _must(table: str, count: str) -> str:
    return f"""
            GET DIAGNOSTICS touched = ROW_COUNT;
            IF touched <> {count} THEN
                RAISE EXCEPTION 'a row of {table} that should be changed or removed does not exist';
            END IF;"""


def _write(table: str, step: str, columns: Columns, source: str, count: str) -> str:
    """One statement. `source`: a relation of these columns."""
    key = columns[0][0]
    if step == "added" and table == "words":
        return f"""
            INSERT INTO words (no, words) SELECT no, words::tsvector FROM {source}
            ON CONFLICT (no) DO UPDATE SET words = excluded.words;"""
    if step == "added":
        return f"\n            INSERT INTO {table} ({_list(columns)}) SELECT {_list(columns)} FROM {source};"
    if step == "removed":
        return f"\n            DELETE FROM {table} USING {source} WHERE {table}.{key} = n.{key};" + _must(table, count)
    changes = ", ".join(f"{name} = n.{name}" for name, _ in columns[1:])
    return f"\n            UPDATE {table} SET {changes} FROM {source} WHERE {table}.{key} = n.{key};" + _must(
        table, count
    )


def _hot(table: str, step: str, columns: Columns) -> str:
    names = [argument(table, step, name) for name, _ in columns]
    source = f"unnest({', '.join(names)}) AS n ({_list(columns)})"
    statement = _write(table, step, columns, source, f"cardinality({names[0]})")
    return f"\n        IF cardinality({names[0]}) > 0 THEN{statement}\n        END IF;"


def _rare(table: str, step: str, columns: Columns) -> str:
    name = f"{table}_{step}"
    columns = columns[:1] if step == "removed" else columns
    types = ", ".join(f"{column} {'text' if kind == 'bytea' else kind}" for column, kind in columns)
    source = f"json_to_recordset(rows) AS n ({types})"
    if any(kind == "bytea" for _, kind in columns):
        given = ", ".join(f"decode({c}, 'base64') AS {c}" if kind == "bytea" else c for c, kind in columns)
        source = f"(SELECT {given} FROM {source}) AS n"
    statement = _write(table, step, columns, source, "json_array_length(rows)")
    return f"\n        rows := rare->'{name}';\n        IF rows IS NOT NULL THEN{statement}\n        END IF;"


def _pairs(table: str, columns: Columns) -> str:
    first, second = (name for name, _ in columns)
    types = ", ".join(f"{column} {kind}" for column, kind in columns)
    return f"""
        rows := rare->'{table}_added';
        IF rows IS NOT NULL THEN
            INSERT INTO {table} SELECT * FROM json_to_recordset(rows) AS n ({types}) ON CONFLICT DO NOTHING;
        END IF;
        rows := rare->'{table}_removed';
        IF rows IS NOT NULL THEN
            DELETE FROM {table} USING json_to_recordset(rows) AS n ({types})
            WHERE {table}.{first} = n.{first} AND {table}.{second} = n.{second};
        END IF;"""


def _function(name: str, arguments: Sequence[str], declared: str, body: str) -> str:
    return f"""
    CREATE FUNCTION {name} ({", ".join(arguments)}) RETURNS boolean LANGUAGE plpgsql AS $body$
    #variable_conflict use_column
    DECLARE {declared}
    BEGIN{body}
        RETURN true;
    END $body$;
"""


_TOUCH = """
        UPDATE lease SET last_unit = given_unit, last_instant = greatest(last_instant, given_instant),
            expires_at = greatest(expires_at, clock_timestamp() + make_interval(secs => ttl))
        WHERE epoch = given_epoch;
        IF NOT FOUND THEN RETURN false; END IF;"""

_ENDS = "CASE n.step " + " ".join(f"WHEN {step} THEN {kept}" for step, kept in SERIES_KEPT.items()) + " END"

_SERIES = f"""
        rows := rare->'series_added';
        IF rows IS NOT NULL THEN
            INSERT INTO series (step, at, body) SELECT step, at, body
            FROM json_to_recordset(rows) AS n (step bigint, at bigint, body text)
            ON CONFLICT (step, at) DO UPDATE SET body = excluded.body;
            DELETE FROM series USING (
                SELECT step, max(at) AS at FROM json_to_recordset(rows) AS n (step bigint, at bigint) GROUP BY step
            ) AS n WHERE series.step = n.step AND series.at < n.at - {_ENDS};
        END IF;"""

_KEY = """
        rows := rare->'master_key_added';
        IF rows IS NOT NULL THEN
            INSERT INTO master_key (id) SELECT id FROM json_to_recordset(rows) AS n (id text)
            ON CONFLICT (id) DO UPDATE SET given_up = false;
        END IF;"""


def _ring(table: str, until: str, messages: str) -> str:
    """Append message ids, and delete the oldest ones now and then."""
    return f"""
        IF {messages} IS NOT NULL THEN
            INSERT INTO {table} (until, messages) VALUES ({until}, {messages});
            IF {until} / {STEP} <> ({until} - octet_length({messages}) / {{size}}) / {STEP} THEN
                DELETE FROM {table} WHERE until <= {until} - {KEPT};
            END IF;
        END IF;"""


def _commit(name: str) -> str:
    arguments = [f"given_{scalar} {kind}" for scalar, kind in SCALARS]
    arguments += [f"{argument(table, step, c)} {kind}[]" for table, step, columns in HOT for c, kind in columns]
    removed = [step for step in HOT if step[1] == "removed"]
    others = [step for step in HOT if step[1] != "removed"]
    body = _TOUCH
    body += "".join(_hot(*step) for step in removed)
    body += "\n        IF given_rare IS NOT NULL THEN rare := given_rare;"
    for step in ("removed", "added", "changed"):
        for table, columns in RARE.items():
            if step == "added" and table in ("heard", "changed", "event"):
                continue  # these come as arrays
            body += _rare(table, step, columns)
    body += "".join(_pairs(table, columns) for table, columns in PAIRS.items()) + _SERIES + _KEY + "\n        END IF;"
    body += "".join(_hot(*step) for step in others)
    body += """
        IF given_chain IS NOT NULL THEN
            INSERT INTO audit_newest (chain, seq, hash)
            VALUES (given_chain, audit_added_seq[cardinality(audit_added_seq)], given_hash)
            ON CONFLICT (chain) DO UPDATE SET seq = excluded.seq, hash = excluded.hash;
        END IF;"""
    body += _ring("used", "given_used_until", "given_used").format(size=16)
    body += f"""
        IF given_forget > 0 THEN
            DELETE FROM changed WHERE cursor IN (
                SELECT cursor FROM changed WHERE cursor <= given_forget ORDER BY cursor LIMIT {FORGOTTEN});
        END IF;"""
    return _function(name, arguments, "touched bigint; rare json; rows json;", body)


def _note(name: str) -> str:
    """Direct messages that leave at most once: fenced, and known to the node that leads next before they leave, also if
    the primary dies then: a sender that repeats one must not see it leave twice."""
    body = """
        PERFORM 1 FROM lease WHERE epoch = given_epoch FOR SHARE;
        IF NOT FOUND THEN RETURN false; END IF;"""
    body += _ring("passed", "given_until", "given_messages").format(size=32)
    arguments = ("given_epoch bigint", "given_until bigint", "given_messages bytea")
    return _function(name, arguments, "touched bigint;", body)


_TEXT = _commit("{commit}") + _note("{note}")
VERSION = hashlib.sha256(_TEXT.encode()).hexdigest()[:12]
COMMIT, NOTE = f"commit_{VERSION}", f"note_{VERSION}"
SQL = _commit(COMMIT) + _note(NOTE)

_COUNT = len(SCALARS) + sum(len(columns) for _, _, columns in HOT)
CALL_COMMIT = f"SELECT {COMMIT}({', '.join(f'${n}' for n in range(1, _COUNT + 1))})"
CALL_NOTE = f"SELECT {NOTE}($1, $2, $3)"
