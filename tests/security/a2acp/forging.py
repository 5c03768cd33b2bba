"""Tokens of the hub's own key that it would never make, and of other keys."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from dragoman.security.keys import KeyFile, new_key
from tests.conformance.a2acp.plain import b64
from tests.security.a2acp.ground import Json
from tests.support.hubproc import HubProcess


def part(value: Any) -> str:
    return b64(value if isinstance(value, bytes) else json.dumps(value).encode())


class Forge:
    """Tokens of the hub's own key that it would never make: what is wrong in them is not the signature."""

    def __init__(self, hub: HubProcess) -> None:
        ring = KeyFile(hub.data / "keys").open(int(time.time()))
        self.key = ring.signing

    def claims(self, **changed: Any) -> Json:
        at = int(time.time())
        whole = {
            "sub": "ada", "iss": "a_domain-auth-service", "aud": "bob", "exp": at + 600, "iat": at,
            "capabilities": ["read:datasets"], "domain": "a_domain", "jti": uuid.uuid4().hex,
        } | changed  # fmt: skip
        return {name: value for name, value in whole.items() if value is not ...}

    def sign(self, head: Any, body: Any, sign: Callable[[bytes], bytes] | None = None) -> str:
        signed = f"{part(head)}.{part(body)}"
        signature = (sign or self.key.material.sign)(signed.encode())  # type: ignore[union-attr]
        return f"{signed}.{b64(signature)}"

    def token(self, head: Json | None = None, **changed: Any) -> str:
        return self.sign({"alg": "EdDSA", "typ": "JWT", "kid": self.key.kid, **(head or {})}, self.claims(**changed))

    @property
    def public(self) -> bytes:
        return self.key.verifier.public_bytes_raw()  # type: ignore[union-attr, no-any-return]


def stranger(forge: Forge, **head: Any) -> str:
    """By a key that the token brings along or points to."""
    other = new_key(int(time.time()))
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": b64(other.verifier.public_bytes_raw())}  # type: ignore[union-attr]
    said = {"alg": "EdDSA", "typ": "JWT", "kid": other.kid, "jwk": jwk, **head}
    return forge.sign(said, forge.claims(), other.material.sign)  # type: ignore[union-attr]


def confused(forge: Forge, secret: bytes, **head: Any) -> str:
    said = {"alg": "HS256", "typ": "JWT", "kid": forge.key.kid, **head}
    return forge.sign(said, forge.claims(), lambda data: hmac.new(secret, data, hashlib.sha256).digest())


def unsigned(forge: Forge, alg: str) -> str:
    return f"{part({'alg': alg, 'typ': 'JWT', 'kid': forge.key.kid})}.{part(forge.claims())}."
