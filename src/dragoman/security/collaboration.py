"""The key of an A2ACP collaboration: how it comes to the agents, and what it seals (a2acp-D12).

`protocols.a2acp.sealing` has the inputs: what a key and a payload are bound to. This module has X25519, HKDF-SHA256 and
AES-256-GCM. The hub and the SDK both use it.

    mode         the key                                            a `KeyGrant` holds
    -----------  -------------------------------------------------  -------------------------------------------------
    broker       32 random bytes, made by the broker                an ephemeral key of the broker's, the key wrapped
    end-to-end   follows from the two agents' own X25519 keys       the other agent's public key

A pair lives as long as the collaboration: the same grant may be delivered twice, and a key that the other side rotates
is wrapped for the public key that stood in the handshake.

Nonces are 96 random bits, never a counter: a counter that goes back (a restored backup, two processes with one key)
repeats a nonce, and two messages under one nonce give the key stream away. A nonce that comes a second time under one
key is refused, whatever message brings it: its sender is broken, or an attacker replays it. `NonceWatch` remembers as
many as can come while a message counts as fresh (a2acp-D15).
"""

from __future__ import annotations

import enum
import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dragoman.protocols.a2acp.sealing import (
    ALGORITHM,
    KEY_BYTES,
    NONCE_BYTES,
    TAG_BYTES,
    KeyGrant,
    key_info,
    key_salt,
    wrap_data,
)
from dragoman.security.keys import decode64, encode64
from dragoman.wire.errors import with_next

REMEMBERED_NONCES = 2**16
"""The broker's 10,000 messages a minute, for the 6 minutes in which one is fresh."""


class Flaw(enum.StrEnum):
    FORM = "form"
    KEY = "key"
    TAMPERED = "tampered"
    NONCE = "nonce"


SENTENCES = {
    Flaw.FORM: (
        "this is no sealed payload",
        "send alg A256GCM, kid, nonce and ciphertext as base64url without padding",
    ),
    Flaw.KEY: ("no key of that kid is in use for this collaboration", "shake hands, or rotate_key"),
    Flaw.TAMPERED: (
        "the payload does not open",
        "seal it for this message, with its own ids, under the key its kid names",
    ),
    Flaw.NONCE: ("this nonce was used before under this key", "draw a new one for every message"),
}


class Unopened(msgspec.Struct, frozen=True):
    """Why a payload cannot be opened. It holds nothing of the payload."""

    flaw: Flaw
    field: str | None = None

    @property
    def message(self) -> str:
        return with_next(*SENTENCES[self.flaw])

    def __str__(self) -> str:
        return f"{self.message} ({self.field})" if self.field else self.message


class ExchangeError(Exception):
    """The exchange gives no key. The sentence ends with what to do, and shows no key."""


class CollaborationKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its name. Shown without the key, compared with it."""

    kid: str
    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a collaboration key has {KEY_BYTES} bytes")

    def __repr__(self) -> str:
        return f"CollaborationKey({self.kid})"

    @staticmethod
    def new() -> CollaborationKey:
        """A fresh key, which the broker gives to both agents."""
        return CollaborationKey(kid=encode64(os.urandom(12)), secret=os.urandom(KEY_BYTES))


class NonceWatch:
    """The nonces of recent messages, in memory; one watch for all collaborations.

    Nonces of accepted messages are rows as well, which survive a restart. Those of refused messages are only here.
    """

    def __init__(self, room: int = REMEMBERED_NONCES) -> None:
        self._room = room
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def first(self, kid: str, nonce: bytes, ciphertext: bytes) -> bool:
        """Whether the nonce is new, or comes with the same `ciphertext` again: a sender may repeat a message that was
        refused for now. The message's id shows whether it was accepted before."""
        mark, content = nonce + kid.encode(), hash(ciphertext)
        if mark in self._seen:
            return self._seen[mark] == content
        self._seen[mark] = content
        if len(self._seen) > self._room:
            self._seen.popitem(last=False)
        return True


