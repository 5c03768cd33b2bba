"""Which realm a request is for: by its host name, then by its token, then the realm `default`."""

from __future__ import annotations

import httptools
import pytest

from dragoman.app.realms.route import LONGEST_HEAD, Heads, HeadTooLong, realm_of
from dragoman.security.tokens import new_token, realm_of_token

REALMS = {"default", "team_a", "b"}
TOKEN = b"Bearer 0123456789abcdef0123456789abcdef"

ROUTES: dict[str, tuple[bytes | None, bytes | None, str | None]] = {
    "a host name": (b"team-a.hub.example", None, "team_a"),
    "with a port, in capitals": (b"Team-A.hub.example:8420", None, "team_a"),
    "before the token": (b"b.hub.example", b"Bearer team_a~0123", "b"),
    "a token": (b"hub.example", b"Bearer team_a~0123", "team_a"),
    "a token at an address": (b"127.0.0.1:8420", b"bearer b~0123", "b"),
    "a token that names none": (b"hub.example", TOKEN, "default"),
    "nothing": (None, None, "default"),
    "a name alone is a machine's": (b"b", None, "default"),
    "a realm that is not there": (b"hub.example", b"Bearer c~0123", None),
    "a host name of no realm": (b"c.hub.example", TOKEN, "default"),
    "no bearer": (b"hub.example", b"Basic dGVhbTo=", "default"),
    "not ASCII": (b"\xff.hub.example", b"Bearer \xff~0", None),
}


@pytest.mark.parametrize("case", ROUTES)
def test_a_request_is_for_the_realm_that_it_names(case: str) -> None:
    host, authorization, realm = ROUTES[case]
    assert realm_of(host, authorization, REALMS) == realm


def test_without_a_realm_default_a_request_that_names_none_is_for_none() -> None:
    assert realm_of(b"hub.example", TOKEN, {"team_a"}) is None


def test_a_token_names_the_realm_in_which_it_was_made() -> None:
    assert realm_of_token(new_token("team_a")) == "team_a"
    assert realm_of_token(new_token()) is None
    assert len(new_token()) == 32


def request(host: str, body: bytes = b"") -> bytes:
    return f"POST /x HTTP/1.1\r\nHost: {host}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_head_of_every_request_on_a_connection_is_found_however_its_bytes_come(size: int) -> None:
    sent = request("b.example", b"POST / HTTP/1.1\r\nHost: not.this\r\n\r\n") + request("team-a.example")
    heads = Heads()
    found = [head for at in range(0, len(sent), size) for head in heads.feed(sent[at : at + size])]
    assert [head.realm(REALMS) for head in found] == ["b", "team_a"]


def test_the_frames_of_a_websocket_are_no_requests() -> None:
    heads = Heads()
    upgrade = b"GET /ws HTTP/1.1\r\nHost: b.x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert [head.realm(REALMS) for head in heads.feed(upgrade)] == ["b"]
    assert list(heads.feed(request("team-a.example"))) == []


def test_a_head_without_an_end_is_not_kept() -> None:
    heads = Heads()
    line = b"x: " + b"y" * 1000 + b"\r\n"
    list(heads.feed(b"GET / HTTP/1.1\r\n" + (LONGEST_HEAD // len(line)) * line))
    with pytest.raises(HeadTooLong):
        heads.feed(line)


def test_what_is_no_http_is_seen() -> None:
    with pytest.raises(httptools.HttpParserError):
        list(Heads().feed(b"\x16\x03\x01\x02\x00\x01\x00"))
