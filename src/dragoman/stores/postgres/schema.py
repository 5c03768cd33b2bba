"""The tables of a realm, and their migrations.

A row has its indexed columns and the record itself, which is JSON in `body`: as text, never as `jsonb`, because it must
come back byte for byte. Names are as `names` writes them, and sorted by their bytes. A task has a number, `no`, in the
order of acceptance.

`event` and `words` are partitioned by the number of their task, from the start: forgetting deletes the heads of tasks,
and when a partition has none left, the leader drops it (`partitions`). Until then, reads of events and words join the
table of tasks, so what belongs to a forgotten task is not found.

Each concern adds its migrations to the list. A new leader runs those that are missing, one transaction each, which its
epoch fences. They only add: a hub of the version before goes on while nodes are upgraded one by one. What is to be
removed is removed by a later version. The functions that write are replaced by each new leader under a name that
changes with their text, so that an older hub keeps its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dragoman.core.ports import Fenced
from dragoman.stores.postgres import files, functions
from dragoman.stores.postgres.connection import sentence
from dragoman.stores.sqlite.schema import StoreRefused

if TYPE_CHECKING:
    import asyncpg

    from dragoman.stores.postgres.lease import Lease


class Migration(NamedTuple):
    name: str
    sql: str


NAME = 'text COLLATE "C"'

STORE = Migration(
    "store-1",
    f"""
    CREATE TABLE agent (id {NAME} PRIMARY KEY, wake_at bigint, protocol {NAME} NOT NULL, body text NOT NULL);
    CREATE INDEX agent_wake ON agent (wake_at, id) WHERE wake_at IS NOT NULL;

    CREATE TABLE task (
        no bigint PRIMARY KEY, id {NAME} NOT NULL, principal {NAME} NOT NULL, request_id {NAME} NOT NULL,
        created_at bigint NOT NULL, status {NAME} NOT NULL, type {NAME} NOT NULL, owner {NAME}, parent {NAME},
        queue {NAME}, rank bigint NOT NULL, wake_at bigint, protocol {NAME} NOT NULL, size bigint NOT NULL,
        body text NOT NULL
    ) WITH (fillfactor = 70);
    CREATE UNIQUE INDEX task_id ON task (id);
    CREATE UNIQUE INDEX task_request ON task (principal, request_id);
    CREATE INDEX task_created ON task (created_at, no);
    CREATE INDEX task_status ON task (status, created_at, no);
    CREATE INDEX task_type ON task (type, created_at, no);
    CREATE INDEX task_principal ON task (principal, created_at, no);
    CREATE INDEX task_owner ON task (owner, created_at, no) WHERE owner IS NOT NULL;
    CREATE INDEX task_parent ON task (parent, created_at, no) WHERE parent IS NOT NULL;
    CREATE INDEX task_protocol ON task (protocol, created_at, no);
    CREATE INDEX task_queue ON task (queue, rank, id) WHERE queue IS NOT NULL;
    CREATE INDEX task_wake ON task (wake_at, id) WHERE wake_at IS NOT NULL;

    CREATE TABLE blocked (dependency {NAME}, no bigint, PRIMARY KEY (dependency, no));
    CREATE TABLE attached (file {NAME}, no bigint, PRIMARY KEY (file, no));
    CREATE TABLE under (contract {NAME}, task {NAME}, PRIMARY KEY (contract, task));

    CREATE TABLE event (
        key bigint PRIMARY KEY, at bigint NOT NULL, kind {NAME} NOT NULL, agent {NAME}, body text NOT NULL,
        protocol {NAME}, raw bytea, personal boolean
    ) PARTITION BY RANGE (key);
    CREATE INDEX event_at ON event (at, key);

    CREATE TABLE words (no bigint PRIMARY KEY, words tsvector NOT NULL) PARTITION BY RANGE (no);
    CREATE INDEX words_words ON words USING gin (words);

    CREATE TABLE delivery (
        id {NAME} PRIMARY KEY, task {NAME} NOT NULL, receiver {NAME} NOT NULL, seq bigint NOT NULL,
        rank bigint NOT NULL, slot smallint, wake_at bigint, sender {NAME}, size bigint, body text NOT NULL
    ) WITH (fillfactor = 70);
    CREATE INDEX delivery_lane ON delivery (task, receiver, seq) WHERE task <> id;
    CREATE INDEX delivery_slot ON delivery (receiver, slot, rank, id) WHERE slot IS NOT NULL;
    CREATE INDEX delivery_wake ON delivery (wake_at, id) WHERE wake_at IS NOT NULL;

    CREATE TABLE dead_letter (id {NAME} PRIMARY KEY, task {NAME} NOT NULL, body text NOT NULL);
    CREATE INDEX dead_letter_task ON dead_letter (task);

    CREATE TABLE question (
        id {NAME} PRIMARY KEY, task {NAME} NOT NULL, status {NAME} NOT NULL, wake_at bigint, created_at bigint NOT NULL,
        agent {NAME} NOT NULL, asked_of {NAME}, body text NOT NULL
    );
    CREATE INDEX question_task ON question (task, status);
    CREATE INDEX question_status ON question (status);
    CREATE INDEX question_wake ON question (wake_at, id) WHERE wake_at IS NOT NULL;
    CREATE INDEX question_loose ON question (created_at, id) WHERE task = '';

    CREATE TABLE audit (
        seq bigint PRIMARY KEY, principal {NAME} NOT NULL, subject {NAME}, outcome {NAME} NOT NULL, body text NOT NULL
    );
    CREATE INDEX audit_refused ON audit (seq) WHERE outcome = 'refused';
    CREATE TABLE audit_newest (chain {NAME} PRIMARY KEY, seq bigint NOT NULL, hash {NAME} NOT NULL);

    CREATE TABLE heard (id {NAME} PRIMARY KEY, digest text NOT NULL, at bigint NOT NULL);
    CREATE INDEX heard_at ON heard (at, id);

    CREATE TABLE entity (id {NAME} PRIMARY KEY, registry {NAME} NOT NULL, name {NAME} NOT NULL, body text NOT NULL);
    CREATE UNIQUE INDEX entity_name ON entity (registry, name);
    CREATE TABLE changed (cursor bigint PRIMARY KEY, body text NOT NULL);

    CREATE TABLE contract (
        id {NAME} PRIMARY KEY, collaboration {NAME} NOT NULL, created_at bigint NOT NULL, source {NAME} NOT NULL,
        target {NAME} NOT NULL, expires_at bigint NOT NULL, active boolean NOT NULL, body text NOT NULL
    );
    CREATE INDEX contract_terms ON contract (collaboration, created_at);
    CREATE INDEX contract_source ON contract (source, expires_at, id) WHERE active;
    CREATE INDEX contract_target ON contract (target, expires_at, id) WHERE active;
    CREATE INDEX contract_created ON contract (created_at, id);

    CREATE TABLE person (id {NAME} PRIMARY KEY, body text NOT NULL);
    CREATE TABLE series (step bigint, at bigint, body text NOT NULL, PRIMARY KEY (step, at));

    CREATE TABLE used (until bigint PRIMARY KEY, messages bytea NOT NULL);
    CREATE TABLE passed (until bigint PRIMARY KEY, messages bytea NOT NULL);
    CREATE TABLE master_key (id {NAME} PRIMARY KEY, given_up boolean NOT NULL DEFAULT false);
    """,
)

MIGRATIONS: tuple[Migration, ...] = (STORE, Migration("files-1", files.TABLES))
"""In this order. A migration that was released never changes; a new one is added at the end."""

FENCE = """
    DO $$ BEGIN
        PERFORM 1 FROM lease WHERE epoch = {epoch} FOR UPDATE;
        IF NOT FOUND THEN RAISE EXCEPTION 'another node leads' USING ERRCODE = 'DG001'; END IF;
    END $$;
