"""Keys, the admin's token and environments that the nodes of a realm share, sealed under the master key."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
from pathlib import Path

import asyncpg
import pytest

from dragoman.app.keys import DataVault
from dragoman.app.settings import A2acpSettings
from dragoman.app.shared_keys import SETTLE, SharedSigningKeys, open_shared_keys
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import StoreFailed
from dragoman.protocols.a2acp.types import LONGEST_TTL
from dragoman.security.keys import LEEWAY, KeyRing, decode_keys, encode_keys, new_key, rotated
from dragoman.stores.postgres.connection import schema_of
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.sealed import SealedRecords
from dragoman.stores.sqlite.schema import StoreRefused
from tests.support.postgres import shared_url
from tests.support.realms import realm

NOW = 1_800_000_000


class Realm:
    """A realm and its nodes, each with a data directory of its own, or with a key from the environment."""

    def __init__(self, directory, name):
        self.name = name
        self.now = NOW
        self._directory = directory
        self._pools = []

    def clock(self):
        return Instant(self.now * SECOND)

    def data(self, node):
        made = self._directory / node
        made.mkdir(exist_ok=True, mode=0o700)
        return made

    def pool(self):
        self._pools.append(Pool(shared_url(), self.name))
        return self._pools[-1]

    def records(self, node):
        return SealedRecords(self.pool(), self.name, DataVault(self.data(node), self.clock))

    async def open(self, node, *, given=None, token="0" * 32):
        vault = DataVault(self.data(node), self.clock, given=given)
        return await open_shared_keys(
            self.pool(), self.name, vault, A2acpSettings(), now=self.clock, own_token=lambda: token
        )

    def copy_key(self, source, target):
        shutil.copytree(self.data(source) / "keys", self.data(target) / "keys", dirs_exist_ok=True)
        (self.data(target) / "keys").chmod(0o700)

    async def close(self):
        for pool in self._pools:
            await pool.close()

    async def sql(self, text):
        connection = await asyncpg.connect(shared_url(), server_settings={"search_path": schema_of(self.name)})
        try:
            return await connection.fetch(text)
        finally:
            await connection.close()


@pytest.fixture
async def nodes(tmp_path):
    async with realm() as name:
        made = Realm(tmp_path, name)
        yield made
        await made.close()


async def test_nodes_with_the_same_master_key_share_the_token_and_the_keys(nodes):
    one = await nodes.open("a", token="a" * 32)
    nodes.copy_key("a", "b")
    other = await nodes.open("b", token="b" * 32)
    assert (one.admin_token, other.admin_token) == ("a" * 32, "a" * 32)
    rings = [keys.signing.authority(NOW).ring for keys in (one, other)]
    assert rings[0].signing.kid == rings[1].signing.kid
    issued = one.signing.authority(NOW).issue(subject="x", audience="y", domain="d", capabilities=(), ttl=60, now=NOW)
    claims = other.signing.authority(NOW).verify(issued.token, audience="y", now=NOW)
    assert claims.sub == "x"


async def test_a_node_without_the_realms_master_key_refuses_to_start_and_makes_none(nodes):
    await nodes.open("a")
    with pytest.raises(StoreRefused, match=r"sealed with the master key [0-9a-f]{16}, and this node has none") as none:
        await nodes.open("b")
    assert "copy keys/master.json" in none.value.advice
    assert "DRAGOMAN_MASTER_KEY" in none.value.advice
    assert not (nodes.data("b") / "keys").exists()
    DataVault(nodes.data("c"), nodes.clock).lock(b"", {})  # the key of another hub
    with pytest.raises(StoreRefused, match="this node has another one"):
        await nodes.open("c")
    nodes.copy_key("a", "c")
    await nodes.open("c")


@pytest.mark.parametrize("form", ["hex", "base64", "base64url", "list"])
async def test_the_master_key_may_come_from_the_environment_and_then_no_file_is_used(nodes, form):
    secret = os.urandom(32)
    text = {
        "hex": secret.hex(),
        "base64": base64.b64encode(secret).decode(),
        "base64url": base64.urlsafe_b64encode(secret).decode().rstrip("="),
        "list": f"{os.urandom(32).hex()}, {secret.hex()}",
    }[form]
    await nodes.open("a", given=secret.hex())
    await nodes.open("b", given=text)
    assert os.listdir(nodes.data("a")) == os.listdir(nodes.data("b")) == []
    with pytest.raises(StoreRefused, match="another one"):
        await nodes.open("c", given=os.urandom(32).hex())


@pytest.mark.parametrize("text", ["secret", "0" * 63, ",", "ü" * 64, "A" * 44])
async def test_text_that_is_no_master_key_is_refused_without_showing_it(nodes, text):
    with pytest.raises(StoreRefused, match=r"holds no master key\. Make one: openssl rand -hex 32") as refused:
        await nodes.open("a", given=text)
    assert len(text) < 3 or text not in str(refused.value)


async def test_nodes_that_start_at_once_agree(nodes):
    given = os.urandom(32).hex()
    opened = await asyncio.gather(*(nodes.open(f"n{one}", given=given, token=f"{one:032x}") for one in range(5)))
    assert len({keys.admin_token for keys in opened}) == 1
    assert len({keys.signing.authority(NOW).ring.signing.kid for keys in opened}) == 1


async def test_nothing_of_it_can_be_read_in_the_database(nodes):
    keys = await nodes.open("a", token="canary-of-the-token")
    await keys.environments.keep({"PASSWORD": "canary-of-the-child"}, "x")
    [key] = list(keys.signing.authority(NOW).ring)
    private = key.material.private_bytes_raw()
    rows = await nodes.sql("SELECT name, body FROM sealed_record")
    assert {row["name"] for row in rows} == {"master key", "admin token", "signing keys", "environment/x"}
    assert not any(word in row["body"] for row in rows for word in (b"canary", private))


async def test_a_record_is_of_its_name_and_realm(nodes):
    await nodes.open("a")
    records = nodes.records("a")
    await records.put("one", b"1", seen=0)
    await nodes.sql("INSERT INTO sealed_record SELECT 'two', version, body FROM sealed_record WHERE name = 'one'")
    with pytest.raises(StoreFailed, match="another row's"):
        await records.get("two")


async def test_a_record_is_replaced_only_by_who_has_seen_the_last_one(nodes):
    await nodes.open("a")
    one, other = nodes.records("a"), nodes.records("a")
    assert await one.put("x", b"1", seen=0)
    assert not await other.put("x", b"2", seen=0)
    seen = await other.get("x")
    assert seen == (1, b"1")
    assert await one.put("x", b"3", seen=1)
    assert not await other.put("x", b"4", seen=1)
    assert (await other.get("x"), await other.version("x"), await other.version("y")) == ((2, b"3"), 2, 0)


async def test_a_key_that_one_node_makes_verifies_everywhere_before_it_signs_anywhere(nodes):
    await nodes.open("a")
    one, other = (SharedSigningKeys(nodes.records("a"), A2acpSettings(), nodes.clock, settle=0) for _ in range(2))
    for keys in (one, other):
        await keys.open()
    old = other.authority(NOW).ring.signing.kid
    assert await other.changed(old) is None

    data = rotated(list(one.authority(NOW).ring), NOW, distrust=False, after=SETTLE)
    new = KeyRing(data, at=NOW + SETTLE).signing.kid
    for at, signs in ((NOW, old), (NOW + SETTLE - 1, old), (NOW + SETTLE, new)):
        ring = KeyRing(data, at=at)
        assert ring.signing.kid == signs
        assert None not in (ring.find(old, at), ring.find(new, at))
    assert KeyRing(data, at=NOW).find(old, NOW + SETTLE + LONGEST_TTL + LEEWAY) is None

    made = await one.rotate(NOW, distrust=False)
    seen = await other.changed(old)
    assert seen.signing.kid == made.signing.kid != old
    assert await other.changed(made.signing.kid) is None


async def test_a_node_begins_to_sign_with_the_new_key_when_its_time_has_come(nodes):
    await nodes.open("a")
    keys = SharedSigningKeys(nodes.records("a"), A2acpSettings(), nodes.clock)
    await keys.open()
    old = keys.authority(NOW).ring.signing.kid
    records = nodes.records("a")
    found = await records.get("signing keys")
    later = rotated(decode_keys(found.data, ""), NOW, distrust=False, after=SETTLE)
    assert await records.put("signing keys", encode_keys(later), seen=found.version)
    seen = await keys.changed(old)
    assert (seen.signing.kid, len(list(seen))) == (old, 2)
    assert await keys.changed(old) is None
    nodes.now = NOW + SETTLE
    assert (await keys.changed(old)).signing.kid != old


async def test_keys_that_are_distrusted_at_one_node_are_gone_at_the_others(nodes):
    await nodes.open("a")
    one, other = (SharedSigningKeys(nodes.records("a"), A2acpSettings(), nodes.clock) for _ in range(2))
    for keys in (one, other):
        await keys.open()
    old = other.authority(NOW).ring.signing.kid
    made = await one.rotate(NOW, distrust=True)
    seen = await other.changed(old)
    assert [key.kid for key in seen] == [made.signing.kid]


async def test_keys_that_cannot_be_read_stay_as_they_were(nodes):
    await nodes.open("a")
    keys = SharedSigningKeys(nodes.records("a"), A2acpSettings(), nodes.clock)
    await keys.open()
    old = keys.authority(NOW).ring.signing.kid
    await nodes.sql("UPDATE sealed_record SET version = 9, body = '\\x00' WHERE name = 'signing keys'")
    assert await keys.changed(old) is None
    assert keys.authority(NOW).ring.signing.kid == old


async def test_environments_of_children_are_shared_and_cleared_out_when_they_are_old(nodes):
    one = (await nodes.open("a")).environments
    nodes.copy_key("a", "b")
    other = (await nodes.open("b")).environments
    for name in ("x", "y", "z", "of-an-agent"):
        await one.keep({"NAME": name}, name)
    await nodes.sql("INSERT INTO agent VALUES ('a1', NULL, 'forge', '{\"vault\":\"of-an-agent\"}')")
    with pytest.raises(FileExistsError):
        await other.keep({}, "x")
    assert await other.fetch("x") == {"NAME": "x"}
    await nodes.sql(
        "UPDATE sealed_record SET written_at = written_at - interval '2 hours' WHERE name <> 'environment/z'"
    )
    await other.clear_out({"x"})
    await other.drop("x")
    for gone in ("x", "y"):
        with pytest.raises(FileNotFoundError, match="add it again"):
            await one.fetch(gone)
    assert await one.fetch("z") == {"NAME": "z"}  # young: another node may be about to refer to it
    assert await one.fetch("of-an-agent") == {"NAME": "of-an-agent"}
    assert (await nodes.open("a")).admin_token  # nothing else was cleared out


def test_a_new_key_alone_signs_at_once():
    ring = KeyRing([new_key(NOW + 5)], at=NOW)
    assert ring.signing.created_at == NOW + 5


async def test_a_realm_whose_master_key_is_lost_goes_on_with_another_one_as_the_page_says(nodes):
    before = await nodes.open("a", token="a" * 32)
    await nodes.sql("INSERT INTO master_key VALUES ('AQAAAAAAAAAA', false)")
    text = (Path(__file__).parents[3] / "docs/howto/backup.md").read_text()
    [statements] = re.findall(r"```sql\n(.*?)```", text, flags=re.DOTALL)
    for statement in re.sub(r"--.*", "", statements).replace("dragoman_R", schema_of(nodes.name)).split(";"):
        if statement.strip():
            await nodes.sql(statement)
    again = await nodes.open("b", token="b" * 32)
    assert (before.admin_token, again.admin_token) == ("a" * 32, "b" * 32)
    assert await nodes.sql("SELECT given_up FROM master_key") == [(True,)]


async def test_the_master_key_is_replaced_node_by_node(nodes):
    old, new = os.urandom(32).hex(), os.urandom(32).hex()
    one = await nodes.open("a", given=old)
    await one.environments.keep({"WHEN": "before"}, "before")
    for given in (f"{old},{new}", f"{new},{old}"):
        one, other = await nodes.open("a", given=given), await nodes.open("b", given=f"{old},{new}")
        await one.environments.keep({"WHEN": given}, given[:8])
        assert await other.environments.fetch(given[:8]) == {"WHEN": given}
        assert await one.environments.fetch("before") == {"WHEN": "before"}
