"""Agents' bearer tokens: 32 hexadecimal characters, shown once, kept only as a hash.

A token has 128 bits of entropy, so a plain SHA-256 is enough: a slow hash protects only what can be guessed. A lookup
of a hash in a dictionary leaks no useful timing, since an attacker cannot choose the hash of a token; where two hashes
are compared directly (the admin's), it is done in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

LENGTH = 32
LONGEST = 200
"""Longer credentials are refused without hashing them: hashing megabytes is not cheap."""


def new_token() -> str:
    """A fresh token. The hub stores only its hash."""
    return secrets.token_hex(LENGTH // 2)


def token_hash(token: str) -> str:
    """The hash that the hub stores and looks up."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two hashes are equal, in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def bearer(header: bytes | None) -> str | None:
    """The credential in an Authorization header, or None when it has no (sane) bearer token."""
    if header is None or len(header) > LONGEST or header[:7].lower() != b"bearer ":
        return None
    return header[7:].strip().decode("latin-1") or None
