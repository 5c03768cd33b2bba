"""`dragoman store copy`: from the data directory of a stopped hub to a realm, compared, and all or nothing."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import asyncpg
import pytest
from hypothesis import given, settings

from dragoman.app.datadir import DataDir
from dragoman.app.keys import DataVault
from dragoman.app.settings import A2acpSettings
from dragoman.app.shared_keys import open_shared_keys
from dragoman.app.store_copy import Plan, copy_store
from dragoman.core.ids import SECOND, Instant, TaskId
from dragoman.core.ports import Changes, StoreFailed, TaskSearch
from dragoman.security.keys import KeyFile
from dragoman.stores import copying
from dragoman.stores.files import DirectoryFiles, Room
from dragoman.stores.postgres.connection import schema_of
from dragoman.stores.postgres.files import PostgresFiles
from dragoman.stores.postgres.lease import LeaseTable, init
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.store import PostgresStore
from dragoman.stores.s3_files import S3Objects
from dragoman.stores.sqlite.schema import StoreInUse, StoreRefused
from dragoman.stores.sqlite.store import SqliteStore
from dragoman.supervisor.environment import EnvironmentFiles
from tests.adapters import records
from tests.adapters.store_suite.stores import bounded, commit, everything, load
from tests.support import s3
from tests.support.postgres import shared_url

NOW = Instant(1_800_000_000 * SECOND)
_numbers = itertools.count(1)


def clock():
    return NOW


class Move:
    """A data directory with everything in it, and a realm that nobody uses."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.data.mkdir(mode=0o700)
        self.store = self.data / "hub.sqlite"
        self.realm = f"move_{next(_numbers)}"
        self.vault = DataVault(self.data, clock)
        self._closing = []

    async def fill(self, *rows, **changes):
        store = SqliteStore(self.store, vault=self.vault, keys=self.vault)
        await store.open()
        try:
            if rows or changes:
                await commit(store, *rows, **changes)
            await store.note({f"{number:032x}": f"{number + 1:032x}" for number in range(3)})
            return await everything(store)
        finally:
            await store.close()

    def plan(self, **fields):
        return Plan(self.data, self.store, shared_url(), self.realm)._replace(**fields)

    async def copy(self, **fields):
        return await copy_store(self.plan(**fields), lambda *_: None)

    @asynccontextmanager
    async def opened(self):
        """The realm's store, as a node that leads has it."""
        table = LeaseTable(shared_url(), self.realm)
        term = await table.take((await table.read()).epoch, holder="n1", url="", ttl=60)
        assert term is not None
        store = PostgresStore(shared_url(), realm=self.realm, term=term, vault=self.vault, keys=self.vault)
        try:
            yield store, await store.open()
        finally:
            await store.close()
            await table.release(term.epoch)
            await table.close()

    async def sql(self, text, *values, realm=None):
        connection = await asyncpg.connect(
            shared_url(), server_settings={"search_path": schema_of(realm or self.realm)}
        )
        try:
            return await connection.fetch(text, *values)
        finally:
            await connection.close()

    def source(self):
        """What every file of the source holds, but for the lock and SQLite's index of its log."""
        files = [path for path in self.data.rglob("*") if path.is_file()]
        kept = [path for path in files if path.name != "lock" and not path.name.endswith("-shm")]
        return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in kept}

    async def remove(self):
        for realm in (self.realm, copying.aside(self.realm)):
            await self.sql(f"DROP SCHEMA IF EXISTS {schema_of(realm)} CASCADE", realm="x")


@pytest.fixture
async def move(tmp_path):
    made = Move(tmp_path)
    made.vault.lock(b"", {})
    yield made
    await made.remove()


