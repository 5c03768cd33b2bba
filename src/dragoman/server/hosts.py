"""Which names a hub answers to, so that no web page reaches it by a name of its own (DNS rebinding).

A browser that was sent to `evil.example` may be told later that this name is 127.0.0.1, and sends what the page says to
a hub on loopback: with `Host: evil.example`. So a hub that only this machine can reach answers to `localhost`, to names
below it, to addresses, and to the names its operator allows; one that others can reach answers to any name, unless the
operator allows some.

A WebSocket is opened by a page of another site without asking anybody. A browser says which site (`Origin`), and that
must be the host it connects to, or an allowed one. Other clients say none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

LOCAL = "localhost"
REMEMBERED = 256
"""Headers that were found good are recognised by their bytes."""


class Hosts:
    """`allowed` are names beside those that are always good; None is any name."""

    def __init__(self, allowed: Iterable[str] | None = None) -> None:
        self._allowed = None if allowed is None else frozenset(_name(name) for name in allowed)
        self._good: set[bytes] = set()

    def knows(self, host: bytes | None) -> bool:
        """Whether a request with this Host header is for us. One without is of no browser."""
        if self._allowed is None or host is None or host in self._good:
            return True
        if not self._is_ours(_name(host.decode("latin-1"))):
            return False
        if len(self._good) < REMEMBERED:
            self._good.add(host)
        return True

    def trusts(self, origin: bytes | None, host: bytes | None) -> bool:
        """Whether a page of this origin may open a WebSocket here."""
        if origin is None:
            return True
        site = _name(urlsplit(origin.decode("latin-1")).netloc)
        if not site:
            return False
        if host is not None and site == _name(host.decode("latin-1")):
            return True
        return self._allowed is not None and site in self._allowed

    def _is_ours(self, name: str) -> bool:
        if name == LOCAL or name.endswith(f".{LOCAL}") or (self._allowed is not None and name in self._allowed):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # nobody resolves an address


def _name(host: str) -> str:
    """A host without its port, as names are compared."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].rstrip(".") if host.count(":") == 1 else host.rstrip(".")
