"""What a command needs to start at all: its file, its interpreter, their libraries. Read-only, and nothing else.

    the system's programs and libraries   /usr, /bin, /lib…, the loader's cache, certificates, time zones
    a program elsewhere                   its own file, and lib and lib64 of the prefix whose bin it is in
    a virtual environment                 also pyvenv.cfg, and what the interpreter it names needs
    a script                              what the interpreter of its first line needs

Files that are named as arguments are not guessed: they are to be allowed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
)
DEEPEST = 8
"""Symbolic links and first lines that are followed."""


def interpreter() -> str:
    """Our own, outside of any virtual environment: it runs the launcher."""
    return str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())


def files_needed_by(program: str, path: str | None = None) -> tuple[str, ...]:
    """What is to be readable beside the system's own directories, in a stable order."""
    found = shutil.which(program, path=path) if "/" not in program else program
    if found is None or not found.startswith("/"):
        return ()
    return tuple(dict.fromkeys(_files_needed_by(Path(found), DEEPEST)))


def _files_needed_by(file: Path, deeper: int) -> Iterator[str]:
    if not file.is_file() or deeper == 0:
        return
    if not _of_the_system(file):
        yield str(file)
        prefix = file.parent.parent
        if file.parent.name in ("bin", "sbin", "Scripts"):
            yield from (str(prefix / name) for name in ("lib", "lib64", "pyvenv.cfg") if (prefix / name).exists())
            home = _home_of(prefix / "pyvenv.cfg")
            if home is not None:
                yield from _files_needed_by(home / file.name, deeper - 1)
                yield from _files_needed_by(home / "python3", deeper - 1)
    if file.is_symlink():
        yield from _files_needed_by(Path(os.path.normpath(file.parent / file.readlink())), deeper - 1)
        return
    with file.open("rb") as opened:
        first = opened.readline(256)
    if first.startswith(b"#!"):
        words = first[2:].decode("utf-8", "replace").split()
        if words[:1] and words[0].startswith("/"):
            yield from _files_needed_by(Path(words[0]), deeper - 1)


def _home_of(settings: Path) -> Path | None:
    try:
        lines = settings.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return Path(value.strip())
    return None


def _of_the_system(file: Path) -> bool:
    return any(file.is_relative_to(place) for place in SYSTEM)
