"""Agents' files in a directory: each is one file, named by its id, written whole or not at all.

A file is written beside its place, synced, moved into place, and the directory synced: after `keep` returned it
survives a power cut. A thread does that, so the event loop does not wait for the disk.

    files/0192…7c.part    being written; leftovers of a crash are removed at start
    files/0192…7c         kept: a line that describes it, then its bytes

Whether a file is personal depends on its task, and a file exists before its task. So with a vault all files are
encrypted: a reader who has only the directory reads nothing. The line is JSON, or `sealed` with the encrypted JSON; the
hub reads both.

The time of a file is when it was kept or last described, by the hub's clock. A description may precede its attachment
to a task, so a file that was just described is not old.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dragoman import durable
from dragoman.core.ids import ADMIN, Instant
from dragoman.core.ports import StoreFailed, Vault
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.messages.files import FileRef, KeptFile, shown_name, type_of

MIB = 1024 * 1024
LARGEST = 16 * MIB
QUOTA = 10 * 1024 * MIB
PAGE = 256

SEALED = b"sealed "

_ours = re.compile(r"[0-9a-f-]{36}").fullmatch
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeptFile).decode
T = TypeVar("T")


def described(id: str, data: bytes, name: str, mime_type: str) -> FileRef:
    return FileRef(
        id=id,
        name=shown_name(name),
        mime_type=type_of(name, mime_type),
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes may be kept; 0 is no limit for an agent."""

    largest: int = LARGEST
    quota: int = QUOTA
    of_agent: int = 0

    def check(self, size: int, used: int, owner: str, own: int) -> None:
        """Raises `Refused` where a file of `size` does not fit. `used`: bytes of all files; `own`: of this owner's."""
        if size > self.largest:
            what = f"a file of {size} bytes exceeds the limit of {self.largest}"
            raise refuse(Kind.TOO_LARGE, what, next="split it", field="file")
        self.check_quotas(size, used, owner, own)

    def check_quotas(self, size: int, used: int, owner: str, own: int) -> None:
        """The same without the limit of one file."""
        if self.is_bounded(owner) and own + size > self.of_agent:
            what = (
                f"the files of {owner} would exceed {self.of_agent} bytes: remove some (DELETE /api/agent/files/ID),"
                " or raise files.agent_quota_bytes"
            )
            raise self._full(what, "files of an agent", self.of_agent - own, size)
        if used + size > self.quota:
            what = f"the hub's files would exceed {self.quota} bytes: remove some, or raise files.quota_bytes"
            raise self._full(what, "files", self.quota - used, size)

    def is_bounded(self, owner: str) -> bool:
        return self.of_agent > 0 and owner not in (ADMIN, "")

    def _full(self, what: str, limit: str, available: int, required: int) -> Refused:
        left = max(0, available)
        return refuse(Kind.RESOURCES, what, field="file", limit_name=limit, available=left, required=required)


