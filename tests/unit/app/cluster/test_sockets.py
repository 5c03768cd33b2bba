"""A node's ports stay its own between two terms, though nobody listens on some of them."""

from __future__ import annotations

import socket

import pytest

from dragoman.app.cluster.sockets import kept, open_sockets
from dragoman.app.settings import Server, Settings
from dragoman.server.server import PortBusy


def listening(port: int) -> socket.socket:
    """As gRPC and asyncio listen."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    found.listen()
    return found


def test_one_server_after_the_other_listens_on_a_port_that_is_kept() -> None:
    with kept("127.0.0.1", 0, "--grpc-port", PortBusy) as port:
        for _ in range(3):
            with listening(port), socket.create_connection(("127.0.0.1", port), 5):
                pass
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", port), 5)


def test_a_port_on_which_another_process_listens_is_refused_with_what_to_do() -> None:
    with (
        listening(0) as taken,
        pytest.raises(PortBusy, match=r"choose another port with --grpc-port"),
        kept("127.0.0.1", taken.getsockname()[1], "--grpc-port", PortBusy),
    ):
        pass


def test_a_node_has_three_ports_and_gives_them_back() -> None:
    settings = Settings(server=Server(port=0, grpc_port=0))
    with open_sockets(settings) as sockets:
        ports = {sockets.http, sockets.grpc, sockets.link}
        assert len(ports) == 3
    for port in ports:
        listening(port).close()
