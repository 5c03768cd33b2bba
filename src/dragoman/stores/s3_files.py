"""Sealed bytes of files in a bucket of S3-compatible storage; what is known of them stays in PostgreSQL.

    s3://bucket/prefix?endpoint=https://…&region=…        `[files] url`

One object for each file, `prefix/realm/id`. Its bytes are encrypted before they leave the node, so the bucket's owner
reads nothing; the bucket's own encryption may come on top. Credentials are found as by AWS's own tools, never in the
settings: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, a role of the machine or the container, and so on. An object
is durable when the storage has acknowledged it; every S3-compatible storage answers reads with it from then on.

obstore is an extra (`dragoman[s3]`) and imported with the first use of a bucket.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from dragoman.core.ports import StoreFailed

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME = "s3"
OPTIONS = frozenset({"endpoint", "region"})
CONNECT_SECONDS = 5
SECONDS = 60
"""How long one request may take, and how long requests that fail are repeated."""
RETRIES = 4


class BucketProblem(Exception):
    """The address of the bucket cannot be used. The sentence ends with what to do."""


def check(url: str) -> None:
    """Raises `BucketProblem` unless the address names a bucket, with options that there are."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME or not parts.hostname:
        raise BucketProblem(f"{url} names no bucket: write s3://BUCKET/PREFIX, or leave it out to use PostgreSQL")
    if parts.username or parts.password or parts.port:
        raise BucketProblem("credentials of a bucket do not belong into its address: set AWS_ACCESS_KEY_ID and so on")
    if unknown := {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - OPTIONS:
        raise BucketProblem(f"{url}: there is no option {min(unknown)!r}; there are {' and '.join(sorted(OPTIONS))}")


def open_bucket(url: str) -> S3Store:
    check(url)
    try:
        from obstore.store import S3Store
    except ImportError:
        raise BucketProblem("files in S3 need obstore: pip install 'dragoman[s3]'") from None
    parts, options = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
    config = {} if "region" not in options else {"region": options["region"]}
    if "endpoint" in options:
        config["endpoint"] = options["endpoint"]
    return S3Store(
        parts.hostname,
        prefix=parts.path.strip("/") or None,
        config=config,  # type: ignore[arg-type]  # a plain dict of its keys
        client_options={
            "allow_http": options.get("endpoint", "").startswith("http://"),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=SECONDS),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=SECONDS)},
    )


class S3Objects:
    """`stores.postgres.files.Place` of a realm in a bucket."""

    def __init__(self, url: str, realm: str) -> None:
        self._bucket = open_bucket(url)
        self._realm = realm

    async def put(self, id: str, data: bytes) -> None:
        import obstore

        try:
            await obstore.put_async(self._bucket, self._path(id), data)
        except _errors() as error:
            raise self._failed(error) from error

    async def get(self, id: str) -> bytes | None:
        import obstore

        try:
            found = await obstore.get_async(self._bucket, self._path(id))
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None
        except _errors() as error:
            raise self._failed(error) from error

    async def remove(self, id: str) -> None:
        import obstore

        try:
            await obstore.delete_async(self._bucket, self._path(id))
        except FileNotFoundError:
            return
        except _errors() as error:
            raise self._failed(error) from error

    async def close(self) -> None:
        """obstore closes its connections by itself."""

    def _path(self, id: str) -> str:
        return f"{self._realm}/{id}"

    @staticmethod
    def _failed(error: BaseException) -> StoreFailed:
        """The first sentence: behind it obstore prints its own structures."""
        return StoreFailed(f"the bucket of files cannot be used: {str(error).partition(chr(10))[0][:300]}")


def _errors() -> tuple[type[BaseException], ...]:
    from obstore.exceptions import BaseError

    return (BaseError, OSError)