ROWS = (
    records.agent("ada", wake_at=7),
    records.person("erika"),
    records.task("t-1", owner="bob", description="the quick fox", files=(records.file("f-1"),), wake_at=5),
    records.task("t\0-2", queue="code", dependencies=(TaskId("t-1"),), contract="c-1"),
    records.event("t-1", 1, body=records.msgspec.Raw(b'{"b": 1.50,  "a":"\\u0000\xc3\xa4"}'), raw=b"\0raw"),
    records.event("t-1", 2, agent="b\0b"),
    records.delivery("d-1", "t-1", head=True),
    records.dead_letter("l-1", "t-1"),
    records.question("q-1", "t-1"),
    records.question("q-2", None),
    records.contract("c-1"),
    records.entity("e\0-1"),
    records.changed_state(1),
)


async def test_everything_is_there_afterwards_and_the_source_is_as_it_was(move):
    before = await move.fill(*ROWS, audit=records.chain(5), used={2**63 + 1: 5, 7: 2**64 - 1})
    source = move.source()
    report = await move.copy()
    assert move.source() == source
    counts = {name: report.tables[name] for name in ("task", "event", "audit", "words", "passed", "used")}
    assert counts == {"task": 2, "event": 2, "audit": 5, "words": 2, "passed": 1, "used": 1}
    assert report.audit_hash == records.chain(5)[-1].hash
    async with move.opened() as (store, recovered):
        assert await everything(store) == before
        assert (recovered.audit_seq, recovered.audit_hash) == (5, report.audit_hash)
        assert recovered.used == {2**63 + 1: 5, 7: 2**64 - 1}
        assert recovered.passed == {f"{number:032x}": f"{number + 1:032x}" for number in range(3)}
        assert [one.id for one in (await store.search(TaskSearch(text="quick"), after=None, limit=9)).tasks] == ["t-1"]
        assert await store.attached(["f-1", "f-2"]) == {"f-1"}
        [event, _] = await store.events(TaskId("t-1"))
        assert bytes(event.body) == b'{"b": 1.50,  "a":"\\u0000\xc3\xa4"}'  # byte for byte
        await commit(store, records.task("t-3"), audit=records.chain(1, after=records.chain(5)[-1]))  # and it goes on


