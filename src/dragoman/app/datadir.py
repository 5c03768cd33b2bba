"""The data directory: what a hub keeps on disk beside its store, and how commands typed beside it find it.

    file          mode   what, and how long
    ------------  -----  ------------------------------------------------------------------------
    .             0700   made at the first start
    admin.token   0600   the admin's token: made once, survives restarts
    hub.json      0600   where the hub listens and its token: only while it serves
    hub.sqlite    0600   the embedded store (the store's own business)
    files, vault  0700   files of tasks; environments of children: in no copy of the store either (`BESIDE`)
    signing.json  0600   keys that sign tokens, if there are any   } in no copy of the store: to be
    master.json   0600   keys that lock what is kept, likewise     } kept apart from it (`KEYS`)
    master.made   0600   a note that there was a master.json: without it, a lost one would not be missed

Client commands import this, so it takes nothing but the standard library's cheap half.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from dragoman import durable
from dragoman.security import datahome, private

DEFAULT = datahome.DEFAULT
KEYS = ("signing.json", "master.json")
"""Files of `security.keys` and `security.masterkey`, wherever they lie in the directory."""
BESIDE = ("files", "vault")
"""Directories of `stores.files` and `supervisor.vault`, whose contents the store only names."""
TOKEN_BYTES = 16  # 32 hex characters, as agents' tokens
_TOKEN = re.compile(r"[!-~]+").fullmatch
"""What a header can carry: an operator may have chosen another token."""


class DataDirError(Exception):
    """The directory cannot be used. The sentence ends with what to do."""


class Whereabouts(NamedTuple):
    """The content of `hub.json`: how to reach the hub that serves this directory now."""

    http: str
    grpc: str
    admin_token: str
    pid: int
    certificate: str = ""
    """The hub's TLS certificate as PEM: commands on this machine trust this one and no other."""
    grpc_tls: bool = False
    login: str = ""
    """A link that logs a browser in once: for the person who started the hub, never for the note."""


class DataDir:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.hub_file = self.path / "hub.json"
        self.token_file = self.path / "admin.token"

    def prepare(self) -> None:
        """Make sure that the directory exists, belongs to this user, and is closed to others."""
        try:
            durable.make_directory(self.path)
            found = self.path.stat()
            if found.st_uid != os.geteuid():
                raise DataDirError(f"{self.path} belongs to another user. Give a directory of your own with --data.")
            if stat.S_IMODE(found.st_mode) & 0o077:
                self._close_to_others()
        except OSError as error:
            raise DataDirError(
                f"{self.path} cannot be the data directory: {error.strerror}. Give another one with --data."
            ) from error

    def _close_to_others(self) -> None:
        """Only a directory of this user: `--data /tmp` must not lock other users out of /tmp."""
        if not self.token_file.exists() and any(self.path.iterdir()):
            raise DataDirError(
                f"{self.path} is open to other users and holds other things. Give a directory of its own with --data,"
                f" or close it: chmod 700 {self.path}"
            )
        self.path.chmod(0o700)

    def admin_token(self) -> str:
        """The admin's token, made if there is none yet. The file appears whole or not at all; one that is empty, or
        holds what no token can be, gives no access, so it is replaced."""
        token = self._read_token()
        if token is None or not _TOKEN(token):
            damaged = token is not None
            token = os.urandom(TOKEN_BYTES).hex()
            try:
                self._write(self.token_file, token + "\n", replace=damaged)
            except FileExistsError:  # another process was faster: use its token
                token = self._read_token()
        if not token:
            raise DataDirError(f"{self.token_file} is empty. Remove it: a new token is made at the next start.")
        return token

    def announce(self, here: Whereabouts) -> None:
        """Call once the hub serves."""
        self._write(self.hub_file, json.dumps({**here._replace(login="")._asdict()}) + "\n", replace=True)

    def withdraw(self, pid: int | None = None) -> None:
        """Call at the stop. What another process announced meanwhile stays."""
        try:
            here = self.whereabouts()
        except DataDirError:  # it belongs to another user now; a stop must not fail because of that
            return
        if here is None or here.pid == (os.getpid() if pid is None else pid):
            self.hub_file.unlink(missing_ok=True)

    def whereabouts(self) -> Whereabouts | None:
        """Where the hub of this directory says it is, or None. It may have died without taking the note away.

        A note that another user could have written is refused: it could lead to a hub of that user.
        """
        try:
            with self.hub_file.open("rb") as note:
                found = os.fstat(note.fileno())
                if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
                    raise DataDirError(
                        f"{self.hub_file} could have been written by another user, so it is not trusted."
                        " Name the hub with --hub URL and DRAGOMAN_TOKEN."
                    )
                hub = json.loads(note.read(65536))
            return Whereabouts(
                http=str(hub["http"]),
                grpc=str(hub["grpc"]),
                admin_token=str(hub["admin_token"]),
                pid=int(hub["pid"]),
                certificate=str(hub.get("certificate") or ""),
                grpc_tls=bool(hub.get("grpc_tls")),
            )
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise DataDirError(
                f"{self.hub_file} may only be read by the user that runs the hub. Become that user, or name the hub"
                " with --hub URL and DRAGOMAN_TOKEN."
            ) from error
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def key_files(self) -> list[Path]:
        """The keys that are there: in the directory, or in one below it."""
        return sorted(path for name in KEYS for path in (*self.path.glob(name), *self.path.glob(f"*/{name}")))

    def beside_the_store(self) -> list[Path]:
        """The directories with something in them that a copy of the store names and does not hold."""
        return [path for name in BESIDE if any((path := self.path / name).glob("*"))]

    def _read_token(self) -> str | None:
        try:
            return self.token_file.read_bytes().decode("latin-1").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataDirError(f"{self.token_file} cannot be read: {error}. Correct it, or remove it.") from error

    def _write(self, file: Path, text: str, *, replace: bool) -> None:
        try:
            private.write(file, text.encode("ascii"), replace=replace)
        except private.PrivateFileError as error:
            raise DataDirError(str(error)) from None


def alive(pid: int) -> bool:
    """Whether a process of this number runs, of this user or another."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
