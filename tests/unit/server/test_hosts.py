"""Which Host and Origin headers are ours."""

from __future__ import annotations

import pytest

from dragoman.server.asgi import REMEMBERED, Hosts


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        (None, True), (b"localhost", True), (b"LocalHost:1", True), (b"localhost.", True), (b"a.localhost:9", True),
        (b"127.0.0.1", True), (b"10.1.2.3:80", True), (b"[::1]:80", True), (b"::1", True), (b"hub.example:443", True),
        (b"evil.example", False), (b"", False), (b"localhost.evil.example", False), (b"xlocalhost", False),
        (b"127.0.0.1.evil.example", False), (b"hub.example.evil", False), (b"[", False), (b"\xff", False),
    ],
)  # fmt: skip
def test_a_hub_on_loopback_knows_its_names(host: bytes | None, ours: bool) -> None:
    hosts = Hosts(["hub.example"])
    assert [hosts.knows(host), hosts.knows(host)] == [ours, ours]


def test_without_a_list_any_name_is_good() -> None:
    assert Hosts(None).knows(b"evil.example")


def test_headers_that_were_good_are_remembered_but_not_without_end() -> None:
    hosts = Hosts([])
    for number in range(2 * REMEMBERED):
        assert hosts.knows(b"%d.localhost" % number)
    assert len(hosts._good) == REMEMBERED


@pytest.mark.parametrize(
    ("origin", "host", "trusted"),
    [
        (None, b"127.0.0.1:1", True), (b"http://127.0.0.1:1", b"127.0.0.1:1", True),
        (b"https://hub.example", b"127.0.0.1:1", True), (b"http://evil.example", b"127.0.0.1:1", False),
        (b"null", b"127.0.0.1:1", False), (b"", b"127.0.0.1:1", False), (b"http://evil.example", b"evil.example", True),
        (b"http://[::1]:80", b"[::1]", True), (b"file://", b"127.0.0.1", False),
    ],
)  # fmt: skip
def test_a_page_is_trusted_that_came_from_where_it_connects_to(origin: bytes, host: bytes, trusted: bool) -> None:
    assert Hosts(["hub.example"]).trusts(origin, host) is trusted
