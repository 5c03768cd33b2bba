"""Which certificates a client of a hub trusts, and which one it shows.

    trusted                                    when
    -----------------------------------------  --------------------------------------------------------------------
    the one certificate that the hub of this   the address is the one in its `hub.json`
    directory shows, by whatever name
    the CAs in SSL_CERT_FILE                   otherwise, if it is set
    the system's CAs                           otherwise

    shown                                      when
    -----------------------------------------  --------------------------------------------------------------------
    DRAGOMAN_CLIENT_CERTIFICATE, with          they are set, for hubs that ask for one
    DRAGOMAN_CLIENT_KEY

Commands import this before every request, so it takes nothing but the standard library.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CA = "SSL_CERT_FILE"
CERTIFICATE = "DRAGOMAN_CLIENT_CERTIFICATE"
KEY = "DRAGOMAN_CLIENT_KEY"
_END = "-----END CERTIFICATE-----"


class TrustProblem(Exception):
    """The files that the environment names cannot be used. The sentence ends with what to do."""


class Shown(NamedTuple):
    """A client's certificate and its key."""

    certificate: Path
    key: Path


def shown(environ: Mapping[str, str] = os.environ) -> Shown | None:
    """The client's certificate, if one is set. Raises `TrustProblem` for one without the other."""
    certificate, key = environ.get(CERTIFICATE), environ.get(KEY)
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise TrustProblem(f"{CERTIFICATE} and {KEY} belong together. Set both, or neither.")
    return Shown(Path(certificate), Path(key))


def context(pinned: str = "", environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """A context for TLS 1.3. `pinned` is the certificate of the hub in this directory, as PEM. Raises
    `TrustProblem`."""
    file = environ.get(CA)
    try:
        if pinned:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            made.check_hostname = False  # the certificate itself is pinned, whatever its name
            # Its CA is not trusted with it: the CA may have signed other servers' certificates.
            made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            made.load_verify_locations(cadata=leaf(pinned))
        else:
            made = ssl.create_default_context(cafile=file or None)
    except (OSError, ValueError) as error:
        raise TrustProblem(f"{CA}={file} is of no use ({_why(error)}). Name a file of CAs in PEM.") from None
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    mine = shown(environ)
    if mine is not None:
        try:
            made.load_cert_chain(mine.certificate, mine.key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise TrustProblem(f"{CERTIFICATE} and {KEY} are of no use ({_why(error)}). Correct them.") from None
    return made


def leaf(chain: str) -> str:
    """The first certificate of a chain: the server's own."""
    return chain[: chain.find(_END) + len(_END)] + "\n"


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or "no PEM")
