"""`doctor` and `backup`, with a hub and without."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dragoman.app.datadir import DataDir, Whereabouts
from dragoman.cli.about import installed
from dragoman.stores.sqlite import writer_process


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty directory, and no word of any hub."""
    for variable in [name for name in os.environ if name.startswith("DRAGOMAN_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verdicts(out: str) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in json.loads(out)["findings"]}


def make_store(directory: Path) -> Path:
    from dragoman.stores.sqlite.store import SqliteStore

    async def make() -> None:
        store = SqliteStore(directory / "hub.sqlite")
        await store.open()
        await store.close()

    DataDir(directory).prepare()
    asyncio.run(make())
    return directory / "hub.sqlite"


def test_before_the_first_start_all_is_well_and_it_says_how_to_start(alone: Path, run: Any) -> None:
    ran = run("doctor")
    assert ran.code == 0
    assert "• hub: none is running in .dragoman\n    fix: start one: dragoman dev\n" in ran.out
    assert ran.err == "✓ 0 problems, 2 warnings\n"
    assert verdicts(run("doctor", "-o", "json").out) == {
        "python": "ok", "sqlite": "ok", "disk": "ok", "data": "warning", "hub": "warning", "settings": "ok",
    }  # fmt: skip


@pytest.mark.parametrize(("mebibytes", "verdict"), [(1, "ok"), (5, "warning"), (8, "problem")])
def test_doctor_warns_of_a_log_near_its_limit(
    alone: Path, run: Any, monkeypatch: pytest.MonkeyPatch, mebibytes: int, verdict: str
) -> None:
    monkeypatch.setenv("DRAGOMAN_STORE__LOG_LIMIT_BYTES", str(8 << 20))
    make_store(alone / ".dragoman")
    (alone / ".dragoman" / "hub.sqlite-wal").write_bytes(bytes(mebibytes << 20))
    (alone / ".dragoman" / "hub.sqlite-wal").chmod(0o600)
    ran = run("doctor", "-o", "json")
    assert verdicts(ran.out)["log"] == verdict
    [row] = [finding for finding in json.loads(ran.out)["findings"] if finding["check"] == "log"]
    assert f"{mebibytes} MiB of at most 8" in row["says"]
    assert ("fuser" in row["fix"]) == (verdict != "ok")
    assert ran.code == (1 if verdict == "problem" else 0)


def test_with_a_hub_it_asks_the_hub(hub: Any, run: Any) -> None:
    hub.answers["GET /livez"] = hub.answers["GET /readyz"] = (200, {"status": "ok"})
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": []})
    hub.answers["GET /openapi.json"] = (200, {"info": {"version": installed()}})
    found = verdicts(run("doctor", "-o", "json").out)
    assert {key: found[key] for key in ("hub", "token", "version")} == {"hub": "ok", "token": "ok", "version": "ok"}

    hub.answers["GET /openapi.json"] = (200, {"info": {"version": "0.0.9"}})
    hub.answers["GET /readyz"] = (503, {"status": "unready", "detail": "the disk refused"})
    hub.answers["GET /api/v1/tasks"] = (401, {"detail": "this is not the admin token"})
    ran = run("doctor")
    assert ran.code == 1
    assert "✗ ready: it takes no work: the disk refused" in ran.out
    assert "✗ token: this is not the admin token" in ran.out
    assert "this command is" in ran.out


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (0, "✓ clock: the hub's and this machine's agree"),
        (-3, "✓ clock: the hub's and this machine's agree"),
        (300, "• clock: the hub's is 5 min ahead of this machine's"),
        (-7230, "• clock: the hub's is 2 h behind this machine's"),
    ],
)
def test_doctor_names_a_hub_with_another_clock(hub: Any, run: Any, ahead: float, said: str) -> None:
    hub.answers["GET /livez"] = hub.answers["GET /readyz"] = (200, {"status": "ok"})
    hub.ahead = ahead
    ran = run("doctor")
    assert said in ran.out
    assert ("restart the hub" in ran.out) is (abs(ahead) > 10)


def test_a_hub_that_was_named_and_does_not_answer_is_a_problem(alone: Path, run: Any) -> None:
    ran = run("doctor", "--hub", "http://127.0.0.1:1", "-o", "json")
    assert (ran.code, verdicts(ran.out)["hub"]) == (1, "problem")


def test_a_data_directory_open_to_others_is_a_problem_with_its_fix(alone: Path, run: Any) -> None:
    made = DataDir(".dragoman")
    made.prepare()
    made.admin_token()
    made.token_file.chmod(0o644)
    assert "• data: not closed to others: .dragoman/admin.token (0644)" in run("doctor").out
    made.path.chmod(0o755)
    ran = run("doctor")
    assert ran.code == 1
    assert "✗ data: not closed to others: .dragoman (0755), .dragoman/admin.token (0644)" in ran.out
    assert ran.err.splitlines()[-1] == "  next: chmod -R go=,u=rwX .dragoman"


