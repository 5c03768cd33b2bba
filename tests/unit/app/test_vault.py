"""The master key of a data directory, and what is said when it will not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.app.keys import DataVault
from dragoman.core.ids import Instant
from dragoman.core.ports import StoreFailed
from dragoman.stores.sqlite.schema import StoreRefused

ABOUT = {"task": "t-1"}


def test_a_key_that_will_not_do_is_a_failure_of_the_store_and_says_what_to_do(tmp_path: Path) -> None:
    here, elsewhere = (DataVault(tmp_path / name, lambda: Instant(0)) for name in ("here", "elsewhere"))
    record = here.lock(b"somebody", ABOUT)
    elsewhere.lock(b"", ABOUT)
    with pytest.raises(StoreFailed, match="Restore master"):
        elsewhere.unlock(record, ABOUT)
    key = tmp_path / "here" / "keys" / "master.json"
    key.chmod(0o644)
    again = DataVault(tmp_path / "here", lambda: Instant(0))
    with pytest.raises(StoreFailed, match="chmod 600"):
        again.unlock(record, ABOUT)
    key.chmod(0o600)
    assert again.unlock(record, ABOUT) == b"somebody"
    key.write_text("{}")
    with pytest.raises(StoreFailed, match="from a backup"):
        DataVault(tmp_path / "here", lambda: Instant(0)).lock(b"", ABOUT)


def test_a_lost_key_is_missed_and_not_made_again(tmp_path: Path) -> None:
    record = DataVault(tmp_path, lambda: Instant(0)).lock(b"words", ABOUT)
    key = tmp_path / "keys" / "master.json"
    kept = key.rename(tmp_path / "kept")
    vault = DataVault(tmp_path, lambda: Instant(0))
    for attempt in (lambda: vault.unlock(record, ABOUT), lambda: vault.lock(b"more", ABOUT)):
        with pytest.raises(StoreFailed, match="put it back"):
            attempt()
    assert not key.exists()
    kept.rename(key)
    assert vault.unlock(record, ABOUT) == b"words"


def test_a_key_from_the_environment_takes_the_place_of_the_file(tmp_path: Path) -> None:
    one, other = "0f" * 32, "f0" * 32
    record = DataVault(tmp_path, given=one).lock(b"words", ABOUT)
    assert DataVault(tmp_path, given=f"{other},{one}").unlock(record, ABOUT) == b"words"
    assert list(tmp_path.iterdir()) == []
    needed = DataVault(tmp_path, given=one).ids()
    DataVault(tmp_path, given=f"{other},{one}").check(needed, ())
    with pytest.raises(StoreRefused, match=r"and DRAGOMAN_MASTER_KEY holds another key: put the right one back"):
        DataVault(tmp_path, given=other).check(needed, ())
