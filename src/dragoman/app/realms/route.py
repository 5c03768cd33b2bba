"""Which realm a request is for. Pure.

    the first label of its `Host` is the name of a realm (`-` for `_`)    that realm
    its bearer token begins with the name of a realm                      that realm
    it has a token that names none, or another `Host`                     the realm `default`, if there is one

The name comes first, because a caller that gives a host name means it; the node then refuses a token of
another realm. Nothing here is trusted: a request that names the wrong realm meets nodes that do not know its token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import httptools

from dragoman.security.tokens import DEFAULT, bearer, realm_of_token

LONGEST_HEAD = 64 * 1024


class HeadTooLong(Exception):
    """A client sent more header bytes than any node takes."""


def realm_by_host(host: bytes | None, realms: Collection[str]) -> str | None:
    label, dot, _ = (host or b"").partition(b".")
    realm = label.decode("latin-1").lower().replace("-", "_")
    return realm if dot and realm in realms else None


def realm_of(host: bytes | None, authorization: bytes | None, realms: Collection[str]) -> str | None:
    """None where there is no realm for this request."""
    by_host = realm_by_host(host, realms)
    if by_host is not None:
        return by_host
    named = realm_of_token(bearer(authorization) or "") or DEFAULT
    return named if named in realms else None


class Head:
    """What a request says about its realm."""

    def __init__(self) -> None:
        self.path = b""
        self.host: bytes | None = None
        self.authorization: bytes | None = None

    def realm(self, realms: Collection[str]) -> str | None:
        return realm_of(self.host, self.authorization, realms)

    def is_for_the_front(self, realms: Collection[str]) -> bool:
        """Whether a load balancer asks how this process is, and not how a realm is."""
        asks = self.path in (b"/livez", b"/readyz") and self.authorization is None
        return asks and realm_by_host(self.host, realms) is None


class Heads:
    """Finds the heads of the requests on one connection, in bytes that it does not change."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._found: list[Head] = []
        self._head = Head()
        self._in_head = True
        self._unfinished = 0
        self._has_switched = False

    def feed(self, data: bytes) -> Iterator[Head]:
        """The heads that end in these bytes. Raises `httptools.HttpParserError`, or `HeadTooLong`."""
        if self._has_switched:
            return iter(())
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._has_switched = True  # a WebSocket's frames from here on
        if self._in_head:
            self._unfinished += len(data)
            if self._unfinished > LONGEST_HEAD:
                raise HeadTooLong
        found, self._found = self._found, []
        return iter(found)

    # -- called by the parser

    def on_message_begin(self) -> None:
        self._head, self._in_head, self._unfinished = Head(), True, 0

    def on_url(self, url: bytes) -> None:
        self._head.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"host":
                self._head.host = value
            case b"authorization":
                self._head.authorization = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._found.append(self._head)