def test_a_whole_store_is_checked_and_a_damaged_one_is_found(alone: Path, run: Any) -> None:
    file = make_store(alone / ".dragoman")
    assert verdicts(run("doctor", "-o", "json").out)["store"] == "ok"
    with file.open("r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"\xff" * 8192)
    ran = run("doctor")
    assert (ran.code, "is damaged" in ran.out, "restore the newest backup" in ran.out) == (1, True, True)


def test_much_damage_is_reported_in_one_line(alone: Path, run: Any) -> None:
    file = make_store(alone / ".dragoman")
    with file.open("r+b") as damaged:
        damaged.seek(3 * 4096)
        damaged.write(b"\xff" * 20 * 4096)
    [said] = [text for text in run("doctor").out.splitlines() if "is damaged" in text]
    assert ("is damaged: Tree " in said, "\\n" in said) == (True, False)


def test_a_store_that_no_hub_of_ours_would_open_is_a_problem(alone: Path, run: Any) -> None:
    file = make_store(alone / ".dragoman")
    with sqlite3.connect(file) as newer:
        newer.execute("PRAGMA user_version = 999")
    ran = run("doctor")
    assert (ran.code, ran.err.splitlines()[-1]) == (1, "  next: use the Dragoman that wrote it, or a newer one")
    assert "has schema version 999, this Dragoman knows versions up to" in ran.out


def test_keys_are_named_by_a_backup_and_are_not_in_it(alone: Path, run: Any) -> None:
    make_store(alone / ".dragoman")
    keys = alone / ".dragoman" / "keys"
    keys.mkdir(0o700)
    for name in ("signing.json", "master.json"):
        (keys / name).touch(0o600)
    vault = alone / ".dragoman" / "vault"
    vault.mkdir(mode=0o700)
    (vault / "one").write_text("{}")
    (alone / ".dragoman" / "files").mkdir(mode=0o700)  # nothing in it, nothing to copy
    ran = run("backup", "copy.sqlite")
    assert "not in it: .dragoman/keys/master.json, .dragoman/keys/signing.json" in ran.err
    assert "nor: .dragoman/vault: copy" in ran.err
    told = json.loads(run("backup", "other.sqlite", "-o", "json").out)
    assert told["not_in_it"] == [str(keys / "master.json"), str(keys / "signing.json"), str(vault)]
    (keys / "master.json").chmod(0o640)
    assert ".dragoman/keys/master.json (0640)" in run("doctor").out


def test_certificates_are_looked_at(alone: Path, run: Any) -> None:
    assert run("cert", "--dir", "tls").code == 0
    Path("dragoman.toml").write_text('tls.certificate = "tls/server.pem"\ntls.key = "tls/server.key"\n')
    assert "✓ tls: tls/server.pem is good for 39" in run("doctor").out
    assert run("cert", "--dir", "tls", "--days", "13").code == 0
    ran = run("doctor")
    assert (ran.code, "• tls: tls/server.pem is good for 1" in ran.out) == (0, True)
    Path("tls/server.key").chmod(0o644)
    ran = run("doctor")
    assert (ran.code, ran.err.splitlines()[-1].endswith("chmod 600 tls/server.key")) == (1, True)
    assert "✗ tls: tls/server.key can be read by others (mode 0644)" in ran.out
    Path("tls/server.key").unlink()
    assert "✗ tls: there is no key tls/server.key\n    fix: Make one: dragoman cert\n" in run("doctor").out


def test_a_certificate_that_waits_for_a_flag_is_looked_at_too(alone: Path, run: Any) -> None:
    DataDir(".dragoman").prepare()
    run("cert")
    assert "✓ tls: .dragoman/tls/server.pem is good for" in run("doctor").out


def test_wrong_settings_are_found(alone: Path, run: Any) -> None:
    Path("dragoman.toml").write_text("[server]\nprot = 1\n")
    ran = run("doctor", "-o", "jsonl")
    last = json.loads(ran.out.splitlines()[-1])
    assert (ran.code, last["check"], "server.port" in last["says"]) == (1, "settings", True)


def test_backup_asks_a_running_hub_with_the_whole_path(hub: Any, run: Any, tmp_path: Path) -> None:
    hub.answers["POST /api/v1/backup"] = (200, {})
    ran = run("backup", "copy.sqlite", "-o", "json")
    assert hub.asked[-1].body == {"target": str(tmp_path / "copy.sqlite")}
    assert json.loads(ran.out) == {"target": str(tmp_path / "copy.sqlite"), "bytes": None, "by": "hub", "not_in_it": []}


def test_backup_copies_offline_when_no_hub_runs(alone: Path, run: Any) -> None:
    make_store(alone / ".dragoman")
    ran = run("backup", "copy.sqlite", "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["by"] == "offline"
    made = (alone / "copy.sqlite").stat()
    assert (made.st_size > 0, made.st_mode & 0o777) == (True, 0o600)


def test_backup_never_overwrites_and_says_what_is_missing(alone: Path, run: Any) -> None:
    Path("there").write_text("")
    assert "exists already" in run("backup", "there").err
    assert "there is no directory" in run("backup", "no/where").err
    nothing = run("backup", "copy")
    assert (nothing.code, "there is no store at .dragoman/hub.sqlite" in nothing.err) == (3, True)


def test_a_hub_that_is_there_and_cannot_copy_is_believed(hub: Any, alone: Path, run: Any) -> None:
    """Without a hub the command copies by itself, which no hub lets happen beside it."""
    file = make_store(alone / ".dragoman")
    here = Whereabouts(http=hub.url, grpc="", admin_token="0" * 32, pid=os.getpid())
    DataDir(".dragoman").announce(here)
    hub.answers["POST /api/v1/backup"] = (503, {"detail": "The store cannot be read now."})
    held = asyncio.run(writer_process.lock_directory(file.parent))
    try:
        ran = run("backup", "copy.sqlite")
    finally:
        os.close(held)
    assert (ran.code, ran.err.splitlines()[0]) == (5, "error: The store cannot be read now.")


def test_backup_of_a_hub_that_was_named_does_not_fall_back(alone: Path, run: Any) -> None:
    make_store(alone / ".dragoman")
    assert run("backup", "copy", "--hub", "http://127.0.0.1:1").code == 5
