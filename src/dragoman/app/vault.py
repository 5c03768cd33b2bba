"""The hub's master key, opened when the first personal thing is kept or read, and not at every start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.ids import SECOND, Instant

if TYPE_CHECKING:
    from dragoman.security.masterkey import MasterKeys

DIRECTORY = "keys"


class DataVault:
    """`core.ports.Vault` beside a data directory."""

    def __init__(self, data: Path, now: Callable[[], Instant]) -> None:
        self._directory = data / DIRECTORY
        self._now = now

    @cached_property
    def keys(self) -> MasterKeys:
        from dragoman.security.masterkey import MasterKeyFile

        return MasterKeyFile(self._directory).open(self._now() // SECOND)

    def lock(self, data: bytes, about: Mapping[str, str]) -> bytes:
        return self.keys.lock(data, about)

    def unlock(self, record: bytes, about: Mapping[str, str]) -> bytes:
        return self.keys.unlock(record, about)
