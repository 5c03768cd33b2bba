"""The address of the hub, and the token.

    what    comes from the first of these that has it
    ------  ------------------------------------------------------------------------------------------
    url     the argument, DRAGOMAN_URL, the note that `dragoman dev` left in its data directory
    token   the argument, the url's userinfo, DRAGOMAN_TOKEN, and for the management API that note

    scheme                         spoken                   by
    -----------------------------  -----------------------  -----------------
    http  https                    the management API       clients
    chiffon+http  chiffon+https    chiffon over HTTP        agents, clients
    chiffon+ws  chiffon+wss        chiffon over WebSocket   agents, clients
    chiffon+amqp  chiffon+amqps    chiffon over a broker    agents, clients
    agentmsg+http  agentmsg+https  agentmsg over HTTP       agents, clients
    agentmsg+ws  agentmsg+wss      agentmsg over WebSocket  agents, clients
    a2acp+http  a2acp+https        a2acp over HTTP          agents, clients
    a2acp+ws  a2acp+wss            a2acp, received on a     agents, clients
                                   WebSocket
    coven  covens                  coven over gRPC          agents, clients
    forge+ws  forge+wss            forge over WebSocket     agents, clients
    stdio:                         forge over the standard  agents that the
                                   streams                  hub starts

An agent given a plain http address speaks chiffon over WebSocket there. Coven on loopback needs no token (coven-D11).
The userinfo of a broker's address is for the broker, and the token comes from elsewhere. Neither shows in a repr.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from dragoman.sdk.errors import Misconfigured
from dragoman.security.datahome import data_home

API = "api"
AMQP = "amqp"
#: scheme → (protocol, transport, scheme of the hub's HTTP side)
SCHEMES: dict[str, tuple[str, str, str]] = {
    "http": (API, "http", "http"),
    "https": (API, "http", "https"),
    "chiffon+http": ("chiffon", "http", "http"),
    "chiffon+https": ("chiffon", "http", "https"),
    "chiffon+ws": ("chiffon", "ws", "http"),
    "chiffon+wss": ("chiffon", "ws", "https"),
    "chiffon+amqp": ("chiffon", AMQP, "amqp"),
    "chiffon+amqps": ("chiffon", AMQP, "amqps"),
    "agentmsg+http": ("agentmsg", "http", "http"),
    "agentmsg+https": ("agentmsg", "http", "https"),
    "agentmsg+ws": ("agentmsg", "ws", "http"),
    "agentmsg+wss": ("agentmsg", "ws", "https"),
    "a2acp+http": ("a2acp", "http", "http"),
    "a2acp+https": ("a2acp", "http", "https"),
    "a2acp+ws": ("a2acp", "ws", "http"),
    "a2acp+wss": ("a2acp", "ws", "https"),
    "coven": ("coven", "grpc", "http"),
    "covens": ("coven", "grpc", "https"),
    "forge+ws": ("forge", "ws", "http"),
    "forge+wss": ("forge", "ws", "https"),
}
STDIO = "stdio"
"""Has no host and no token: the program that started the agent is at the other end of its pipes."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


Record = Callable[[bool, bytes], None]
"""Whether the message leaves, and its bytes."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A hub, the protocol and transport to use, and the token."""

    protocol: str
    transport: str
    base: str
    token: str | None = None
    login: str = ""
    """The userinfo of a broker's address."""
    instance: str | None = None
    """Which process of an agent this is: another process does not have the work that the hub gave to this one."""
    certificate: str = ""
    """The hub's certificate as PEM, where it is known without a note."""
    record: Record | None = None
    """Called with each message that is sent or received, to show the bytes to people."""

    def __repr__(self) -> str:
        return f"Address({self.protocol}+{self.transport} {self.base})"

    __str__ = __repr__

    @property
    def shown(self) -> str:
        """The address as it is written, without its token."""
        scheme, _, place = self.base.partition("://")
        ours = (self.protocol, self.transport, scheme)
        return f"{next((name for name, known in SCHEMES.items() if known == ours), scheme)}://{place}"

    @property
    def is_secure(self) -> bool:
        return self.base.startswith(("https:", "amqps:"))

    @property
    def is_loopback(self) -> bool:
        """Whether the hub is on this machine: then proxies of the environment are not used."""
        return urlsplit(self.base).hostname in LOOPBACK

    @property
    def headers(self) -> dict[str, str]:
        headers = {"authorization": self.token and f"Bearer {self.token}", "dragoman-instance": self.instance}
        return {name: value for name, value in headers.items() if value}

    @property
    def needs_token(self) -> bool:
        """Whether agents and clients need a token there."""
        return self.transport != STDIO and not (self.protocol == "coven" and self.is_loopback)

    @property
    def broker(self) -> str:
        """The address of the broker, with what it needs to let us in."""
        scheme, _, place = self.base.partition("://")
        return f"{scheme}://{self.login}@{place}" if self.login else self.base

    def websocket(self, path: str) -> str:
        """The address of a WebSocket endpoint."""
        return "ws" + self.base.removeprefix("http") + path


