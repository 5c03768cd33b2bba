"""The ports of a node, which stay its own from one term to the next.

HTTP listens all the time: who comes between two terms waits in the backlog. gRPC and the port for nodes open sockets of
their own in each term, so a bound socket that does not listen keeps their numbers: the system gives such a port to
nobody who asks for any, and lets one that names it listen.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec

from dragoman.app.settings import Settings
from dragoman.server.server import GrpcPortBusy, PortBusy, listen


class Sockets(msgspec.Struct, frozen=True):
    listener: socket.socket
    http: int
    grpc: int
    link: int


@contextmanager
def open_sockets(settings: Settings) -> Iterator[Sockets]:
    """Raises `PortBusy`."""
    server, cluster = settings.server, settings.cluster
    with (
        closing(listen(server.host, server.port)) as listener,
        kept(server.host, server.grpc_port, "--grpc-port", GrpcPortBusy) as grpc,
        kept(cluster.host, cluster.port, "cluster.port", PortBusy) as link,
    ):
        yield Sockets(listener, listener.getsockname()[1], grpc, link)


@contextmanager
def kept(host: str, port: int, setting: str, busy: type[PortBusy]) -> Iterator[int]:
    """The number of a port that is ours, but that nobody listens on yet."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((host, port))
        except OSError as error:
            raise busy(
                error.errno,
                f"cannot listen on {host}:{port} ({error.strerror}); stop what listens there, or choose another port"
                f" with {setting} (0 picks a free one)",
            ) from None
        number: int = holder.getsockname()[1]
        yield number
