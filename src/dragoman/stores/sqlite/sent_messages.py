"""Messages that the hub sends at most once, in a ring of fixed size beside the database: a restarted hub reads the
last ones.

The writer writes a message here and syncs the file before the hub sends it: once for all messages of a unit. So the hub
does not send it twice, even when its sender repeats it after a power cut. A slot that was half written then belongs to
a message that had not been sent.

Imported by the writer: the standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from dragoman.stores.sqlite.schema import StoreRefused

SLOTS = 100_000
"""As many as `core.ports.PASSED`."""

SLOT = Struct("<Q16s16s")
"""A number that grows, counted from 1; the message's id; the digest of its content."""


def beside(database: str) -> Path:
    return Path(database).with_suffix(".passed")


class SentMessages:
    def __init__(self, path: Path, slots: int = SLOTS) -> None:
        self._slots = slots
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreRefused(
                f"{path} cannot be opened ({error})", "let the hub's user write it, or remove it"
            ) from error
        self._next = 1

    def read(self) -> dict[str, str]:
        """All of them, the oldest first."""
        data = os.pread(self._file, self._slots * SLOT.size, 0)
        whole = memoryview(data)[: len(data) - len(data) % SLOT.size]
        found = sorted(slot for slot in SLOT.iter_unpack(whole) if slot[0])
        self._next = found[-1][0] + 1 if found else 1
        return {id.hex(): digest.hex() for _, id, digest in found}

    def note(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Write messages; they are on the disk when this returns. Raises `OSError`."""
        slots = [SLOT.pack(number, id, digest) for number, (id, digest) in enumerate(messages, self._next)]
        while slots:
            place = self._next % self._slots
            fit = slots[: self._slots - place]
            data = b"".join(fit)
            if os.pwrite(self._file, data, place * SLOT.size) != len(data):
                raise OSError("the file took only a part of it")
            self._next += len(fit)
            del slots[: len(fit)]
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)
