"""What nodes show each other: mutual TLS 1.3, from one directory at each node.

    ca.pem                     signs the certificates of all nodes, and of nobody else
    server.pem, server.key     shown to nodes that connect; names this node
    NODE.pem, NODE.key         shown to the leader; where there is none, that of the server, if it may be a client's

They are read again for each term, so a renewed certificate is taken with the next one.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from dragoman.security.tls import TlsProblem


class Contexts(NamedTuple):
    listening: ssl.SSLContext | None
    connecting: ssl.SSLContext | None


def contexts(directory: str | None, node: str) -> Contexts:
    """Raises `TlsProblem`. Without a directory nodes do without TLS, which they take on loopback only."""
    if directory is None:
        return Contexts(None, None)
    place = Path(directory)
    mine = node if (place / f"{node}.pem").exists() else "server"
    listening = _context(ssl.PROTOCOL_TLS_SERVER, place, "server")
    listening.verify_mode = ssl.CERT_REQUIRED
    return Contexts(listening, _context(ssl.PROTOCOL_TLS_CLIENT, place, mine))


def _context(purpose: ssl._SSLMethod, place: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(place / f"{name}.pem", place / f"{name}.key", password=_no_password)
        context.load_verify_locations(place / "ca.pem")
    except (OSError, ssl.SSLError) as error:
        raise TlsProblem(
            f"cluster.tls: {place} has no usable ca.pem, {name}.pem and {name}.key ({error})",
            f"Make them: dragoman cert --dir {place} --host NODE, and dragoman cert --dir {place} --client NODE.",
        ) from None
    return context


def _no_password() -> str:
    return ""
