"""TLS to the hub, the same for every protocol: trusted certificates and the client's own (`security.trust`)."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from dragoman.sdk.address import Address, read_note
from dragoman.sdk.errors import Misconfigured
from dragoman.security import trust


class Files(NamedTuple):
    """The certificates for gRPC, which has its own TLS: PEM, or None for gRPC's defaults."""

    roots: bytes | None
    key: bytes | None
    chain: bytes | None


def context(address: Address, environ: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """The TLS context, or None without TLS."""
    if not address.is_secure:
        return None
    try:
        shown = address.certificate
        if not shown and (note := read_note(environ)) is not None and note.http == address.base:
            shown = note.certificate
        return trust.context(shown, environ)
    except trust.TrustProblem as problem:
        raise Misconfigured(str(problem)) from None


def verify(address: Address) -> ssl.SSLContext | bool:
    """Which certificates an HTTP client trusts. On this machine, without TLS and without a proxy, none: loading the
    CAs of the system takes longer than the whole first request."""
    return context(address) or (trusts_none() if address.is_loopback else True)


@functools.cache
def trusts_none() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def files(address: Address, environ: Mapping[str, str] = os.environ) -> Files:
    note = read_note(environ)
    try:
        mine = trust.shown(environ)
        if address.certificate:
            roots: bytes | None = address.certificate.encode()
        elif note is not None and note.certificate and note.grpc == urlsplit(address.base).netloc:
            roots = note.certificate.encode()
        else:
            roots = _read(trust.CA, Path(environ[trust.CA])) if environ.get(trust.CA) else None
        if mine is None:
            return Files(roots, None, None)
        return Files(roots, _read(trust.KEY, mine.key), _read(trust.CERTIFICATE, mine.certificate))
    except trust.TrustProblem as problem:
        raise Misconfigured(str(problem)) from None


def _read(variable: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"{variable}={path} cannot be read: {error.strerror}") from None
