"""The backup of docs/howto/backup.md, tried: a base backup and archived log bring a realm back to a point in time."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
from contextlib import asynccontextmanager

import pytest

from dragoman.app.keys import DataVault
from dragoman.app.settings import A2acpSettings
from dragoman.app.shared_keys import open_shared_keys
from dragoman.core.ids import SECOND, Instant
from dragoman.core.model.audit import Newest, cut_short, verify
from dragoman.stores.files import Room
from dragoman.stores.postgres.files import PostgresFiles
from dragoman.stores.postgres.lease import LeaseTable, init
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.store import PostgresStore
from tests.adapters import records
from tests.adapters.store_suite.stores import commit
from tests.support.postgres import Server, need_postgres, private_directory

NOW = Instant(1_800_000_000 * SECOND)
REALM = "default"


def clock():
    return NOW


class Place:
    """Directories that PostgreSQL's user may use, removed at the end, and the servers in them."""

    def __init__(self, name):
        self.path = private_directory(name)
        self.servers = []

    def directory(self, name):
        made = self.path / name
        made.mkdir(parents=True, mode=0o755)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(made, nobody.pw_uid, nobody.pw_gid)
        return made

    def server(self, name, *settings):
        self.servers.append(Server(self.path / name, settings=settings))
        return self.servers[-1]


@pytest.fixture
def place():
    need_postgres()
    made = Place("recovery")
    try:
        yield made
    finally:
        for server in made.servers:
            server.remove()
        shutil.rmtree(made.path, ignore_errors=True)


class Node:
    """What a node of the realm keeps there."""

    def __init__(self, url, data):
        mint = itertools.count(1)
        self.vault = DataVault(data, clock)
        self.pool = Pool(url, REALM)
        self.files = PostgresFiles(
            self.pool,
            lambda: f"00000000-0000-7000-8000-{next(mint):012x}",
            now=clock,
            vault=self.vault,
            room=Room(),
        )
        self._url = url

    @asynccontextmanager
    async def leading(self):
        table = LeaseTable(self._url, REALM)
        term = await table.take((await table.read()).epoch, holder="n", url="", ttl=60, stream_broke=True)
        store = PostgresStore(self._url, realm=REALM, term=term, vault=self.vault, keys=self.vault)
        try:
            yield store, await store.open()
        finally:
            await store.close()
            await table.release(term.epoch)
            await table.close()

    async def keys(self):
        return await open_shared_keys(
            self.pool, REALM, self.vault, A2acpSettings(), now=clock, own_token=lambda: "the admin's"
        )


async def test_a_realm_comes_back_as_it_was_at_a_point_in_time(place, tmp_path):
    archive = place.directory("archive")
    server = place.server(
        "primary", "archive_mode=on", f"archive_command=test ! -f {archive}/%f && cp %p {archive}/%f"
    ).start()
    await init(server.url(), REALM)
    node = Node(server.url(), tmp_path)
    chain = records.chain(9)
    signing = (await node.keys()).signing.authority(int(NOW // SECOND)).ring.signing.kid
    async with node.leading() as (store, _):
        await commit(store, records.task("t-1"), audit=chain[:3])
        before = await node.files.keep(b"x" * 100, name="a", mime_type="", owner="a1")

        # the base backup, while the hub goes on
        restored = place.server(
            "restored",
            f"restore_command=cp {archive}/%f %p",
            "recovery_target_name=before_the_mistake",
            "recovery_target_action=promote",
        )
        restored._make_directory()
        source = f"host={server.directory} port={server.port} user=postgres"
        server.run("pg_basebackup", "-D", restored.data, "-X", "none", "-c", "fast", "--no-sync", "-d", source)

        await commit(store, records.task("t-2"), audit=chain[3:6])
        after = await node.files.keep(b"y" * 100, name="b", mime_type="", owner="a1")
        server.sql("SELECT pg_create_restore_point('before_the_mistake')")
        await commit(store, removed=[records.task("t-1")], audit=chain[6:])
        await node.files.drop(before.id)
        server.sql("SELECT pg_switch_wal()")
    await node.pool.close()
    server.stop()  # archives what is left

    (restored.data / "recovery.signal").touch(mode=0o600)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(restored.data / "recovery.signal", nobody.pw_uid, nobody.pw_gid)
    restored.start().wait_for_writes()

    again = Node(restored.url(), tmp_path)
    try:
        assert (await again.keys()).signing.authority(int(NOW // SECOND)).ring.signing.kid == signing
        async with again.leading() as (store, recovered):
            found = await store.audit()
            seq, last, broken = verify(found)
            assert (seq, last, broken) == (6, chain[5].hash, None)
            assert cut_short(seq, last, Newest(recovered.audit_seq, recovered.audit_hash)) is None
            assert [(await store.task(id)) is not None for id in ("t-1", "t-2")] == [True, True]
            assert [await again.files.fetch(one.id) for one in (before, after)] == [b"x" * 100, b"y" * 100]
            await commit(store, records.task("t-3"), audit=records.chain(1, after=chain[5]))
    finally:
        await again.pool.close()
