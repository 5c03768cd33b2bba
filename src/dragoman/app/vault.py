"""The hub's master key, opened when the first thing is locked or unlocked, and not at every start.

A key is made once. That it was is noted beside the store (`MADE`): where the note is and the key is not, the key was
lost, and a new one would only hide that what the old one locked cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import durable
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import StoreFailed

if TYPE_CHECKING:
    from dragoman.security.masterkey import MasterKeys

DIRECTORY = "keys"
MADE = "master.made"


class DataVault:
    """`core.ports.Vault` beside a data directory. A key file that will not do is looked at again the next time."""

    def __init__(self, data: Path, now: Callable[[], Instant]) -> None:
        self._directory = data / DIRECTORY
        self._made = data / MADE
        self._now = now

    @cached_property
    def keys(self) -> MasterKeys:
        from dragoman.security.masterkey import MasterKeyFile, MasterKeyProblem
        from dragoman.security.private import PrivateFileError

        file = MasterKeyFile(self._directory)
        if self._made.exists() and not file.path.exists():
            raise StoreFailed(
                f"{file.path} is gone, and files and personal data were locked with it: put it back from where you keep"
                f" your keys, or remove {self._made} to give them up and begin with a new key"
            )
        try:
            keys = file.open(self._now() // SECOND)
            if not self._made.exists():
                durable.write(self._made)
        except (MasterKeyProblem, PrivateFileError, OSError) as problem:
            raise StoreFailed(f"personal data is shut: {problem}") from problem
        return keys

    def lock(self, data: bytes, about: Mapping[str, str]) -> bytes:
        return self.keys.lock(data, about)

    def unlock(self, record: bytes, about: Mapping[str, str]) -> bytes:
        from dragoman.security.masterkey import Locked

        try:
            return self.keys.unlock(record, about)
        except Locked as locked:
            raise StoreFailed(f"personal data stays shut: {locked}") from locked