class DirectoryFiles:
    def __init__(
        self,
        path: Path,
        mint: Callable[[], str],
        *,
        now: Callable[[], Instant],
        largest: int = LARGEST,
        quota: int = QUOTA,
        agent_quota: int = 0,
        vault: Vault | None = None,
    ) -> None:
        self._path = path
        self._vault = vault
        self._mint = mint
        self._now = now
        self._looking = threading.Lock()
        """Held while a file is described, and while an old one is removed."""
        self._room = Room(largest=largest, quota=quota, of_agent=agent_quota)
        self._used = 0
        self._pending: dict[str, int] = {}
        """Files that are being written, with their sizes."""
        self._owned: dict[str, tuple[str, int]] = {}
        """The owner of each file and its bytes on the disk: of files kept since the start, and of all files once an
        agent's quota was first checked."""
        self._sizes: Counter[str] = Counter()
        """The sum of these bytes for each owner."""
        self._counted = False
        self._counting = asyncio.Lock()
        self._claimed: dict[str, Instant] = {}
        """When files were last described for a message that may attach them to a task."""

    def prepare(self) -> None:
        """Make the directory, remove what a crash left half written, and count what is there."""
        durable.make_directory(self._path)
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith(".part"):
                    os.unlink(entry.path)
                else:
                    self._used += entry.stat(follow_symlinks=False).st_size

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str = "") -> FileRef:
        own = await self._of(owner) if self._room.is_bounded(owner) else 0
        self._room.check(len(data), self._used, owner, own)
        ref = described(self._mint(), data, name, mime_type)
        self._note(ref.id, owner, len(data))  # at once: another file may be kept meanwhile
        try:
            head, data = await self._guarded(self._shut, ref.id, _encode(KeptFile(ref=ref, owner=owner)), data)
            self._note(ref.id, owner, len(head) + len(data))  # bytes on the disk, as `prepare` and `_remove` count
            await asyncio.to_thread(self._write, ref.id, head, data, self._now())
        except OSError as error:
            self._forget(ref.id)
            what = f"the file could not be kept ({error.strerror})"
            raise refuse(Kind.OVERLOADED, what, next="try again later", retryable=True) from error
        except Refused:
            self._forget(ref.id)
            raise
        finally:
            self._pending.pop(ref.id, None)
        return ref

    # -- how much there is

    def _note(self, id: str, owner: str, size: int) -> None:
        """Count a file that is being kept."""
        self._used += size - self._pending.get(id, 0)
        self._pending[id] = size
        self._sizes[owner] += size - self._owned.get(id, (owner, 0))[1]
        self._owned[id] = (owner, size)

    def _forget(self, id: str) -> None:
        self._freed(id, self._pending.pop(id, 0))

    def _freed(self, id: str, size: int) -> None:
        self._used -= size
        self._claimed.pop(id, None)
        if (owned := self._owned.pop(id, None)) is not None:
            owner, counted = owned
            self._sizes[owner] -= counted
            if not self._sizes[owner]:
                del self._sizes[owner]

    async def _of(self, owner: str) -> int:
        """Bytes of an owner's files. Only a file's first line names its owner, so the first call reads all of them."""
        async with self._counting:
            if not self._counted:
                self._owned = await self._guarded(self._count) | self._owned
                self._sizes = Counter()
                for whose, size in self._owned.values():
                    self._sizes[whose] += size
                self._counted = True
        return self._sizes[owner]

    def _count(self) -> dict[str, tuple[str, int]]:
        found = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                if _ours(entry.name):
                    with contextlib.suppress(FileNotFoundError, StoreFailed, msgspec.DecodeError):
                        kept = self._head(entry.name, None)
                        if kept is not None:
                            found[entry.name] = kept.owner, entry.stat(follow_symlinks=False).st_size
        return found

    def _write(self, id: str, head: bytes, data: bytes, now: Instant) -> None:
        durable.write(self._path / id, head, data, draft=self._path / f"{id}.part", modified_ns=now * 1000)

    async def fetch(self, id: str) -> bytes | None:
        return await self._guarded(self._read, id) if _ours(id) else None

    def _read(self, id: str) -> bytes | None:
        try:
            with (self._path / id).open("rb") as file:
                head, data = file.readline(), file.read()
        except FileNotFoundError:
            return None
        return self._opened(id, "data", data) if head.startswith(SEALED) else data

    async def describe(self, id: str, *, claim: bool = True) -> KeptFile | None:
        if not _ours(id):
            return None
        now = self._now()
        if claim:
            self._claimed[id] = now
        return await self._guarded(self._head, id, now if claim else None)

    def _head(self, id: str, now: Instant | None) -> KeptFile | None:
        try:
            with self._looking, (self._path / id).open("rb") as file:
                if now is not None:
                    _stamp(file.fileno(), now)
                head = file.readline()
        except FileNotFoundError:
            return None
        if head.startswith(SEALED):
            head = self._opened(id, "head", base64.b64decode(head[len(SEALED) :]))
        return _decode(head)

    async def listing(self, *, after: str, limit: int) -> Sequence[KeptFile]:
        return await self._guarded(self._listed, after, limit)

    def _listed(self, after: str, limit: int) -> list[KeptFile]:
        with os.scandir(self._path) as entries:
            ids = sorted(entry.name for entry in entries if _ours(entry.name) and entry.name > after)
        return [kept for id in ids[:limit] if (kept := self._head(id, None)) is not None]

    # -- at rest

    def _shut(self, id: str, head: bytes, data: bytes) -> tuple[bytes, bytes]:
        """The line and the bytes of a file as they are written: encrypted where there is a vault."""
        if self._vault is None:
            return head + b"\n", data
        sealed = base64.b64encode(self._vault.lock(head, {"file": id, "part": "head"}))
        return SEALED + sealed + b"\n", self._vault.lock(data, {"file": id, "part": "data"})

    def _opened(self, id: str, part: str, record: bytes) -> bytes:
        if self._vault is None:
            raise StoreFailed("the file is shut; start the hub with its master key")
        return self._vault.unlock(record, {"file": id, "part": part})

    async def _guarded(self, work: Callable[..., T], *given: Any) -> T:
        """Run this in a thread, because the disk or a cipher takes time. Raises `Refused` for a wrong key, and where
        the system has no file descriptor left."""
        try:
            return await asyncio.to_thread(work, *given)
        except StoreFailed as failed:
            raise refuse(Kind.OVERLOADED, str(failed), next="then try again", retryable=True) from failed
        except OSError as error:
            what = f"the hub's files cannot be used now ({error.strerror})"
            raise refuse(Kind.OVERLOADED, what, next="try again later", retryable=True) from error

    async def drop(self, id: str) -> None:
        if _ours(id):
            freed = await asyncio.to_thread(self._remove, id)
            self._freed(id, freed or 0)

    async def is_claimed(self, id: str, since: Instant) -> bool:
        self._claimed = {one: at for one, at in self._claimed.items() if at >= since}
        return id in self._claimed

    async def unwanted(self, before: Instant) -> AsyncGenerator[Sequence[str]]:
        with os.scandir(self._path) as entries:
            while page := await asyncio.to_thread(_next_page, entries):
                if old := [id for id, at in page if at < before]:
                    yield old

    async def drop_unwanted(self, id: str, before: Instant) -> bool:
        freed = await asyncio.to_thread(self._remove, id, before) if _ours(id) else None
        if freed is not None:
            self._freed(id, freed)
        return freed is not None

    def _remove(self, id: str, before: Instant | None = None) -> int | None:
        """Remove a file; gives how many bytes that freed, or None if it does not exist or is not that old."""
        target = self._path / id
        with self._looking, contextlib.suppress(FileNotFoundError):
            found = target.stat()
            if before is None or found.st_mtime_ns // 1000 < before:
                target.unlink()
                return found.st_size
        return None