"""
FENCED = "DG001"


async def migrate(connection: asyncpg.Connection, term: Lease) -> None:
    """Bring the tables and functions of the realm up to this version. Raises `Fenced`, or `StoreRefused`."""
    import asyncpg

    fence = FENCE.format(epoch=term.epoch)
    made = 'CREATE TABLE IF NOT EXISTS migration (name text COLLATE "C" PRIMARY KEY, at timestamptz NOT NULL);'
    try:
        if await connection.fetchval("SELECT to_regclass('migration') IS NULL"):
            await connection.execute(fence + made)
        done = {name for (name,) in await connection.fetch("SELECT name FROM migration")}
        for migration in MIGRATIONS:
            if migration.name not in done:
                noted = f"INSERT INTO migration VALUES ('{migration.name}', now());"
                await connection.execute(fence + migration.sql + noted)
        if await connection.fetchval("SELECT to_regproc($1) IS NULL", functions.COMMIT):
            await connection.execute(fence + functions.SQL)
    except asyncpg.PostgresError as error:
        if error.sqlstate == FENCED:
            raise Fenced("another node leads") from error
        if isinstance(error, asyncpg.PostgresConnectionError):
            raise
        raise StoreRefused(
            f"the tables of realm {term.realm} cannot be brought up to this version ({sentence(error)})",
            "give the hub's role the right to create tables in its schema, or restore the schema from a backup",
        ) from error
