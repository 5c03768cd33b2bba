"""Moves a stopped hub from its data directory to a realm of PostgreSQL: what `dragoman store copy` does.

    rows             `stores.copying`
    files/           the rows and the bytes of each file, in PostgreSQL or in a bucket; sealed as they are
    admin.token      }
    signing.json     } sealed records (`app.shared_keys`)
    vault/           }
    master.json      not copied: operators give it to every node
    logs/, agents/   not copied: they are of this machine

The source is locked as a hub locks it, and only read. Everything is written aside; at the end the realm is switched.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.app.datadir import DataDir
from dragoman.app.keys import DIRECTORY, FILES, DataVault
from dragoman.app.shared_keys import ADMIN_TOKEN, ENVIRONMENT, SIGNING
from dragoman.core.ids import Instant
from dragoman.messages.files import KeptFile
from dragoman.security import private
from dragoman.stores import copying
from dragoman.stores.files import SEALED, Room, sealed_under
from dragoman.stores.postgres.connection import connect, errors, unreachable
from dragoman.stores.postgres.files import PostgresFiles, about
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.sealed import SealedRecords
from dragoman.stores.s3_files import S3Objects
from dragoman.stores.sqlite import master_keys, writer_process
from dragoman.stores.sqlite.schema import StoreRefused

BOUNDLESS = Room(largest=1 << 62, quota=1 << 62)
"""The quotas of the realm hold for what comes later."""


class Plan(NamedTuple):
    source: Path
    """The data directory."""
    store: Path
    url: str
    realm: str
    bucket: str | None = None
    """Where the bytes of files go, if not into PostgreSQL."""
    given: str | None = None
    """The master key of the environment."""


class Report(NamedTuple):
    tables: Mapping[str, int]
    audit_hash: str
    files: int
    file_bytes: int
    records: int
    """Keys, tokens and environments."""
    master_keys: tuple[str, ...]


async def copy_store(plan: Plan, say: copying.Say) -> Report:
    """Raises `StoreRefused` or `StoreFailed`, with a sentence that says what to do; the realm is as it was then."""
    async with AsyncExitStack() as closing:
        held = await writer_process.lock_directory(plan.source)
        closing.callback(os.close, held)
        source = copying.open_source(plan.store)
        closing.callback(source.close)
        vault = DataVault(plan.source, given=plan.given)
        in_use, given_up = master_keys.keys(source)
        vault.check(in_use, given_up)
        if not vault.ids():
            raise StoreRefused(
                f"the hub of {plan.source} has no master key yet, and nodes seal what they share",
                "make one and give it to every node, and to this command: DRAGOMAN_MASTER_KEY=$(openssl rand -hex 32)",
            )
        try:
            return await _copy(plan, source, vault, say, closing)
        except errors() as error:
            if isinstance(error, OSError) and error.filename:
                raise StoreRefused(f"{error.filename} cannot be read: {error.strerror}") from error
            raise unreachable(error) from error


async def _copy(
    plan: Plan, source: copying.Source, vault: DataVault, say: copying.Say, closing: AsyncExitStack
) -> Report:
    connection = await connect(plan.url, copying.aside(plan.realm))
    closing.callback(connection.terminate)
    target = copying.Target(connection, plan.realm)
    await target.check()
    await target.begin(plan.url)
    copied = await target.copy(source, plan.store, say)
    pool = Pool(plan.url, copying.aside(plan.realm))
    closing.push_async_callback(pool.close)
    files, size = await _copy_files(plan, pool, vault, say)
    records = await _copy_records(plan, SealedRecords(pool, plan.realm, vault))
    sealed = sealed_under(plan.source / FILES)
    await target.note_keys([master_keys.label_of(id) for id in sorted({*sealed, vault.ids()[0]})])
    await target.switch(copying.last_instant(source))
    return Report(copied.tables, copied.audit_hash, files, size, records, vault.ids())


# -- files


async def _copy_files(plan: Plan, pool: Pool, vault: DataVault, say: copying.Say) -> tuple[int, int]:
    """How many, and their bytes. Raises `StoreRefused` where they do not come back as they are."""
    place = None if plan.bucket is None else S3Objects(plan.bucket, plan.realm)
    target = PostgresFiles(pool, lambda: "", now=lambda: Instant(0), vault=vault, room=BOUNDLESS, place=place)
    count = size = 0
    directory = plan.source / FILES
    for id in sorted(os.listdir(directory)) if directory.is_dir() else ():
        if id.endswith(".part"):
            continue  # was never kept
        kept, head, data, wanted_at = await asyncio.to_thread(_read_file, directory / id, vault)
        await target.put(id, head, data, owner=kept.owner, wanted_at=wanted_at)
        bytes_there = await target.fetch(id)
        if bytes_there is None or len(bytes_there) != kept.ref.size:
            raise StoreRefused(f"the file {id} came out different", "run the copy again")
        count, size = count + 1, size + kept.ref.size
        say("files", count)
    return count, size


def _read_file(path: Path, vault: DataVault) -> tuple[KeptFile, bytes, bytes, Instant]:
    """A file as it is to be kept: what is known of it, that and its bytes sealed, and when it was last wanted."""
    with path.open("rb") as file:
        line, data = file.readline(), file.read()
        modified = os.fstat(file.fileno()).st_mtime_ns
    if line.startswith(SEALED):
        head = base64.b64decode(line[len(SEALED) :])
        plain = vault.unlock(head, about(path.name, "head"))
    else:  # from before files were sealed
        plain = line.rstrip(b"\n")
        head = vault.lock(plain, about(path.name, "head"))
        data = vault.lock(data, about(path.name, "data"))
    return msgspec.json.decode(plain, type=KeptFile), head, data, Instant(modified // 1000)


# -- keys, the token, environments


async def _copy_records(plan: Plan, target: SealedRecords) -> int:
    found = {name: read() for name, read in _records(plan.source).items()}
    await target.check_key(has_key=True)
    for name, data in found.items():
        await target.put(name, data, seen=0)
        kept = await target.get(name)
        if kept is None or kept.data != data:
            raise StoreRefused(f"{name} came out different", "run the copy again")
    return len(found)


def _records(data: Path) -> dict[str, Callable[[], bytes]]:
    """What there is of it, and how it is read."""
    signing, vault = data / DIRECTORY / "signing.json", data / "vault"
    found: dict[str, Callable[[], bytes]] = {}
    if (token := DataDir(data).token_file).exists():
        found[ADMIN_TOKEN] = lambda: token.read_bytes().strip()
    if signing.exists():
        found[SIGNING] = lambda: private.read(signing)
    for path in sorted(vault.iterdir()) if vault.is_dir() else ():
        found[ENVIRONMENT + path.name] = path.read_bytes
    return found