@settings(max_examples=max(3, settings().max_examples // 30), deadline=None)
@given(records.worlds())
def test_whatever_was_in_the_store_is_found_in_the_copy(tmp_path_factory, world):
    async def scenario():
        move = Move(tmp_path_factory.mktemp("move"))
        move.vault.lock(b"", {})
        lookups = records.every_lookup(world)
        source = SqliteStore(move.store, vault=move.vault, keys=move.vault)
        await source.open()
        try:
            await commit(source, *world)
            expected = await load(source, *lookups)
        finally:
            await source.close()
        try:
            await move.copy()
            async with move.opened() as (store, _):
                found = await load(store, *lookups)
        finally:
            await move.remove()
        for lookup, one, other in zip(lookups, found, expected, strict=True):
            assert one == other, lookup

    bounded(scenario())


@pytest.mark.parametrize("bucket", [False, True])
async def test_files_keys_the_token_and_environments_come_along(move, monkeypatch, bucket):
    for variable, value in s3.CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    await move.fill()
    mint = itertools.count(1)
    directory = DirectoryFiles(
        move.data / "files", lambda: f"00000000-0000-7000-8000-{next(mint):012x}", now=clock, vault=move.vault
    )
    directory.prepare()
    plain = DirectoryFiles(move.data / "files", directory._mint, now=clock)
    kept = [
        await directory.keep(b"x" * 3_000_000, name="a.bin", mime_type="", owner="a1"),
        await plain.keep(b"from before", name="b.txt", mime_type="", owner="a2"),
    ]
    (move.data / "files" / "half.part").write_bytes(b"x")
    token = DataDir(move.data).admin_token()
    signing = KeyFile(move.data / "keys").open(int(NOW // SECOND)).signing.kid
    await EnvironmentFiles(move.data / "vault").keep({"SECRET": "canary"}, "v-1")
    source = move.source()

    url = s3.make_bucket(f"copies-{move.realm.replace('_', '-')}") if bucket else None
    report = await move.copy(bucket=url)
    assert move.source() == source
    assert (report.files, report.file_bytes, report.records) == (2, 3_000_011, 3)
    pool = Pool(shared_url(), move.realm)
    try:
        place = None if url is None else S3Objects(url, move.realm)
        files = PostgresFiles(pool, lambda: "", now=clock, vault=move.vault, room=Room(), place=place)
        assert [one.ref for one in await files.listing(after="", limit=9)] == kept
        assert [await files.fetch(one.id) for one in kept] == [b"x" * 3_000_000, b"from before"]
        assert [{*page} async for page in files.unwanted(Instant(NOW + 1))] == [{one.id for one in kept}]
        [[blocks]] = await move.sql("SELECT count(*) FROM file_block")
        assert (blocks == 0) is bucket
        keys = await open_shared_keys(
            pool, move.realm, move.vault, A2acpSettings(), now=clock, own_token=lambda: "another"
        )
        assert keys.admin_token == token
        assert keys.signing.authority(int(NOW // SECOND)).ring.signing.kid == signing
        assert await keys.environments.fetch("v-1") == {"SECRET": "canary"}
    finally:
        await pool.close()
    async with move.opened():
        pass  # with this master key; the store knows that it needs it
    other = DataVault(move.data.parent / "other", clock)
    other.lock(b"", {})
    move.vault = other
    with pytest.raises(StoreRefused, match="master key"):
        await move.opened().__aenter__()


async def told(*arguments, **environ):
    """What the command prints, and its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", "store", "copy", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", **environ},
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_says_what_it_copied_and_what_to_do_next(move):
    await move.fill(*ROWS, audit=records.chain(5))
    given = ("--from", str(move.data), "--to", shared_url(), "--realm", move.realm)
    code, out, err = await told(*given)
    assert code == 0
    for words in (
        f"the realm {move.realm} is the hub of {move.data}",
        f"5 records, the last one {records.chain(5)[-1].hash[:16]}…: the chain is whole",
        "give every node that key",
        f"dragoman serve --store URL --node NAME --realm {move.realm}",
    ):
        assert words in out + err
    code, _, err = await told(*given)
    assert code == 4
    assert f"the realm {move.realm} is in use" in err
    await move.remove()
    code, out, err = await told(*given, "-o", "json")
    report = json.loads(out)
    assert (code, err, report["tables"]["task"], report["audit_hash"]) == (0, "", 2, records.chain(5)[-1].hash)
    for wrong, code_, what in (
        (("--from", str(move.data / "none"), *given[2:]), 3, "there is no store"),
        ((*given[:-1], "No Realm"), 2, "cannot name a realm"),
        ((*given, "--files", "s3://"), 2, "names no bucket"),
    ):
        code, out, err = await told(*wrong)
        assert (code, what in err) == (code_, True), err


async def test_a_realm_that_is_in_use_is_refused(move):
    await move.fill(*ROWS)
    await move.copy()
    with pytest.raises(StoreRefused, match=r"the realm move_\d+ is in use: \w+ has rows: name another one") as refused:
        await move.copy()
    assert "DROP SCHEMA dragoman_move" in refused.value.advice


async def test_a_realm_that_was_made_and_not_used_is_taken_and_its_old_leaders_are_fenced(move):
    await move.fill(*ROWS)
    await init(shared_url(), move.realm)
    table = LeaseTable(shared_url(), move.realm)
    term = None
    for _ in range(3):
        term = await table.take((await table.read()).epoch, holder="old", url="", ttl=60)
        assert term is not None
        with pytest.raises(StoreRefused, match="the node old leads the realm"):
            await move.copy()
        await table.release(term.epoch)
    await move.copy()
    lease = await table.read()
    await table.close()
    assert (lease.realm, lease.epoch > term.epoch, lease.expires_at < lease.now) == (move.realm, True, True)
    assert lease.last_instant >= 5


async def test_a_copy_that_ended_half_way_is_begun_anew_and_nobody_saw_it(move, monkeypatch):
    before = await move.fill(*ROWS, audit=records.chain(3))

    def end(table, copied):
        if table == "event":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await copy_store(move.plan(), end)
    assert await move.sql("SELECT to_regclass('task') IS NULL AS none") == [(True,)]
    assert await move.sql("SELECT count(*) FROM task", realm=copying.aside(move.realm)) == [(2,)]
    await move.copy()
    async with move.opened() as (store, _):
        assert await everything(store) == before
    left = "SELECT count(*) FROM pg_namespace WHERE nspname = $1"
    assert await move.sql(left, schema_of(copying.aside(move.realm))) == [(0,)]


async def test_two_copies_into_one_realm_do_not_mix(move, tmp_path):
    await move.fill(*ROWS)
    (tmp_path / "other").mkdir()
    other = Move(tmp_path / "other")
    other.vault.lock(b"", {})
    other.realm = move.realm
    await other.fill(records.task("other"))
    done = await asyncio.gather(move.copy(), other.copy(), return_exceptions=True)
    refused = [one for one in done if isinstance(one, StoreRefused)]
    assert len(refused) == 1
    assert "under way" in str(refused[0]) or "in use" in str(refused[0])


async def test_rows_that_come_out_different_keep_the_realm_as_it_was(move, monkeypatch):
    await move.fill(*ROWS)
    insert = copying._insert
    monkeypatch.setattr(copying, "_insert", lambda table: insert(table) + (" LIMIT 1" if table.name == "event" else ""))
    with pytest.raises(StoreRefused, match="event came out different: 2 rows were read and 1 are there"):
        await move.copy()

    def changed(table):
        return insert(table).replace("SELECT key, at, kind, agent, body", "SELECT key, at, kind, agent, 'x'")

    monkeypatch.setattr(copying, "_insert", changed)
    with pytest.raises(StoreRefused, match="event came out different"):
        await move.copy()
    assert await move.sql("SELECT to_regclass('task') IS NULL AS none") == [(True,)]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("UPDATE audit SET body = replace(body, 'submit', 'cancel') WHERE seq = 2", "record 2 was changed"),
        ("DELETE FROM audit WHERE seq = 2", "record 2 is missing"),
        ("DELETE FROM audit WHERE seq = 4", "record 4 is missing, and all after it"),
    ],
)
async def test_an_audit_record_that_is_broken_is_not_copied(move, damage, why):
    await move.fill(*ROWS, audit=records.chain(4))
    connection = apsw.Connection(str(move.store))
    connection.execute(damage)
    connection.close()
    with pytest.raises(StoreRefused, match=f"the audit record is broken: {why}"):
        await move.copy()
    assert await move.sql("SELECT to_regclass('task') IS NULL AS none") == [(True,)]


async def test_the_hub_of_the_source_must_be_stopped(move):
    store = SqliteStore(move.store)
    await store.open()
    try:
        with pytest.raises(StoreInUse):
            await move.copy()
    finally:
        await store.close()


async def test_a_source_without_a_master_key_says_how_to_make_one(tmp_path):
    move = Move(tmp_path)
    await move.fill()
    source = move.source()
    with pytest.raises(StoreRefused, match="has no master key yet") as refused:
        await move.copy()
    assert "DRAGOMAN_MASTER_KEY=$(openssl rand -hex 32)" in refused.value.advice
    assert move.source() == source
    given = os.urandom(32).hex()
    try:
        await move.copy(given=given)
    finally:
        await move.remove()


async def test_a_server_that_is_not_there_is_named(move):
    await move.fill()
    with pytest.raises(StoreFailed, match="PostgreSQL cannot be used"):
        await move.copy(url="postgresql://postgres@127.0.0.1:1/x")


async def test_the_remains_of_forgotten_tasks_stay_behind(move):
    await move.fill(*ROWS)
    store = SqliteStore(move.store, vault=move.vault, keys=move.vault)
    await store.open()
    [task] = [row for row in ROWS if getattr(row, "id", "") == "t-1" and type(row).__name__ == "Task"]
    async with store.unit() as unit:
        await unit.commit(Changes(removed=[task]))
    await store.close()
    report = await move.copy()
    assert (report.tables["task"], report.tables["event"]) == (1, 0)