class Relation(msgspec.Struct, frozen=True, kw_only=True):
    """What every key of a collaboration is bound to."""

    collaboration: str
    source: str
    target: str


class Pair:
    """One side's X25519 key for one collaboration."""

    def __init__(self, private: X25519PrivateKey | None = None) -> None:
        self._private = private or X25519PrivateKey.generate()
        self.public_key = encode64(self._private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"Pair({self.public_key})"

    def derived(self, theirs: str, kid: str, relation: Relation) -> bytes:
        """The secret of the two sides of an exchange."""
        salt = key_salt(self.public_key, theirs)
        info = key_info(relation.collaboration, kid, relation.source, relation.target)
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(self._exchange(theirs))

    def take(self, grant: KeyGrant, relation: Relation, me: str) -> CollaborationKey:
        """The key that a grant for the agent `me` gives; raises `ExchangeError`."""
        secret = self.derived(grant.public_key, grant.kid, relation)
        if grant.wrapped is None or grant.nonce is None:
            return CollaborationKey(kid=grant.kid, secret=secret)
        bound = wrap_data(relation.collaboration, grant.kid, me)
        try:
            opened = AESGCM(secret).decrypt(decode64(grant.nonce), decode64(grant.wrapped), bound)
            return CollaborationKey(kid=grant.kid, secret=opened)
        except (InvalidTag, ValueError):
            raise ExchangeError("the key that was handed over does not open. Shake hands again.") from None

    def _exchange(self, theirs: str) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(decode64(theirs)))
        except ValueError:  # not a point, or one of small order: every private key would give the same secret
            raise ExchangeError("public_key gives no secret. Send 32 fresh bytes of X25519 as base64url.") from None


def check_public(key: str) -> None:
    """Raises `ExchangeError` for a public key that gives no secret."""
    Pair()._exchange(key)


def granted(key: CollaborationKey, to: str, relation: Relation, receiver: str) -> KeyGrant:
    """The broker's key, wrapped for the owner of the public key `to`."""
    pair, nonce = Pair(), os.urandom(NONCE_BYTES)
    bound = wrap_data(relation.collaboration, key.kid, receiver)
    wrapped = AESGCM(pair.derived(to, key.kid, relation)).encrypt(nonce, key.secret, bound)
    return KeyGrant(kid=key.kid, public_key=pair.public_key, nonce=encode64(nonce), wrapped=encode64(wrapped))


class Seal:
    """A key in use. `bound` is the associated data (`protocols.a2acp.sealing.associated_data`)."""

    def __init__(self, key: CollaborationKey) -> None:
        self.kid = key.kid
        self._cipher = AESGCM(key.secret)

    def __repr__(self) -> str:
        return f"Seal({self.kid})"

    def shut(self, plain: bytes, bound: bytes) -> dict[str, str]:
        nonce = os.urandom(NONCE_BYTES)
        ciphertext = self._cipher.encrypt(nonce, plain, bound)
        return {"alg": ALGORITHM, "kid": self.kid, "nonce": encode64(nonce), "ciphertext": encode64(ciphertext)}

    def open(self, sealed: Mapping[str, Any], bound: bytes, watch: NonceWatch | None = None) -> bytes | Unopened:
        """The plaintext, or why it cannot be opened."""
        if sealed.get("kid") != self.kid:
            return Unopened(Flaw.KEY, "kid")
        try:
            nonce, ciphertext = decode64(sealed["nonce"]), decode64(sealed["ciphertext"])
        except (KeyError, TypeError, ValueError):
            return Unopened(Flaw.FORM)
        if sealed.get("alg") != ALGORITHM or len(nonce) != NONCE_BYTES or len(ciphertext) < TAG_BYTES:
            return Unopened(Flaw.FORM)
        try:
            plain = self._cipher.decrypt(nonce, ciphertext, bound)
        except InvalidTag:
            return Unopened(Flaw.TAMPERED)
        # Only now: a sender without the key must not be able to use up its owner's nonces.
        if watch is not None and not watch.first(self.kid, nonce, ciphertext):
            return Unopened(Flaw.NONCE, "nonce")
        return plain
