"""A network of its own for each node of a cluster, so that packets between two of them can get lost, in one direction.

    with network("ab") as net:              a bridge here, and a network namespace for each name
        net.address("a"), net.here, net.extra
        net.cut("a", net.address("b"))      what a sends to b is lost from now on; b's packets still come to a
        net.mend("a", net.address("b"))

What is cut is lost in silence: no error, no reset, on connections that are open and on new ones. A fixed entry in the
sender's table of neighbours sends it to a hardware address that nobody has. Needs root and `ip netns`; where one of
them is missing, the test is skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NOBODY = "02:00:00:00:0f:ff"


class Network:
    """`here` is the test's own address, `extra` another one of this side, for a server whose packets are cut apart from
    the test's."""

    def __init__(self, names: str) -> None:
        self._names = names
        self._tag = f"dg{os.getpid()}"
        self._net = f"198.18.{os.getpid() % 250}"
        self.here = f"{self._net}.254"
        self.extra = f"{self._net}.253"

    def address(self, name: str) -> str:
        return f"{self._net}.{1 + self._names.index(name)}"

    def enter(self, name: str) -> tuple[str, ...]:
        """What goes before a command that runs there."""
        return ("ip", "netns", "exec", self._namespace(name))

    def cut(self, name: str, to: str) -> None:
        """What this one sends to that address is lost."""
        _ip("-n", self._namespace(name), "neigh", "replace", to, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def mend(self, name: str, to: str) -> None:
        _ip("-n", self._namespace(name), "neigh", "del", to, "dev", "eth0")

    def open(self) -> None:
        _ip("link", "add", self._tag, "type", "bridge")
        for address in (self.here, self.extra):
            _ip("addr", "add", f"{address}/24", "dev", self._tag)
        _ip("link", "set", self._tag, "up")
        for name in self._names:
            space, outside = self._namespace(name), f"{self._tag}{name}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outside, "master", self._tag, "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", space, "link", "set", link, "up")

    def close(self) -> None:
        for name in self._names:
            subprocess.run(("ip", "link", "del", f"{self._tag}{name}"), capture_output=True, timeout=60)
            subprocess.run(("ip", "netns", "del", self._namespace(name)), capture_output=True, timeout=60)
        subprocess.run(("ip", "link", "del", self._tag), capture_output=True, timeout=60)

    def _namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"


@contextmanager
def network(names: str) -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    made = Network(names)
    try:
        try:
            made.open()
        except (OSError, subprocess.CalledProcessError) as error:
            why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            pytest.skip(f"this machine makes no network namespaces (ip netns): {why}")
        yield made
    finally:
        made.close()


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True, timeout=60)
