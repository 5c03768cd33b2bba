"""The values of children's environments. They may be secrets, so they are kept out of the store, its backups, the audit
record and everything that people read: one file for each agent, for the hub's user alone, under a name of ours.

A file is written before the agent's row refers to it; one that no row refers to is removed at the next start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from dragoman import durable

_decode = msgspec.json.Decoder(dict[str, str]).decode


class EnvironmentFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, values: Mapping[str, str], name: str) -> None:
        """Durably there when this returns."""
        durable.make_directory(self._directory)
        durable.write(self._path(name), msgspec.json.encode(values), replace=False)

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
