"""The certificates of the hub's ports: checked at the start, and read again while the hub serves.

    port               shows
    -----------------  ----------------------------------------------------------
    HTTP, WebSocket    `tls.certificate`
    gRPC               `coven.tls_certificate`, else the same

New connections use a renewed certificate; open ones go on. If the new files are invalid, the last valid ones stay in
use, and the log says so once. It also warns, once a day, before a certificate expires.

gRPC reads its suites for TLS 1.2 from the environment when it is imported. So this module sets the variable before the
import, such that gRPC accepts TLS 1.2 from no client. (And another one, so that it does not print a line for every
failed handshake.)
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import time

import structlog

from dragoman.app.settings import Settings
from dragoman.security.tls import GRPC_SUITES, Files, Renewal, TlsProblem, grpc_cipher_suites, how_to_renew

log = structlog.get_logger("dragoman")

DAY = 86_400
SOON = 14 * DAY
"""How long before a certificate expires the log warns."""
AGAIN = 1.0
"""Seconds until invalid files are read again."""


class Certificates:
    """The certificate of each port, or None without TLS. Raises `TlsProblem` when the files are invalid."""

    def __init__(self, settings: Settings) -> None:
        of, coven = settings.tls, settings.coven
        self._every = of.renew_seconds
        self._warned: dict[Path, object] = {}
        self._doubted: dict[Path, str] = {}
        """The problems with the files at the last check."""
        self.http = _open(settings, of.certificate, of.key)
        self.coven = self.http
        if coven.enabled and coven.tls_certificate:
            self.coven = _open(settings, coven.tls_certificate, coven.tls_key)
        if self.coven is not None and "grpc" not in sys.modules:
            os.environ[GRPC_SUITES] = grpc_cipher_suites(self.coven.pair)
            os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

    @property
    def shown(self) -> str:
        """The HTTP port's certificate, for commands beside the hub, which trust it."""
        return "" if self.http is None else self.http.pair.chain.decode("ascii", "replace")

    async def watch(self, renewed: Callable[[], None]) -> None:
        """Check the files until cancelled. `renewed` is called when new connections use another certificate."""
        watched = {id(one): one for one in (self.http, self.coven) if one is not None}
        if not watched:
            return
        while True:
            # In a thread: the disk of the files may be slow, or gone.
            changed = [await asyncio.to_thread(self.look, one, int(time())) for one in watched.values()]
            if any(changed):
                renewed()
            await asyncio.sleep(min(self._every, AGAIN) if self._doubted else self._every)

    def look(self, renewal: Renewal, now: int) -> bool:
        """Read the files; gives whether they are new, valid, and in use from now on. A problem is logged only if it is
        still there at the next check: there are two files, and the second may not be written yet."""
        file = renewal.files.certificate
        try:
            changed = renewal.renew(now)
        except TlsProblem as problem:
            if self._doubted.get(file) == str(problem):
                self._warn_once(file, str(problem), "a renewed certificate is not used", why=str(problem))
            self._doubted[file] = str(problem)
            return False
        self._doubted.pop(file, None)
        if changed:
            self._warned.pop(file, None)
            log.info("certificate renewed", file=str(file), days=(renewal.not_after - now) // DAY)
        elif renewal.not_after - now < SOON:
            left = (renewal.not_after - now) // DAY
            self._warn_once(file, left, "a certificate expires soon", days=left, fix=f"renew it: {how_to_renew(file)}")
        return changed

    def _warn_once(self, file: Path, what: object, message: str, **facts: object) -> None:
        if self._warned.get(file) != what:
            self._warned[file] = what
            log.warning(message, file=str(file), **facts)


def _open(settings: Settings, certificate: str | None, key: str | None) -> Renewal | None:
    if not certificate or not key:
        return None
    ca = settings.tls.client_ca
    files = Files(
        certificate=Path(certificate),
        key=Path(key),
        client_ca=Path(ca) if ca else None,
        clients=settings.tls.clients,
    )
    return Renewal(files, int(time()))
