"""How a2acp agents keep what they say from everybody on the way: X25519, HKDF-SHA256, AES-256-GCM (a2acp-D12)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

CIPHER = "A256GCM"
BESIDE = ("contract_id", "correlation_id", "traceparent")
"""What stands in clear beside a ciphertext."""


def text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def bytes_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def canonical(*words: Any) -> bytes:
    return json.dumps(["a2acp", *words], separators=(",", ":"), ensure_ascii=False).encode()


class KeyPair:
    """One agent's half of an exchange."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = text_of(self._private.public_key().public_bytes_raw())

    def key(self, grant: Mapping[str, Any], contract: Mapping[str, Any], me: str) -> bytes:
        """The key of a collaboration, from what the broker granted `me`."""
        theirs, kid, relation = grant["public_key"], grant["kid"], contract["collaboration_id"]
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(bytes_of(theirs)))
        salt = hashlib.sha256(canonical(*sorted((self.public, theirs)))).digest()
        parties = (contract["source_agent"]["agent_id"], contract["target_agent"]["agent_id"])
        info = canonical(CIPHER, relation, kid, *parties)
        secret = HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(shared)
        bound = canonical("wrap", relation, kid, me)
        return AESGCM(secret).decrypt(bytes_of(grant["nonce"]), bytes_of(grant["wrapped"]), bound)


class Seal:
    """A key in use: it shuts and opens payloads, each bound to its message."""

    def __init__(self, kid: str, key: bytes) -> None:
        self._kid = kid
        self._cipher = AESGCM(key)

    def shut(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with its payload sealed."""
        payload = message["payload"]
        beside = {name: payload[name] for name in BESIDE if name in payload}
        inside = {name: value for name, value in payload.items() if name not in beside}
        nonce = os.urandom(12)
        sealed = self._cipher.encrypt(nonce, json.dumps(inside).encode(), self._bound(message))
        words = {"alg": CIPHER, "kid": self._kid, "nonce": text_of(nonce), "ciphertext": text_of(sealed)}
        return {**message, "payload": {**words, **beside}, "security": {**message["security"], "encryption": "aes256"}}

    def open(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message as it was meant."""
        payload = message["payload"]
        beside = {name: payload[name] for name in BESIDE if name in payload}
        plain = self._cipher.decrypt(bytes_of(payload["nonce"]), bytes_of(payload["ciphertext"]), self._bound(message))
        return {**message, "payload": {**json.loads(plain), **beside}}

    def _bound(self, message: Mapping[str, Any]) -> bytes:
        payload = message["payload"]
        ends = (message["source_agent"]["agent_id"], message["target_agent"]["agent_id"])
        about = (message["message_type"], message.get("intent"), payload.get("contract_id"))
        return canonical(CIPHER, self._kid, message["message_id"], *ends, *about, payload.get("correlation_id"))
