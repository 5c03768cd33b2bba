"""Files in a directory: one file each, under a name of ours, written whole or not at all.

A file is written beside its place, synced, moved into place, and the directory synced: after `keep` returned it
survives a power cut. That takes a disk's time, so it happens in a thread; the event loop goes on.

    files/0192…7c.part    being written; leftovers of a crash are removed at start
    files/0192…7c         kept: a line of JSON that describes it, then its bytes
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from dragoman.core.errors import Kind, refuse
from dragoman.core.files import FileRef, KeptFile, shown_name

MIB = 1024 * 1024
LARGEST = 16 * MIB
QUOTA = 10 * 1024 * MIB

_ours = re.compile(r"[0-9a-f-]{36}").fullmatch
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeptFile).decode


def _described(id: str, data: bytes, name: str, mime_type: str) -> FileRef:
    return FileRef(
        id=id,
        name=shown_name(name),
        mime_type=mime_type if mime_type.isprintable() and 0 < len(mime_type) <= 127 else "application/octet-stream",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _check_size(size: int, used: int, largest: int, quota: int) -> None:
    if size > largest:
        raise refuse(Kind.TOO_LARGE, f"a file of {size} bytes exceeds the limit of {largest}; split it", field="file")
    if used + size > quota:
        raise refuse(
            Kind.RESOURCES,
            f"the hub's files would exceed {quota} bytes; remove some, or raise files.quota_bytes",
            field="file",
            limit_name="files",
            available=max(0, quota - used),
            required=size,
        )


class DirectoryFiles:
    def __init__(self, path: Path, mint: Callable[[], str], *, largest: int = LARGEST, quota: int = QUOTA) -> None:
        self._path = path
        self._mint = mint
        self._largest = largest
        self._quota = quota
        self._used = 0

    def prepare(self) -> None:
        """Make the directory, remove what a crash left half written, and count what is there."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith(".part"):
                    os.unlink(entry.path)
                else:
                    self._used += entry.stat(follow_symlinks=False).st_size

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str = "") -> FileRef:
        _check_size(len(data), self._used, self._largest, self._quota)
        ref = _described(self._mint(), data, name, mime_type)
        head = _encode(KeptFile(ref=ref, owner=owner)) + b"\n"
        size = len(head) + len(data)  # what lies on the disk, as `prepare` and `_remove` count it
        self._used += size
        try:
            await asyncio.to_thread(self._write, ref.id, head, data)
        except OSError as error:
            self._used -= size
            raise refuse(
                Kind.OVERLOADED, f"the file could not be kept ({error.strerror}); try again later", retryable=True
            ) from error
        return ref

    def _write(self, id: str, head: bytes, data: bytes) -> None:
        target = self._path / id
        part = self._path / f"{id}.part"
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(head)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(part, target)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    async def fetch(self, id: str) -> bytes | None:
        return await asyncio.to_thread(self._read, id) if _ours(id) else None

    def _read(self, id: str) -> bytes | None:
        try:
            with (self._path / id).open("rb") as file:
                file.readline()
                return file.read()
        except FileNotFoundError:
            return None

    async def describe(self, id: str) -> KeptFile | None:
        return await asyncio.to_thread(self._read_head, id) if _ours(id) else None

    def _read_head(self, id: str) -> KeptFile | None:
        try:
            with (self._path / id).open("rb") as file:
                return _decode(file.readline())
        except FileNotFoundError:
            return None

    async def drop(self, id: str) -> None:
        if _ours(id):
            await asyncio.to_thread(self._remove, id)

    def _remove(self, id: str) -> None:
        target = self._path / id
        try:
            size = target.stat().st_size
            target.unlink()
        except FileNotFoundError:
            return
        self._used -= size


class MemoryFiles:
    """The same promises, but for durability."""

    def __init__(self, mint: Callable[[], str], *, largest: int = LARGEST, quota: int = QUOTA) -> None:
        self._mint = mint
        self._largest = largest
        self._quota = quota
        self._kept: dict[str, tuple[KeptFile, bytes]] = {}

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str = "") -> FileRef:
        _check_size(len(data), sum(len(kept) for _, kept in self._kept.values()), self._largest, self._quota)
        ref = _described(self._mint(), data, name, mime_type)
        self._kept[ref.id] = KeptFile(ref=ref, owner=owner), data
        return ref

    async def fetch(self, id: str) -> bytes | None:
        return self._kept[id][1] if id in self._kept else None

    async def describe(self, id: str) -> KeptFile | None:
        return self._kept[id][0] if id in self._kept else None

    async def drop(self, id: str) -> None:
        self._kept.pop(id, None)
