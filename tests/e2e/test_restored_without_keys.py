"""A backup that is put back without its master key is seen: by the hub, which does not start, and by doctor."""

from __future__ import annotations

import shutil
import urllib.request
from pathlib import Path

from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running


def kept(hub: HubProcess, data: bytes) -> None:
    """A file, and a task that has it."""
    asked = urllib.request.Request(f"{hub.url}/api/v1/files?name=a.txt", data=data, method="POST")
    asked.add_header("Authorization", f"Bearer {hub.ready['admin_token']}")
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 201
    made = hub.admin.post("/api/v1/agents", {"agent_id": "worker", "protocol": "chiffon"})
    assert made.status == 201, made


def refused(hub: HubProcess) -> str:
    hub.launch()
    assert hub.died() == 4
    return hub.log.read_text()


def test_a_backup_without_its_key_is_not_served_until_the_key_is_back_or_given_up(tmp_path: Path) -> None:
    with running(tmp_path / "first") as hub:
        kept(hub, b"sealed")
        copy = tmp_path / "copy.sqlite"
        assert dragoman("backup", str(copy), hub=hub).code == 0
        key = hub.data / "keys" / "master.json"
        assert dragoman("doctor", hub=hub).out.count("master key: ") == 1
        data = tmp_path / "second" / "data"
        data.mkdir(parents=True, mode=0o700)
        (data / "admin.token").touch(0o600)
        (data / "admin.token").write_text("0" * 32)
        copy.rename(data / "hub.sqlite")
        restored = HubProcess(tmp_path / "second", data=data)

        said = refused(restored)
        assert "master.json is not there: put it back from where you keep your keys" in said
        assert "Traceback" not in said
        assert not (data / "keys" / "master.json").exists()
        told = dragoman("doctor", DRAGOMAN_DATA=str(data))
        assert told.code == 1
        assert "sealed with the master key" in told.out

        (data / "keys").mkdir(mode=0o700)
        shutil.copy2(key, data / "keys")
        restored.start()
        assert restored.stop() == 0

    (data / "keys" / "master.json").unlink()
    assert "is not there" in refused(restored)
    gone = dragoman("key", "give-up", "-o", "json", DRAGOMAN_DATA=str(data))
    assert (gone.code, len(gone.json["given_up"])) == (0, 1), gone
    again = dragoman("key", "give-up", DRAGOMAN_DATA=str(data))
    assert (again.code, "no key is missing" in again.err) == (0, True), again
    restored.start()
    try:
        assert "master key" not in dragoman("doctor", hub=restored).out
        assert dragoman("key", "give-up", hub=restored).code == 4  # not while a hub works on it
    finally:
        restored.stop()
