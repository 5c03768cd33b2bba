"""Callback URLs: which addresses the hub may connect to, and how it does so safely.

A URL that an agent names makes this machine open a connection, so it may lead to public addresses only:
no loopback, private, link-local, metadata, multicast or reserved ones, nor IPv6 forms that wrap one of these. The
name is resolved once; every address it has must be allowed; and the connection is made to that very address, with
the name only in the Host header and the TLS handshake. A name that later resolves elsewhere (DNS rebinding) changes
nothing, and redirects are never followed.

`allowed` are the networks that an operator allows beside those.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from dragoman.wire.errors import with_next

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

PORTS = {"http": 80, "https": 443}
LONGEST = 2000
RESOLVE_SECONDS = 5.0

PRIVATE: tuple[Network, ...] = tuple(
    ipaddress.ip_network(net)
    for net in ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
"""The networks that `allow_private_callbacks` allows: this machine and its neighbours. Link-local addresses, where
clouds serve their metadata, stay forbidden."""

DENIED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(net)
    for net in (
        "0.0.0.0/8",  # "this network": Linux connects to itself at 0.0.0.0
        "100.64.0.0/10",  # shared by carriers (RFC 6598); Alibaba's metadata is at 100.100.100.200
        "168.63.129.16/32",  # Azure's own services in every virtual network, at a public address
        "169.254.0.0/16",  # link-local: the metadata of most clouds
        "192.0.0.0/24",  # for protocols (RFC 6890); Oracle's metadata is at 192.0.0.192
        "192.0.2.0/24",  # for documentation, as the next two
        "198.51.100.0/24",
        "203.0.113.0/24",
        "192.88.99.0/24",  # relays of 6to4, withdrawn (RFC 7526)
        "198.18.0.0/15",  # for measuring networks (RFC 2544)
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast address
        "64:ff9b:1::/48",  # translation to IPv4 inside of a network (RFC 8215): leads wherever its operator says
        "100::/64",  # discarded (RFC 6666)
        "2001::/23",  # for protocols; Teredo and others are in it
        "2001:db8::/32",  # for documentation
        "3fff::/20",  # for documentation, since 2024 (RFC 9637)
        "5f00::/16",  # segment routing (RFC 9602)
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local: withdrawn (RFC 3879), and some networks still use it
        "ff00::/8",  # multicast
        "fd00:ec2::/32",  # Amazon's metadata and name servers, in a range that an operator may open
        "fd20:ce::/32",  # Google's
    )
)
"""Never called, also where an operator opens private networks. Beside `is_global`, since what that says of an address
depends on the version of Python: 3.11 knows nothing of several of these."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


class UrlRefused(ValueError):
    """A URL the hub will not call: `next` says what it would call; the text says why as well, and ends with `next`."""

    def __init__(self, why: str, next: str) -> None:
        super().__init__(f"{with_next(why, next)}." if why else f"{next}.")
        self.next = next


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """A URL with the one address it is called at."""

    scheme: str
    host: str
    port: int
    address: str
    target: str

    @property
    def url(self) -> str:
        """The URL to connect to: the address in place of the name."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.scheme}://{address}:{self.port}{self.target}"

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"


async def pin(url: str, *, allowed: Sequence[Network] = (), resolve: Resolve | None = None) -> Pinned:
    """Resolve `url` and hold it to its address, or raise `UrlRefused`."""
    scheme, host, port, target = _parts(url)
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await (resolve or _resolve)(host, port)
    except (OSError, UnicodeError, TimeoutError):
        raise UrlRefused(f"{host} cannot be resolved", "name a host that this hub can reach") from None
    if not found:
        raise UrlRefused(f"{host} has no address", "name a host that this hub can reach")
    for text in found:
        _check(text, host, allowed)
    return Pinned(scheme=scheme, host=host, port=port, address=found[0], target=target)


def _parts(url: str) -> tuple[str, str, int, str]:
    if len(url) > LONGEST or not url.isascii() or any(char <= " " or char in "\\\x7f" for char in url):
        raise UrlRefused("the URL is too long or has characters that do not belong in one", "percent-encode them")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UrlRefused("this is not a URL", "use http://host/path or https://host/path") from None
    if parts.scheme not in PORTS or not host:
        raise UrlRefused("", "only http:// and https:// URLs with a host are called")
    if parts.username is not None or parts.password is not None:
        raise UrlRefused("a URL with a user name or password is not called", "leave them out")
    if "%" in host or port == 0:
        raise UrlRefused("a URL with a zone or port 0 is not called", "name a plain host and port")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, host, port or PORTS[parts.scheme], target


def _check(text: str, host: str, allowed: Sequence[Network]) -> None:
    address = ipaddress.ip_address(text)
    for inner in (address, *_wrapped(address)):
        denied = _among(inner, DENIED)
        if denied or (not _among(inner, allowed) and (not inner.is_global or inner.is_multicast or inner.is_reserved)):
            raise UrlRefused(
                f"{host} leads to {address}, which is not a public address",
                "use a public one, or let the operator set chiffon.allow_private_callbacks",
            )


def _among(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == net.version and address in net for net in networks)


def _wrapped(address: Address) -> Sequence[Address]:
    """IPv4 addresses inside an IPv6 one: mapped, 6to4, Teredo, NAT64, and the old compatible form."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    inner: list[Address] = []
    if address.ipv4_mapped is not None:
        inner.append(address.ipv4_mapped)
    if address.sixtofour is not None:
        inner.append(address.sixtofour)
    if address.teredo is not None:
        inner.extend(address.teredo)
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return inner


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    # IPv4 first: one address is pinned, and a host that has both answers there more surely.
    return sorted((str(entry[4][0]) for entry in found), key=lambda address: ":" in address)
