"""The hub's master key, opened when the first personal thing is kept or read, and not at every start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import StoreFailed

if TYPE_CHECKING:
    from dragoman.security.masterkey import MasterKeys

DIRECTORY = "keys"


class DataVault:
    """`core.ports.Vault` beside a data directory. A key file that will not do is looked at again the next time."""

    def __init__(self, data: Path, now: Callable[[], Instant]) -> None:
        self._directory = data / DIRECTORY
        self._now = now

    @cached_property
    def keys(self) -> MasterKeys:
        from dragoman.security.masterkey import MasterKeyFile, MasterKeyProblem
        from dragoman.security.private import PrivateFileError

        try:
            return MasterKeyFile(self._directory).open(self._now() // SECOND)
        except (MasterKeyProblem, PrivateFileError) as problem:
            raise StoreFailed(f"personal data is shut: {problem}") from problem

    def lock(self, data: bytes, about: Mapping[str, str]) -> bytes:
        return self.keys.lock(data, about)

    def unlock(self, record: bytes, about: Mapping[str, str]) -> bytes:
        from dragoman.security.masterkey import Locked

        try:
            return self.keys.unlock(record, about)
        except Locked as locked:
            raise StoreFailed(f"personal data stays shut: {locked}") from locked
