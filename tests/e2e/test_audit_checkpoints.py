"""The audit chain, looked at without a hub, and held against what was kept elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from dragoman.core.model.audit import GENESIS, AuditRecord, seal
from tests.support.cli import Finished, dragoman
from tests.support.hubproc import HubProcess, running
from tests.support.machine import mount, unmount

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 5


class Kept:
    """A data directory whose hub has stopped, with a checkpoint from before its last records."""

    def __init__(self, home: Path) -> None:
        self.data = home / "hub" / "data"
        self.checkpoint = home / "elsewhere.json"
        with running(home / "hub") as hub:
            self.add(hub, "one", "two")
            made = dragoman("audit", "checkpoint", str(self.checkpoint), hub=hub)
            assert made.code == OK, made
            self.jwks = hub.admin.get("/.well-known/jwks.json").json
            self.add(hub, "three")
            beside = dragoman("audit", "verify", "--checkpoint", str(self.checkpoint), hub=hub)
            assert (beside.code, "fits 1 checkpoint" in beside.err + beside.out) == (OK, True), beside
            printed = dragoman("audit", "checkpoint", hub=hub)
            assert printed.json["seq"] > json.loads(self.checkpoint.read_text())["seq"]

    def add(self, hub: HubProcess, *ids: str) -> None:
        for id in ids:
            assert hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "chiffon"}).status == 201

    def copied(self, to: Path) -> Path:
        shutil.copytree(self.data, to)
        return to


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("audit"))


def verify(data: Path, *more: str) -> Finished:
    return dragoman("audit", "verify", "--data", str(data), "-o", "json", *more)


def rewritten(data: Path, records: list[AuditRecord]) -> None:
    """What an attacker does who can write the database: a chain with good hashes, and the note of its end."""
    connection = apsw.Connection(str(data / "hub.sqlite"))
    with connection:
        connection.execute("DELETE FROM audit")
        prev = GENESIS
        for seq, record in enumerate(records, start=1):
            record = seal(msgspec.structs.replace(record, seq=seq, prev=prev))
            prev = record.hash
            row = (seq, record.principal, record.subject, record.outcome, msgspec.json.encode(record).decode())
            connection.execute("INSERT INTO audit (seq, principal, subject, outcome, body) VALUES (?,?,?,?,?)", row)
        connection.execute("UPDATE audit_newest SET seq = ?, hash = ?", (len(records), prev))
    connection.close()


def records_in(data: Path) -> list[AuditRecord]:
    connection = apsw.Connection(str(data / "hub.sqlite"))
    found = [msgspec.json.decode(body, type=AuditRecord) for (body,) in connection.execute("SELECT body FROM audit")]
    connection.close()
    return found


def test_a_chain_is_verified_without_a_hub_and_nothing_is_changed(kept: Kept, tmp_path: Path) -> None:
    before = (kept.data / "hub.sqlite").read_bytes()
    said = verify(kept.data, "--checkpoint", str(kept.checkpoint))
    assert (kept.data / "hub.sqlite").read_bytes() == before
    assert (said.code, said.json["ok"], said.json["verified"]) == (OK, True, len(records_in(kept.data))), said
    assert verify(tmp_path / "nowhere").code == UNREACHABLE


@pytest.fixture
def archive(kept: Kept, tmp_path: Path) -> Iterator[Path]:
    """A copy of the store alone, where nobody can write."""
    place = tmp_path / "archive"
    place.mkdir()
    shutil.copy(kept.data / "hub.sqlite", place)
    if os.geteuid() != 0:
        place.chmod(0o500)
        yield place
        place.chmod(0o700)
        return
    mount("--bind", place, place)
    try:
        mount("-o", "remount,ro,bind", place)
        yield place
    finally:
        unmount(place)


def test_a_chain_is_verified_where_nobody_can_write(kept: Kept, archive: Path) -> None:
    said = verify(archive, "--checkpoint", str(kept.checkpoint))
    assert (said.code, said.json["ok"], said.json["verified"]) == (OK, True, len(records_in(kept.data))), said
    assert [file.name for file in archive.iterdir()] == ["hub.sqlite"]


def test_without_a_hub_nothing_is_advised_that_needs_one(kept: Kept, tmp_path: Path) -> None:
    assert "audit query" not in dragoman("audit", "verify", "--data", str(kept.data)).err
    data = kept.copied(tmp_path / "edited")
    connection = apsw.Connection(str(data / "hub.sqlite"))
    connection.execute("DELETE FROM audit WHERE seq = 2")
    connection.close()
    said = dragoman("audit", "verify", "--data", str(data))
    assert (said.code, "audit query" in said.err) == (FAILED, False), said
    assert "audit verify --data BACKUP" in said.err


def test_a_record_that_was_edited_is_named_without_a_hub(kept: Kept, tmp_path: Path) -> None:
    data = kept.copied(tmp_path / "edited")
    connection = apsw.Connection(str(data / "hub.sqlite"))
    connection.execute("UPDATE audit SET principal = 'nobody' WHERE seq = 2")
    connection.close()
    said = verify(data)
    assert (said.code, said.json["broken"]["seq"]) == (FAILED, 2), said


@pytest.mark.parametrize("how", ["cut short", "rewritten"])
def test_a_chain_with_good_hashes_is_given_away_by_a_checkpoint(kept: Kept, tmp_path: Path, how: str) -> None:
    data = kept.copied(tmp_path / "forged")
    known: dict[str, Any] = json.loads(kept.checkpoint.read_text())
    records = records_in(data)
    if how == "cut short":
        records = records[: known["seq"] - 1]
    else:
        records[0] = msgspec.structs.replace(records[0], principal="somebody else")
    rewritten(data, records)
    assert verify(data).code == OK  # by itself it is whole
    said = verify(data, "--checkpoint", str(kept.checkpoint))
    assert (said.code, said.json["ok"]) == (FAILED, False), said
    assert said.json["broken"]["seq"] == known["seq"]
    assert f"checkpoint of {known['at']}" in said.json["broken"]["why"]
    with running(tmp_path / "hub", data=data) as hub:  # and by a hub that serves it
        beside = dragoman("audit", "verify", "--checkpoint", str(kept.checkpoint), "-o", "json", hub=hub)
        if how == "rewritten":
            assert (beside.code, beside.json["broken"]["seq"]) == (FAILED, known["seq"]), beside


def test_a_checkpoint_is_signed_with_the_published_key_and_cannot_be_changed(kept: Kept, tmp_path: Path) -> None:
    known = json.loads(kept.checkpoint.read_text())
    assert {"kid": known["kid"], "x": known["public_key"]}.items() <= kept.jwks["keys"][0].items()
    for change in ({"seq": 1}, {"hash": "0" * 64}, {"at": "2020-01-01T00:00:00Z"}, {"kid": "x"}, {"kind": "other"}):
        file = tmp_path / "changed.json"
        file.write_text(json.dumps(known | change))
        said = dragoman("audit", "verify", "--data", str(kept.data), "--checkpoint", str(file))
        assert said.code == FAILED, (change, said)
        assert "changed.json" in said.err
    again = dragoman("audit", "checkpoint", str(kept.checkpoint), "--data", str(kept.data))
    assert again.code == UNREACHABLE  # only a hub signs
