"""Letters that left at most once, in a ring of fixed size beside the database: the last ones are known after a restart.

A letter is written here before it leaves, and nothing is flushed. What a process wrote outlives it, so after a kill
nothing leaves twice; after a power cut the newest may be missing, which is what a flush for each of them would cost to
avoid. A slot that was being written when the process died belongs to a letter that had not left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from struct import Struct

from dragoman.core.ports import PASSED, StoreFailed
from dragoman.stores.sqlite.errors import StoreRefused

SLOT = Struct("<Q16s16s")
"""A number that grows, counted from 1; the letter; what it said."""


class PassedLetters:
    def __init__(self, path: Path, slots: int = PASSED) -> None:
        self._slots = slots
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreRefused(
                f"{path} cannot be opened ({error}): let the hub's user write it, or remove it"
            ) from error
        self._next = 1

    def read(self) -> dict[str, str]:
        """All of them, the oldest first."""
        data = os.pread(self._file, self._slots * SLOT.size, 0)
        whole = memoryview(data)[: len(data) - len(data) % SLOT.size]
        found = sorted(slot for slot in SLOT.iter_unpack(whole) if slot[0])
        self._next = found[-1][0] + 1 if found else 1
        return {id.hex(): digest.hex() for _, id, digest in found}

    def note(self, letters: Mapping[str, str]) -> None:
        """Raises `StoreFailed` where the file cannot take them."""
        slots = [
            SLOT.pack(number, bytes.fromhex(id), bytes.fromhex(digest))
            for number, (id, digest) in enumerate(letters.items(), self._next)
        ]
        try:
            while slots:
                place = self._next % self._slots
                fit = slots[: self._slots - place]
                data = b"".join(fit)
                if os.pwrite(self._file, data, place * SLOT.size) != len(data):
                    raise OSError("the file took only a part of it")
                self._next += len(fit)
                del slots[: len(fit)]
        except OSError as error:
            raise StoreFailed(f"letters that leave at most once cannot be noted: {error}") from error

    def close(self) -> None:
        os.close(self._file)