def sealed_under(path: Path) -> set[str]:
    """The ids of the master keys that the files in a directory are sealed under."""
    found: set[str] = set()
    if not path.is_dir():
        return found
    with os.scandir(path) as entries:
        for entry in entries:
            if _ours(entry.name):
                with contextlib.suppress(OSError), open(entry.path, "rb") as file:
                    head = file.read(len(SEALED) + 12)
                    if head.startswith(SEALED):
                        found.add(base64.b64decode(head[len(SEALED) :])[1:].hex())
    return found


def _stamp(file: int, now: Instant) -> None:
    os.utime(file, ns=(now * 1000, now * 1000))


def _next_page(entries: Iterator[os.DirEntry[str]]) -> list[tuple[str, int]]:
    """The next names of kept files, with their times; empty at the end."""
    page: list[tuple[str, int]] = []
    for entry in entries:
        if _ours(entry.name):
            with contextlib.suppress(FileNotFoundError):
                page.append((entry.name, entry.stat(follow_symlinks=False).st_mtime_ns // 1000))
        if len(page) == PAGE:
            break
    return page


class MemoryFiles:
    """Keeps the same promises except durability. Without a clock its time stands still."""

    def __init__(
        self,
        mint: Callable[[], str],
        *,
        now: Callable[[], Instant] = lambda: Instant(0),
        largest: int = LARGEST,
        quota: int = QUOTA,
        agent_quota: int = 0,
    ) -> None:
        self._mint = mint
        self._now = now
        self._wanted: dict[str, Instant] = {}
        self._claimed: dict[str, Instant] = {}
        self._room = Room(largest=largest, quota=quota, of_agent=agent_quota)
        self._kept: dict[str, tuple[KeptFile, bytes]] = {}

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str = "") -> FileRef:
        sizes = [(kept.owner, len(data)) for kept, data in self._kept.values()]
        own = sum(size for whose, size in sizes if whose == owner)
        self._room.check(len(data), sum(size for _, size in sizes), owner, own)
        ref = described(self._mint(), data, name, mime_type)
        self._kept[ref.id] = KeptFile(ref=ref, owner=owner), data
        self._wanted[ref.id] = self._now()
        return ref

    async def fetch(self, id: str) -> bytes | None:
        return self._kept[id][1] if id in self._kept else None

    async def describe(self, id: str, *, claim: bool = True) -> KeptFile | None:
        if id not in self._kept:
            return None
        if claim:
            self._wanted[id] = self._claimed[id] = self._now()
        return self._kept[id][0]

    async def listing(self, *, after: str, limit: int) -> Sequence[KeptFile]:
        return [self._kept[id][0] for id in sorted(self._kept) if id > after][:limit]

    async def drop(self, id: str) -> None:
        self._kept.pop(id, None)
        self._wanted.pop(id, None)
        self._claimed.pop(id, None)

    async def is_claimed(self, id: str, since: Instant) -> bool:
        return self._claimed.get(id, since - 1) >= since

    async def unwanted(self, before: Instant) -> AsyncGenerator[Sequence[str]]:
        if old := [id for id, at in self._wanted.items() if at < before]:
            yield old

    async def drop_unwanted(self, id: str, before: Instant) -> bool:
        if self._wanted.get(id, before) >= before:
            return False
        await self.drop(id)
        return True
