"""The certificates that the hub's ports show: checked at the start, looked at again while it serves.

    port               shows
    -----------------  ----------------------------------------------------------
    HTTP, WebSocket    `tls.certificate`
    gRPC               `coven.tls_certificate`, else the same

New connections see a renewed one; open ones go on. Files that will not do are left alone, the
last good ones stay in use, and the log says so once. It also warns, once a day, before one expires.

gRPC reads from its environment, at the moment it is imported, what it speaks TLS 1.2 with; so the variable is set
here, before the import, such that it speaks 1.2 with no client. (And not to print a line, past our log, for every
handshake that fails.)
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
"""Before a certificate expires, so that there is time to renew it."""
AGAIN = 1.0
"""Seconds until files that will not do are looked at again."""


class Certificates:
    """What each port shows, or None where it speaks plainly. Raises `TlsProblem` when the files will not do."""

    def __init__(self, settings: Settings) -> None:
        of, coven = settings.tls, settings.coven
        self._every = of.renew_seconds
        self._warned: dict[Path, object] = {}
        self._doubted: dict[Path, str] = {}
        """What was wrong with the files at the last look."""
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
        """Until it is cancelled. `renewed` is called when new connections see another certificate."""
        watched = {id(one): one for one in (self.http, self.coven) if one is not None}
        if not watched:
            return
        while True:
            # In a thread: files may lie on a disk that is slow, or gone.
            changed = [await asyncio.to_thread(self.look, one, int(time())) for one in watched.values()]
            if any(changed):
                renewed()
            await asyncio.sleep(min(self._every, AGAIN) if self._doubted else self._every)

    def look(self, renewal: Renewal, now: int) -> bool:
        """Whether its files are new, good, and in use from now on. A problem with them is logged if it is still there
        at the next look: they are two, and the other one may be about to be written."""
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
