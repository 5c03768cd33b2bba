"""Tokens: made once, kept as a hash."""

from __future__ import annotations

import re

import pytest

from dragoman.security.tokens import bearer, new_token, same, token_hash


@pytest.mark.requirement("CH-AUT-1")
def test_a_token_is_32_random_hexadecimal_characters() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", token) for token in tokens)


def test_a_hash_does_not_contain_its_token() -> None:
    token = new_token()
    assert token not in token_hash(token)
    assert same(token_hash(token), token_hash(token))
    assert not same(token_hash(token), token_hash(new_token()))


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer  abc ", "abc"),
        (b"Bearer ", None),
        (b"Bearer", None),
        (b"Basic abc", None),
        (b"abc", None),
        (b"", None),
        (None, None),
        (b"Bearer " + b"x" * 1000, None),
        (b"Bearer \xff\xfe", "\xff\xfe"),
    ],
)
def test_the_bearer_token_of_a_header(header: bytes | None, token: str | None) -> None:
    assert bearer(header) == token
    if token is not None:
        token_hash(token)
