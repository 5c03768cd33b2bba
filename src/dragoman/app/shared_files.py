"""Opens the files of a node: beside the rows in PostgreSQL, or in the bucket that the settings name."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.app.settings import FileSettings
from dragoman.core.ids import Instant
from dragoman.core.ports import Vault
from dragoman.stores.files import Room
from dragoman.stores.postgres.files import PostgresFiles
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.s3_files import BucketProblem, S3Objects
from dragoman.stores.sqlite.schema import StoreRefused


def open_shared_files(
    of: FileSettings, pool: Pool, realm: str, *, mint: Callable[[], str], now: Callable[[], Instant], vault: Vault
) -> PostgresFiles:
    """For as long as the process runs: they are the same in every term. Connects with the first call. Raises
    `StoreRefused` where the bucket cannot be used here at all."""
    room = Room(largest=of.largest_bytes, quota=of.quota_bytes, of_agent=of.agent_quota_bytes)
    try:
        place = None if of.url is None else S3Objects(of.url, realm)
    except BucketProblem as problem:
        raise StoreRefused(str(problem)) from problem
    return PostgresFiles(pool, mint, now=now, vault=vault, room=room, place=place)
