"""Agents' bearer tokens: 32 hexadecimal characters, shown once, kept only as a hash.

A token has 128 bits of entropy, so a plain SHA-256 is enough: there is nothing to guess that a slow hash would
protect. Looking a hash up in a dictionary gives no timing away either, since nobody can choose the hash of a
token; where two hashes are compared one to one (the admin's), it is done in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

LENGTH = 32
LONGEST = 200
"""Credentials longer than this are not looked at: hashing is cheap, but not for megabytes."""


def new_token() -> str:
    """A fresh token. This is the only moment at which it exists in clear."""
    return secrets.token_hex(LENGTH // 2)


def token_hash(token: str) -> str:
    """What is stored, and what is looked up."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two hashes are equal, in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def bearer(header: bytes | None) -> str | None:
    """The credential in an Authorization header, or None when it has no (sane) bearer token."""
    if header is None or len(header) > LONGEST or header[:7].lower() != b"bearer ":
        return None
    return header[7:].strip().decode("latin-1") or None
