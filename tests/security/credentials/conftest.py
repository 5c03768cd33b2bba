"""Attacks on tokens, keys and seals need no hub: the pieces are tried alone, with the clock in the test's hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dragoman.protocols.a2acp.types import Claims
from dragoman.security.jwt import Authority, Issued
from dragoman.security.keys import KeyRing, encode64, new_key
from dragoman.security.refusals import Reason, Refusal

NOW = 1_800_000_000
SECRET = bytes(range(40))
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

US, THEM = "sdlc-test-agent", "dataset-provisioning-agent"


@pytest.fixture(scope="module")
def hub() -> None:
    """None is needed here."""


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """Nothing serves here."""


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing([new_key(NOW - 1000)]).with_secret("shared", SECRET)


@pytest.fixture
def authority(ring: KeyRing) -> Authority:
    return Authority(ring)


@pytest.fixture
def issue(authority: Authority) -> Callable[..., Issued]:
    def issued(**changed: Any) -> Issued:
        asked = {"subject": US, "audience": THEM, "domain": "a_domain", "ttl": 3600, "now": NOW} | changed
        issued = authority.issue(**{"capabilities": ["read:datasets"], **asked})
        assert isinstance(issued, Issued)
        return issued

    return issued


CLAIMS = {
    "sub": US, "iss": "a_domain-auth-service", "aud": THEM, "exp": NOW + 3600, "iat": NOW, "nbf": NOW, "jti": "j-1",
    "capabilities": ["read:datasets"], "domain": "a_domain",
}  # fmt: skip


def part(value: Any) -> str:
    return encode64(value if isinstance(value, bytes) else json.dumps(value).encode())


class Forge:
    """Makes tokens with our own key that we would never make: what is wrong in them is not the signature."""

    def __init__(self, ring: KeyRing) -> None:
        self.key = ring.signing

    def token(self, *, header: Any = None, claims: Any = None, **changed: Any) -> str:
        plain = {"alg": "EdDSA", "typ": "JWT", "kid": self.key.kid}
        top = header if isinstance(header, bytes) else {**plain, **(header or {})}
        body = claims if isinstance(claims, bytes) else {**CLAIMS, **(claims or {}), **changed}
        if isinstance(top, dict):
            top = {name: value for name, value in top.items() if value is not ...}
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if value is not ...}
        signed = f"{part(top)}.{part(body)}"
        return f"{signed}.{encode64(self.key.material.sign(signed.encode()))}"  # type: ignore[union-attr]


@pytest.fixture
def forge(ring: KeyRing) -> Forge:
    return Forge(ring)


def reason(outcome: Claims | Refusal, token: str = "") -> Reason:
    """Why it was refused. Whatever the refusal shows, it does not show the token."""
    assert isinstance(outcome, Refusal), outcome
    shown = f"{outcome!r} {outcome}"
    assert not token or all(piece not in shown for piece in token.split(".") if len(piece) > 8)
    return outcome.reason
