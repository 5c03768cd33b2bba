"""The ring of letters that left at most once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dragoman.core.ports import StoreFailed
from dragoman.stores.sqlite.passed import PassedLetters


def letters(*numbers: int) -> dict[str, str]:
    return {f"{n:032x}": f"{n * 7:032x}" for n in numbers}


def test_the_ring_forgets_the_oldest_and_goes_on_where_it_was(tmp_path: Path) -> None:
    ring = PassedLetters(tmp_path / "passed", slots=4)
    ring.read()
    ring.note(letters(1, 2, 3))
    ring.note(letters(4, 5, 6))  # around the end of the file
    ring.close()
    again = PassedLetters(tmp_path / "passed", slots=4)
    assert list(again.read().items()) == list(letters(3, 4, 5, 6).items())
    again.note(letters(7))
    assert list(again.read()) == list(letters(4, 5, 6, 7))
    again.close()


def test_a_slot_that_was_only_begun_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "passed"
    ring = PassedLetters(path)
    ring.note(letters(1, 2))
    ring.close()
    os.truncate(path, path.stat().st_size - 1)
    cut = PassedLetters(path)
    assert cut.read() == letters(1)
    cut.close()


def test_a_full_disk_is_a_failure_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = PassedLetters(tmp_path / "passed")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFailed, match="no space left"):
        ring.note(letters(1))
    ring.close()
