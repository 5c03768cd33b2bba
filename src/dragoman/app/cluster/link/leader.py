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
from dragoman.app.cluster.link.messages import VERSION, Hello, Published, Subscribed, digest_of, encode, shape
from dragoman.app.cluster.link.mirror import Delta, LeaderMirror
from dragoman.app.cluster.link.node_link import NodeLink
from dragoman.app.cluster.link.stream import CAP, TTL_SECONDS
from dragoman.app.settings import is_loopback
from dragoman.core.work import Work
from dragoman.server.forge.bus import Bus

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
        self._readers: dict[NodeLink | None, dict[str, int]] = {}
        """Of each node, and of the leader (None): how many read the topics of each pattern."""

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

    def delivered(self, work: Work) -> None:
        touched = work.touched_tasks
        for node in list(self._nodes.values()):
            node.delivered([about for about in touched if about in node.watched] if node.watched else ())

    # -- nodes

    def _accept(self) -> asyncio.Protocol:
        link = NodeLink(
            self._intake,
            judge=self._judge,
            welcomed=self._welcome,
            gone=self._gone,
            subscribed=self._note_readers,
            published=self._carry,
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
                f"node {hello.node!r} speaks version {hello.version} of the stream between nodes, this leader version"
                f" {VERSION}; upgrade the older one"
            )
        if hello.shape != shape():
            return (
                f"node {hello.node!r} is of another version of Dragoman than this leader: its messages between nodes"
                " have other fields; upgrade the older one"
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
            self._intake.bus.meet(self)
        earlier = self._nodes.get(link.node)
        self._nodes[link.node] = link
        if earlier is not None:
            earlier.stream.end("the node has a newer stream")
        patterns = {pattern for readers in self._readers.values() for pattern in readers}
        link.tell_of(*(Subscribed(pattern, self._readers_but(link, pattern)) for pattern in patterns))
        return list(self._mirror.snapshot())

    def _gone(self, link: NodeLink) -> None:
        self._links.discard(link)
        if self._nodes.get(link.node) is link:
            del self._nodes[link.node]
        for pattern in list(self._readers.get(link, ())):
            self._note_readers(link, pattern, 0)
        self._readers.pop(link, None)
        if not self._nodes and self._mirror is not None:
            self._intake.listen(None)
            self._intake.bus.meet(None)
            self._readers.clear()
            self._mirror = None

    # -- publish and subscribe: `server.forge.bus.Neighbours` of the leader's own bus

    def subscribed(self, pattern: str, readers: int) -> None:
        self._note_readers(None, pattern, readers)

    def published(self, topic: str, publisher: str, data: Any) -> None:
        self._carry(None, Published(topic, publisher, data))

    def _note_readers(self, of: NodeLink | None, pattern: str, readers: int) -> None:
        own = self._readers.setdefault(of, {})
        if readers:
            own[pattern] = readers
        else:
            own.pop(pattern, None)
        for link in self._nodes.values():
            if link is not of:
                link.tell_of(Subscribed(pattern, self._readers_but(link, pattern)))
        if of is not None:
            note_elsewhere(self._intake.bus, Subscribed(pattern, self._readers_but(None, pattern)))

    def _readers_but(self, one: NodeLink | None, pattern: str) -> int:
        return sum(readers.get(pattern, 0) for link, readers in self._readers.items() if link is not one)

    def _carry(self, of: NodeLink | None, what: Published) -> None:
        for link in self._nodes.values():
            if link is not of:
                link.tell_of(what)
        if of is not None:
            self._intake.bus.deliver(what.topic, what.publisher, what.data)


def note_elsewhere(bus: Bus, what: Subscribed) -> None:
    """So many read the topics of this pattern at other nodes."""
    if what.readers:
        bus.elsewhere[what.pattern] = what.readers
    else:
        bus.elsewhere.pop(what.pattern, None)


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
