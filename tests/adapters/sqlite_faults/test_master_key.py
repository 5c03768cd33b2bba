"""The store knows which master key something in it is sealed under, and does not open without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from dragoman.app.keys import DataVault
from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.contracts import Secret
from dragoman.core.model.deliveries import DirectMessage
from dragoman.core.ports import Changes
from dragoman.security.keys import encode64
from dragoman.stores.files import DirectoryFiles
from dragoman.stores.sqlite import master_keys
from dragoman.stores.sqlite.schema import StoreRefused
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters.records import contract, dead_letter, delivery, event, question, task

WORDS = msgspec.Raw(b'{"patient":"Zaphod"}')


def letter() -> DirectMessage:
    return DirectMessage(
        message_id="m", sender=AgentId("ada"), kind="note", raw=WORDS, digest="d", personal=True, protocol="agentmsg"
    )


def personal_rows(vault: DataVault) -> dict[str, Any]:
    locked = encode64(vault.lock(b"secret", {"kind": "collaboration key", "kid": "k"}))
    return {
        "task": task("t", personal=True, name="Zaphod"),
        "event": event("t", 1, personal=True, body=WORDS),
        "question": question("q", "t", personal=True),
        "delivery": delivery("d", "t", direct_message=letter()),
        "dead letter": dead_letter("x", "t", direct_message=letter()),
        "contract": contract("c", secret=Secret(kid="k", locked=locked)),
    }


class Data:
    """A data directory with a store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "hub.sqlite"
        self.vault = DataVault(path)

    @property
    def key(self) -> Path:
        return self.path / "keys" / "master.json"

    async def commit(self, *rows: Any) -> None:
        store = SqliteStore(self.file, vault=self.vault, keys=self.vault)
        await store.open()
        try:
            async with store.unit() as unit:
                await unit.commit(Changes(added=list(rows)))
        finally:
            await store.close()

    async def open(self) -> None:
        self.vault = DataVault(self.path)
        store = SqliteStore(self.file, vault=self.vault, keys=self.vault)
        try:
            await store.open()
        finally:
            await store.close()

    def keys(self) -> tuple[frozenset[str], frozenset[str]]:
        connection = apsw.Connection(str(self.file))
        try:
            return master_keys.keys(connection)
        finally:
            connection.close()

    def age(self) -> None:
        """As a version before the table of master keys wrote it."""
        connection = apsw.Connection(str(self.file))
        connection.execute(
            "DROP TABLE master_key; DROP TABLE used; DROP TABLE person; DROP TABLE series; DROP INDEX event_at;"
            " DROP INDEX task_protocol; ALTER TABLE task DROP COLUMN protocol;"
            " PRAGMA user_version = 8"
        )
        connection.close()


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


async def test_nothing_sealed_needs_no_key(data: Data) -> None:
    await data.commit(task("plain"))
    assert data.keys() == (frozenset(), frozenset())
    await data.open()
    assert not data.key.exists()


@pytest.mark.parametrize("older", [False, True], ids=["this version", "the version before"])
@pytest.mark.parametrize("kind", ["task", "event", "question", "delivery", "dead letter", "contract"])
async def test_a_store_with_something_sealed_opens_with_its_key_only(data: Data, kind: str, older: bool) -> None:
    rows = personal_rows(data.vault)
    plain = () if kind in ("task", "contract") else (task("t"),)
    await data.commit(*plain, rows[kind])
    id = data.vault.in_use
    assert id is not None
    if older:
        data.age()
    assert data.keys() == (frozenset({id}), frozenset())
    await data.open()
    assert data.keys() == (frozenset({id}), frozenset())
    kept = data.key.rename(data.path / "kept")
    (data.path / "master.made").unlink()  # a copy that was put back without anything beside it
    with pytest.raises(StoreRefused, match=rf"sealed with the master key {id}, and .*master.json is not there: put"):
        await data.open()
    assert not data.key.exists()
    DataVault(data.path).lock(b"", {})  # another hub's key
    with pytest.raises(StoreRefused, match=rf"master key {id}, and .* holds another key: put .* key give-up --data"):
        await data.open()
    kept.replace(data.key)
    await data.open()


async def test_a_file_that_is_sealed_is_enough(data: Data) -> None:
    await data.commit(task("plain"))
    clock = lambda: Instant(5_000_000)  # noqa: E731
    mint = iter(["01890a5d-ac96-774b-bcce-b302099a8057"])
    files = DirectoryFiles(data.path / "files", lambda: next(mint), now=clock, vault=data.vault)
    files.prepare()
    await files.keep(b"bytes", name="a", mime_type="text/plain")
    assert data.keys() == (frozenset(), frozenset())  # the hub was killed before its next commit
    data.key.unlink()
    (data.path / "master.made").unlink()
    with pytest.raises(StoreRefused, match=f"sealed with the master key {data.vault.in_use}"):
        await data.open()
    assert not data.key.exists()


async def test_what_follows_a_file_notes_its_key(data: Data) -> None:
    data.vault.lock(b"the bytes of a file", {})
    await data.commit(task("names it"))
    assert data.keys() == (frozenset({data.vault.in_use}), frozenset())


async def test_a_key_that_was_given_up_is_not_missed(data: Data) -> None:
    await data.commit(*personal_rows(data.vault).values())
    id = data.vault.in_use
    kept = data.key.rename(data.path / "kept")
    (data.path / "master.made").unlink()
    connection = apsw.Connection(str(data.file))
    master_keys.give_up(connection, [str(id)])
    connection.close()
    await data.open()
    assert data.keys() == (frozenset(), frozenset({id}))
    kept.rename(data.key)
    await data.open()
    data.vault.lock(b"again", {})
    await data.commit(task("more"))
    assert data.keys() == (frozenset({id}), frozenset())
