"""What the hub leaves on disk for those who come to it, and who may read it."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from dragoman.app.datadir import DataDir, DataDirError, Whereabouts, alive

LOCAL = Whereabouts("http://127.0.0.1:8420", "127.0.0.1:50051", "secret", os.getpid())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "a" / "data")
    made.prepare()
    return made


def test_it_is_closed_to_others(directory: DataDir) -> None:
    directory.admin_token()
    directory.announce(LOCAL)
    assert (mode(directory.path), mode(directory.token_file), mode(directory.hub_file)) == (0o700, 0o600, 0o600)
    assert sorted(path.name for path in directory.path.iterdir()) == ["admin.token", "hub.json"]


def test_an_open_one_is_closed_if_it_is_ours_and_refused_if_it_holds_other_things(tmp_path: Path) -> None:
    ours, empty, others = tmp_path / "ours", tmp_path / "empty", tmp_path / "others"
    for path in (ours, empty, others):
        path.mkdir()
        path.chmod(0o755)
    (ours / "admin.token").write_text("t\n")
    (others / "thesis.txt").write_text("…")
    for path in (ours, empty):
        DataDir(path).prepare()
        assert mode(path) == 0o700
    with pytest.raises(DataDirError, match="holds other things"):
        DataDir(others).prepare()
    assert mode(others) == 0o755


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="Give another one with --data"):
        DataDir(tmp_path / "file").prepare()


def test_the_admin_token_survives(directory: DataDir) -> None:
    token = directory.admin_token()
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert DataDir(directory.path).admin_token() == token


@pytest.mark.parametrize("torn", [b"", b"\n", bytes(33), b"\xff\xfe", b"two words"])
def test_a_torn_token_file_is_made_again(directory: DataDir, torn: bytes) -> None:
    directory.token_file.write_bytes(torn)
    token = directory.admin_token()
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert directory.token_file.read_text() == token + "\n"
    assert directory.admin_token() == token


def test_what_is_announced_is_found_and_withdrawn(directory: DataDir) -> None:
    assert directory.whereabouts() is None
    directory.announce(LOCAL)
    assert directory.whereabouts() == LOCAL
    assert json.loads(directory.hub_file.read_text()) == LOCAL._asdict()
    directory.withdraw()
    assert directory.whereabouts() is None
    directory.withdraw()


def test_what_another_process_announced_stays(directory: DataDir) -> None:
    directory.announce(LOCAL._replace(pid=1))
    directory.withdraw()
    assert directory.whereabouts() == LOCAL._replace(pid=1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"http": "x"}', "null"])
def test_a_note_that_makes_no_sense_is_none(directory: DataDir, text: str) -> None:
    directory.announce(LOCAL)
    directory.hub_file.write_text(text)
    assert directory.whereabouts() is None


def test_a_note_that_others_could_have_written_is_refused(directory: DataDir) -> None:
    directory.announce(LOCAL)
    directory.hub_file.chmod(0o622)
    with pytest.raises(DataDirError, match="not trusted"):
        directory.whereabouts()


def test_alive() -> None:
    assert alive(os.getpid())
    assert not alive(2**22 + 1)
