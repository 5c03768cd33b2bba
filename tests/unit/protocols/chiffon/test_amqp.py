"""The token of a message over AMQP is taken out, wherever it was, and nothing else changes."""

from __future__ import annotations

import json

import pytest

from dragoman.amqp import place_of
from dragoman.protocols.chiffon.amqp import blotted, take_token
from dragoman.wire.guard import Limits

TOKEN = "a7f3d8c2e1b9f4a6c8e2d1b3f4a6c8e2"
LIMITS = Limits(bytes=10_000, depth=64)


def test_the_header_counts_before_the_field_and_the_field_is_removed_all_the_same() -> None:
    body = json.dumps({"a": 1, "x_custom_fields": {"token": "other", "b": 2}}).encode()
    taken = take_token(f"Bearer {TOKEN}", body, LIMITS)
    assert taken.credential == f"Bearer {TOKEN}"
    assert json.loads(taken.body) == {"a": 1, "x_custom_fields": {"b": 2}}
    assert TOKEN not in repr(taken)


@pytest.mark.parametrize("name", ["token", "\\u0074oken"])
def test_a_field_is_found_however_its_name_is_written(name: str) -> None:
    taken = take_token(None, b'{"x_custom_fields": {"%b": "%b"}}' % (name.encode(), TOKEN.encode()), LIMITS)
    assert (taken.credential, taken.body) == (f"Bearer {TOKEN}", b'{"x_custom_fields":{}}')


def test_a_body_without_a_token_stays_as_it_came_to_the_byte() -> None:
    body = b'{ "x" : 1.0, "parameters": {"other": "t"} }'
    assert take_token(b"Bearer x", body, LIMITS).body is body
    assert take_token(None, body, LIMITS).credential is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"x_custom_fields": {"token": "%b"',
        b'{"x_custom_fields": {"token": "%b"}, "x_custom_fields": {}}',
        b'{"token" : "short-%b',
        b"[" * 99 + b'"%b"' + b"]" * 99,
        b'{"x": "' + b"y" * 20_000 + b'", "x_custom_fields": {"token": "%b"}}',
        b"%b",
    ],
    ids=["cut off", "twice", "another place", "nested", "too large", "nothing else"],
)
def test_what_is_no_message_is_kept_without_anything_like_a_token(body: bytes) -> None:
    body = body.replace(b"%b", TOKEN.encode())
    taken = take_token(None, body, LIMITS)
    assert taken.credential is None
    assert TOKEN.encode() not in blotted(taken.body, None, LIMITS)


def test_a_credential_that_is_repeated_in_the_body_is_removed_there_too() -> None:
    body = json.dumps({"payload": {"text": f"my token is {TOKEN}"}}).encode()
    assert TOKEN.encode() not in blotted(body, f"Bearer {TOKEN}", LIMITS)


def test_the_address_of_a_broker_is_taken_apart_and_shown_without_its_password() -> None:
    place = place_of("amqps://hub:s3cr%40t@rabbit.example:5000/agents")
    assert (place.user, place.password, place.vhost, place.secure) == ("hub", "s3cr@t", "agents", True)
    assert place.shown == "amqps://rabbit.example:5000/agents"
    assert "s3cr" not in repr(place)
    assert (place_of("amqp://h").port, place_of("amqp://h").vhost, place_of("amqp://h/%2F").vhost) == (5672, "/", "/")


@pytest.mark.parametrize("url", ["http://h", "amqp://", "amqp://h:99999", "amqp://u:secret@h/v?x=1"])
def test_an_address_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"AMQP|amqp") as refused:
        place_of(url)
    assert "secret" not in str(refused.value)
