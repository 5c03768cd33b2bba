"""Which hosts the doorkeeper lets out to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dragoman.sandbox.egress_proxy import address_of, allowed, parse


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Example.ORG", ("example.org", 443)),
        ("example.org.:8443", ("example.org", 8443)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("::1", ("::1", 443)),
    ],
)
def test_a_host_is_a_name_and_a_port(said: str, meant: tuple[str, int]) -> None:
    assert parse(said) == meant


@pytest.mark.parametrize(
    ("name", "port", "lets"),
    [
        ("example.org", 443, True),
        ("example.org", 80, False),
        ("evilexample.org", 443, False),
        ("example.org.evil.net", 443, False),
        ("api.service.net", 443, True),
        ("service.net", 443, False),
        ("evilservice.net", 443, False),
        ("10.0.0.1", 8080, True),
        ("10.0.0.2", 8080, False),
    ],
)
def test_only_allowed_names_and_ports(name: str, port: int, lets: bool) -> None:
    assert allowed(name, port, ["example.org", "*.service.net", "10.0.0.1:8080"]) is lets


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "0.0.0.0", "::1", "fe80::1", "::ffff:127.0.0.1"],
)
def test_a_name_that_means_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    def found(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(PermissionError):
        address_of("rebound.example.org", 443)


def test_an_address_that_was_itself_allowed_is_connected_to() -> None:
    assert address_of("127.0.0.1", 80) == ("127.0.0.1", 80)
