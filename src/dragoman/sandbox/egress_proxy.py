"""The egress proxy: the only way out of a sandbox that was allowed some hosts. Run as a script by a bare interpreter,
outside; imports nothing of ours.

The listener is a socket that the launcher made *inside*, in a network without any way out, and handed over. Here
it is answered, in the host's network: `CONNECT name:port` as any HTTP client says it to a proxy, and nothing else.

    a host that is not allowed              403
    a name that means this machine, or      403, unless the address itself is what was allowed: otherwise the owner of
    a private network                       the name could point it at the hub
    plain HTTP through the proxy            405: only CONNECT, so that one connection is one host
    a host that does not answer             502

Enforced: name, port, and the address, which is looked up once and connected to. Not enforced: what is sent through
an allowed connection, such as another name inside TLS to a server that serves both.
"""

import ipaddress
import json
import os
import select
import socket
import sys
import threading

AT_ONCE = 64
FIRST_BYTES = 8192
FIRST_SECONDS = 10.0
IDLE_SECONDS = 300.0
CHUNK = 65536
DEFAULT_PORT = 443


class Refusal(Exception):
    """A status, and its sentence."""


def parse(host: str) -> "tuple[str, int]":
    """`name`, `name:port`, `[v6]:port` → name and port."""
    name, port = host, ""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    elif host.count(":") == 1:
        name, _, port = host.partition(":")
    return name.lower().rstrip("."), int(port) if port else DEFAULT_PORT


def allowed(name: str, port: int, hosts: "list[str]") -> bool:
    for wanted, at in map(parse, hosts):
        if port == at and (name == wanted or (wanted.startswith("*.") and name.endswith(wanted[1:]))):
            return True
    return False


def address_of(name: str, port: int) -> "tuple[str, int]":
    """Looked up once. PermissionError for a name that leads to where no name may lead."""
    literal = _literal(name)
    if literal is not None:
        return str(literal), port
    for *_, where in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        found = ipaddress.ip_address(where[0])
        found = getattr(found, "ipv4_mapped", None) or found
        if not found.is_global or found.is_multicast:
            raise PermissionError(f"{name} is {found}, which is not on the public network")
        return str(found), port
    raise OSError(f"{name} has no address")


def _literal(name: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def answer(client: socket.socket, hosts: "list[str]") -> None:
    with client:
        try:
            client.settimeout(FIRST_SECONDS)
            head, rest = _head(client)
            there = _reach(head.split(b"\r\n", 1)[0].decode("ascii"), hosts)
        except Refusal as refusal:
            _respond(client, *refusal.args)
        except PermissionError:
            _respond(client, 403, "This host is not allowed")
        except (ValueError, IndexError):
            _respond(client, 400, "Not understood")
        except OSError:
            _respond(client, 502, "The host does not answer")
        else:
            with there:
                client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                there.sendall(rest)
                _relay(client, there)


def _reach(request: str, hosts: "list[str]") -> socket.socket:
    method, target, *_ = request.split(" ")
    if method != "CONNECT":
        raise Refusal(405, "Only CONNECT")
    name, port = parse(target)
    if not allowed(name, port, hosts):
        raise Refusal(403, "This host is not allowed")
    return socket.create_connection(address_of(name, port), timeout=FIRST_SECONDS)


def _head(client: socket.socket) -> "tuple[bytes, bytes]":
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(FIRST_BYTES)
        if not more or len(data) > FIRST_BYTES:
            raise ValueError("no request")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _respond(client: socket.socket, code: int, sentence: str) -> None:
    try:
        client.sendall(f"HTTP/1.1 {code} {sentence}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    except OSError:
        pass


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Both ways, until both sides have closed, one breaks, or nothing is sent for long."""
    open_ends = {one: other, other: one}
    one.settimeout(IDLE_SECONDS)
    other.settimeout(IDLE_SECONDS)
    try:
        while open_ends:
            ready, _, _ = select.select(list(open_ends), [], [], IDLE_SECONDS)
            if not ready:
                return
            for end in ready:
                data = end.recv(CHUNK)
                if data:
                    open_ends[end].sendall(data)
                else:
                    open_ends.pop(end).shutdown(socket.SHUT_WR)
    except OSError:
        pass


def serve(listener: socket.socket, hosts: "list[str]") -> None:
    """For ever; we end with the sandbox."""
    places = threading.BoundedSemaphore(AT_ONCE)

    def one(client: socket.socket) -> None:
        try:
            answer(client, hosts)
        finally:
            places.release()

    while True:
        places.acquire()
        client, _ = listener.accept()
        threading.Thread(target=one, args=(client,), daemon=True).start()


def main() -> None:
    hosts = json.loads(sys.argv[2])
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        _, descriptors, _, _ = socket.recv_fds(launcher, 16, 1)
    if not descriptors:  # the sandbox was not built
        return
    with socket.socket(fileno=descriptors[0]) as listener:
        os.set_inheritable(listener.fileno(), False)
        listener.setblocking(True)
        serve(listener, hosts)


if __name__ == "__main__":
    main()