class Note(NamedTuple):
    """The note that `dev` writes for commands and programs on the same machine; `grpc` where that port has TLS."""

    http: str
    admin_token: str
    certificate: str = ""
    grpc: str = ""


def resolve(url: str | None, token: str | None, environ: Mapping[str, str] = os.environ) -> Address:
    """The address of a client's hub."""
    asked = url or environ.get("DRAGOMAN_URL")
    if not asked:
        note = read_note(environ)
        if note is None:
            raise Misconfigured("no hub: give its address, set DRAGOMAN_URL, or start one here with `dragoman dev`")
        return parse(note.http, token or environ.get("DRAGOMAN_TOKEN") or note.admin_token)
    address = parse(asked, token)
    return address if address.token else msgspec.structs.replace(address, token=environ.get("DRAGOMAN_TOKEN"))


def resolve_agent(
    agent_id: str, url: str | None, token: str | None, environ: Mapping[str, str] = os.environ
) -> Address:
    """The address of an agent's hub; an agent needs a token of its own."""
    asked = url or environ.get("DRAGOMAN_URL")
    if not asked:
        note = read_note(environ)
        if note is None:
            raise Misconfigured(
                "no hub: pass an address such as chiffon+ws://localhost:8420 to run(), or set DRAGOMAN_URL"
            )
        asked = note.http
    address = parse(asked, token)
    if address.protocol == API:
        address = msgspec.structs.replace(address, protocol="chiffon", transport="ws")
    if not address.token and address.transport != STDIO:
        address = msgspec.structs.replace(address, token=environ.get("DRAGOMAN_TOKEN"))
    if not address.token and address.needs_token:
        if environ.get("DRAGOMAN_URL") == f"{STDIO}:":
            raise Misconfigured(
                f"agent {agent_id!r} runs under the hub, and has no token for {address.shown}: leave the address out,"
                " agent.run(), and it speaks over its standard streams"
            )
        raise Misconfigured(
            f"agent {agent_id!r} has no token: get one with `dragoman agent add {agent_id} --protocol"
            f" {address.protocol}` and set"
            f" DRAGOMAN_TOKEN (if it was added before: `dragoman agent token {agent_id}`)"
        )
    return address


def parse(url: str, token: str | None = None) -> Address:
    """Take an address apart; the userinfo goes no further than the token."""
    parts = urlsplit(url)
    if parts.scheme == STDIO and not (parts.netloc or parts.path.strip("/")):
        return Address(protocol="forge", transport=STDIO, base="stdio:")
    known = SCHEMES.get(parts.scheme)
    if known is None or not parts.hostname:
        spoken = ", ".join((*SCHEMES, STDIO))
        place = url.rpartition("@")[2] if "://" not in url else f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise Misconfigured(
            f"{place!r} is not an address we can speak with: write it as chiffon+ws://localhost:8420. Known schemes:"
            f" {spoken}"
        )
    protocol, transport, scheme = known
    try:
        port = parts.port
    except ValueError:
        raise Misconfigured(f"the port of {parts.scheme}://{parts.hostname} is not a number up to 65535") from None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    base = urlunsplit((scheme, netloc, parts.path.rstrip("/"), "", ""))
    if transport == AMQP:
        login = parts.netloc.rpartition("@")[0]
        return Address(protocol=protocol, transport=transport, base=base, token=token, login=login)
    userinfo = parts.password or parts.username
    return Address(
        protocol=protocol, transport=transport, base=base, token=token or (unquote(userinfo) if userinfo else None)
    )


def read_note(environ: Mapping[str, str] = os.environ) -> Note | None:
    """The note of the hub that serves this directory. One that another user could have written is not trusted."""
    path = data_home(environ) / "hub.json"
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
                raise Misconfigured(
                    f"{path} could have been written by another user, so it is not trusted. Set DRAGOMAN_URL and"
                    " DRAGOMAN_TOKEN."
                )
            note = json.loads(file.read(65536))
        return Note(
            str(note["http"]),
            str(note["admin_token"]),
            str(note.get("certificate") or ""),
            str(note["grpc"] if note.get("grpc_tls") else ""),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
