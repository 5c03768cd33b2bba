"""The environment of a child: which variables it finds, and where the values are kept.

The environment of a child is made, not inherited:

    PATH HOME LANG LC_* TZ TERM TMPDIR USER LOGNAME SHELL   as the hub has them
    names in `pass_env`                                     likewise, but nothing of the hub's own (DRAGOMAN_*)
    `env`                                                   as given
    DRAGOMAN_AGENT_ID, DRAGOMAN_URL=stdio:                  who it is, and how to reach the hub

In a sandbox HOME and TMPDIR are the child's own directory, and the child learns nothing of the hub's user.

Values may be secrets, so they stay out of the store, its backups, the audit record and everything that people read:
`EnvironmentFiles` has one file for each agent, for the hub's user alone, under a name of the hub's. The hub writes a
file before the agent's row refers to it, and removes those that no row refers to at the next start. Nodes of a cluster
share them, sealed, in PostgreSQL (`app.shared_keys`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from dragoman import durable
from dragoman.supervisor.spec import ChildSpec

INHERITED = frozenset({"PATH", "HOME", "LANG", "TZ", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL"})
OF_THE_USER = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"})
"""Variables that a child in a sandbox does not get."""
OURS = "DRAGOMAN_"

_decode = msgspec.json.Decoder(dict[str, str]).decode


class Environments(Protocol):
    """The values, each environment under a name of the hub's."""

    async def keep(self, values: Mapping[str, str], name: str) -> None:
        """Write them; they are durable when this returns. Raises `Refused` where they are in a store that fails."""
        ...

    async def fetch(self, name: str) -> dict[str, str]:
        """Read them; raises OSError if they are gone, ValueError if they are damaged, `StoreFailed` if they may be
        there later."""
        ...

    async def drop(self, name: str) -> None: ...

    async def clear_out(self, wanted: Collection[str]) -> None:
        """Remove all but these, save what another node may be about to refer to."""
        ...


class EnvironmentFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def keep(self, values: Mapping[str, str], name: str) -> None:
        await asyncio.to_thread(self._write, values, name)

    def _write(self, values: Mapping[str, str], name: str) -> None:
        durable.make_directory(self._directory)
        durable.write(self._path(name), msgspec.json.encode(values), replace=False)

    async def fetch(self, name: str) -> dict[str, str]:
        return _decode(await asyncio.to_thread(self._path(name).read_bytes))

    async def drop(self, name: str) -> None:
        await asyncio.to_thread(self._path(name).unlink, missing_ok=True)

    async def clear_out(self, wanted: Collection[str]) -> None:
        await asyncio.to_thread(self._remove_others, wanted)

    def _remove_others(self, wanted: Collection[str]) -> None:
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if path.name not in wanted:
                    path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise ValueError("no name of ours")
        return self._directory / name


def environment(
    spec: ChildSpec, agent: str, values: Mapping[str, str], ours: Mapping[str, str], *, home: str | None = None
) -> dict[str, str]:
    """The whole environment of a child. `ours` is the hub's environment; `home` is set in a sandbox."""
    passed = {name for name in spec.pass_env if not name.startswith(OURS)}
    inherited = INHERITED if home is None else INHERITED - OF_THE_USER
    found = {
        name: value for name, value in ours.items() if name in inherited or name.startswith("LC_") or name in passed
    }
    if home is not None:
        found |= {"HOME": home, "TMPDIR": home}
    return {**found, **values, "DRAGOMAN_AGENT_ID": agent, "DRAGOMAN_URL": "stdio:"}
