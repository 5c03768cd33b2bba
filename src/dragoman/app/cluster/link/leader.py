"""The leader's port for the other nodes of its realm.

It knows who they are by their certificates, and tells each of them what every commit means for it. While no node is
connected it costs the intake nothing: `LeaderPort` listens to commits from the first node's handshake to the end of the
last one's stream.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dragoman.api.live import Live
from dragoman.api.series import Series
from dragoman.app.cluster.link.messages import VERSION, Hello, digest_of, encode
from dragoman.app.cluster.link.mirror import Delta, LeaderMirror
from dragoman.app.cluster.link.node_link import NodeLink
from dragoman.app.cluster.link.stream import CAP, TTL_SECONDS
from dragoman.app.settings import is_loopback
from dragoman.core.work import Work

if TYPE_CHECKING:
    from dragoman.app.intake import Intake

log = structlog.get_logger("dragoman.cluster")

HANDSHAKE_SECONDS = 5.0


class LeaderPort:
    """`tls` must ask for a certificate (mutual TLS 1.3); it may be None on loopback only. `live` and `series` are the
    leader's own, for the event streams and plots of the other nodes."""

    def __init__(
        self,
        intake: Intake,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        realm: str = "default",
        epoch: Callable[[], int] = lambda: 0,
        live: Live | None = None,
        series: Series | None = None,
        ttl: float = TTL_SECONDS,
        cap: int = CAP,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        check_tls(tls, host)
        self._intake = intake
        self._host = host
        self._port = port
        self._tls = tls
        self._realm = realm
        self._epoch = epoch
        self._live = live
        self._series = series
        self._ttl = ttl
        self._cap = cap
        self._handshake_seconds = handshake_seconds
        self._rules = digest_of(intake.rules)
        self._server: asyncio.Server | None = None
        self._links: set[NodeLink] = set()
        self._nodes: dict[str, NodeLink] = {}
        self._mirror: LeaderMirror | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._host, self._port

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that follow now."""
        return sorted(self._nodes)

    async def start(self) -> None:
        """Listen. Raises `OSError` where the port is taken."""
        secured: dict[str, Any] = {}
        if self._tls is not None:
            secured = {"ssl": self._tls, "ssl_handshake_timeout": self._handshake_seconds, "ssl_shutdown_timeout": 1.0}
        self._server = await asyncio.get_running_loop().create_server(self._accept, self._host, self._port, **secured)
        self._port = self._server.sockets[0].getsockname()[1]
        log.info("listening for nodes", host=self._host, port=self._port, tls=self._tls is not None)

    async def stop(self) -> None:
        """Listen no more, and end the streams of all nodes."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            link.stream.end("the leader stops")

    # -- commits

    def settled(self, work: Work) -> None:
        assert self._mirror is not None
        delta = self._mirror.changed_by(work)
        if delta is not None:
            encoded = msgspec.Raw(encode(delta))
            for node in self._nodes.values():
                node.settled(encoded)

    def published(self, work: Work) -> None:
        touched = work.touched_tasks
        for node in list(self._nodes.values()):
            node.published([about for about in touched if about in node.watched] if node.watched else ())

    # -- nodes

    def _accept(self) -> asyncio.Protocol:
        link = NodeLink(
            self._intake,
            judge=self._judge,
            welcomed=self._welcome,
            gone=self._gone,
            live=self._live,
            series=self._series,
            ttl=self._ttl,
            cap=self._cap,
            handshake_seconds=self._handshake_seconds,
        )
        self._links.add(link)
        return link.stream

    def _judge(self, hello: Hello, certificate: Mapping[str, Any] | None) -> str | None:
        """Why a node is not taken."""
        if hello.version != VERSION:
            return (
                f"node {hello.node!r} speaks version {hello.version} of the stream between nodes, this one {VERSION};"
                " upgrade the older one"
            )
        if self._tls is not None and hello.node not in names_in(certificate):
            return f"the certificate shown is not that of node {hello.node!r}; its names must have the node's name"
        if not hello.node:
            return "a node has no name; set one in the settings"
        if hello.realm != self._realm:
            return f"node {hello.node!r} is of the realm {hello.realm!r}, this leader of {self._realm!r}"
        if hello.epoch != (epoch := self._epoch()):
            return f"node {hello.node!r} follows epoch {hello.epoch}, this leader leads epoch {epoch}"
        if hello.rules != self._rules:
            return f"node {hello.node!r} has other rules (settings that decisions depend on); give all nodes the same"
        return None

    def _welcome(self, link: NodeLink) -> Sequence[Delta]:
        if self._mirror is None:
            self._mirror = LeaderMirror(self._intake.listen(self))
        earlier = self._nodes.get(link.node)
        self._nodes[link.node] = link
        if earlier is not None:
            earlier.stream.end("the node has a newer stream")
        return list(self._mirror.snapshot())

    def _gone(self, link: NodeLink) -> None:
        self._links.discard(link)
        if self._nodes.get(link.node) is link:
            del self._nodes[link.node]
        if not self._nodes and self._mirror is not None:
            self._intake.listen(None)
            self._mirror = None


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The names that a certificate proves."""
    if not certificate:
        return frozenset()
    subject = (value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")
    others = (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    return frozenset((*subject, *others))


def check_tls(tls: ssl.SSLContext | None, host: str) -> None:
    """Raises `ValueError` for a stream that other machines could read or forge."""
    if tls is None:
        if not is_loopback(host):
            raise ValueError(f"the stream between nodes needs TLS on {host}; without it, nodes listen on loopback only")
        return
    if tls.minimum_version < ssl.TLSVersion.TLSv1_3 or tls.verify_mode is not ssl.CERT_REQUIRED:
        raise ValueError("the stream between nodes needs TLS 1.3 and the certificates of both ends")
