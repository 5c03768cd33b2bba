"""Agents' bearer tokens: 32 hexadecimal characters, shown once, kept only as a hash.

In a realm with a name they begin with it (`team_a~0123…`), so that one address for several realms knows which nodes to
ask (`app.realms`). The whole token is what is hashed: with another name before it, it opens nothing.

A token has 128 bits of entropy, so a plain SHA-256 is enough: a slow hash protects only what can be guessed. A lookup
of a hash in a dictionary leaks no useful timing, since an attacker cannot choose the hash of a token; where two hashes
are compared directly (the admin's), it is done in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

LENGTH = 32
DEFAULT = "default"
"""The realm whose tokens have no name before them."""
AFTER_REALM = "~"
LONGEST = 200
"""Longer credentials are refused without hashing them: hashing megabytes is not cheap."""


def new_token(realm: str = DEFAULT) -> str:
    """A fresh token. The hub stores only its hash."""
    fresh = secrets.token_hex(LENGTH // 2)
    return fresh if realm == DEFAULT else f"{realm}{AFTER_REALM}{fresh}"


def realm_of_token(token: str) -> str | None:
    """The realm that a token names; no credential proves it."""
    realm, mark, _ = token.partition(AFTER_REALM)
    return realm if mark else None


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
