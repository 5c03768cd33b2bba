"""The values of children's environments. They may be secrets, so they are kept out of the store, its backups, the audit
record and everything that people read: one file for each agent, for the hub's user alone, under a name of ours.

A file is written before the agent's row refers to it; one that no row refers to is removed at the next start.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

_decode = msgspec.json.Decoder(dict[str, str]).decode


class Vault:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, values: Mapping[str, str], name: str) -> None:
        """Durably there when this returns."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(values))
            file.flush()
            os.fsync(file.fileno())
        above = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(above)
        finally:
            os.close(above)

    def fetch(self, name: str) -> dict[str, str]:
        """Raises OSError if it is gone, ValueError if it is damaged."""
        return _decode(self._path(name).read_bytes())

    def drop(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def clear_out(self, wanted: Collection[str]) -> None:
        """Forget all but these."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if path.name not in wanted:
                    path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise ValueError("no name of ours")
        return self._directory / name
